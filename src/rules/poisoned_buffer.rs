//! ## What it finds
//!
//! A registered buffer (the running statistics of a batch norm) that holds NaN or infinities while the run goes on as if nothing had been.
//!
//! ## Why it matters
//!
//! A batch that overflows writes its mean and variance into the running statistics during forward. The scaler skips the step, but not that, and
//! forward in training mode never reads them: training looks well, and evaluation, or the model that is deployed, is NaN. A running average never
//! gets rid of an infinity.
//!
//! ## How it decides
//!
//! **Error**, once forward, the loss and the parameters are finite while a buffer is not. The step named is the first at which one was seen so. All buffers
//! that are not finite are one finding, at the layer of the first. Where the overflow itself was seen (`activation-overflow`) it stands under that, whose
//! remedy names the buffers to reset.
//!
//! ## What to do
//!
//! Reset the buffer, or load it from a checkpoint before that step:
//!
//! ```rust,ignore
//! tch::no_grad(|| {
//!     let _ = bn.running_mean.zero_();
//!     let _ = bn.running_var.fill_(1.0);
//! });
//! ```
//!
//! Then see to the layer before it that overflowed, or it happens again.
//!
//! ## When it stays silent
//!
//! While forward itself is not finite: other rules tell the origin, and this one speaks once that is over. Where the parameters are ruined as well. On a buffer that
//! is a mask: 0 and -inf, and nothing else.

use std::collections::BTreeSet;

use super::non_finite_origin::has_ruined_parameter;
use super::text::{count, counted, layer_name, said};
use super::update_advice::some_of;
use super::{Firing, Limits, Rule, RuleInfo, Severity, Verdict};
use crate::aggregate::{Aggregate, Sample, SiteSummary};
use crate::observation::{Probe, SiteId};
use crate::scan::Stats;

/// See the page of the rule.
pub struct PoisonedBuffer;

static INFO: RuleInfo = RuleInfo {
    code: "AMP502",
    name: "poisoned-buffer",
    severity: Severity::Error,
    summary: "A buffer (running statistics) is not finite while training goes on: evaluation is NaN.",
    source: include_str!("poisoned_buffer.rs"),
};

impl Rule for PoisonedBuffer {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn check(&self, aggregate: &Aggregate, _: &Limits) -> Vec<Verdict> {
        let nf = &aggregate.non_finite;
        if !nf.latest.forward_is_clean() || nf.loss_bad.is_some() || has_ruined_parameter(aggregate) {
            return Vec::new();
        }
        firing(aggregate).map(|f| Verdict::Firing(Box::new(f))).into_iter().collect()
    }
}

/// The buffers that are not finite at the latest step, each once, in the order in which they were seen.
fn poisoned(aggregate: &Aggregate) -> Vec<&SiteSummary> {
    let mut ids: Vec<SiteId> = Vec::new();
    for id in &aggregate.non_finite.latest.buffers {
        if !ids.contains(id) {
            ids.push(*id);
        }
    }
    ids.into_iter().filter_map(|id| aggregate.site(id)).collect()
}

/// What to do about buffers that an overflow has poisoned by now; `None` where there is none. They outlast whatever becomes of its cause.
pub(super) fn reset(aggregate: &Aggregate) -> Option<String> {
    let names: Vec<String> = poisoned(aggregate).iter().map(|s| s.site.label()).collect();
    (!names.is_empty()).then(|| {
        format!(
            "A run that goes on has to reset {} too (running mean to 0, running variance to 1), or load them from before: the overflow is in them and stays,              and evaluation is NaN.",
            some_of(&names)
        )
    })
}

/// The first step of those in a row, up to the latest that are remembered, at which it was not finite.
fn since(summary: &SiteSummary) -> Option<u64> {
    let is_bad = |s: &&Sample| s.stats.non_finite() > 0;
    Some(summary.recent.iter().rev().take_while(is_bad).last()?.step)
}

/// All buffers are one finding, at the layer of the first: one batch poisons the statistics of all layers behind it.
fn firing(aggregate: &Aggregate) -> Option<Firing> {
    let poisoned = poisoned(aggregate);
    let first = &poisoned.first()?.site;
    let since = poisoned.iter().filter_map(|s| since(s)).min()?;
    let names: Vec<String> = poisoned.iter().map(|s| s.site.label()).collect();
    let layers: BTreeSet<&str> = poisoned.iter().map(|s| s.site.layer.as_str()).collect();
    let skipped = aggregate.scale_dynamics.skips.iter().any(|skip| skip.step == since);
    let how = if skipped {
        " The scaler skipped that step, which does not undo what forward wrote."
    } else {
        " Forward writes it, whatever becomes of the step."
    };
    let total = |of: fn(&Stats) -> u64| poisoned.iter().filter_map(|s| s.latest()).map(|l| of(&l.stats)).sum::<u64>();
    let (who, has) = match poisoned.len() {
        1 => (format!("Buffer {}", some_of(&names)), "has"),
        n => (format!("{n} buffers of {} ({})", count(layers.len(), "layer"), some_of(&names)), "have"),
    };
    Some(Firing {
        severity: Severity::Error,
        layer: first.layer.clone(),
        operator: String::new(),
        probe: Some(Probe::Buffer),
        since,
        strength: poisoned.len() as f64,
        evidence: vec![
            said("tensors", names.join(", ")),
            counted("layers", layers.len() as u64),
            counted("poisoned_since_step", since),
            counted("nan_elements", total(|s| s.nan)),
            counted("infinite_elements", total(|s| s.pos_inf + s.neg_inf)),
            counted("elements", total(|s| s.count)),
        ],
        explanation: format!(
            "{who} {has} held non-finite values since step {since}.{how} Forward in training mode does not read them, so training looks well and evaluation is NaN.",
        ),
        remedy: format!(
            "Reset {} (running mean to 0, running variance to 1) or load them from before step {since}, and keep layer `{}` and what comes before it in FP32 or \
             BF16, so that its input cannot overflow.",
            some_of(&names),
            layer_name(first)
        )
        .into(),
    })
}

#[cfg(test)]
mod tests {
    use crate::observation::Probe;
    use crate::observation::scenario::{Scenario, normal};
    use crate::rules::silence::{diagnose, first, found};
    use crate::scan::Dtype::F16;

    const INF: f64 = f64::INFINITY;

    /// A batch norm behind a convolution that overflows at step 2, whose step is skipped.
    fn run(poisons: bool) -> Scenario {
        let mut run = Scenario::new();
        run.dynamic_scaler(65536.0).steps(6, |s, i| {
            let bad = i == 2;
            s.loss(if bad { f64::NAN } else { 1.0 });
            if bad {
                s.skipped(65536.0, 32768.0)
            } else {
                s.applied(if i > 2 { 32768.0 } else { 65536.0 })
            };
            s.activation("conv", "conv2d", F16, &if bad { vec![INF; 64] } else { normal(64, 1.0, i) });
            s.gradient("conv", "conv2d", F16, &normal(64, 1.0, i));
            s.buffer("bn", "running_mean", &[if poisons && i >= 2 { INF } else { 0.1 }; 8]);
        });
        run
    }

    #[test]
    fn case_16_running_statistics_that_a_skipped_step_left_are_told_with_the_step() {
        let d = diagnose(&run(true));
        // The overflow and what it left are one finding, whose remedy names both.
        assert_eq!(found(&d), ["AMP102"], "{:#?}", d.findings());
        let remedy = &d.findings()[0].remedy.text;
        assert!(remedy.contains("has to reset `bn.running_mean` too"), "{remedy}");
        let f = first(&d, "AMP502").unwrap();
        assert_eq!((f.layer.as_str(), f.probe, f.onset_step, f.last_step), ("bn", Some(Probe::Buffer), 2, 5));
        assert!(f.explanation.contains("since step 2. The scaler skipped that step"), "{}", f.explanation);
    }

    #[test]
    fn buffers_of_several_layers_are_one_finding_with_the_layers_counted() {
        let mut run = Scenario::new();
        run.steps(6, |s, i| {
            s.loss(1.0).activation("conv", "conv2d", F16, &normal(64, 1.0, i));
            for layer in ["bn1", "bn2"] {
                for buffer in ["running_mean", "running_var"] {
                    s.buffer(layer, buffer, &[if i >= 2 { INF } else { 0.1 }; 8]);
                }
            }
        });
        let d = diagnose(&run);
        assert_eq!(found(&d), ["AMP502"], "{:#?}", d.findings());
        let f = &d.findings()[0];
        assert_eq!((f.layer.as_str(), f.onset_step), ("bn1", 2));
        assert!(f.explanation.starts_with("4 buffers of 2 layers (`bn1.running_mean`, "), "{}", f.explanation);
        assert!(f.evidence.contains(&crate::rules::text::counted("infinite_elements", 32)), "{:?}", f.evidence);
    }

    #[test]
    fn a_mask_that_is_kept_in_a_buffer_is_by_design_whatever_the_scores_are() {
        for buffer in [[0.0, -INF, 0.0, -INF], [0.0, -INF, 0.0, f64::from(f32::MIN)], [0.5, -INF, 0.0, -INF]] {
            let is_mask = buffer[0] == 0.0;
            let mut run = Scenario::new();
            // It does not change, and is recorded once.
            run.steps(4, |s, i| {
                if i == 0 {
                    s.buffer("attn", "mask", &buffer);
                }
                s.loss(1.0).activation("attn", "matmul", F16, &[60000.0, 1.0]);
                s.activation("attn", "baddbmm", F16, &[60000.0, -INF]).from(&["attn.mask", "attn/matmul"]);
                s.activation("attn", "softmax", F16, &[1.0, 0.0]).from(&["attn/baddbmm"]);
                s.gradient("attn", "softmax", F16, &normal(64, 1.0, i));
            });
            let d = diagnose(&run);
            let blamed = ["AMP102", "AMP501", "AMP502", "AMP504"].iter().filter_map(|code| first(&d, code)).next();
            assert_eq!(blamed.is_none(), is_mask, "{buffer:?}: {:#?}", d.findings());
        }
    }

    #[test]
    fn an_overflow_that_leaves_the_buffer_finite_poisons_nothing() {
        assert!(first(&diagnose(&run(false)), "AMP502").is_none());
    }
}
