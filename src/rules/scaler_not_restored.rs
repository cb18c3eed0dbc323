//! ## What it finds
//!
//! A loss scale that is back where it began, in the middle of a run: the scaler was made anew, or its state was not loaded with the checkpoint.
//!
//! ## Why it matters
//!
//! Weights and optimizer are far along, and the scaler searches anew. From an `init_scale` that is too high it skips steps, one for each halving;
//! from one that is too low, gradients underflow for thousands of steps until the scale has grown.
//!
//! ## How it decides
//!
//! By the calls of the scaler, each step compared with the one before. **Warning**: between two steps the scale went back to `init_scale`, by none of
//! the scaler's own factors, and the next step went on from there.
//!
//! ## What to do
//!
//! Keep one scaler for the whole run, outside the loop over epochs. Save its state with each checkpoint, `scaler.save("scaler.json")?`, and read it
//! with the weights, `scaler.load("scaler.json")?`.
//!
//! ## When it stays silent
//!
//! On other changes of the scale (rule `scale-jump`), on new settings, on steps missing from the recording, and on two scalers that take turns. On a run that is resumed in a new
//! recording: its first step has nothing before it that it could be held against.

use super::text::{counted, measured, scale};
use super::{Firing, Limits, Needs, Remedy, Rule, RuleInfo, Severity, Verdict};
use crate::aggregate::{Aggregate, Jump};

/// See the page of the rule.
pub struct ScalerNotRestored;

static INFO: RuleInfo = RuleInfo {
    code: "AMP310",
    name: "scaler-not-restored",
    severity: Severity::Warning,
    summary: "The loss scale is back where it began: the scaler was made anew, or not restored.",
    source: include_str!("scaler_not_restored.rs"),
};

impl Rule for ScalerNotRestored {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::OneScaler
    }

    fn latest_event(&self, aggregate: &Aggregate) -> Option<u64> {
        aggregate.scale_dynamics.latest_jump
    }

    fn check(&self, aggregate: &Aggregate, _: &Limits) -> Vec<Verdict> {
        let jump = aggregate.scale_dynamics.first_jump.filter(|jump| is_back_at_its_beginning(aggregate, jump));
        jump.map(|j| Verdict::Firing(Box::new(firing(aggregate, &j)))).into_iter().collect()
    }
}

/// Whether a jump leads back to where the scale began.
pub(super) fn is_back_at_its_beginning(aggregate: &Aggregate, jump: &Jump) -> bool {
    jump.updates == 0 && aggregate.scaler_config.as_ref().is_some_and(|c| c.init_scale == jump.to)
}

fn firing(aggregate: &Aggregate, jump: &Jump) -> Firing {
    let (from, to) = (scale(jump.from), scale(jump.to));
    let skips = aggregate.scale_dynamics.skips.iter().filter(|s| s.step >= jump.step).count() as u64;
    let cost = match skips {
        0 if jump.to < jump.from => {
            "Until it has grown again, gradients have less room above FP16's end of fading.".into()
        }
        0 => "It fits there for now.".into(),
        n => format!("{n} steps have been skipped since, while it finds its place again."),
    };
    Firing {
        severity: Severity::Warning,
        layer: String::new(),
        operator: String::new(),
        probe: None,
        since: jump.step,
        strength: skips as f64,
        evidence: vec![
            measured("loss_scale_before", jump.from),
            measured("loss_scale_after", jump.to),
            counted("skipped_since", skips),
            counted("jumps", aggregate.scale_dynamics.jumps),
        ],
        explanation: format!(
            "Between two steps the loss scale went from {from} back to {to}, where it began: the scaler was made anew, or not restored. {cost}"
        ),
        remedy: Remedy::from(format!(
            "Keep one scaler for the whole run; save its state with the checkpoint (`scaler.state_dict()`) and load it (`load_state_dict`), so that it need not find its \
             place again. An `init_scale` of {from} makes the search shorter, and the state is lost all the same."
        )),
    }
}

#[cfg(test)]
mod tests {
    use crate::observation::Tier;
    use crate::observation::scenario::Scenario;
    use crate::rules::silence::{diagnose, first};
    use crate::rules::{Finding, Severity};

    fn run(scale: impl Fn(u64) -> f64) -> Option<Finding> {
        let mut run = Scenario::new();
        run.dynamic_scaler(65536.0).steps(20, |s, i| {
            s.loss(1.0).tier(Tier::Off);
            if scale(i + 1) < scale(i) && i > 9 {
                s.skipped(scale(i), scale(i + 1))
            } else {
                s.applied(scale(i))
            };
        });
        first(&diagnose(&run), "AMP310").cloned()
    }

    #[test]
    fn back_at_its_beginning_is_found_with_the_skips_that_it_costs_and_the_scale_to_begin_at() {
        let f =
            run(|i| if i < 10 { 1024.0 } else { (65536.0 * 0.5f64.powi(i as i32 - 10)).max(1024.0) }).expect("found");
        assert_eq!((f.severity, f.onset_step), (Severity::Warning, 10));
        assert!(f.explanation.contains("6 steps have been skipped since"), "{}", f.explanation);
        assert!(f.remedy.text.contains("`init_scale` of 1024"), "{}", f.remedy.text);
        // No setting brings the state back.
        assert!(f.remedy.set.is_empty(), "{:?}", f.remedy);
    }

    #[test]
    fn a_scale_set_to_something_else_and_one_that_stays_are_silent() {
        assert!(run(|i| if i < 10 { 1024.0 } else { 4096.0 }).is_none());
        assert!(run(|_| 65536.0).is_none());
        assert!(run(|i| if i % 2 == 0 { 65536.0 } else { 1024.0 }).is_none());
    }
}
