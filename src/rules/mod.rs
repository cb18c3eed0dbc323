//! The rules: pure functions of the aggregate, and the findings they make.
//!
//! A rule is one file: its page (the file's own `//!` text), code, name, thresholds, check and tests. [`all`] is the table.

mod activation_near_overflow;
mod activation_overflow;
mod activation_underflow;
pub(crate) mod agreement;
mod blind_spots;
mod broken_masters;
mod causes;
mod clip_before_unscale;
mod dead_updates;
mod diagnosis;
mod evaluation_worse;
mod exploding_updates;
mod finding;
mod flat_loss;
mod gradient_headroom;
mod gradient_overflow;
mod gradient_underflow;
mod gradient_unlike_fp32;
mod gradients_apart;
mod graph;
mod half_loss_scaled;
mod inexact_integers;
mod limits;
mod line;
mod lone_non_finite;
mod loss_jump;
mod loss_not_finite;
mod lost_moving_average;
mod lost_weight_decay;
mod masked_row;
mod missing_masters;
mod no_gradient_for_optimizer;
mod no_loss_scale;
mod non_finite_optimizer_state;
mod non_finite_origin;
mod nothing_observed;
mod pattern;
mod poisoned_buffer;
mod policy;
mod range;
mod rank_stopped;
mod ranks;
mod recipe_mistake;
mod registry;
mod remedy;
mod scale_advice;
mod scale_changed_between_optimizers;
mod scale_changed_in_accumulation;
mod scale_descent;
mod scale_floor;
mod scale_jump;
mod scale_ratchet;
mod scale_runaway;
#[cfg(test)]
mod scale_simulation;
mod scale_thrash;
mod scaled_loss_reported;
mod scaler_not_restored;
mod scalers_apart;
mod scaling;
mod scheduler_ahead;
mod sight;
#[cfg(test)]
mod silence;
mod silent_zeros;
mod stale_gradients;
mod stalled_updates;
mod starved_layers;
mod static_scale_wrong;
mod step_on_scaled_gradients;
mod text;
mod underflow;
mod unmoved_weights;
mod unsafe_operator;
mod unscale_twice;
mod update_advice;
mod update_misplaced;
mod update_missing;
mod updates_below_normal;
mod useless_scaler;
mod vanishing_eps;
mod weights_beyond_fp16;
pub mod whatif;

pub use diagnosis::{Diagnosis, Doubt, Health, Omitted};
pub use finding::{Evidence, Finding, Severity, Value};
pub use limits::{Limit, Limits, Threshold};
pub use pattern::Pattern;
pub use policy::{Accepted, Allow, Level, Policy};
pub use ranks::{Across, Company, Membership, OfRank, Peer};
pub use registry::{all, find, makes_findings, names_layers};
pub use remedy::{Remedy, Setting};
pub use sight::{Needs, Standing, standing};

use crate::aggregate::Aggregate;
use crate::observation::Probe;

/// What a rule is called and where its page is.
#[derive(Clone, Copy, Debug)]
pub struct RuleInfo {
    /// `AMP201`. The first digit is the family.
    pub code: &'static str,
    /// Names the defect and reads well after "allow": `gradient-underflow`.
    pub name: &'static str,
    /// The gravest severity it can give.
    pub severity: Severity,
    /// One line.
    pub summary: &'static str,
    /// The source of the rule's file, whose leading `//!` lines are its page.
    pub source: &'static str,
}

/// What a rule says of one subject at the present step.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Nothing wrong.
    Quiet,
    /// Not enough was seen to tell; the reason, for people.
    Unsure(String),
    /// The fault is there now.
    Firing(Box<Firing>),
}

/// A fault, as a rule sees it at one step; the [`Diagnosis`] keeps its onset and turns it into a [`Finding`].
#[derive(Clone, Debug, PartialEq)]
pub struct Firing {
    /// How bad it is now.
    pub severity: Severity,
    /// The layer, empty for the run as a whole.
    pub layer: String,
    /// The operator, where one is to blame.
    pub operator: String,
    /// The kind of tensor it was seen in.
    pub probe: Option<Probe>,
    /// The step at which what is firing now began.
    pub since: u64,
    /// How strong the evidence is, in a unit of the rule's own: of firings alike in severity the strongest is kept, of equals the first.
    pub strength: f64,
    /// The numbers it stands on.
    pub evidence: Vec<Evidence>,
    /// What happened and why it matters.
    pub explanation: String,
    /// What to change in this run, with the value to set.
    pub remedy: Remedy,
}

/// A rule.
pub trait Rule: Sync {
    /// Its code, name and page.
    fn info(&self) -> &'static RuleInfo;
    /// What it has to have seen before its silence means anything.
    fn needs(&self) -> Needs {
        Needs::ONE_SCAN
    }
    /// The numbers it compares with, by name.
    fn thresholds(&self) -> &'static [Threshold] {
        &[]
    }
    /// The names of those thresholds that may differ from layer to layer: it reads them with [`Limits::at`].
    fn thresholds_by_layer(&self) -> &'static [&'static str] {
        &[]
    }
    /// For a rule about events, the step of the latest one: a finding was last seen then. `None` for one about a state, which is seen for as long as the
    /// rule fires.
    fn latest_event(&self, _: &Aggregate) -> Option<u64> {
        None
    }
    /// What it says now, under the thresholds in `limits`; called after every step. An empty list is quiet.
    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict>;
    /// Brings a finding that was latched earlier up to what is known now: what it says of the present. Most findings say nothing of it.
    fn follow(&self, _finding: &mut Finding, _aggregate: &Aggregate) {}
    /// What it says of the ranks of a run beside one another, which none of them can tell of itself. An empty list is quiet.
    fn compare(&self, _: &Company<'_>, _: &Limits) -> Vec<OfRank<Firing>> {
        Vec::new()
    }
}
