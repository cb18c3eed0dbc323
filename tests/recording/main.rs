//! The recording from end to end: what is written is what is read, whatever happens in between.

mod damage;
mod file_limit;
mod follow;
mod killed;
mod long;
mod open;
mod python;
mod round_trip;
mod sample;
mod thinning;
mod write;
