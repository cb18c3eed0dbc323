//! ## What it finds
//!
//! Gradients that grow toward 65504, the largest number of FP16, under a loss scale that does not give way: a static one, or one at its `max_scale`.
//! It tells the step at which they will arrive.
//!
//! ## Why it matters
//!
//! What is well today overflows at that step and at each one after it: the steps are skipped, or, where nothing checks the gradients, the infinity
//! goes into the weights.
//!
//! ## How it decides
//!
//! For each FP16 gradient a line is laid through the logarithms of its largest value over the latest 16 to 32 scanned steps. **Warning**, where the
//! line
//!
//! * rises clearly: by half an octave over these steps, and by eight times the standard error of its slope; or by four times, and by eight once what the
//!   loss of each step accounts for is taken out. A batch that is hard has a large loss and large gradients: where they jump from batch to batch, this shows
//!   what they do apart from it;
//! * ends less than four octaves below 65504;
//! * and would get there within four times the steps that these span.
//!
//! Of several gradients the one that arrives first is named.
//!
//! ## What to do
//!
//! Use a dynamic scaler, `GradScaler::default()`, or lower the static scale to the value named, which leaves eight octaves of headroom:
//! `GradScaler::builder().static_scale(..).build()?`. Then find out why gradients grow.
//!
//! ## When it stays silent
//!
//! Under a dynamic scaler: it lowers itself. On gradients that fluctuate, rise and fall again, or are small. Where they have arrived: rules `gradient-overflow` and
//! `static-scale-wrong`.

use super::line::Line;
use super::scaling::Scaling;
use super::text::{counted, measured, number, power_of_two, scale};
use super::underflow::may_have_fp16_gradients;
use super::{Firing, Limits, Needs, Remedy, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::{Aggregate, Sample, SiteSummary, median};

const HEADROOM: Threshold = Threshold {
    rule: "gradient-headroom",
    name: "headroom",
    default: 4.0,
    unit: "octaves below 65504",
    reason: "The largest gradient of one layer spreads over 2 octaves from step to step in healthy runs.",
};
const ERRORS: Threshold = Threshold {
    rule: "gradient-headroom",
    name: "standard-errors",
    default: 8.0,
    unit: "standard errors of the slope",
    reason: "Fluctuations of a healthy gradient are correlated over some steps and reach 4 to 5. Half of it is enough where it is reached without what the loss accounts for.",
};
const AHEAD: Threshold = Threshold {
    rule: "gradient-headroom",
    name: "ahead",
    default: 4.0,
    unit: "times the steps that were looked at",
    reason: "A line is not to be trusted further than a few times its own length.",
};
/// Scans that a line needs.
const SCANS: usize = 16;
/// Octaves that it rises in them.
const RISE: f64 = 0.5;
/// FP16's largest number.
const END: f64 = 65504.0;
/// Octaves that the scale to set leaves.
const MARGIN: f64 = 8.0;

/// See the page of the rule.
pub struct GradientHeadroom;

static INFO: RuleInfo = RuleInfo {
    code: "AMP204",
    name: "gradient-headroom",
    severity: Severity::Warning,
    summary: "Gradients grow toward 65504 under a loss scale that cannot give way.",
    source: include_str!("gradient_headroom.rs"),
};

impl Rule for GradientHeadroom {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::Scans { steps: SCANS as u64, applies: |a| may_have_fp16_gradients(a) && is_fixed(a) }
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[HEADROOM, ERRORS, AHEAD]
    }

    fn thresholds_by_layer(&self) -> &'static [&'static str] {
        &["headroom", "standard-errors", "ahead"]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        if !is_fixed(aggregate) || !aggregate.has_fp16_gradients() {
            return Vec::new();
        }
        let now = aggregate.latest.as_ref().map(|s| s.index);
        let gradients = aggregate.sites.iter().filter(|s| {
            s.site.probe.is_gradient() && aggregate.went_through_fp16(&s.site) && s.latest().map(|l| l.step) == now
        });
        let rising = gradients.filter_map(|site| Some((site, rise(aggregate, site, limits)?)));
        let first = rising.min_by(|a, b| a.1.steps_left.total_cmp(&b.1.steps_left));
        first.map(|(site, rise)| Verdict::Firing(Box::new(firing(aggregate, site, &rise)))).into_iter().collect()
    }
}

fn is_fixed(aggregate: &Aggregate) -> bool {
    matches!(Scaling::of(aggregate), Scaling::Static | Scaling::AtCeiling)
}

/// A gradient on its way.
struct Rise {
    octaves_per_step: f64,
    /// Where the line ends.
    reached: f64,
    steps_left: f64,
    since: u64,
}

fn rise(aggregate: &Aggregate, site: &SiteSummary, limits: &Limits) -> Option<Rise> {
    let layer = &site.site.layer;
    let samples = &site.recent;
    let (first, last) = (samples.front()?, samples.back()?);
    // Most gradients stand far below, and are done with here.
    let near = END * (-limits.at(&HEADROOM, layer) - 1.0).exp2();
    let is_sound = samples.iter().all(|s| s.stats.non_finite() == 0 && s.stats.max_abs > 0.0);
    let same_scale = samples.iter().all(|s| s.loss_scale == last.loss_scale);
    if samples.len() < SCANS || last.stats.max_abs < near || !is_sound || !same_scale {
        return None;
    }
    let points: Vec<(f64, f64)> =
        samples.iter().map(|s| ((s.step - first.step) as f64, s.stats.max_abs.log2())).collect();
    let line = Line::through(&points)?;
    let span = (last.step - first.step) as f64;
    let reached = line.at(span);
    let left = END.log2() - reached;
    let steps_left = left / line.slope;
    let errors = limits.at(&ERRORS, layer);
    let rises_by = |line: &Line, errors: f64| line.slope * span >= RISE && line.slope >= errors * line.slope_error;
    let rises_apart = || apart_from_loss(aggregate, site, &points).is_some_and(|line| rises_by(&line, errors));
    let rises = || rises_by(&line, errors) || rises_by(&line, errors / 2.0) && rises_apart();
    let soon = left > 0.0 && left <= limits.at(&HEADROOM, layer) && steps_left <= limits.at(&AHEAD, layer) * span;
    // It rises since it last stood no higher than at first.
    let half = median(points[..points.len() / 2].iter().map(|p| p.1))?;
    let since = samples.iter().rev().find(|s| s.stats.max_abs.log2() <= half).map_or(first.step, |s| s.step);
    (soon && rises()).then(|| Rise { octaves_per_step: line.slope, reached: reached.exp2(), steps_left, since })
}

/// The line without what the loss accounts for; `None` where a step has no loss above 0.
fn apart_from_loss(aggregate: &Aggregate, site: &SiteSummary, points: &[(f64, f64)]) -> Option<Line> {
    let losses = &aggregate.losses.recent;
    let loss = |sample: &Sample| losses.iter().rev().find(|at| at.step == sample.step).map(|at| at.loss.log2());
    let losses: Option<Vec<f64>> = site.recent.iter().map(|s| loss(s).filter(|l| l.is_finite())).collect();
    Line::apart_from(&losses?, points)
}

fn firing(aggregate: &Aggregate, site: &SiteSummary, rise: &Rise) -> Firing {
    let now = aggregate.latest.as_ref();
    let step = now.map_or(0, |s| s.index);
    let held = now.and_then(|s| s.loss_scale).unwrap_or(1.0);
    let arrives = step.saturating_add(rise.steps_left.ceil() as u64);
    let lower = (held * (END / rise.reached).log2().exp2() * (-MARGIN).exp2()).log2().floor().exp2();
    let left = (END / rise.reached).log2();
    Firing {
        severity: Severity::Warning,
        layer: site.site.layer.clone(),
        operator: site.site.operator.clone(),
        probe: Some(site.site.probe),
        since: rise.since,
        strength: 1.0 / rise.steps_left.max(1.0),
        evidence: vec![
            measured("max_abs_as_held", rise.reached),
            measured("headroom_octaves", left),
            measured("octaves_per_100_steps", 100.0 * rise.octaves_per_step),
            counted("overflow_at_step_estimate", arrives),
            measured("loss_scale", held),
        ],
        explanation: format!(
            "The largest element of the gradient of `{}` stands at {} as FP16 held it, {} octaves below its end at 65504, and grows by {} octaves in 100 steps: at that rate it overflows \
             about step {arrives}. The loss scale, {}, does not give way.",
            site.site.label(),
            power_of_two(rise.reached),
            number((10.0 * left).round() / 10.0),
            number(100.0 * rise.octaves_per_step),
            scale(held)
        ),
        remedy: Remedy::from(format!(
            "Use a dynamic scaler (`GradScaler::default()`), which lowers itself, or a static scale of {}, which leaves {MARGIN} octaves.",
            scale(lower)
        ))
        .set("scaler", "dynamic"),
    }
}

#[cfg(test)]
mod tests {
    use crate::observation::scenario::{Scenario, normal};
    use crate::rules::silence::{diagnose, first};
    use crate::rules::{Finding, Severity, Value};
    use crate::scan::Dtype::{F16, F32};

    /// Forty steps at a scale of 1024, static or not, with a gradient of this size as it is held.
    fn run(is_static: bool, size: impl Fn(u64) -> f64) -> Option<Finding> {
        let mut run = Scenario::new();
        if is_static {
            run.static_scaler(1024.0)
        } else {
            run.dynamic_scaler(1024.0)
        };
        run.steps(40, |s, i| {
            s.loss(1.0).applied(1024.0).activation("fc", "linear", F16, &normal(256, 1.0, i));
            s.gradient("fc", "linear", F16, &normal(256, size(i), i));
        });
        first(&diagnose(&run), "AMP204").cloned()
    }

    #[test]
    fn a_gradient_that_doubles_every_eight_steps_is_found_with_the_step_at_which_it_overflows() {
        let f = run(true, |i| 64.0 * (i as f64 / 8.0).exp2()).expect("found");
        assert_eq!((f.severity, f.layer.as_str()), (Severity::Warning, "fc"));
        let Some(Value::Count(arrives)) =
            f.evidence.iter().find(|e| e.name == "overflow_at_step_estimate").map(|e| &e.value)
        else {
            panic!("{:?}", f.evidence)
        };
        // 64 times 2.8, the largest of 256 normal numbers, has 8.5 octaves to go.
        assert!((58..78).contains(arrives), "{arrives}");
        assert_eq!(f.remedy.set[0].value, "dynamic".into());
    }

    #[test]
    fn gradients_that_jump_with_the_loss_of_the_batch_are_found_to_grow_all_the_same() {
        let hard = normal(64, 1.2, 8);
        let found = |octaves: f64, with_loss: bool| {
            let mut run = Scenario::new();
            run.static_scaler(1024.0).steps(64, |s, i| {
                let jump = hard[i as usize].exp2();
                s.loss(if with_loss { 0.1 * jump } else { 0.1 }).applied(1024.0);
                s.activation("fc", "linear", F16, &normal(256, 1.0, i));
                s.gradient("fc", "linear", F16, &normal(256, 8.0 * jump * (octaves * i as f64).exp2(), i));
            });
            let d = diagnose(&run);
            (first(&d, "AMP204").is_some(), first(&d, "AMP307").is_some())
        };
        assert_eq!(found(0.125, true), (true, false));
        assert_eq!(found(0.125, false), (false, false));
        assert_eq!(found(0.0, true), (false, false));
    }

    #[test]
    fn the_weights_of_a_layer_that_is_kept_in_fp32_may_have_gradients_of_any_size() {
        let with = |dtype| {
            let mut run = Scenario::new();
            run.static_scaler(1024.0).steps(40, |s, i| {
                s.loss(1.0).applied(1024.0).activation("fc1", "linear", F16, &normal(256, 1.0, i));
                s.activation("fc2", "linear", dtype, &normal(256, 1.0, i));
                s.gradient("fc2", "linear", dtype, &normal(256, 1.0, i));
                s.gradient("fc1", "linear", F16, &normal(256, 1.0, i));
                s.param_grad("fc2", "weight", F32, &normal(256, 64.0 * (i as f64 / 8.0).exp2(), i));
            });
            first(&diagnose(&run), "AMP204").map(|f| f.layer.clone())
        };
        assert_eq!((with(F32), with(F16)), (None, Some("fc2".into())));
    }

    #[test]
    fn under_a_dynamic_scaler_it_is_silent() {
        assert!(run(false, |i| 64.0 * (i as f64 / 8.0).exp2()).is_none());
    }

    #[test]
    fn gradients_that_fluctuate_fall_or_stand_far_below_are_silent() {
        assert!(run(true, |i| 8000.0 * normal(1, 0.5, i)[0].exp()).is_none());
        assert!(run(true, |i| 9000.0 * (-(i as f64) / 20.0).exp2()).is_none());
        assert!(run(true, |i| 0.01 * (i as f64 / 8.0).exp2()).is_none());
        assert!(run(true, |_| 9000.0).is_none());
    }
}
