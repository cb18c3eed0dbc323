//! Two runs side by side, for people.

use super::super::brief::within;
use super::super::evidence::scale;
use super::super::number::{percent, readable};
use super::super::{Counts, Layout};
use super::layers::{bits_differ, shares_differ};
use super::{Comparison, Judgement, LayerChange, LossAtEnd, Outcome};
use crate::rules::{Finding, Health, Severity};

/// The comparison as text, ending in a line break: what it comes to first.
pub fn compare_text(comparison: &Comparison<'_>, layout: &Layout) -> String {
    let mut out = layout.wrap("", "  ", &judgement(comparison, layout));
    let findings = &comparison.findings;
    for (what, all) in [("new", &findings.new), ("gone", &findings.gone), ("remaining", &findings.remaining)] {
        all.iter().for_each(|finding| out.push_str(&finding_line(what, finding, layout)));
    }
    out.push('\n');
    out.push_str(&outcomes(comparison, layout));
    out.push_str(&losses(comparison, layout));
    out.push_str(&layers(comparison, layout));
    out.push_str(&settings(comparison, layout));
    out
}

fn judgement(comparison: &Comparison<'_>, layout: &Layout) -> String {
    let findings = &comparison.findings;
    let errors = findings.new.iter().filter(|finding| finding.severity == Severity::Error).count();
    let word = match (comparison.judgement(), findings.new.is_empty(), findings.gone.is_empty()) {
        (Judgement::Worse, ..) => layout.severity(Severity::Error, "worse"),
        (Judgement::Unknown, ..) => "could not tell, for too little was seen of the second run".into(),
        (Judgement::NoWorse, true, false) => layout.good("better"),
        (Judgement::NoWorse, true, true) => "nothing found differs".into(),
        (Judgement::NoWorse, false, _) => layout.severity(Severity::Warning, "new, but no error"),
    };
    let new = match (findings.new.len(), errors) {
        (0, _) => "none new".into(),
        (n, 0) => format!("{n} new"),
        (n, errors) => format!("{n} new, {errors} of them an error"),
    };
    format!("{word}: {new}, {} gone, {} still there", findings.gone.len(), findings.remaining.len())
}

fn finding_line(what: &str, finding: &Finding, layout: &Layout) -> String {
    let severity = layout.severity(finding.severity, &format!("{:7}", finding.severity.name()));
    let Finding { code, name, onset_step, .. } = finding;
    let place = match finding.layer.as_str() {
        "" => within(finding),
        layer => format!(" in {layer}"),
    };
    let text = format!("{code} {name}{place}, since step {onset_step}");
    layout.wrap(&format!("  {what:9} {severity} "), "                    ", &text)
}

/// Columns of the names of rows, and of each value.
const NAME: usize = 24;
const VALUE: usize = 18;

fn row(name: &str, base: &str, run: &str) -> String {
    let line = format!("  {name:<NAME$} {base:<VALUE$} {run}");
    format!("{}\n", line.trim_end())
}

fn outcomes(comparison: &Comparison<'_>, layout: &Layout) -> String {
    let Comparison { base, run, .. } = comparison;
    let mut out = layout.bold(row("", "base", "run").trim_end()) + "\n";
    out.push_str(&row("name", &shortened(&base.name), &shortened(&run.name)));
    out.push_str(&row("verdict", &verdict(base), &verdict(run)));
    out.push_str(&row("steps", &base.steps.to_string(), &run.steps.to_string()));
    out.push_str(&row(&format!("loss, last {} steps", LossAtEnd::STEPS), &loss(base), &loss(run)));
    out.push_str(&row("loss scale at the end", &loss_scale(base), &loss_scale(run)));
    out.push_str(&row("skipped steps", &skipped(base), &skipped(run)));
    out
}

fn shortened(name: &str) -> String {
    match name.chars().count() {
        n if n < VALUE => name.to_owned(),
        n => format!("..{}", name.chars().skip(n + 3 - VALUE).collect::<String>()),
    }
}

fn verdict(of: &Outcome) -> String {
    let Counts { errors, warnings, .. } = of.counts;
    match of.health {
        Health::Healthy => "healthy".into(),
        Health::Unknown => "could not tell".into(),
        Health::Findings => {
            let counted = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
            let both = [(errors, "error"), (warnings, "warning")];
            let said: Vec<String> =
                both.into_iter().filter(|(n, _)| *n > 0).map(|(n, what)| counted(n, what)).collect();
            said.join(", ")
        }
    }
}

fn loss(of: &Outcome) -> String {
    let Some(LossAtEnd { mean, spread, losses, non_finite }) = of.loss else { return "-".into() };
    match non_finite {
        0 => format!("{} ± {}", significant(mean), significant(spread)),
        all if all == losses => "not finite".into(),
        some => format!("{} ({some} not finite)", significant(mean)),
    }
}

/// Three digits: a loss over some batches is not known better.
fn significant(x: f64) -> String {
    match x.abs() {
        size if (1e-3..1e4).contains(&size) => {
            let decimals = 2 - size.log10().floor() as i32;
            format!("{x:.*}", decimals.max(0) as usize)
        }
        _ => readable(x),
    }
}

fn loss_scale(of: &Outcome) -> String {
    of.loss_scale.map_or_else(|| "-".into(), scale)
}

fn skipped(of: &Outcome) -> String {
    match of.skipped_steps {
        0 => "0".into(),
        n => format!("{n} ({})", percent(n as f64 / of.steps.max(1) as f64)),
    }
}

/// What has to be said of the ends of the losses: that they are of different places, or that the run's is the worse for all that was mended.
fn losses(comparison: &Comparison<'_>, layout: &Layout) -> String {
    let Comparison { base, run, .. } = comparison;
    if base.steps != run.steps {
        let said = "The runs are not equally long: the ends of their losses cannot be compared.";
        return layout.wrap("  ", "  ", said);
    }
    let higher = base.loss.zip(run.loss).is_some_and(|(base, run)| run.mean - base.mean > base.spread.max(run.spread));
    match higher {
        true => layout.wrap("  ", "  ", "The loss of the run ends higher, by more than a batch lies from the mean."),
        false => String::new(),
    }
}

fn layers(comparison: &Comparison<'_>, layout: &Layout) -> String {
    let mut out = String::new();
    let moved = |to_fp16: bool| -> Vec<&str> {
        let all =
            comparison.layers.iter().filter(|of| of.base.is_in_fp16() != to_fp16 && of.run.is_in_fp16() == to_fp16);
        all.map(|of| name(of.layer)).collect()
    };
    for (layers, what) in [(moved(false), "no longer in FP16"), (moved(true), "now in FP16")] {
        if !layers.is_empty() {
            out.push_str(&layout.wrap("  ", "    ", &format!("{what}: {}", layers.join(", "))));
        }
    }
    for change in &comparison.layers {
        for said in differences(change) {
            out.push_str(&layout.wrap("  ", "    ", &format!("{}: {said}", name(change.layer))));
        }
    }
    match out.is_empty() {
        true => out,
        false => format!("\n{}\n{out}", layout.bold("layers that differ")),
    }
}

fn name(layer: &str) -> &str {
    if layer.is_empty() { "(root)" } else { layer }
}

/// What of a layer that both runs hold in FP16 differs so much that it matters.
fn differences(change: &LayerChange<'_>) -> Vec<String> {
    let LayerChange { base, run, .. } = change;
    let shares = [
        ("gradients below 2^-14", base.fading_gradient_share, run.fading_gradient_share),
        ("scans with NaN or infinities", base.non_finite_share, run.non_finite_share),
    ];
    let bits = [
        ("headroom of gradients", base.gradient_headroom_bits, run.gradient_headroom_bits),
        ("headroom of activations", base.activation_headroom_bits, run.activation_headroom_bits),
    ];
    let shares = shares.into_iter().filter(|&(_, a, b)| shares_differ(a, b));
    let bits = bits.into_iter().filter(|&(_, a, b)| bits_differ(a, b));
    let share = shares.filter_map(|(what, a, b)| Some(format!("{what} {} -> {}", percent(a?), percent(b?))));
    share.chain(bits.filter_map(|(what, a, b)| Some(format!("{what} {:.1} -> {:.1} bits", a?, b?)))).collect()
}

fn settings(comparison: &Comparison<'_>, layout: &Layout) -> String {
    if comparison.settings.is_empty() {
        return String::new();
    }
    let mut out = format!("\n{}\n", layout.bold("settings that differ"));
    for setting in &comparison.settings {
        let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".into());
        let said = format!("{}: {} -> {}", setting.name, value(&setting.base), value(&setting.run));
        out.push_str(&layout.wrap("  ", "    ", &said));
    }
    out
}
