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
//! **Error**, once forward, the loss and the parameters are finite while a buffer is not. The step named is the first at which the buffer was seen
//! so.
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
//! While forward itself is not finite: other rules tell the origin, and this one speaks once that is over. Where the parameters are ruined as well.

use super::non_finite_origin::has_ruined_parameter;
use super::text::{counted, layer_name, said};
use super::{Firing, Limits, Rule, RuleInfo, Severity, Verdict};
use crate::aggregate::Aggregate;
use crate::observation::{Probe, SiteId};

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
        if nf.latest.buffers.is_empty()
            || !nf.latest.forward_is_clean()
            || nf.loss_bad.is_some()
            || has_ruined_parameter(aggregate)
        {
            return Vec::new();
        }
        let poisoned = nf.latest.buffers.iter().filter_map(|&id| firing(aggregate, id));
        poisoned.map(|f| Verdict::Firing(Box::new(f))).collect()
    }
}

fn firing(aggregate: &Aggregate, id: SiteId) -> Option<Firing> {
    let summary = aggregate.site(id)?;
    let (site, latest) = (&summary.site, summary.latest()?);
    let is_bad = |s: &&crate::aggregate::Sample| s.stats.non_finite() > 0;
    let since = summary.recent.iter().rev().take_while(is_bad).last()?.step;
    let skipped = aggregate.scale_dynamics.skips.iter().any(|skip| skip.step == since);
    let how = if skipped {
        " The scaler skipped that step, which does not undo what forward wrote."
    } else {
        " Forward writes it, whatever becomes of the step."
    };
    Some(Firing {
        severity: Severity::Error,
        layer: site.layer.clone(),
        operator: String::new(),
        probe: Some(Probe::Buffer),
        since,
        strength: 1.0,
        evidence: vec![
            said("tensor", site.label()),
            counted("poisoned_since_step", since),
            counted("nan_elements", latest.stats.nan),
            counted("infinite_elements", latest.stats.pos_inf + latest.stats.neg_inf),
            counted("elements", latest.stats.count),
        ],
        explanation: format!(
            "Buffer `{}` has held non-finite values since step {since}.{how} Forward in training mode does not read it, so training looks well and evaluation is NaN.",
            site.label()
        ),
        remedy: format!(
            "Reset `{}` (running mean to 0, running variance to 1) or load it from before step {since}, and keep layer `{}` and what comes before it in FP32 or BF16, so \
             that its input cannot overflow.",
            site.label(),
            layer_name(site)
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
        assert_eq!(found(&d), ["AMP102", "AMP502"], "{:#?}", d.findings());
        let f = first(&d, "AMP502").unwrap();
        assert_eq!((f.layer.as_str(), f.probe, f.onset_step, f.last_step), ("bn", Some(Probe::Buffer), 2, 5));
        assert!(f.explanation.contains("since step 2. The scaler skipped that step"), "{}", f.explanation);
    }

    #[test]
    fn an_overflow_that_leaves_the_buffer_finite_poisons_nothing() {
        assert!(first(&diagnose(&run(false)), "AMP502").is_none());
    }
}
