//! ## What it finds
//!
//! FP32 weights that FP16 cannot hold: so large that they are infinite in the FP16 copy that forward reads, or so small that the copy loses them.
//!
//! ## Why it matters
//!
//! Autocast casts the weights of a layer to FP16 at each forward, and FP32 copies are rounded into FP16 weights after each step. One infinite element
//! makes the layer's output infinite at every step. No loss scale has a say in it, and a dynamic scaler lowers itself to nothing.
//!
//! ## How it decides
//!
//! Weights in FP32 whose layer computes in FP16, or that are the FP32 copies of FP16 weights.
//!
//! * **Error**: a magnitude of 65520 or more, which rounds to infinity.
//! * **Warning**: one above 2^15, half of that, that has doubled since the first scan.
//! * **Warning**: in a weight matrix of 64 elements or more, at eight scanned steps in a row and without growing, Ehat of the cast is above 0.01:
//!   FP16 keeps a bit or two of each number.
//!
//! ## What to do
//!
//! Run that layer in FP32, `no_autocast(|| layer.forward(&x.to_kind(Kind::Float)))`, or under BF16 autocast. Then find out why the weight grows: no
//! weight decay, a learning rate that is too high, or a normalisation behind the layer that hides its size. Where weights are tiny, put their factor
//! into the layer (a scale, a temperature) and not into the weights.
//!
//! ## When it stays silent
//!
//! On layers that compute in FP32 or BF16. On gates and adapters that begin at zero and grow. On biases and gains that are small.

use super::graph::Graph;
use super::range::Reach;
use super::text::{measured, number, power_of_two, said, sentence};
use super::{Firing, Limits, Needs, Remedy, Rule, RuleInfo, Severity, Threshold, Verdict};
use crate::aggregate::{Aggregate, SiteSummary};
use crate::numerics::Underflow;
use crate::observation::Probe;
use crate::scan::Dtype;

const BEYOND: Threshold = Threshold {
    rule: "weights-beyond-fp16",
    name: "beyond",
    default: 65520.0,
    unit: "magnitude",
    reason: "From here on numbers are rounded to infinity in FP16; between 65504 and this they become 65504.",
};
const NEAR: Threshold = Threshold {
    rule: "weights-beyond-fp16",
    name: "near",
    default: 32768.0,
    unit: "magnitude",
    reason: "One bit from FP16's end. Healthy weights stay below 2^6 in all 28 runs that were measured.",
};
const EHAT: Threshold = Threshold {
    rule: "weights-beyond-fp16",
    name: "ehat",
    default: 0.01,
    unit: "predicted 1 - cosine",
    reason: "The level at which a gradient's direction is damaged; weights of 1e-3 to 1 have 1.7e-8.",
};
/// Scanned steps in a row at which small weights stay small.
const SAMPLES: usize = 8;
/// Factor by which weights grow that are on their way.
const GROWS: f64 = 1.05;
/// Factor by which weights have grown that will go beyond.
const GROWN: f64 = 2.0;
/// Elements that a matrix needs.
const FEWEST_ELEMENTS: u64 = 64;

/// See the page of the rule.
pub struct WeightsBeyondFp16;

static INFO: RuleInfo = RuleInfo {
    code: "AMP410",
    name: "weights-beyond-fp16",
    severity: Severity::Error,
    summary: "FP32 weights are infinite, or nearly nothing, in the FP16 copy that forward reads.",
    source: include_str!("weights_beyond_fp16.rs"),
};

impl Rule for WeightsBeyondFp16 {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn needs(&self) -> Needs {
        Needs::ONE_SCAN
    }

    fn thresholds(&self) -> &'static [Threshold] {
        &[BEYOND, NEAR, EHAT]
    }

    fn thresholds_by_layer(&self) -> &'static [&'static str] {
        &["beyond", "near", "ehat"]
    }

    fn check(&self, aggregate: &Aggregate, limits: &Limits) -> Vec<Verdict> {
        let now = aggregate.latest.as_ref().map(|s| s.index);
        let weights = aggregate.sites.iter().filter(|s| s.site.probe == Probe::Param && s.site.dtype == Dtype::F32);
        let changed = weights.filter(|s| s.latest().map(|l| l.step) == now);
        changed
            .filter_map(|weight| judge(aggregate, weight, limits))
            .map(|firing| Verdict::Firing(Box::new(firing)))
            .collect()
    }
}

fn judge(aggregate: &Aggregate, weight: &SiteSummary, limits: &Limits) -> Option<Firing> {
    let latest = &weight.latest()?.stats;
    let layer = &weight.site.layer;
    let is_near = latest.max_abs >= limits.at(&NEAR, layer);
    // Most weights are in the middle, and the rest costs more to find out.
    let may_vanish = latest.max_abs < SMALLEST_NORMAL && latest.max_abs > 0.0;
    if !(is_near || may_vanish) || !is_cast(aggregate, weight) {
        return None;
    }
    if latest.max_abs >= limits.at(&BEYOND, layer) {
        return Some(firing(
            aggregate,
            weight,
            Severity::Error,
            "at_most_65504",
            &beyond(weight, latest.max_abs),
            None,
        ));
    }
    let first = weight.recent.front()?.stats.max_abs;
    if is_near && latest.max_abs >= GROWN * first {
        return Some(firing(
            aggregate,
            weight,
            Severity::Warning,
            "at_most_65504",
            &near(weight, first, latest.max_abs),
            None,
        ));
    }
    let is_matrix = aggregate.weights.get(layer, &weight.site.tensor).is_some_and(|w| w.is_matrix);
    if !may_vanish || !is_matrix || latest.count < FEWEST_ELEMENTS {
        return None;
    }
    let mut samples = weight.last(SAMPLES)?;
    let oldest = samples.clone().next()?.stats.max_abs;
    let error = Underflow::of_cast(&latest.exponents)?.ehat;
    let lasts =
        samples.all(|s| Underflow::of_cast(&s.stats.exponents).is_some_and(|u| u.ehat > limits.at(&EHAT, layer)));
    (lasts && latest.max_abs <= GROWS * oldest).then(|| {
        firing(
            aggregate,
            weight,
            Severity::Warning,
            "at_least_2^-24",
            &vanishing(weight, latest.max_abs, error),
            Some(error),
        )
    })
}

/// FP16's smallest normal number.
const SMALLEST_NORMAL: f64 = 6.103515625e-5;

/// Whether forward reads an FP16 copy of this weight.
fn is_cast(aggregate: &Aggregate, weight: &SiteSummary) -> bool {
    let site = &weight.site;
    let is_master =
        aggregate.weights.get(&site.layer, &site.tensor).is_some_and(|w| w.written_back_to == Some(Dtype::F16));
    // Products are what autocast takes to FP16; the output of another operator of the layer says nothing of its weights.
    let product = |operator: &str| {
        ["linear", "conv", "matmul", "mm", "addmm", "bmm", "einsum"].iter().any(|name| operator.starts_with(name))
    };
    is_master
        || aggregate.sites.iter().any(|s| {
            s.site.layer == site.layer
                && s.site.probe == Probe::Activation
                && s.site.dtype == Dtype::F16
                && product(&s.site.operator)
        })
}

fn beyond(weight: &SiteSummary, max: f64) -> String {
    format!(
        "`{}` holds {}, and FP16 ends at 65504: in the FP16 copy that forward reads it is infinite, and so is the layer's output. No loss scale has a say in that.",
        weight.site.label(),
        number(max)
    )
}

fn near(weight: &SiteSummary, first: f64, max: f64) -> String {
    format!(
        "`{}` has grown from {} to {}, and FP16 ends at 65504: soon it is infinite in the FP16 copy that forward reads.",
        weight.site.label(),
        number(first),
        number(max)
    )
}

fn vanishing(weight: &SiteSummary, max: f64, error: f64) -> String {
    format!(
        "The largest element of `{}` is {}, below FP16's normal numbers: of its direction the FP16 copy that forward reads loses {} (predicted 1 - cosine), and it does not grow.",
        weight.site.label(),
        power_of_two(max),
        number(error)
    )
}

fn firing(
    aggregate: &Aggregate,
    weight: &SiteSummary,
    severity: Severity,
    bound: &'static str,
    explanation: &str,
    error: Option<f64>,
) -> Firing {
    let latest = weight.latest();
    let max = latest.map_or(0.0, |l| l.stats.max_abs);
    let layer = weight.site.layer.clone();
    let reach = Reach::of_product(&Graph::of(aggregate), &layer);
    let mut evidence = vec![said("tensor", weight.site.label()), measured("max_abs", max), said("fp16_holds", bound)];
    evidence.extend(error.map(|error| measured("ehat", error)));
    Firing {
        severity,
        layer,
        operator: String::new(),
        probe: Some(Probe::Param),
        since: latest.map_or(0, |l| l.step),
        strength: max,
        evidence,
        explanation: explanation.into(),
        remedy: reach.set(Remedy::from(format!(
            "{}. Then look at why its weights are of that size: a learning rate that is too high, no weight decay, a \
             normalisation that hides it.",
            sentence(reach.clause(aggregate))
        )), aggregate),
    }
}

#[cfg(test)]
mod tests {
    use crate::observation::scenario::{Scenario, normal};
    use crate::rules::silence::{diagnose, first};
    use crate::rules::{Finding, Severity};
    use crate::scan::Dtype::{self, Bf16, F16, F32};

    /// A layer that computes in `dtype`, with weights of this deviation at each step.
    fn run(dtype: Dtype, weight: impl Fn(u64) -> f64) -> Option<Finding> {
        let mut run = Scenario::new();
        run.steps(20, |s, i| {
            s.loss(1.0).activation("fc", "linear", dtype, &normal(64, 1.0, i));
            s.update("fc", "add_", "weight", &normal(256, 1e-9, i));
            s.param("fc", "weight", F32, &normal(256, weight(i), 3));
        });
        first(&diagnose(&run), "AMP410").cloned()
    }

    #[test]
    fn a_weight_that_is_infinite_in_fp16_is_an_error_at_its_step_and_one_on_its_way_a_warning() {
        let f = run(F16, |i| if i < 10 { 1.0 } else { 1e5 }).expect("found");
        assert_eq!((f.severity, f.layer.as_str(), f.onset_step), (Severity::Error, "fc", 10));
        assert_eq!(f.remedy.set[0].name, "fp32_layers");
        assert_eq!(run(F16, |i| 600.0 * (i + 1) as f64).map(|f| f.severity), Some(Severity::Warning));
    }

    #[test]
    fn weights_that_fp16_rounds_to_nothing_are_a_warning() {
        let f = run(F16, |_| 1e-8).expect("found");
        assert_eq!(f.severity, Severity::Warning);
        assert!(f.explanation.contains("loses"), "{}", f.explanation);
    }

    #[test]
    fn layers_that_compute_in_another_format_ordinary_weights_and_growing_gates_are_silent() {
        for dtype in [F32, Bf16] {
            assert!(run(dtype, |_| 1e6).is_none());
            assert!(run(dtype, |_| 1e-9).is_none());
        }
        assert!(run(F16, |_| 0.05).is_none());
        assert!(run(F16, |_| 12_000.0).is_none());
        assert!(run(F16, |i| 1e-9 * (i + 1) as f64).is_none());
        assert!(run(F16, |_| 0.0).is_none());
    }
}
