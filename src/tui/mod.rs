//! The dashboard: `ampdoctor watch`.
//!
//! [`watch`] follows a run that is going on, replays one that has ended, or starts a command and follows what it records.
//!
//! Inside: `state` is what is known of a run, `view` how it looks, `ui` what the user looks at, `keys` the table of the keys. `app`
//! is the loop that joins them; it is generic over the terminal's backend and over the `world` (time, keys, records, the command), so
//! that tests drive the program itself. `live` is the world as it is. `plain` tells the same run in lines.

mod app;
mod child;
mod feed;
mod keys;
mod lines;
mod live;
mod once;
mod options;
mod output;
mod plain;
mod state;
mod terminal;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod ui;
mod view;
mod watch;
mod world;

pub use feed::is_gone as process_is_gone;
pub use options::{WatchOptions, WatchOutcome, WatchTarget};
pub use watch::{shows_unicode, watch};
