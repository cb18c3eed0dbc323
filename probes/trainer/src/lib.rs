//! The reference trainer of ampdoctor: small models that really learn, in every precision, and the faults it can plant.
//!
//! The path of a run: [`options`] say what was typed and what it means, [`data`] and [`model`] are what is trained,
//! [`fault`] what is planted into it, [`train`] the loop, [`fingerprint`] and [`summary`] what is left at the end.

pub mod amp;
pub mod data;
pub mod fault;
pub mod fingerprint;
pub mod model;
pub mod optimizer;
pub mod options;
pub mod progress;
pub mod random;
pub mod summary;
pub mod train;
