//! ## What it finds
//!
//! Weight decay that FP16 or BF16 parameters round away, while the rest of the update arrives. Decoupled decay (AdamW) takes lr * decay of a weight
//! at each step. Where that is less than half a unit in the last place (2.4e-4 of the weight in FP16, 2e-3 in BF16) nothing is taken, at any step.
//!
//! ## Why it matters
//!
//! The run is trained without the regularisation it was given, and nothing shows it. With w = 0.5, a decay of 0.01 and lr 1e-4 the weight is still
//! exactly 0.5 after a thousand steps; in FP32 it is 0.49949.
//!
//! ## How it decides
//!
//! **Warning**: over the latest 32 scanned steps, five at least, less than half of the decay arrives (phi of the decay below 0.5). Decay that is
//! added to the gradient, as L2 regularisation is, is a part of the update, and rule `dead-updates` judges it with that.
//!
//! ## What to do
//!
//! Let the optimizer step FP32 copies, which keep what is small: `let mut opt = MasterWeights::new(&vs)?.build(nn::AdamW { wd: 0.01,
//! ..Default::default() }, lr)?`.
//!
//! ## When it stays silent
//!
//! Where no decay was intended, on FP32 parameters and under FP32 masters. Where `dead-updates` fires: the decay is then lost with the rest, and is named
//! there.

use super::text::{counted, measured, number, share};
use super::update_advice::{format_name, is_low, may_step, step_masters, stepped_in_low_precision};
use super::{Firing, Limits, Needs, Rule, RuleInfo, Severity, Threshold, Verdict, broken_masters, dead_updates};
use crate::aggregate::Aggregate;
use crate::observation::Probe;

const NAME: &str = "lost-weight-decay";
/// Scanned steps with a decay before anything is said.
const FEWEST_STEPS: Threshold = Threshold::new(
    NAME,
    "fewest",
    5.0,
    "scanned steps",
    "Phi is summed over the latest 32; below five one step decides it.",
);
/// Phi of the decay at which most of it is gone.
const LOST: Threshold = Threshold::new(
    NAME,
    "lost",
    0.5,
    "phi of the decay",
    "Half of the energy of the decay is gone; where FP32 keeps it phi is 1, with w = 0.5 and lr * decay = 1e-6 in FP16 it is 0.",
);

/// See the page of the rule.
pub struct LostWeightDecay;

static INFO: RuleInfo = RuleInfo {
    code: "AMP404",
    name: NAME,
    severity: Severity::Warning,
    summary: "FP16 or BF16 parameters round their weight decay away: the run is trained without it.",
    source: include_str!("lost_weight_decay.rs"),
};

impl Rule for LostWeightDecay {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::Scans { steps: FEWEST_STEPS.default as u64, applies: |a| may_step(a, is_low) }
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[FEWEST_STEPS, LOST]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        firing(aggregate, limits).map(|f| Verdict::Firing(Box::new(f))).into_iter().collect()
    }
}

fn firing(aggregate: &Aggregate, limits: &Limits) -> Option<Firing> {
    let with_decay = || aggregate.weights.steps.iter().filter(|s| s.decay.energy > 0.0);
    let decay = aggregate.weights.fidelity(|s| s.decay);
    let phi = decay
        .phi()
        .filter(|&phi| phi < limits.of(&LOST) && with_decay().count() as u64 >= limits.count(&FEWEST_STEPS))?;
    if dead_updates::fires(aggregate, limits) || broken_masters::optimizer_steps_the_model(aggregate, limits) {
        return None;
    }
    let stepped = stepped_in_low_precision(aggregate);
    let format = stepped.first().map(|(_, change)| format_name(change.dtype))?;
    let dead = decay.dead_share().unwrap_or(0.0);
    let of_update = aggregate.weights.fidelity(|s| s.stepped).phi();
    let mut evidence = vec![
        measured("decay_phi", phi),
        measured("decay_dead_share", dead),
        counted("scanned_steps", with_decay().count() as u64),
    ];
    evidence.extend(of_update.map(|phi| measured("phi", phi)));
    evidence.extend(aggregate.latest.as_ref().and_then(|s| s.lr).map(|lr| measured("lr", lr)));
    Some(Firing {
        severity: Severity::Warning,
        layer: String::new(),
        operator: String::new(),
        probe: Some(Probe::Update),
        since: with_decay().next().map_or(0, |s| s.step),
        strength: 1.0 - phi,
        evidence,
        explanation: format!(
            "Of the weight decay {} arrives (phi {}): in {} of the elements it takes less than half of what {format} can tell apart at that weight, so they \
             are not decayed at all. The rest of the update arrives.",
            share(phi.max(0.0)),
            number(phi),
            share(dead),
        ),
        remedy: step_masters(
            aggregate,
            ": copies in FP32 are decayed as you asked. Or do without: a decay of 0 trains the same.",
        ),
    })
}

#[cfg(test)]
mod tests {
    use crate::observation::Rounding;
    use crate::observation::scenario::{Scenario, normal};
    use crate::rules::silence::{diagnose, found};
    use crate::scan::Dtype::{F16, F32};
    use crate::scan::{Dtype, Fidelity, fidelity};

    /// w = 0.5, decay 0.01, lr 1e-4, in `dtype`: what is left of the decay, by the arithmetic of the format.
    fn decayed(dtype: Dtype) -> Fidelity {
        let change = vec![-0.5 * 0.01 * 1e-4f32; 256];
        let memory: Vec<u8> = match dtype {
            Dtype::F16 => [half::f16::from_f32(0.5); 256].iter().flat_map(|x| x.to_ne_bytes()).collect(),
            _ => [0.5f32; 256].iter().flat_map(|x| x.to_ne_bytes()).collect(),
        };
        let after: Vec<u8> = match dtype {
            Dtype::F16 => (0..256).flat_map(|i| half::f16::from_f32(0.5 + change[i]).to_ne_bytes()).collect(),
            _ => (0..256).flat_map(|i| (0.5 + change[i]).to_ne_bytes()).collect(),
        };
        fidelity(dtype, &memory, &after, &change)
    }

    fn run(dtype: Dtype, decay: Option<Fidelity>, steps: u64) -> Scenario {
        let mut run = Scenario::new();
        run.steps(steps, |s, i| {
            s.loss(1.0).param_grad("fc", "weight", dtype, &normal(256, 0.1, i));
            s.update_in("fc", "addcdiv_", "weight", dtype, &normal(256, 1e-3, i));
            let whole = Fidelity { intended: 256, dead: 3, non_finite: 0, dot: 0.99, energy: 1.0 };
            s.rounding(Rounding { stepped: Some(whole), decay, ..Rounding::default() });
            s.param("fc", "weight", dtype, &normal(256, 0.5, i));
        });
        run
    }

    #[test]
    fn a_decay_that_fp16_rounds_away_is_found_and_one_that_fp32_keeps_is_not() {
        let lost = decayed(F16);
        assert_eq!((lost.phi(), lost.dead_share()), (Some(0.0), Some(1.0)));
        let d = diagnose(&run(F16, Some(lost), 6));
        assert_eq!(found(&d), ["AMP404"]);
        let f = &d.findings()[0];
        assert!(f.remedy.text.contains("MasterWeights::new(&vs)?.build(config, lr)?"), "{}", f.remedy.text);
        assert_eq!(f.onset_step, 0);
        let kept = decayed(F32);
        assert!((kept.phi().unwrap() - 1.0).abs() < 0.1, "{kept:?}");
        assert!(found(&diagnose(&run(F32, Some(kept), 6))).is_empty());
        assert!(
            found(&diagnose(&run(F32, Some(lost), 6))).is_empty(),
            "under FP32 it is rounding at the end of a schedule"
        );
    }

    #[test]
    fn no_decay_is_no_lost_decay_and_four_steps_tell_nothing() {
        assert!(found(&diagnose(&run(F16, None, 10))).is_empty());
        assert!(found(&diagnose(&run(F16, Some(Fidelity::default()), 10))).is_empty());
        assert!(found(&diagnose(&run(F16, Some(decayed(F16)), 4))).is_empty());
    }
}
