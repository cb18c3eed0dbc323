//! ## What it finds
//!
//! A loss scale that changed by a factor which is neither the scaler's growth nor its backoff: `update` was called several times in a step, or the
//! scale was set between two steps.
//!
//! ## Why it matters
//!
//! Several updates in one step halve the scale several times for one overflow, and count one clean step several times toward the next growth. A scale
//! set by hand to a bad value costs skipped steps, or small gradients.
//!
//! ## How it decides
//!
//! By the calls of the scaler, each step compared with the one before. The bounds `min_scale` and `max_scale` and the rounding of an f32 are allowed
//! for.
//!
//! * **Warning**: one update moved it by none of its factors, as one that sets the scale does (`update_to`); or several updates in one step moved it by more than
//!   one of them may.
//! * **Information**: it was set to something else between two steps; somebody may have meant to.
//!
//! ## What to do
//!
//! Call `scaler.update()?` once per optimizer step, after the last `scaler.step`, also with several optimizers and with accumulation.
//!
//! ## When it stays silent
//!
//! * Where the scale is back at its beginning: rule `scaler-not-restored`.
//! * On new settings: a scaler that is replaced, or is given another factor or interval.
//! * On steps missing from the recording, and on the first step, so on a state that is loaded before it.
//! * On two scalers that take turns or share a step.

use super::scaler_not_restored::is_back_at_its_beginning;
use super::text::{counted, measured, scale};
use super::{Firing, Limits, Needs, Rule, RuleInfo, Severity, Verdict};
use crate::aggregate::{Aggregate, Jump};

/// See the page of the rule.
pub struct ScaleJump;

static INFO: RuleInfo = RuleInfo {
    code: "AMP306",
    name: "scale-jump",
    severity: Severity::Warning,
    summary: "The loss scale changed by a factor that is neither the scaler's growth nor its backoff.",
    source: include_str!("scale_jump.rs"),
};

impl Rule for ScaleJump {
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
        let jump = aggregate.scale_dynamics.first_jump.filter(|jump| !is_back_at_its_beginning(aggregate, jump));
        jump.map(|j| Verdict::Firing(Box::new(firing(aggregate, &j)))).into_iter().collect()
    }
}

fn firing(aggregate: &Aggregate, jump: &Jump) -> Firing {
    let jumps = aggregate.scale_dynamics.jumps;
    let init = aggregate.scaler_config.as_ref().map(|c| c.init_scale);
    let (from, to) = (scale(jump.from), scale(jump.to));
    let (severity, explanation, remedy) = match jump.updates {
        0 => (
            Severity::Info,
            format!(
                "Between two steps the loss scale was set from {from} to {to}; the scaler's own factors do not lead there."
            ),
            "Nothing, if it was meant. Else look for code that sets the scale, and for a state that is loaded from the wrong checkpoint.",
        ),
        1 => (
            Severity::Warning,
            format!("One update took the loss scale from {from} to {to}; none of the scaler's factors leads there."),
            "Look for code that sets the scale, or writes into the tensor that holds it.",
        ),
        n => (
            Severity::Warning,
            format!(
                "In one step the scale was updated {n} times, from {from} to {to}: one overflow lowers it several times, and a clean step counts several times."
            ),
            "Call `update` once per step, after the last optimizer has stepped.",
        ),
    };
    let mut evidence = vec![
        measured("loss_scale_before", jump.from),
        measured("loss_scale_after", jump.to),
        counted("updates_in_step", jump.updates.into()),
        counted("jumps", jumps),
    ];
    evidence.extend(init.map(|i| measured("init_scale", i)));
    Firing {
        severity,
        layer: String::new(),
        operator: String::new(),
        probe: None,
        since: jump.step,
        strength: jumps as f64,
        evidence,
        explanation,
        remedy: remedy.into(),
    }
}

#[cfg(test)]
mod tests {
    use crate::observation::ScalerEvent;
    use crate::observation::scenario::{Scenario, StepBuilder, normal};
    use crate::rules::Severity;
    use crate::rules::silence::{diagnose, found};
    use crate::scan::Dtype::F16;

    fn step(s: &mut StepBuilder<'_>, scale: f64, i: u64) {
        s.loss(1.0).applied(scale).activation("fc", "linear", F16, &normal(64, 1.0, i));
        s.gradient("fc", "linear", F16, &normal(64, 1.0, i));
    }

    /// A run whose scale is `scale(i)` at step i, set between the steps.
    fn set_to(scale: impl Fn(u64) -> f64) -> Scenario {
        let mut run = Scenario::new();
        run.dynamic_scaler(65536.0).steps(12, |s, i| step(s, scale(i), i));
        run
    }

    #[test]
    fn set_to_something_else_is_worth_a_word() {
        let d = diagnose(&set_to(|i| if i < 6 { 65536.0 } else { 3000.0 }));
        assert_eq!((found(&d), d.findings()[0].severity), (vec!["AMP306"], Severity::Info));
        let finding = &d.findings()[0];
        assert_eq!((finding.onset_step, finding.last_step), (6, 6), "the run went on, the jump did not");
    }

    #[test]
    fn several_updates_for_one_overflow_are_a_warning() {
        let mut run = Scenario::new();
        run.dynamic_scaler(65536.0).steps(6, |s, i| {
            step(s, if i < 3 { 65536.0 } else { 16384.0 }, i);
            if i == 2 {
                s.skipped(65536.0, 32768.0).event(ScalerEvent::Updated {
                    from: 32768.0,
                    to: 16384.0,
                    growth_tracker: 0,
                });
            }
        });
        let d = diagnose(&run);
        let f = &d.findings()[0];
        assert_eq!((found(&d), f.severity, f.onset_step), (vec!["AMP306"], Severity::Warning, 2));
        assert!(f.remedy.text.starts_with("Call `update` once per step"), "{}", f.remedy.text);
    }

    #[test]
    fn two_scalers_that_take_turns_and_a_state_loaded_before_the_first_step_are_no_jump() {
        assert!(found(&diagnose(&set_to(|i| if i % 2 == 0 { 65536.0 } else { 1024.0 }))).is_empty());
        assert!(found(&diagnose(&set_to(|_| 512.0))).is_empty());
    }

    #[test]
    fn a_scaler_that_is_replaced_by_one_with_other_settings_is_no_jump() {
        let mut run = set_to(|_| 65536.0);
        run.static_scaler(128.0).steps(6, |s, i| step(s, 128.0, i));
        assert!(found(&diagnose(&run)).is_empty());
    }
}
