//! The window in sentences: the head of the what-if, and its section in the report.

use super::super::Run;
use super::super::layout::Layout;
use super::super::number::readable;
use crate::aggregate::Taken;
use crate::rules::whatif::{Held, WhatIf, Window};

/// What was looked at, and how far it can be trusted.
pub(super) fn basis(whatif: &WhatIf<'_>) -> String {
    let scanned = match whatif.steps {
        0 => "No step was recorded.".into(),
        1 if whatif.scanned_steps == 1 => "The only step was scanned.".into(),
        steps if steps == whatif.scanned_steps => format!("All {steps} steps were scanned."),
        steps => format!("{} of {steps} steps were scanned; what is said is of these.", whatif.scanned_steps),
    };
    let whole = whatif.window.as_ref().is_some_and(|window| window.incomplete);
    let held = match (whatif.held, whatif.is_lower_bound()) {
        _ if whatif.layers.is_empty() => "",
        (Held::Fp16, _) if whole => {
            " Gradients were held in FP16, which left nothing of one or more: of these no other scale can be asked, and of the rest more may fade at higher ones."
        }
        (Held::Fp16, true) => {
            " Gradients were held in FP16, which had lost a part of some before it was seen: at higher scales more fades than is shown (≥)."
        }
        (Held::Fp16, false) => " Gradients were held in FP16, which lost nothing to speak of.",
        (Held::Bf16, _) => {
            " Gradients were held in BF16: nothing was lost before it was seen. It is shown what FP16 would make of them."
        }
        (Held::Fp32, _) => {
            " Gradients were held in FP32: nothing was lost before it was seen. It is shown what FP16 would make of them."
        }
    };
    let left_out = match whatif.non_finite_scans {
        0 => String::new(),
        n => format!(" {n} of {} scans of gradients held NaN or infinities and are left out.", n + whatif.finite_scans),
    };
    format!("{scanned}{held}{left_out}")
}

/// The window in sentences: its ends with the layers that set them, the scale to set, or what to change where there is none.
pub(super) fn window(whatif: &WhatIf<'_>) -> String {
    let Some(window) = &whatif.window else {
        return "no gradient with a non-zero element was scanned, so nothing can be said of loss scales".into();
    };
    if window.overflows_at_all {
        return format!(
            "none is to be recommended: `{}` overflows down to {}, which no loss scale is meant to be, so that it is not the scale that is wrong",
            window.highest.label(),
            readable(f64::from(window.scales.high).exp2())
        );
    }
    let said = match (&window.fix, window.recommended) {
        (None, Some(exponent)) => good(window, exponent, whatif),
        (Some(fix), _) => fix.clone(),
        (None, None) if window.is_followed => followed(window, whatif),
        (None, None) => conflict(window, "ranks"),
    };
    said + &outliers(window)
}

/// No scale serves all steps, and one serves the latest.
fn followed(window: &Window<'_>, whatif: &WhatIf<'_>) -> String {
    let now = whatif.scale_in_force.map_or(String::new(), |scale| format!("; in force {}", power(scale.log2(), scale)));
    format!(
        "{}{now}. These were not the same steps: the gradients moved, and a dynamic scaler follows them",
        conflict(window, "steps")
    )
}

fn good(window: &Window<'_>, exponent: i32, whatif: &WhatIf<'_>) -> String {
    let low = window.scales.low;
    let least = if window.incomplete { " at least" } else { "" };
    let from = window.lowest.map_or(String::new(), |site| format!(" (`{}` needs that{least})", site.label()));
    let mut text = format!("2^{low}{from} to {}; recommended 2^{exponent}{}", upper_end(window), in_full(exponent));
    if let Some(scale) = whatif.scale_in_force {
        let now = scale.log2();
        text.push_str(&format!("; in force {} ({})", power(now, scale), place(window, now, whatif.borne)));
    }
    if window.high_is_guess {
        text.push_str(". How large the gradients were that became infinite FP16 cannot tell, and those of a model that learns may be larger: the upper end is a guess, and a dynamic scaler finds it");
    }
    if window.shrank {
        text.push_str(". No scale was good at all steps: the gradients shrank, and the window is of the latest. A dynamic scaler follows them, a static scale cannot");
    }
    text
}

/// ` = 8192`, as it is typed; nothing where that is long.
fn in_full(exponent: i32) -> String {
    const SHORT: std::ops::RangeInclusive<i32> = -10..=24;
    if SHORT.contains(&exponent) { format!(" = {}", f64::from(exponent).exp2()) } else { String::new() }
}

/// The upper end, and what sets it.
fn upper_end(window: &Window<'_>) -> String {
    let high = window.scales.high;
    match window.refused_from {
        Some(refused) => {
            format!("2^{high} (steps were skipped from 2^{refused} on, and none has been taken there since)")
        }
        None => format!("2^{high} (`{}` has less than a bit of headroom above)", window.highest.label()),
    }
}

/// Where the scale in force lies: what the run has shown at it goes before what its largest gradients would have done there.
fn place(window: &Window<'_>, now: f64, borne: Option<(i32, Taken)>) -> String {
    let (low, high) = (f64::from(window.scales.low), f64::from(window.scales.high));
    if now < low {
        return "below".into();
    }
    if now <= high {
        return "inside".into();
    }
    let overflows = now > high + 1.0;
    match borne.filter(|(exponent, _)| f64::from(*exponent) > high) {
        Some((exponent, taken)) if f64::from(exponent) >= now.floor() => {
            let of_largest = match overflows {
                true => "the largest gradients, which came before, would overflow there",
                false => "the largest gradients leave less than a bit of headroom",
            };
            format!("no step skipped since step {}; {of_largest}", taken.since)
        }
        Some((exponent, taken)) => {
            format!("not tried yet; at 2^{exponent} no step skipped since step {}", taken.since)
        }
        None if overflows => "above: the largest gradients overflow".into(),
        None => "above: less than a bit of headroom".into(),
    }
}

/// The steps that are left out, where there are any.
fn outliers(window: &Window<'_>) -> String {
    const NAMED: usize = 3;
    if window.high_with_outliers >= window.scales.high {
        return String::new();
    }
    let steps: Vec<String> = window.outliers.iter().take(NAMED).map(u64::to_string).collect();
    let named = match window.outliers.len() {
        0 => return String::new(),
        1 => format!("Step {} is", steps.join(", ")),
        n if n > NAMED => format!("{n} steps ({}, ...) are", steps.join(", ")),
        n => format!("{n} steps ({}) are", steps.join(", ")),
    };
    format!(
        ". {named} left out: gradients there were so far above those of all others that they overflow above 2^{}, and a scaler skips such a step",
        window.high_with_outliers + 1
    )
}

fn power(exponent: f64, scale: f64) -> String {
    if exponent.fract() == 0.0 { format!("2^{exponent:.0}") } else { readable(scale) }
}

/// What asks for a higher scale than something else bears; `all` is what no scale serves: of several ranks each may have a window.
fn conflict(window: &Window<'_>, all: &str) -> String {
    let lowest = window.lowest.map_or("a gradient".into(), |site| format!("`{}`", site.label()));
    let low = window.scales.low;
    let above = match window.refused_from {
        Some(refused) => format!("steps were skipped from 2^{refused} on, and none has been taken there since"),
        None => format!("`{}` has less than a bit of headroom above 2^{}", window.highest.label(), window.scales.high),
    };
    format!("no loss scale is good for all {all}: {lowest} needs 2^{low} or more, {above}")
}

/// The section of the text report; nothing where no gradient was scanned.
pub(in crate::report) fn section(run: &Run<'_>, layout: &Layout) -> Option<String> {
    let aggregates: Vec<_> = run.ranks.iter().map(|rank| rank.aggregate).collect();
    let whatif = WhatIf::of(&aggregates);
    let found = whatif.window.as_ref()?;
    let as_if = if whatif.held == Held::Fp16 { "" } else { " (were it FP16)" };
    // Which layer to change is for a finding to say, which knows more of it: two answers side by side would be none.
    let (lead, said) = match found.fix {
        Some(_) if !run.findings().is_empty() && !found.overflows_at_all => {
            ("loss scales", conflict(found, "gradients"))
        }
        None if found.recommended.is_some() => ("good loss scales", window(&whatif)),
        _ => ("loss scales", window(&whatif)),
    };
    let text = format!("{lead}{as_if}: {said}. `ampdoctor whatif` shows each layer and other formats.");
    Some(layout.wrap("  ", "    ", &text))
}
