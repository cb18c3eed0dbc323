//! The reference trainer of ampdoctor: small models that really learn, in every precision, and the faults it can plant.
//!
//! The path of a run: [`options`] say what was typed and what it means; [`data`] and [`model`] are what is trained, in a [`precision`], with
//! an [`optimizer`] that a [`stepper`] puts on the model or on FP32 copies, and an [`average`] of its weights; [`fault`] is what is planted into it; [`train`] is the loop, and
//! [`scaling`] its way from a loss to a step; [`evaluation`], [`fingerprint`] and [`summary`] are what is left at the end.

pub mod average;
pub mod data;
pub mod evaluation;
pub mod fault;
pub mod fingerprint;
pub mod model;
pub mod optimizer;
pub mod options;
pub mod precision;
pub mod progress;
pub mod random;
pub mod scaling;
pub mod schedule;
pub mod stepper;
pub mod summary;
pub mod train;
