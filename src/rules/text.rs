//! How numbers are written in findings, and small helpers to build them.

use super::{Evidence, Value};
use crate::observation::Site;

pub(super) use crate::observation::INPUT;

/// A positive magnitude as a power of two, which is what FP16 is measured in: `2^-9`, `2^-9.3`. Zero and non-finite as they are.
pub(super) fn power_of_two(x: f64) -> String {
    if x <= 0.0 || !x.is_finite() {
        return number(x);
    }
    let tenths = (x.log2() * 10.0).round();
    if tenths % 10.0 == 0.0 { format!("2^{:.0}", tenths / 10.0) } else { format!("2^{:.1}", tenths / 10.0) }
}

/// A loss scale: `65536 (2^16)`, `1000`.
pub(super) fn scale(x: f64) -> String {
    match x.log2() {
        e if x > 0.0 && e.is_finite() && e.fract() == 0.0 => format!("{} (2^{e:.0})", number(x)),
        _ => number(x),
    }
}

/// A number with three significant digits, whole where it is whole and short.
pub(super) fn number(x: f64) -> String {
    if !x.is_finite() || x == 0.0 {
        return format!("{x}");
    }
    match x.abs() {
        a if x.fract() == 0.0 && a < 1e8 => format!("{x:.0}"),
        a if !(1e-3..1e5).contains(&a) => format!("{x:.2e}"),
        a if a >= 100.0 => format!("{x:.0}"),
        a if a >= 1.0 => format!("{x:.2}"),
        _ => format!("{x:.3}"),
    }
}

/// A share in percent: `38 %`, `0.4 %`, `under 0.1 %`, `none`.
pub(super) fn share(x: f64) -> String {
    match x * 100.0 {
        0.0 => "none".into(),
        p if p < 0.1 => "under 0.1 %".into(),
        p if p < 10.0 => format!("{p:.1} %"),
        p => format!("{p:.0} %"),
    }
}

/// A site's layer as people are told of it.
pub(super) fn layer_name(site: &Site) -> &str {
    if site.layer.is_empty() { "(root)" } else { &site.layer }
}

/// Operators that add up many elements, and can hold their sum in FP32.
const REDUCTIONS: [&str; 10] =
    ["sum", "mean", "norm", "linalg_vector_norm", "var", "std", "cumsum", "prod", "logsumexp", "einsum"];

/// Whether an operator adds up many elements.
pub(super) fn is_reduction(name: &str) -> bool {
    REDUCTIONS.contains(&name)
}

/// Operators that give an infinity at a point, whatever the range of the format: by their operators' names.
const POLES: [&str; 7] = ["log", "log2", "log10", "log1p", "div", "reciprocal", "rsqrt"];

/// Whether an infinity out of this operator is a pole, where an epsilon helps, and no matter of range.
pub(super) fn is_pole(operator: &str) -> bool {
    POLES.contains(&base_name(operator).trim_end_matches('_'))
}

/// What an operator is called, whichever use of it in the layer this is.
pub(super) fn base_name(operator: &str) -> &str {
    operator.split('#').next().unwrap_or(operator)
}

/// The text with its first letter in upper case.
pub(super) fn sentence(text: String) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |c| c.to_uppercase().chain(chars).collect())
}

/// `n` things, with the right ending.
pub(super) fn count(n: usize, thing: &str) -> String {
    if n == 1 { format!("1 {thing}") } else { format!("{n} {thing}s") }
}

/// A number of evidence.
pub(super) fn measured(name: &'static str, value: f64) -> Evidence {
    Evidence { name, value: Value::Number(value) }
}

/// A count of evidence.
pub(super) fn counted(name: &'static str, value: u64) -> Evidence {
    Evidence { name, value: Value::Count(value) }
}

/// Words of evidence.
pub(super) fn said(name: &'static str, value: impl Into<String>) -> Evidence {
    Evidence { name, value: Value::Text(value.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn magnitudes_are_powers_of_two() {
        assert_eq!(power_of_two(2f64.powi(-9)), "2^-9");
        assert_eq!(power_of_two(1e-5), "2^-16.6");
        assert_eq!((power_of_two(0.0), power_of_two(f64::INFINITY)), ("0".into(), "inf".into()));
        assert_eq!((scale(65536.0), scale(1000.0), scale(0.0)), ("65536 (2^16)".into(), "1000".into(), "0".into()));
    }

    #[test]
    fn numbers_and_shares_are_short() {
        assert_eq!((number(3.0), number(65504.0), number(1.7e-8)), ("3".into(), "65504".into(), "1.70e-8".into()));
        assert_eq!((number(0.0213), number(f64::NAN)), ("0.021".into(), "NaN".into()));
        assert_eq!(
            (share(0.384), share(0.004), share(1e-5), share(0.0)),
            ("38 %".into(), "0.4 %".into(), "under 0.1 %".into(), "none".into())
        );
        assert_eq!((count(1, "layer"), count(3, "layer")), ("1 layer".into(), "3 layers".into()));
    }
}
