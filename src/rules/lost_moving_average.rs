//! ## What it finds
//!
//! A moving average of the weights (EMA, Polyak averaging, a target network) that is held in FP16 or BF16 and does not move: its steps are rounded away.
//!
//! ## Why it matters
//!
//! A step moves the average by 1 - decay of its distance from the weights. FP16 tells a number from its neighbour at 0.05 % to 0.1 % of it, BF16 at 0.4 % to 0.8 %, and a change of less than
//! half of that is no change. With a decay of 0.999 an element of the average in FP16 moves only while the weight is more than 24 % to 49 % away from it; in BF16 two to four times its own size. So the average
//! stays what it was when it was made, the untrained weights perhaps, and what is evaluated and saved is that. The loss shows nothing.
//!
//! ## How it decides
//!
//! Each scanned step holds what the average was to move by, (1 - decay) * (weight - average), against what it moved by. **Warning**: over its latest 32, five at least, less than half of the energy
//! arrives, while the weights are further away from it than eight roundings of its format (0.4 % in FP16, 3 % in BF16), and the decay is one at which
//! an element may be off by a tenth of itself and more before it moves (0.995 in FP16, 0.96 in BF16).
//!
//! There is nothing to tell the doctor: it recognises an average by how it is computed from a parameter that it watches, under `no_grad`: `lerp_`, `mul_` and `add_`, a sum that takes its
//! place.
//!
//! ## What to do
//!
//! Keep the average in FP32 whatever the weights are in: begin with `w.detach().to_kind(Kind::Float).copy()`, move it by `average.lerp_(&w.to_kind(Kind::Float), 0.001)`, and
//! round it where it is used. It costs four bytes a parameter.
//!
//! ## When it stays silent
//!
//! On an average in FP32. On weights that stand still, and on an average that has reached them: nothing is lost that the format could hold. On a decay at which 16 bits keep up, such as 0.99 in FP16 and 0.9 in BF16.

use super::text::{counted, measured, number, said, share};
use super::update_advice::{format_name, some_of};
use super::{Firing, Limits, Needs, Remedy, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::{Aggregate, Average};
use crate::observation::Probe;

const NAME: &str = "lost-moving-average";
/// Steps of the average before anything is said.
const FEWEST_STEPS: Threshold =
    Threshold::new(NAME, "fewest", 5.0, "scanned steps", "Summed over the latest 32; below five one step decides it.");
/// What arrives where most of the steps is gone.
const LOST: Threshold = Threshold::new(
    NAME,
    "lost",
    0.5,
    "share of the energy that arrives",
    "Half of it is gone. Where the format keeps up nearly all arrives; with decay 0.999 in FP16 and weights 10 % away it is below 0.1.",
);
/// How far away the weights must be.
const DISTANCE: Threshold = Threshold::new(
    NAME,
    "distance",
    8.0,
    "roundings of the format",
    "An average that is right stands within one, weights that waver in their last digits within two or three.",
);

/// How far the weights may go before the average follows.
const BLIND: Threshold = Threshold::new(
    NAME,
    "blind",
    0.1,
    "share of an element",
    "What decay and format together lose sight of, one rounding over (1 - decay): 49 % with 0.999 in FP16, 39 % with 0.99 in BF16; with 0.99 in FP16 it is 5 %, and an average as near as that does its work.",
);

/// See the page of the rule.
pub struct LostMovingAverage;

static INFO: RuleInfo = RuleInfo {
    code: "AMP409",
    name: NAME,
    severity: Severity::Warning,
    summary: "A moving average of the weights in FP16 or BF16 stands still: its steps are rounded away.",
    source: include_str!("lost_moving_average.rs"),
};

impl Rule for LostMovingAverage {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        let applies = |a: &Aggregate| a.instrument.full_steps == 0 || !a.averages.is_empty();
        Needs::Scans { steps: FEWEST_STEPS.default as u64, applies }
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[FEWEST_STEPS, LOST, DISTANCE, BLIND]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        let mut lost: Vec<Lost<'_>> = aggregate.averages.iter().filter_map(|a| Lost::of(a, limits)).collect();
        lost.sort_by(|a, b| b.gone().total_cmp(&a.gone()));
        firing(&lost).map(|f| Verdict::Firing(Box::new(f))).into_iter().collect()
    }
}

/// An average whose steps are rounded away.
struct Lost<'a> {
    average: &'a Average,
    arrived: f64,
    /// Elements that were to move and did not, as a share.
    dead: f64,
    distance: f64,
    decay: f64,
}

impl<'a> Lost<'a> {
    fn of(average: &'a Average, limits: &Limits) -> Option<Self> {
        let stepped = average.stepped();
        let (arrived, distance) = (average.arrived()?, average.distance()?);
        let is_lost = average.recent.len() as u64 >= limits.count(&FEWEST_STEPS)
            && arrived < limits.of(&LOST)
            && distance >= limits.of(&DISTANCE) * average.unit_roundoff();
        let decay = average.latest()?.decay;
        let is_lost = is_lost && average.unit_roundoff() >= limits.of(&BLIND) * (1.0 - decay);
        is_lost.then(|| Self { average, arrived, dead: stepped.dead_share().unwrap_or(0.0), distance, decay })
    }

    /// The energy that is gone: what they are ordered by.
    fn gone(&self) -> f64 {
        self.average.stepped().energy * (1.0 - self.arrived)
    }
}

fn firing(lost: &[Lost<'_>]) -> Option<Firing> {
    let worst = lost.first()?;
    let site = &worst.average.site;
    let since = lost.iter().filter_map(|l| l.average.recent.front()).map(|step| step.step).min()?;
    Some(Firing {
        severity: Severity::Warning,
        // Which of them loses most changes from step to step, and it is one average of the whole model to the loop that keeps it.
        layer: String::new(),
        operator: site.operator.clone(),
        probe: Some(Probe::Average),
        since,
        strength: lost.len() as f64 - worst.arrived,
        evidence: vec![
            said("average_of", site.label()),
            counted("averages_lost", lost.len() as u64),
            measured("arrived_share", worst.arrived),
            measured("dead_share", worst.dead),
            measured("distance_from_the_weights", worst.distance),
            measured("decay", worst.decay),
            counted("scanned_steps", worst.average.recent.len() as u64),
        ],
        explanation: explanation(lost, worst),
        remedy: remedy(worst),
    })
}

fn explanation(lost: &[Lost<'_>], worst: &Lost<'_>) -> String {
    let names: Vec<String> = lost.iter().map(|l| l.average.site.label()).collect();
    let format = format_name(worst.average.site.dtype);
    let towards = 1.0 - worst.decay;
    // Half a unit in the last place is between half a rounding and a whole one of a number, by where it lies between two powers of two.
    let (from, to) = (worst.average.unit_roundoff() / 2.0 / towards, worst.average.unit_roundoff() / towards);
    format!(
        "The moving {} of {} {} held in {format}, with a decay of {}: a step is {} of the distance from the weights, and {format} rounds it away unless that distance is {} to {} of the average \
         itself. In `{}` the weights are {} away; of the steps {} arrives, and {} of the elements did not move at all.",
        if names.len() == 1 { "average" } else { "averages" },
        some_of(&names),
        if names.len() == 1 { "is" } else { "are" },
        number(worst.decay),
        share(towards),
        share(from),
        share(to),
        worst.average.site.label(),
        share(worst.distance),
        share(worst.arrived.max(0.0)),
        share(worst.dead),
    )
}

fn remedy(worst: &Lost<'_>) -> Remedy {
    format!(
        "Keep the average in FP32, whatever the weights are in: make it by `w.detach().to_kind(Kind::Float).copy()`, move it by `average.lerp_(&w.to_kind(Kind::Float), {})` under `no_grad`, and round \
         it to {} only where it is evaluated or saved. The one there is now has to be made anew.",
        number(1.0 - worst.decay),
        format_name(worst.average.site.dtype),
    )
    .into()
}

#[cfg(test)]
mod tests {
    use crate::observation::Rounding;
    use crate::observation::scenario::{Scenario, normal};
    use crate::rules::silence::{diagnose, found};
    use crate::rules::{Diagnosis, Severity};
    use crate::scan::Dtype::{self, Bf16, F16, F32};
    use crate::scan::{fidelity, unmoved_energy};

    /// The elements that an average begins with, and where its weights are after so many steps.
    type Weights = fn(f64, u64) -> f64;

    fn drifting(start: f64, step: u64) -> f64 {
        start * (1.0 + 0.01 * step as f64)
    }

    fn bytes(dtype: Dtype, values: &[f64]) -> Vec<u8> {
        let one = |&x: &f64| match dtype {
            F16 => half::f16::from_f64(x).to_ne_bytes().to_vec(),
            Bf16 => half::bf16::from_f64(x).to_ne_bytes().to_vec(),
            _ => (x as f32).to_ne_bytes().to_vec(),
        };
        values.iter().flat_map(one).collect()
    }

    fn rounded(dtype: Dtype, x: f64) -> f64 {
        match dtype {
            F16 => half::f16::from_f64(x).to_f64(),
            Bf16 => half::bf16::from_f64(x).to_f64(),
            _ => f64::from(x as f32),
        }
    }

    /// An average that is held in `dtype` and moved by the arithmetic of that format.
    fn run(dtype: Dtype, decay: f64, weights: Weights, steps: u64) -> Diagnosis {
        let start: Vec<f64> = normal(512, 0.05, 1);
        let mut held: Vec<f64> = start.iter().map(|&w| rounded(dtype, w)).collect();
        let mut run = Scenario::new();
        run.steps(steps, |s, i| {
            let towards = start.iter().map(|&w| weights(w, i));
            let intended: Vec<f32> = towards.zip(&held).map(|(w, e)| ((1.0 - decay) * (w - e)) as f32).collect();
            let next: Vec<f64> = held.iter().zip(&intended).map(|(e, u)| rounded(dtype, e + f64::from(*u))).collect();
            let (before, after) = (bytes(dtype, &held), bytes(dtype, &next));
            let rounding = Rounding {
                stepped: Some(fidelity(dtype, &before, &after, &intended)),
                unmoved: Some(unmoved_energy(dtype, &before, &after, &intended)),
                ..Rounding::default()
            };
            held = next;
            s.loss(1.0 / (1.0 + i as f64)).param_grad("fc", "weight", F32, &normal(64, 0.1, i));
            s.average("fc", "weight", dtype, &held, decay, rounding);
        });
        diagnose(&run)
    }

    #[test]
    fn an_average_that_16_bits_do_not_move_is_found_at_its_parameter() {
        for dtype in [F16, Bf16] {
            let d = run(dtype, 0.999, drifting, 12);
            assert_eq!(found(&d), ["AMP409"], "{dtype:?}");
            let f = &d.findings()[0];
            assert_eq!((f.severity, f.layer.as_str(), f.onset_step), (Severity::Warning, "", 0));
            assert!(f.explanation.contains("`fc.weight` is held in") && f.remedy.text.contains("FP32"), "{f:#?}");
        }
    }

    #[test]
    fn a_decay_at_which_16_bits_keep_up_is_silent() {
        for (dtype, decay) in [(F16, 0.99), (F16, 0.9), (Bf16, 0.95), (Bf16, 0.9), (Bf16, 0.5)] {
            let d = run(dtype, decay, drifting, 60);
            assert!(found(&d).is_empty(), "{dtype:?} {decay}: {:#?}", d.findings());
        }
    }

    #[test]
    fn weights_that_stand_still_are_silent_though_their_rounding_is_never_made_good() {
        for dtype in [F16, Bf16] {
            assert!(found(&run(dtype, 0.999, |start, _| start, 60)).is_empty(), "{dtype:?}");
            // As far as the last digits go.
            let wavering: Weights = |start, step| start * (1.0 + 1e-3 * (step % 2) as f64);
            assert!(found(&run(dtype, 0.999, wavering, 60)).is_empty(), "{dtype:?}");
        }
    }

    #[test]
    fn fp32_keeps_the_steps_and_four_steps_tell_nothing() {
        assert!(found(&run(F32, 0.9999, drifting, 60)).is_empty());
        assert!(found(&run(F16, 0.999, drifting, 4)).is_empty());
    }
}
