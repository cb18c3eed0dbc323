//! ## What it finds
//!
//! A recording from which no verdict can be drawn: too few steps, no scanned step, no tensor, or no gradient.
//!
//! ## Why it matters
//!
//! A run in which nothing was seen is not a healthy run. A gate that passes it gates nothing.
//!
//! ## How it decides
//!
//! It never makes a finding, only a doubt: the verdict on the run is then "unknown", and `ampdoctor check` exits with 3. It is raised while there is
//! no step, while no step was scanned, while no scanned step held a tensor, while backward delivered no gradient, and in the first four steps. An `[[allow]]` accepts findings
//! and does nothing here; `level = "off"` takes the doubt away, and with it the guard.
//!
//! ## What to do
//!
//! Let the run go on for some steps: 5 for a verdict, 24 to see a loss that jumps, 96 to see one that stays flat (`doctor.step(&loss)` at each). What a
//! longer run than this still leaves open is said with the verdict.
//!
//! Where nothing was seen, attach the doctor before the first forward, to the `VarStore` whose parameters are trained, and tell it of each step:
//!
//! ```rust,ignore
//! let mut doctor = Doctor::attach(&vs);  // before the loop
//! doctor.step(&loss);                    // at the end of each step
//! ```
//!
//! If it was built with `.off()`, scan some steps: `.every(10)`, or leave both out. Where only the gradient is missing, see that `backward` runs
//! between attaching and `doctor.step`.
//!
//! ## When it stays silent
//!
//! As soon as five steps were taken, and a scanned one of them held activations or parameters and a gradient.

use super::{Limits, Needs, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::Aggregate;
use crate::observation::EndReason;

const FEWEST: Threshold = Threshold {
    rule: "nothing-observed",
    name: "fewest-steps",
    default: 5.0,
    unit: "steps",
    reason: "An underflow is three scanned steps in a row, an update out of proportion one after four others: in fewer steps hardly a fault can be seen.",
};

/// See the page of the rule.
pub struct NothingObserved;

static INFO: RuleInfo = RuleInfo {
    code: "AMP001",
    name: "nothing-observed",
    severity: Severity::Info,
    summary: "Too little was seen of the run to call it healthy.",
    source: include_str!("nothing_observed.rs"),
};

impl Rule for NothingObserved {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[FEWEST]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        let seen = &aggregate.instrument;
        let reason = match () {
            () if seen.steps == 0 && has_panicked(aggregate) => {
                "no step was recorded: the run ended in a panic before its first step".into()
            }
            () if seen.steps == 0 => {
                "no step was recorded: `doctor.step` was never called, or the run ended before its first step".into()
            }
            () if seen.full_steps == 0 => {
                format!("none of {} steps was scanned; scan some with `every(n)` or a budget", seen.steps)
            }
            () if aggregate.sites.iter().all(|s| s.samples == 0) => {
                format!(
                    "{} steps were scanned and none held a tensor; attach the doctor to the model that is trained, before its first forward",
                    seen.full_steps
                )
            }
            () if seen.backward_steps == 0 => {
                format!(
                    "no gradient was seen in {} scanned steps; is `backward` called before `doctor.step`?",
                    seen.full_steps
                )
            }
            () if seen.steps < limits.count(&FEWEST) => format!(
                "{} of the {} steps that a verdict needs were taken: most faults show only from one step to the next; let the run go on",
                seen.steps,
                limits.count(&FEWEST)
            ),
            () => return Vec::new(),
        };
        vec![Verdict::Unsure(reason)]
    }
}

fn has_panicked(aggregate: &Aggregate) -> bool {
    aggregate.end.as_ref().is_some_and(|end| end.reason == EndReason::Panicked)
}

#[cfg(test)]
mod tests {
    use crate::observation::scenario::{Scenario, normal};
    use crate::observation::{Record, Tier};
    use crate::rules::silence::diagnose;
    use crate::rules::{Diagnosis, Health};
    use crate::scan::Dtype;

    fn reason(d: &Diagnosis) -> &str {
        d.doubts().iter().find(|x| x.code == "AMP001").map_or("", |x| &x.reason)
    }

    #[test]
    fn steps_without_a_scan_are_not_health() {
        let mut run = Scenario::new();
        run.steps(5, |s, _| {
            s.tier(Tier::Light).loss(1.0);
        });
        let d = diagnose(&run);
        assert_eq!(d.health(), Health::Unknown);
        assert!(reason(&d).contains("none of 5 steps"), "{}", reason(&d));
    }

    #[test]
    fn scans_without_a_gradient_are_not_health() {
        let mut run = Scenario::new();
        run.steps(3, |s, i| {
            s.activation("fc", "linear", Dtype::F32, &normal(8, 1.0, i));
        });
        let d = diagnose(&run);
        assert_eq!(d.health(), Health::Unknown);
        assert!(reason(&d).contains("no gradient"), "{}", reason(&d));
    }

    #[test]
    fn a_recording_that_ends_before_its_first_step_is_not_health() {
        let mut d = diagnose(&Scenario::new());
        assert_eq!(d.health(), Health::Unknown);
        d.apply(Record::End(crate::observation::End {
            steps: 0,
            dropped_steps: 0,
            reason: crate::observation::EndReason::Finished,
        }));
        assert!(reason(&d).contains("no step"), "{}", reason(&d));
    }

    #[test]
    fn of_a_run_that_panicked_before_its_first_step_the_panic_is_the_reason() {
        let mut d = diagnose(&Scenario::new());
        let reason_of_end = crate::observation::EndReason::Panicked;
        d.apply(Record::End(crate::observation::End { steps: 0, dropped_steps: 0, reason: reason_of_end }));
        assert_eq!(reason(&d), "no step was recorded: the run ended in a panic before its first step");
    }

    #[test]
    fn one_scanned_step_with_a_gradient_is_enough_among_five() {
        let mut run = Scenario::new();
        run.step(|s| {
            s.gradient("fc", "linear", Dtype::F32, &normal(8, 1.0, 0));
        });
        let d = diagnose(&run);
        assert_eq!(d.health(), Health::Unknown);
        assert!(reason(&d).starts_with("1 of the 5 steps that a verdict needs"), "{}", reason(&d));
        run.steps(4, |s, _| {
            s.tier(Tier::Off);
        });
        let d = diagnose(&run);
        assert_eq!((d.health(), reason(&d)), (Health::Healthy, ""));
    }

    #[test]
    fn who_tests_with_a_single_step_can_say_so() {
        let mut run = Scenario::new();
        run.step(|s| {
            s.gradient("fc", "linear", Dtype::F32, &normal(8, 1.0, 0));
        });
        let rule = crate::rules::find("AMP001").expect("it is there");
        let mut limits = crate::rules::Limits::default();
        limits.set(crate::rules::Limit { threshold: super::FEWEST, layers: None, value: 1.0 });
        let mut aggregate = crate::aggregate::Aggregate::default();
        run.records().iter().cloned().for_each(|record| aggregate.apply(record));
        assert!(rule.check(&aggregate, &limits).is_empty());
    }
}
