//! What a rule has to have seen before its silence means anything.
//!
//! How closely a run is watched is the user's choice, and a rule that saw nothing says nothing. So that this is not taken for health, each rule declares what it
//! needs, and where the recording does not hold it the diagnosis says so, with what to set.

use super::{Limits, Rule, Verdict};
use crate::aggregate::Aggregate;
use crate::observation::Sampling;

/// What a rule has to have seen.
#[derive(Clone, Copy, Debug)]
pub enum Needs {
    /// Nothing: it judges the instrument itself.
    Nothing,
    /// What the loss scaler did at every step. The library's own scaler is recorded in every tier, one of somebody else's is found at a scanned step.
    ScalerEvents,
    /// The loss of this many steps; it is recorded in every tier where it is given.
    Losses(u64),
    /// The same of one scaler that the whole run follows: where several take turns or share a step, their scales cannot be told apart.
    OneScaler,
    /// The tensors of this many scanned steps, in runs to which the rule applies, as far as that is known.
    Scans {
        /// Scanned steps.
        steps: u64,
        /// Whether the rule has something to judge in this run.
        applies: fn(&Aggregate) -> bool,
    },
}

impl Needs {
    /// The tensors of one scanned step, in any run.
    pub const ONE_SCAN: Needs = Needs::Scans { steps: 1, applies: |_| true };
}

const SEVERAL_SCALERS: &str = "several loss scalers share the steps of this run, and their scales cannot be told apart; let one scaler serve all optimizers, or \
                               record each model as a run of its own";

/// What a rule's silence is worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has seen what it needs.
    Judged,
    /// It has not; the reason, and what to set.
    Unsure(String),
    /// There is nothing of its kind in this run.
    NotApplicable,
}

/// What the silence of `rule` is worth in this run.
pub fn standing(rule: &dyn Rule, aggregate: &Aggregate) -> Standing {
    let seen = &aggregate.instrument;
    match rule.needs() {
        Needs::Nothing => Standing::Judged,
        Needs::OneScaler if aggregate.scale_dynamics.several_scalers => Standing::Unsure(SEVERAL_SCALERS.into()),
        Needs::Losses(_) if aggregate.losses.count == 0 => Standing::Unsure(
            "no loss was given, and it judges the loss: give it to the doctor with `doctor.step(&loss)`".into(),
        ),
        Needs::Losses(fewest) if aggregate.losses.count < fewest => Standing::Unsure(format!(
            "{} of the {fewest} losses that it needs were given; let the run go on",
            aggregate.losses.count
        )),
        Needs::Losses(_) => Standing::Judged,
        Needs::ScalerEvents | Needs::OneScaler
            if aggregate.scaler_config.is_some() || !aggregate.scale_dynamics.skips.is_empty() =>
        {
            Standing::Judged
        }
        Needs::ScalerEvents | Needs::OneScaler if seen.full_steps > 0 => Standing::NotApplicable,
        Needs::ScalerEvents | Needs::OneScaler => Standing::Unsure(format!(
            "no loss scaler was seen, and one that is not the library's own shows only once a step is scanned; {}",
            scan(aggregate)
        )),
        Needs::Scans { applies, .. } if !applies(aggregate) => Standing::NotApplicable,
        Needs::Scans { steps, .. } if seen.full_steps >= steps => Standing::Judged,
        Needs::Scans { .. } if seen.full_steps == 0 => {
            Standing::Unsure(format!("no tensor was scanned in {} steps; {}", seen.steps, scan(aggregate)))
        }
        Needs::Scans { steps, .. } => Standing::Unsure(format!(
            "{} of the {steps} scanned steps that it needs were seen; let the run go on, or scan more often: `Doctor::builder().every(1)`",
            seen.full_steps
        )),
    }
}

/// How to have steps scanned.
fn scan(aggregate: &Aggregate) -> &'static str {
    match aggregate.run.as_ref().map(|r| r.sampling) {
        Some(Sampling::Off) => "sampling is off: scan some steps with `Doctor::builder().every(100)`, or with a budget",
        _ => "let the run go on, or scan more often: `Doctor::builder().every(1)`",
    }
}

/// What a rule says now; where it says nothing and has not seen what it needs, that.
pub(super) fn judge(rule: &dyn Rule, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
    if matches!(rule.needs(), Needs::OneScaler) && aggregate.scale_dynamics.several_scalers {
        return vec![Verdict::Unsure(SEVERAL_SCALERS.into())];
    }
    let verdicts = rule.check(aggregate, limits);
    if !verdicts.is_empty() || aggregate.instrument.steps == 0 {
        return verdicts;
    }
    match standing(rule, aggregate) {
        Standing::Unsure(reason) => vec![Verdict::Unsure(reason)],
        Standing::Judged | Standing::NotApplicable => verdicts,
    }
}

#[cfg(test)]
mod tests {
    use crate::observation::scenario::{Scenario, normal};
    use crate::observation::{Sampling, Tier};
    use crate::rules::silence::{diagnose, found};
    use crate::rules::{Diagnosis, all};
    use crate::scan::Dtype::F16;

    /// Eight steps, of which the first `scanned` are; an own scaler where `scaled`.
    fn run(sampling: Sampling, tier: Tier, scanned: u64, scaled: bool) -> Diagnosis {
        let mut run = Scenario::sampled(sampling);
        if scaled {
            run.dynamic_scaler(1024.0);
        }
        run.steps(8, |s, i| {
            s.loss(1.0);
            if scaled {
                s.applied(1024.0);
            }
            if i >= scanned {
                s.tier(tier);
                return;
            }
            s.activation("fc", "linear", F16, &normal(256, 1.0, i)).gradient("fc", "linear", F16, &normal(256, 1.0, i));
        });
        diagnose(&run)
    }

    /// Rules that eight losses are too few for, in any run.
    fn of_length(code: &str) -> bool {
        ["AMP701", "AMP702"].contains(&code)
    }

    /// The other rules that cannot tell.
    fn unsure(d: &Diagnosis) -> Vec<&'static str> {
        d.doubts().iter().map(|doubt| doubt.code).filter(|code| !of_length(code)).collect()
    }

    #[test]
    fn rules_on_the_course_of_the_loss_say_how_many_losses_they_need() {
        let d = run(Sampling::Every(1), Tier::Full, 8, true);
        let reason = |code| d.doubts().iter().find(|doubt| doubt.code == code).map_or("", |doubt| &doubt.reason);
        assert!(reason("AMP701").starts_with("8 of the 24 losses that it needs"), "{:#?}", d.doubts());
        assert!(reason("AMP702").starts_with("8 of the 96 losses"), "{:#?}", d.doubts());
        assert_eq!(d.health(), crate::rules::Health::Healthy, "a short run may be healthy so far");
    }

    #[test]
    fn without_a_scan_every_rule_on_tensors_is_unsure_and_says_what_to_set() {
        let off = run(Sampling::Off, Tier::Off, 0, true);
        for rule in all() {
            let code = rule.info().code;
            let on_events = matches!(
                rule.needs(),
                super::Needs::ScalerEvents | super::Needs::OneScaler | super::Needs::Losses(_) | super::Needs::Nothing
            );
            // AMP001 says of the run as a whole what the others say of themselves; a dynamic scale is no matter of a static one.
            if of_length(code) {
                continue;
            }
            let expected = (!on_events || code == "AMP001") && !["AMP204", "AMP307", "AMP308"].contains(&code);
            assert_eq!(unsure(&off).contains(&code), expected, "{code}: {:#?}", off.doubts());
        }
        let of_sight = || off.doubts().iter().filter(|doubt| !of_length(doubt.code));
        assert!(of_sight().all(|doubt| doubt.reason.contains("scan")), "{:#?}", off.doubts());
        assert!(found(&off).is_empty());
    }

    #[test]
    fn without_a_scan_and_a_scaler_the_rules_on_the_scale_are_unsure_too() {
        let d = run(Sampling::Off, Tier::Off, 0, false);
        for code in ["AMP301", "AMP302", "AMP303", "AMP304", "AMP306", "AMP308"] {
            assert!(unsure(&d).contains(&code), "{code}: {:?}", d.doubts());
        }
    }

    #[test]
    fn few_scanned_steps_leave_unsure_what_needs_more_also_between_them() {
        let d = run(Sampling::Budget(0.02), Tier::Off, 2, true);
        assert_eq!(unsure(&d), ["AMP104", "AMP201"], "{:#?}", d.doubts());
        assert!(d.doubts()[0].reason.starts_with("2 of the 3 scanned steps"), "{}", d.doubts()[0].reason);
        assert!(unsure(&run(Sampling::Every(1), Tier::Full, 8, true)).is_empty());
    }

    #[test]
    fn in_a_scanned_run_without_a_scaler_the_rules_on_the_scale_have_nothing_to_judge() {
        assert!(unsure(&run(Sampling::Every(1), Tier::Full, 8, false)).is_empty());
    }
}
