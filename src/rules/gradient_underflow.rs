//! ## What it finds
//!
//! Gradients that FP16 cannot hold because they are too small: they fade into the subnormals below 2^-14 = 6.1e-5, where each halving costs a
//! bit, and at 2^-25 they are rounded to zero. What is judged is the gradient *as FP16 held it*, that is, times the loss scale.
//!
//! Fading and lost are told apart. *Fading* is measured: those elements are there. *Lost* is an estimate, and called one: what was rounded to
//! zero leaves no trace in FP16. It continues the power law that the five lowest binades of the gradient follow, and means "or more" where it
//! saturates. Only where backward cast an FP32 gradient to FP16 is it measured, for there both sides are seen.
//!
//! ## Why it matters
//!
//! A layer whose gradient is lost does not learn, and every layer nearer the input gets what is left. The loss flattens early, or
//! drifts, and nothing is NaN. Near the limit training may also diverge, because what is lost often has one sign.
//!
//! ## How it decides
//!
//! Each FP16 gradient of at least 64 elements is given Ehat, the predicted `1 - cosine` between the gradient and what FP16 kept of it, from its
//! exponent histogram alone. A condition holds when it holds in three samples in a row: one small batch is no trend.
//!
//! * **Error**: Ehat above 1e-3 in the median gradient. Of 37 runs that underflow had harmed, all reached 2.2e-3; of 28 healthy ones
//!   none left the floor of 1.7e-8. The median, because one gradient may be starved by design.
//! * **Warning**: Ehat above 1e-4 in the median gradient, or above 1e-2 in one layer.
//! * **Warning**: the largest value of most gradients lies below 2^-14. It never alarmed on a healthy run and never missed a harmed one, but comes
//!   about five octaves before harm.
//! * A gradient that is all zero has Ehat 1 only where something was seen to fade: it lay below 2^-14 when it was last non-zero (or would have
//!   at the loss scale in force now), or the gradient it was computed from is starved or too small to survive the next operation. Any other zero
//!   may be exact, as that of a satisfied margin loss is.
//!
//! Where there is no loss scaler at all that is said here, with the scale to begin with, and no finding of its own: FP16 without a scaler is a fault only where
//! gradients underflow.
//!
//! The layer named is the one nearest the loss at which it begins: every layer nearer the input inherits the loss, and is counted. Where
//! the whole gradient is too small from its beginning, no layer is to blame and the finding is about the run.
//!
//! A share of subnormals decides nothing: up to 90 % of a gradient may be subnormal without harm, for its energy lies in its largest elements.
//!
//! ## What to do
//!
//! Set the loss scale that the finding names. It is a power of two out of the window in which every gradient that was seen keeps Ehat below
//! 1e-4 and the largest keeps a bit of headroom. Where that window is empty no scale is good for all layers, and the finding says
//! which layer to change.
//!
//! ## When it stays silent
//!
//! On gradients held in FP32 and BF16. On tensors of less than 64 elements, on steps with a non-finite gradient, on gradients that are zero
//! by design: never non-zero, frozen, behind a gate that starts at zero, behind dead or saturated units, on a branch not taken, under a margin
//! that is satisfied. Behind a forward that overflowed. After the scale collapsed because of non-finite gradients: then
//! these are the fault, and rule `non-finite-origin` or `gradient-overflow` names it.

use super::scale_advice::{Blamed, ScaleAdvice, compare, headroom, set_scale};
use super::text::{count, counted, layer_name, measured, number, power_of_two, share};
use super::{Evidence, Firing, Rule, RuleInfo, Severity, Verdict};
use crate::aggregate::{Aggregate, Sample, SiteSummary};
use crate::numerics::{Format, Underflow};

/// Samples in a row in which a condition must hold; costs two samples of delay.
const SAMPLES: usize = 3;
/// Median Ehat of a harmed run: the least that one had was 2.2e-3.
const MEDIAN_HARMED: f64 = 1e-3;
/// Median Ehat at which harm is near: reached by the third sample in every harmed run.
const MEDIAN_NEAR: f64 = 1e-4;
/// Ehat at which one layer's gradient is damaged.
const LAYER_HARMED: f64 = 1e-2;
/// FP16's smallest normal number: a gradient that lies wholly below is fading.
const SMALLEST_NORMAL: f64 = 6.103515625e-5;
/// Part of the gradients that lies below it in a run that is fading.
const MOST: f64 = 0.5;
/// Octaves by which a gradient falls, from one tensor to the next, where a layer and not the scale is to blame. Healthy layers differ by 5 or 6 in all.
const CLIFF_OCTAVES: f64 = 6.0;
/// Part of the gradients that must be well, nearer the loss, for a layer to be named as the place where it begins.
const WELL_BEFORE: f64 = 0.2;
/// Octaves by which a single streak of non-finite gradients lowers the scale when these, and not the scale, are the fault.
const COLLAPSE_OCTAVES: f64 = 8.0;

/// See the page of the rule.
pub struct GradientUnderflow;

static INFO: RuleInfo = RuleInfo {
    code: "AMP201",
    name: "gradient-underflow",
    severity: Severity::Error,
    summary: "Gradients are too small for FP16 at this loss scale: they fade, and are rounded to zero.",
    source: include_str!("gradient_underflow.rs"),
};

impl Rule for GradientUnderflow {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn check(&self, aggregate: &Aggregate) -> Vec<Verdict> {
        if !aggregate.has_fp16_gradients() || scale_collapsed(aggregate) {
            return Vec::new();
        }
        let (judged, waiting) = judged(aggregate);
        if judged.is_empty() {
            return waiting.map(Verdict::Unsure).into_iter().collect();
        }
        decide(&judged).map(|d| Verdict::Firing(Box::new(firing(aggregate, &judged, d)))).into_iter().collect()
    }
}

/// One FP16 gradient that has been judged in each of its latest samples.
struct Judged<'a> {
    site: &'a SiteSummary,
    latest: &'a Sample,
    since: u64,
    /// Ehat of each sample, oldest first.
    ehat: [f64; SAMPLES],
    /// The largest value in any of them.
    max_abs: f64,
}

impl Judged<'_> {
    /// What held in all samples.
    fn lasting(&self) -> f64 {
        self.ehat.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

/// The judged gradients of the latest step in the order of backward; and what is missing where none can be judged yet.
fn judged(aggregate: &Aggregate) -> (Vec<Judged<'_>>, Option<String>) {
    let mut waiting = None;
    let mut judged = Vec::new();
    for (_, site) in aggregate.latest_observations().filter(|(_, s)| s.site.probe.is_gradient()) {
        let Some(latest) = site.latest().filter(|s| s.underflow.is_some()) else { continue };
        match site.last(SAMPLES).and_then(|samples| judge(site, latest, samples)) {
            Some(one) => judged.push(one),
            None if site.recent.len() < SAMPLES => {
                waiting = Some(format!(
                    "{} of {SAMPLES} samples of the gradient were seen; let it run on",
                    site.recent.len()
                ));
            }
            None => {}
        }
    }
    judged.sort_by_key(|j| j.latest.order);
    (judged, waiting)
}

fn judge<'a>(
    site: &'a SiteSummary,
    latest: &'a Sample,
    samples: impl Iterator<Item = &'a Sample>,
) -> Option<Judged<'a>> {
    let samples: Vec<&Sample> = samples.collect();
    let ehat: Option<Vec<f64>> = samples.iter().map(|s| s.underflow.map(|u| u.ehat)).collect();
    Some(Judged {
        site,
        latest,
        since: samples.first()?.step,
        ehat: ehat?.try_into().ok()?,
        max_abs: samples.iter().map(|s| s.stats.max_abs).fold(0.0, f64::max),
    })
}

struct Decision {
    severity: Severity,
    /// Median over the gradients, lasting over the samples.
    median: f64,
    /// Place of the first gradient, in the order of backward, that is to be shown.
    first: usize,
    /// Whether it names the layer, or the run as a whole is meant.
    layer_is_to_blame: bool,
    /// Gradients that lie wholly below the smallest normal number.
    below_normal: usize,
    /// Gradients that are starved.
    starved: usize,
}

fn decide(judged: &[Judged<'_>]) -> Option<Decision> {
    let median = (0..SAMPLES).map(|i| median(judged.iter().map(|j| j.ehat[i]).collect())).fold(f64::INFINITY, f64::min);
    let below = |j: &Judged<'_>| j.max_abs < SMALLEST_NORMAL;
    let below_normal = judged.iter().filter(|j| below(j)).count();
    let starved = judged.iter().filter(|j| j.lasting() > LAYER_HARMED).count();
    let most_below = below_normal as f64 > MOST * judged.len() as f64;
    let severity = match () {
        () if median > MEDIAN_HARMED => Severity::Error,
        () if median > MEDIAN_NEAR || starved > 0 || most_below => Severity::Warning,
        () => return None,
    };
    let worst_first = [LAYER_HARMED, MEDIAN_NEAR];
    let first = worst_first.iter().find_map(|&t| judged.iter().position(|j| j.lasting() > t));
    let first = first.or_else(|| judged.iter().position(below)).unwrap_or(0);
    Some(Decision { severity, median, first, layer_is_to_blame: begins_here(judged, first), below_normal, starved })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    // The lower of the two middle ones: with an even number, a half that is starved is not yet most of them.
    values.get((values.len().max(1) - 1) / 2).copied().unwrap_or(0.0)
}

/// Whether gradients nearer the loss are well, so that a layer is to blame and not the scale.
fn begins_here(judged: &[Judged<'_>], first: usize) -> bool {
    let well = judged[..first].iter().filter(|j| j.lasting() <= MEDIAN_NEAR && j.max_abs >= SMALLEST_NORMAL).count();
    well as f64 >= WELL_BEFORE * judged.len() as f64 && well > 0
        || first > 0 && falls_off(&judged[first - 1], &judged[first])
}

fn falls_off(before: &Judged<'_>, here: &Judged<'_>) -> bool {
    let smallest = Format::F16.min_subnormal();
    before.lasting() <= MEDIAN_NEAR && (before.max_abs / here.max_abs.max(smallest)).log2() >= CLIFF_OCTAVES
}

/// Whether non-finite gradients drove the scale down in one go: then they are the fault, and what underflows now is a consequence.
fn scale_collapsed(aggregate: &Aggregate) -> bool {
    let now = aggregate.latest.as_ref().and_then(|s| s.loss_scale);
    let collapsed_from =
        aggregate.non_finite.deepest.filter(|s| s.octaves_fallen() >= COLLAPSE_OCTAVES).and_then(|s| s.first_scale);
    matches!((now, collapsed_from), (Some(now), Some(from)) if now <= from / COLLAPSE_OCTAVES.exp2())
}

fn firing(aggregate: &Aggregate, judged: &[Judged<'_>], decision: Decision) -> Firing {
    let shown = &judged[decision.first];
    let advice = ScaleAdvice::of(aggregate);
    Firing {
        severity: decision.severity,
        layer: if decision.layer_is_to_blame { shown.site.site.layer.clone() } else { String::new() },
        operator: if decision.layer_is_to_blame { shown.site.site.operator.clone() } else { String::new() },
        probe: Some(shown.site.site.probe),
        since: judged
            .iter()
            .filter(|j| j.lasting() >= shown.lasting().min(LAYER_HARMED))
            .map(|j| j.since)
            .min()
            .unwrap_or(shown.since),
        strength: decision.median.max(shown.lasting()),
        evidence: evidence(shown, judged.len(), &decision, advice.as_ref()),
        explanation: explanation(aggregate, judged, &decision),
        remedy: remedy(aggregate, shown, decision.layer_is_to_blame, advice.as_ref()),
    }
}

fn evidence(shown: &Judged<'_>, judged: usize, decision: &Decision, advice: Option<&ScaleAdvice<'_>>) -> Vec<Evidence> {
    let underflow = shown.latest.underflow.unwrap_or(Underflow::ALL_LOST);
    let scale = shown.latest.loss_scale.unwrap_or(1.0);
    let mut evidence = vec![
        measured("median_ehat", decision.median),
        measured("layer_ehat", shown.lasting()),
        counted("judged_gradients", judged as u64),
        counted("starved_gradients", decision.starved as u64),
        counted("gradients_below_2^-14", decision.below_normal as u64),
        measured("loss_scale", scale),
        measured("max_abs_as_held", shown.max_abs),
        measured("max_abs_unscaled", shown.max_abs / scale),
    ];
    // Of a gradient that is lost whole no element is left to fade.
    if shown.latest.stats.max_abs > 0.0 && underflow.lost_share < 1.0 {
        evidence.push(measured("fading_share", underflow.fading_share));
    }
    let (lost, l1) = match underflow.measured {
        true => ("lost_share", "lost_l1_share"),
        false => ("lost_share_estimate", "lost_l1_share_estimate"),
    };
    evidence.extend([measured(lost, underflow.lost_share), measured(l1, underflow.l1hat)]);
    let raised = |exponent: &i32| f64::from(*exponent).exp2() > scale || shown.latest.loss_scale.is_none();
    if let Some((advice, exponent)) = advice.and_then(|a| Some((a, a.exponent().filter(raised)?))) {
        evidence.push(measured("recommended_loss_scale", f64::from(exponent).exp2()));
        evidence.push(measured("headroom_bits_at_recommended", advice.headroom_bits(exponent)));
    }
    evidence
}

fn explanation(aggregate: &Aggregate, judged: &[Judged<'_>], decision: &Decision) -> String {
    let shown = &judged[decision.first];
    let upstream = judged[decision.first + 1..].iter().filter(|j| j.lasting() > MEDIAN_NEAR).count();
    let mut text = vec![what_is_left(shown), what_is_wrong(judged, decision)];
    if decision.layer_is_to_blame {
        text.push(format!("It begins at layer `{}`{}.", layer_name(&shown.site.site), made_by(aggregate, shown)));
        if upstream > 0 {
            text.push(format!("{} nearer the input inherited it.", count(upstream, "gradient")));
        }
    } else {
        let why = if has_scale(aggregate) { "the scale is too low" } else { "there is no loss scaler" };
        text.push(format!("It is so from the loss on: {why}, no layer is to blame."));
    }
    text.join(" ")
}

/// Whether the loss is scaled, by whomever.
fn has_scale(aggregate: &Aggregate) -> bool {
    aggregate.scaler_config.is_some() || aggregate.latest.as_ref().is_some_and(|s| s.loss_scale.is_some())
}

fn what_is_wrong(judged: &[Judged<'_>], decision: &Decision) -> String {
    let all = judged.len();
    match decision.severity {
        Severity::Error => format!(
            "So the layers are moved in a wrong direction, or not at all: the predicted error of the direction (1 - cosine) is {} in the median of {} \
             (harmed runs have more than 1e-3, healthy ones 2e-8).",
            number(decision.median),
            count(all, "gradient")
        ),
        _ if decision.starved > 0 => format!(
            "So FP16 loses the direction of the gradient in {} of {all}: the predicted error (1 - cosine) is above 0.01 there.",
            decision.starved
        ),
        _ => format!(
            "{} of {} lie wholly below 2^-14 = 6.1e-5, where FP16's precision fades; the direction of the gradient is not lost yet.",
            decision.below_normal,
            count(all, "gradient")
        ),
    }
}

fn what_is_left(shown: &Judged<'_>) -> String {
    let label = shown.site.site.label();
    let scale = shown.latest.loss_scale.unwrap_or(1.0);
    let Some(u) = shown.latest.underflow.filter(|_| shown.latest.stats.max_abs > 0.0) else {
        return format!(
            "Nothing is left of the gradient of `{label}`: all {} elements are zero, so nothing below it learns.",
            shown.latest.stats.count
        );
    };
    let lost = match (u.lost_share, u.saturated) {
        (s, _) if u.measured => format!("{} of all were rounded to zero (measured at the cast from FP32)", share(s)),
        (0.0, _) => "none seem lost".to_string(),
        (s, true) => format!("an estimated {} or more of all were rounded to zero (the estimate ends there)", share(s)),
        (s, false) => format!("an estimated {} of all were rounded to zero", share(s)),
    };
    format!(
        "Of the gradient of `{label}`, {} of the elements that are left fade (subnormal) and {lost}; its largest value is {} as FP16 held it, {} \
         without the loss scale.",
        share(u.fading_share),
        power_of_two(shown.max_abs),
        power_of_two(shown.max_abs / scale)
    )
}

fn made_by(aggregate: &Aggregate, shown: &Judged<'_>) -> String {
    let via = shown.latest.via.and_then(|id| aggregate.site(id));
    via.map_or(String::new(), |v| format!(", in the backward of `{}`", v.site.label()))
}

fn remedy(
    aggregate: &Aggregate,
    shown: &Judged<'_>,
    layer_is_to_blame: bool,
    advice: Option<&ScaleAdvice<'_>>,
) -> String {
    let config = aggregate.scaler_config.as_ref();
    let now = shown.latest.loss_scale;
    // Underflow is never cured by a lower scale: one that is not above what is in force says that the layer, and not the scale, is the place to look.
    let raised = |exponent: i32| {
        let higher = f64::from(exponent).exp2() > now.unwrap_or(0.0);
        set_scale(config, now, exponent).filter(|_| higher || now.is_none())
    };
    let Some(advice) = advice else {
        return match raised(16) {
            Some(set) => format!(
                "Nothing of the gradient is left to compute a scale from. {}; a dynamic one halves itself until the gradients fit.",
                sentence(set)
            ),
            None => look_at(aggregate, shown),
        };
    };
    let blamed = if layer_is_to_blame { Blamed::TooSmall(shown.site) } else { Blamed::Nobody };
    let Some(exponent) = advice.exponent() else { return sentence(advice.layer_to_fix(blamed)) + "." };
    let Some(set) = raised(exponent).map(sentence) else { return look_at(aggregate, shown) };
    let fits = headroom(advice, exponent);
    if shown.latest.stats.max_abs > 0.0 {
        let compared = compare(shown.site, &shown.latest.stats, now.unwrap_or(1.0), exponent);
        format!("{set}: {compared}, and {fits}.")
    } else {
        format!(
            "{set}: a gradient of which nothing is left cannot say which scale it needs, so begin there and look again; {fits}."
        )
    }
}

/// What to look at where the scale cannot help.
fn look_at(aggregate: &Aggregate, shown: &Judged<'_>) -> String {
    let site = &shown.site.site;
    let via = shown.latest.via.and_then(|id| aggregate.site(id)).map_or(site, |v| &v.site);
    format!(
        "Look at layer `{}`, at what `{}` passes backward: a factor that shrinks the gradient there, a sigmoid or softmax at its end, a mean over very \
         many elements. Take it out, or compute that part in FP32.",
        layer_name(site),
        via.label()
    )
}

fn sentence(text: String) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |c| c.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use crate::observation::scenario::{Scenario, StepBuilder, normal};
    use crate::rules::silence::{diagnose, found};
    use crate::rules::{Finding, Severity, Value};
    use crate::scan::Dtype::{F16, F32};

    /// Gradients of four layers in the order of backward, each of this standard deviation.
    fn backward(s: &mut StepBuilder<'_>, deviations: [f64; 4], seed: u64) {
        for (i, deviation) in deviations.into_iter().enumerate() {
            s.gradient(&format!("fc{}", 4 - i), "linear", F16, &normal(512, deviation, 10 * seed + i as u64));
        }
    }

    fn number(finding: &Finding, name: &str) -> f64 {
        match finding.evidence.iter().find(|e| e.name == name).map(|e| &e.value) {
            Some(Value::Number(x)) => *x,
            Some(Value::Count(n)) => *n as f64,
            other => panic!("{name}: {other:?}"),
        }
    }

    fn only(run: &Scenario) -> Finding {
        let d = diagnose(run);
        assert_eq!(found(&d), ["AMP201"], "{:#?}", d.findings());
        d.findings()[0].clone()
    }

    #[test]
    fn a_scale_that_is_too_low_is_an_error_of_the_run_with_the_scale_to_set() {
        let mut run = Scenario::new();
        run.static_scaler(1.0).steps(5, |s, i| {
            s.loss(1.0).loss_scale(1.0);
            backward(s, [3e-7; 4], i);
        });
        let f = only(&run);
        assert_eq!((f.severity, f.layer.as_str(), f.onset_step, f.last_step), (Severity::Error, "", 0, 4));
        assert!(number(&f, "median_ehat") > 1e-3);
        assert!(
            f.explanation.contains("no layer is to blame") && f.explanation.contains("estimated"),
            "{}",
            f.explanation
        );
        assert!(f.remedy.starts_with("Raise the static loss scale from 1 (2^0) to "), "{}", f.remedy);
        let scale = number(&f, "recommended_loss_scale");
        assert!(scale.log2().fract() == 0.0 && number(&f, "headroom_bits_at_recommended") >= 3.0);

        // The remedy, applied, cures it.
        let mut cured = Scenario::new();
        cured.static_scaler(scale).steps(5, |s, i| {
            s.loss(1.0).loss_scale(scale);
            backward(s, [3e-7 * scale; 4], i);
        });
        assert_eq!(found(&diagnose(&cured)), Vec::<&str>::new());
    }

    #[test]
    fn one_bad_step_is_not_a_trend() {
        let mut run = Scenario::new();
        run.dynamic_scaler(65536.0).steps(9, |s, i| {
            s.loss(1.0).applied(65536.0);
            backward(s, [if i % 3 == 2 { 1e-7 } else { 1e-2 }; 4], i);
        });
        assert_eq!(found(&diagnose(&run)), Vec::<&str>::new());
    }

    #[test]
    fn two_samples_leave_it_unsure() {
        let mut run = Scenario::new();
        run.steps(2, |s, i| {
            s.loss(1.0);
            backward(s, [1e-7; 4], i);
        });
        let d = diagnose(&run);
        assert!(found(&d).is_empty());
        assert!(d.doubts().iter().any(|x| x.code == "AMP201" && x.reason.contains("2 of 3")), "{:?}", d.doubts());
    }

    #[test]
    fn wholly_below_the_smallest_normal_number_is_a_warning_five_octaves_before_harm() {
        let mut run = Scenario::new();
        run.dynamic_scaler(16.0).steps(5, |s, i| {
            s.loss(1.0).applied(16.0);
            backward(s, [1.2e-5; 4], i);
        });
        let f = only(&run);
        assert_eq!(f.severity, Severity::Warning);
        assert!(f.explanation.contains("wholly below 2^-14"), "{}", f.explanation);
        assert!(f.remedy.starts_with("Raise `init_scale` from 16 (2^4)"), "{}", f.remedy);
    }

    #[test]
    fn the_layer_at_which_the_gradient_collapses_is_named_and_those_that_inherit_are_counted() {
        let mut run = Scenario::new();
        run.dynamic_scaler(1024.0).steps(10, |s, i| {
            let starved = if i < 4 { 1.0 } else { 2f64.powi(-20) };
            s.loss(1.0).applied(1024.0);
            backward(s, [0.1, 0.1 * starved, 0.1 * starved, 0.1 * starved], i);
        });
        let f = only(&run);
        assert_eq!((f.layer.as_str(), f.onset_step), ("fc3", 4), "{f:#?}");
        assert!(f.explanation.contains("2 gradients nearer the input inherited it"), "{}", f.explanation);
    }

    #[test]
    fn gradients_that_fade_toward_the_input_name_the_first_starved_layer() {
        let mut run = Scenario::new();
        run.dynamic_scaler(1024.0).steps(6, |s, i| {
            s.loss(1.0).applied(1024.0);
            (0..12).rev().for_each(|l| {
                s.gradient(
                    &format!("layer{l:02}"),
                    "linear",
                    F16,
                    &normal(512, 2f64.powi(-4 - 2 * (11 - l)), 100 * i + l as u64),
                );
            });
        });
        let f = only(&run);
        // 2^-24 and less: layers 1 and 0.
        assert_eq!((f.layer.as_str(), f.severity), ("layer01", Severity::Warning), "{f:#?}");
        assert!(number(&f, "lost_share_estimate") > 0.05 && number(&f, "fading_share") == 1.0, "{:?}", f.evidence);
    }

    #[test]
    fn a_gradient_that_faded_and_became_zero_is_starved() {
        let mut run = Scenario::new();
        run.dynamic_scaler(1024.0).steps(8, |s, i| {
            s.loss(1.0).applied(1024.0);
            let left = match i {
                0..2 => 0.1,
                2 => 1e-5,
                _ => 0.0,
            };
            backward(s, [0.1, left, left, left], i);
        });
        // It begins with the step at which it fades.
        let f = only(&run);
        assert_eq!((f.layer.as_str(), f.onset_step, f.severity), ("fc3", 2, Severity::Error));
        assert!(f.explanation.contains("all 512 elements are zero"), "{}", f.explanation);
    }

    #[test]
    fn a_factor_that_is_new_and_leaves_next_to_nothing_from_its_first_step_is_found() {
        let mut run = Scenario::new();
        run.dynamic_scaler(1024.0).steps(8, |s, i| {
            s.loss(1.0).applied(1024.0).gradient("fc3", "linear", F16, &normal(512, 1.0, i));
            let left = normal(512, if i < 3 { 1.0 } else { 5e-8 }, i);
            if i >= 3 {
                // A product of zeros with a tiny constant: that its output is zero says nothing of the constant.
                s.activation("fc2", "sub", F16, &[0.0; 512]).activation("fc2", "mul", F16, &[0.0; 512]);
                s.gradient("fc2", "sub", F16, &left).via("fc2", "mul", F16);
            }
            s.gradient("fc2", "linear", F16, &left).gradient("fc1", "linear", F16, &left);
        });
        let f = only(&run);
        assert_eq!((f.layer.as_str(), f.onset_step), ("fc2", 3));
    }

    #[test]
    fn case_19_a_gradient_that_was_zero_from_the_start_because_the_loss_is_tiny() {
        let mut run = Scenario::new();
        run.steps(4, |s, i| {
            s.loss(1e-6).activation("fc", "matmul", F16, &normal(4096, 1.0, i)).activation("fc", "mean", F16, &[1.0]);
            s.gradient("fc", "mean", F16, &[1e-6]);
            s.gradient("fc", "matmul", F16, &[0.0; 4096]).via("fc", "mean", F16);
            s.param_grad("fc", "weight", F32, &[0.0; 64]);
        });
        let f = only(&run);
        assert_eq!(f.severity, Severity::Error);
        assert!(f.remedy.contains("use a `GradScaler` with `init_scale` = 16777216 (2^24)"), "{}", f.remedy);
        assert!(f.explanation.contains("there is no loss scaler"), "{}", f.explanation);
    }

    #[test]
    fn what_a_cast_loses_is_measured_and_sets_the_scale() {
        let tiny = 2f64.powi(-20);
        let mut run = Scenario::new();
        run.static_scaler(tiny).steps(4, |s, i| {
            let logits = normal(640, 0.01 * tiny, i);
            s.loss(1.0).loss_scale(tiny).gradient("fc3", "cross_entropy_loss", F32, &[tiny]);
            s.cast_gradient("fc3", "cross_entropy_loss", &logits).gradient("fc3", "linear", F16, &logits);
            s.gradient("fc2", "relu", F16, &[0.0; 640]).via("fc3", "linear", F16);
        });
        let f = only(&run);
        assert_eq!((f.severity, f.layer.as_str(), f.onset_step), (Severity::Error, "", 0));
        assert!(number(&f, "recommended_loss_scale") >= 1.0, "{:?}", f.evidence);
        assert!(number(&f, "lost_share") > 0.9, "{:?}", f.evidence);
        assert!(f.remedy.starts_with("Raise the static loss scale from 9.54e-7 (2^-20)"), "{}", f.remedy);
    }

    #[test]
    fn no_scale_for_two_layers_far_apart_names_the_one_to_fix() {
        let mut run = Scenario::new();
        run.dynamic_scaler(1.0).steps(5, |s, i| {
            s.loss(1.0).applied(1.0);
            backward(s, [1e3, 1e3, 1e3, 2f64.powi(-25)], i);
        });
        let f = only(&run);
        assert_eq!(f.layer, "fc1");
        assert!(f.remedy.contains("no loss scale") || f.remedy.contains("No loss scale"), "{}", f.remedy);
        assert!(f.remedy.contains("Change layer `fc1`"), "{}", f.remedy);
    }

    #[test]
    fn a_scale_that_was_dropped_between_two_steps_leaves_evidence_in_what_was_there_before() {
        let mut run = Scenario::new();
        run.static_scaler(1024.0).steps(8, |s, i| {
            let scale = if i < 4 { 1024.0 } else { 2f64.powi(-20) };
            s.loss(1.0).loss_scale(scale);
            backward(s, [1e-3 * scale; 4], i);
        });
        let f = only(&run);
        assert_eq!((f.layer.as_str(), f.onset_step, f.severity), ("", 4, Severity::Error));
    }

    #[test]
    fn a_remedy_never_lowers_the_scale_nor_asks_why_one_that_never_moved_has_left() {
        for init in [65536.0, 2f64.powi(20)] {
            let mut run = Scenario::new();
            run.dynamic_scaler(init).steps(8, |s, i| {
                s.loss(1.0).applied(init);
                let left = if i < 3 { 2e-6 } else { 0.0 };
                backward(s, [0.1, 0.1, left, left], i);
            });
            let f = only(&run);
            assert!(!f.remedy.contains("ower") && !f.remedy.contains("why the scale"), "{}", f.remedy);
            assert!(f.remedy.contains("layer `fc2`") || f.remedy.starts_with("Raise"), "{}", f.remedy);
        }
    }

    #[test]
    fn what_follows_from_a_collapse_of_the_scale_is_not_reported_as_underflow() {
        let mut run = Scenario::new();
        run.dynamic_scaler(65536.0).steps(40, |s, i| {
            let scale = 2f64.powi(16 - i as i32);
            let bad = if i < 36 { f64::INFINITY } else { 1e-9 };
            let well = 1e-4 * scale;
            s.loss(1.0);
            if i < 36 {
                s.skipped(scale, scale / 2.0)
            } else {
                s.applied(scale)
            };
            backward(s, [bad, well, well, well], i);
        });
        assert!(!found(&diagnose(&run)).contains(&"AMP201"));
    }
}
