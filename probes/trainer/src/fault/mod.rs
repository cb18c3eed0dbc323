//! Faults that the trainer can plant, each as a person would meet it: by its effect on the numbers, never by its name.
//!
//! A new fault is one file here and one line in [`FAULTS`].

mod nan;
mod overflow;
mod plant;
mod spec;
mod underflow;

use tch::Tensor;

pub use plant::Plant;
pub use spec::{FaultSpec, UnknownLayer};

use crate::options::Options;

/// A fault: what it needs, and what it does from its step on. Every effect is "none" unless a fault says otherwise.
pub trait Fault: Sync {
    /// The name on the command line.
    fn name(&self) -> &'static str;

    /// One line for `--list-faults`.
    fn about(&self) -> &'static str;

    /// Whether it sits in one layer; when none is named, the model's middle one is taken.
    fn needs_layer(&self) -> bool {
        false
    }

    /// Sets the options that it needs otherwise, and says which, as flags.
    fn prepare(&self, _options: &mut Options) -> Vec<String> {
        Vec::new()
    }

    /// What the planted layer gives instead of `output`; `active` from the fault's step on.
    ///
    /// A fault that computes with the output does so before its step too, without effect: real faults lie in operators that were there before.
    fn output(&self, output: Tensor, _active: bool) -> Tensor {
        output
    }

    /// The loss scale that is held from the fault's step on, when no layer was named.
    fn scale(&self) -> Option<f64> {
        None
    }
}

/// All faults, in the order in which they are listed.
pub static FAULTS: &[&dyn Fault] = &[&underflow::Underflow, &overflow::Overflow, &nan::NanSource];

/// The fault with this name.
pub fn by_name(name: &str) -> Option<&'static dyn Fault> {
    FAULTS.iter().copied().find(|fault| fault.name() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_single_words_and_each_is_found() {
        for fault in FAULTS {
            assert!(fault.name().chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{}", fault.name());
            assert_eq!(by_name(fault.name()).map(Fault::about), Some(fault.about()));
            assert!(!fault.about().contains('\n'));
        }
        assert!(by_name("none-such").is_none());
    }
}
