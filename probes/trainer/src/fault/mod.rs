//! Faults that the trainer can plant, each as a person would meet it: by its effect on the numbers, never by its name.
//!
//! A new fault is one file here and one line in [`FAULTS`].

mod averages;
mod backward_overflow;
mod bad_batches;
mod dead_updates;
mod fading;
mod growing_gradients;
mod half_norm;
mod half_positions;
mod half_softmax;
mod half_sum;
mod hand_step;
mod harmless;
mod huge_weights;
mod inflated;
mod log_zero;
mod loss_spike;
mod lost_decay;
mod lr_high;
mod lr_zero;
mod masked_row;
mod masters;
mod nan;
mod near_overflow;
mod needless_scaler;
mod no_scaler;
mod overflow;
mod overflow_once;
mod plant;
mod recipe;
mod rounded_evaluation;
mod saturated_log;
mod scale_high;
mod scale_low;
mod scale_raised;
mod scaler_lost;
mod scheduler_ahead;
mod short_interval;
mod small_activations;
mod spec;
mod two_optimizers;
mod underflow;
mod vanishing_eps;
mod weighted_loss;
mod wrong_labels;

use tch::{Kind, Tensor};

pub use hand_step::{HandStep, HandStepper};
pub use masters::{BrokenMasters, BrokenStepper};
pub use plant::Plant;
pub use recipe::BrokenRecipe;
pub use spec::FaultSpec;
pub use two_optimizers::TwoSteppers;

use crate::average::Averaging;
use crate::options::Options;
use crate::precision::Precision;

/// A fault: what it needs, and what it does from its step on. Every effect is "none" unless a fault says otherwise.
pub trait Fault: Sync {
    /// The name on the command line.
    fn name(&self) -> &'static str;

    /// One line for `--list-faults`; says what `STRENGTH` is, where it has one.
    fn about(&self) -> &'static str;

    /// Whether it sits in one layer; when none is named, the model's middle one is taken.
    fn needs_layer(&self) -> bool {
        false
    }

    /// Whether it is a setting of the run, which holds from the first step on; others wait until the model has learned something.
    fn is_setting(&self) -> bool {
        false
    }

    /// Whether FP16 alone makes a fault of it. It stays in the model in any precision: with another the run is what it would be if the remedy
    /// were that precision.
    fn is_felt_in_fp16_alone(&self) -> bool {
        false
    }

    /// For how many steps it disturbs the run.
    fn lasts(&self) -> u64 {
        u64::MAX
    }

    /// The number that can be set by `NAME=STRENGTH`, as it is when it is not set; above 0.
    fn default_strength(&self) -> Option<f64> {
        None
    }

    /// Sets the options that it needs otherwise, and says which, as flags.
    fn prepare(&self, _options: &mut Options) -> Vec<String> {
        Vec::new()
    }

    /// What the planted layer gives instead of `output`; `active` from the fault's step on.
    ///
    /// A fault that computes with the output does so before its step too, without effect: real faults lie in operators that were there before.
    /// It runs in the dtype of its layer; `by_hand` is what a cast by hand there casts to: FP16, or FP32 in a layer that is kept in FP32.
    fn output(&self, output: Tensor, _active: bool, _by_hand: Kind) -> Tensor {
        output
    }

    /// What becomes of the loss of a batch; `draw` is even between 0 and 1.
    fn loss(&self, loss: Tensor, _draw: f64, _strength: f64) -> Tensor {
        loss
    }

    /// The loss scale that is held from the fault's step on, when no layer was named.
    fn scale(&self, _strength: f64) -> Option<f64> {
        None
    }

    /// Whether the loss is no longer scaled.
    fn drops_scaler(&self) -> bool {
        false
    }

    /// The growth interval of the loss scale.
    fn growth_interval(&self, _strength: f64) -> Option<u32> {
        None
    }

    /// What the learning rate is multiplied by.
    fn lr_factor(&self, _strength: f64) -> f64 {
        1.0
    }

    /// What the learning rate is multiplied by so many steps after the fault's first.
    fn lr_factor_after(&self, _strength: f64, _steps: u64) -> f64 {
        1.0
    }

    /// What the loop does in the wrong order.
    fn breaks_recipe(&self) -> Option<BrokenRecipe> {
        None
    }

    /// The labels that a batch comes with.
    fn labels(&self, targets: Tensor) -> Tensor {
        targets
    }

    /// What each layer gives instead of `output`.
    fn every_output(&self, output: Tensor, _strength: f64) -> Tensor {
        output
    }

    /// What the gradient is multiplied by, so many steps after the fault's first; the loss that is reported stays as it is.
    fn gradient_factor(&self, _strength: f64, _steps: u64) -> f64 {
        1.0
    }

    /// Whether the loss is scaled though the precision does not ask for it.
    fn adds_scaler(&self) -> bool {
        false
    }

    /// Whether the scaler is made anew at the fault's first step.
    fn renews_scaler(&self) -> bool {
        false
    }

    /// What the scale is multiplied by at the fault's first step.
    fn scale_factor(&self, _strength: f64) -> f64 {
        1.0
    }

    /// What the weights of the planted layer are multiplied by at the fault's first step.
    fn weight_factor(&self, _strength: f64) -> Option<f64> {
        None
    }

    /// What evaluation, in the precision of the run, makes of its logits.
    fn evaluated(&self, logits: Tensor) -> Tensor {
        logits
    }

    /// The highest strength that means something.
    fn highest_strength(&self) -> f64 {
        f64::INFINITY
    }

    /// The moving average of the weights that is kept, in a run of this precision.
    fn averages(&self, _precision: Precision) -> Option<Averaging> {
        None
    }

    /// What goes wrong between the model and its FP32 copies.
    fn breaks_masters(&self) -> Option<BrokenMasters> {
        None
    }

    /// What is wrong with a step written by hand.
    fn steps_by_hand(&self) -> Option<HandStep> {
        None
    }

    /// Whether a second optimizer has half of the parameters.
    fn splits_optimizer(&self) -> bool {
        false
    }

    /// What the bias of the planted layer is multiplied by at the fault's first step.
    fn bias_factor(&self) -> Option<f64> {
        None
    }

    /// What a head multiplies by that is tied to the embedding.
    fn tied(&self, embedding: Tensor) -> Tensor {
        embedding
    }
}

/// All faults, in the order in which they are listed.
pub static FAULTS: &[&dyn Fault] = &[
    &underflow::Underflow,
    &overflow::Overflow,
    &inflated::Inflated,
    &nan::NanSource,
    &bad_batches::BadBatches,
    &short_interval::ShortInterval,
    &scale_low::ScaleLow,
    &scale_high::ScaleHigh,
    &no_scaler::NoScaler,
    &lr_high::LrHigh,
    &dead_updates::DeadUpdates,
    &lost_decay::LostDecay,
    &vanishing_eps::VanishingEps,
    &averages::Average::Lost,
    &BrokenMasters::ModelChanged,
    &BrokenMasters::Unused,
    &BrokenMasters::Bypassed,
    &BrokenMasters::Unwritten,
    &half_norm::HalfNorm,
    &half_positions::HalfPositions,
    &half_softmax::HalfSoftmax,
    &half_sum::HalfSum,
    &log_zero::LogZero,
    &loss_spike::LossSpike,
    &masked_row::MaskedRow,
    &near_overflow::NearOverflow,
    &overflow_once::OverflowOnce,
    &saturated_log::SaturatedLog,
    &small_activations::SmallActivations,
    &backward_overflow::BackwardOverflow,
    &BrokenRecipe::UnscaledTwice,
    &BrokenRecipe::ClippedEarly,
    &BrokenRecipe::NotUpdated,
    &BrokenRecipe::UpdatedTwice,
    &BrokenRecipe::UpdatedEarly,
    &BrokenRecipe::OwnStep,
    &BrokenRecipe::ScaledStep,
    &BrokenRecipe::NotCleared,
    &BrokenRecipe::MovingScale,
    &BrokenRecipe::SplitUpdate,
    &BrokenRecipe::HalfLoss,
    &BrokenRecipe::ScaledLoss,
    &BrokenRecipe::Unreached,
    &BrokenRecipe::HalfParameters,
    &scheduler_ahead::SchedulerAhead,
    &harmless::Harmless::Dropout,
    &harmless::Harmless::Frozen,
    &harmless::Harmless::Gate,
    &harmless::Harmless::ZeroBias,
    &harmless::Harmless::FrozenHead,
    &two_optimizers::TwoOptimizers,
    &averages::Average::Kept,
    &averages::Average::Quick,
    &wrong_labels::WrongLabels,
    &lr_zero::LrZero,
    &scale_raised::ScaleRaised,
    &rounded_evaluation::RoundedEvaluation,
    &fading::Fading,
    &growing_gradients::GrowingGradients,
    &needless_scaler::NeedlessScaler,
    &scaler_lost::ScalerLost,
    &huge_weights::HugeWeights,
    &weighted_loss::WeightedLoss,
    &HandStep::Copied,
    &HandStep::Unassigned,
];

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

    #[test]
    fn a_strength_that_can_be_set_is_told_of() {
        for fault in FAULTS {
            let told = fault.about().contains("STRENGTH");
            assert_eq!(fault.default_strength().is_some(), told, "{}", fault.name());
            assert!(fault.default_strength().is_none_or(|strength| strength > 0.0), "{}", fault.name());
        }
    }
}
