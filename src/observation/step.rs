//! What happened between two calls of `doctor.step`.

use super::{RecipeEvent, ScalerEvent, SiteId};
use crate::scan::{Fidelity, Stats};

/// How closely a step was watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Only what the scaler itself reports.
    Off,
    /// Names, scaler and recipe events; no tensor was scanned.
    Light,
    /// Every tensor was scanned.
    Full,
}

/// What low precision did to the step of one parameter, or of its moving average.
///
/// Of an update: `stepped`, `without_masters`, `decay`. Of a moving average: `stepped`, `unmoved`. Of a parameter that is written back from an FP32 copy: `unlike_master`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rounding {
    /// What the format of the parameter that the optimizer stepped left of the update; of FP16 and BF16 parameters. Of a moving average: what its
    /// format left of the step towards the parameter. `None` where what was intended is not known.
    pub stepped: Option<Fidelity>,
    /// What the format of the model's weights would have left of the update, had the optimizer stepped them and not their FP32 copies.
    pub without_masters: Option<Fidelity>,
    /// What was left of the weight decay alone, where the optimizer applies it by an operator of its own, as AdamW does.
    pub decay: Option<Fidelity>,
    /// Elements that were not what the parameter's FP32 copy rounds to when forward read them.
    pub unlike_master: Option<u64>,
    /// Of the step of a moving average: the part of `stepped.energy` that was meant for elements that did not change.
    pub unmoved: Option<f64>,
}

impl Rounding {
    /// Adds another step's; `unlike_master` becomes a sum over the steps, which stops at `u64::MAX`.
    pub fn merge(&mut self, other: &Self) {
        let mine = [&mut self.stepped, &mut self.without_masters, &mut self.decay];
        for (mine, other) in mine.into_iter().zip([other.stepped, other.without_masters, other.decay]) {
            if let Some(other) = other {
                mine.get_or_insert_default().merge(&other);
            }
        }
        if let Some(unlike) = other.unlike_master {
            self.unlike_master = Some(self.unlike_master.unwrap_or(0).saturating_add(unlike));
        }
        if let Some(unmoved) = other.unmoved {
            self.unmoved = Some(self.unmoved.unwrap_or(0.0) + unmoved);
        }
    }
}

/// How an activation was made, or a moving average.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Provenance {
    /// The floating-point tensors that went into its operator, in the order of the arguments: the site of an activation observed before it in
    /// this step, or of a parameter; `None` for what is not observed.
    pub inputs: Vec<Option<SiteId>>,
    /// The first number among the arguments of an operator that computes with it: the summand of `add`, the exponent of `pow`, the dimension of
    /// `softmax`. Of a moving average: its decay.
    pub argument: Option<f64>,
    /// Of integers that this format cannot hold: elements that are not what they were before.
    pub inexact: Option<u64>,
}

/// The statistics of one tensor at one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// Where.
    pub site: SiteId,
    /// What the scan found.
    pub stats: Stats,
    /// Whether a tensor this one was computed from already held a NaN or an infinity: then it is not the origin of its own.
    pub inherited: bool,
    /// For an activation gradient: the site of the operator whose backward computed it (the consumer of the activation), where known.
    pub via: Option<SiteId>,
    /// What low precision did to the step, of updates, parameters and moving averages where there is something to say; boxed, since most have not.
    pub rounding: Option<Box<Rounding>>,
    /// For an activation or a moving average: how it was made, where that was recorded.
    pub provenance: Option<Box<Provenance>>,
}

impl Observation {
    /// An observation of which nothing else is known.
    pub fn new(site: SiteId, stats: Stats) -> Self {
        Self { site, stats, inherited: false, via: None, rounding: None, provenance: None }
    }
}

/// What the instrument itself cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Wall time of the step, from the end of the previous one, in nanoseconds.
    pub step_ns: u64,
    /// Part of it spent in the probe (callbacks, scans, hand-over), in nanoseconds.
    pub probe_ns: u64,
    /// Steps dropped since the start of the run because the writer's queue was full.
    pub dropped_steps: u64,
    /// Tensors of this step that could not be scanned (device, layout, dtype), each also told once in a note.
    pub unscanned: u32,
}

/// One step: observations stand in the order in which their tensors were computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Counted from 0.
    pub index: u64,
    /// Time since the start of the run, in nanoseconds.
    pub time_ns: u64,
    /// How closely it was watched.
    pub tier: Tier,
    /// What was scanned: forward in order, then backward in order, then parameters.
    pub observations: Vec<Observation>,
    /// The loss given to `doctor.step`, unscaled; may be non-finite.
    pub loss: Option<f64>,
    /// The loss scale in force during this step's backward; `None` where there was no scaler.
    pub loss_scale: Option<f64>,
    /// What the scaler did, in order.
    pub scaler: Vec<ScalerEvent>,
    /// What the loop did with gradients and parameters, in order; where [`Tier::Off`], only what a scaler refused.
    pub recipe: Vec<RecipeEvent>,
    /// The learning rate, where it is known.
    pub lr: Option<f64>,
    /// Metrics given by `doctor.metric`, in order.
    pub metrics: Vec<(String, f64)>,
    /// What observing it cost.
    pub cost: Cost,
}

impl Step {
    /// Whether the scaler withheld an optimizer step because a gradient was not finite.
    pub fn skipped(&self) -> bool {
        self.scaler.iter().any(|event| matches!(event, ScalerEvent::Stepped { applied: false, .. }))
    }
}
