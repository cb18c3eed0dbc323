//! Numbers as reports write them.

use serde::{Serialize, Serializer};

/// An `f64` in JSON: a number where it is finite, else one of the strings `"NaN"`, `"Infinity"`, `"-Infinity"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Number(pub f64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            x if x.is_nan() => serializer.serialize_str("NaN"),
            f64::INFINITY => serializer.serialize_str("Infinity"),
            f64::NEG_INFINITY => serializer.serialize_str("-Infinity"),
            x => serializer.serialize_f64(x),
        }
    }
}

/// A number for people: whole ones below ten million in full, powers of two beyond that and below FP16's 2^-24 as such (`2^26`), others with four
/// significant digits.
pub(super) fn readable(x: f64) -> String {
    let size = x.abs();
    if !x.is_finite() {
        if x.is_nan() { "NaN".into() } else { format!("{}inf", if x < 0.0 { "-" } else { "+" }) }
    } else if size < 1e7 && x == x.trunc() {
        format!("{x:.0}")
    } else if (1e-3..1e7).contains(&size) {
        let decimals = 3 - size.log10().floor() as i32;
        trimmed(format!("{x:.*}", decimals.max(0) as usize))
    } else if x > 0.0 && !(5.9e-8..1e7).contains(&x) && x.log2().fract() == 0.0 {
        format!("2^{:.0}", x.log2())
    } else {
        let text = format!("{x:.3e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        format!("{}e{exponent}", trimmed(digits.to_string()))
    }
}

/// A share for people: `38 %`, `0.4 %`; the smallest in powers of ten, so that a small share never reads as none.
pub(super) fn percent(share: f64) -> String {
    match share * 100.0 {
        p if !p.is_finite() => readable(share),
        // A sum that rounds to a negative zero is none.
        0.0 => "0 %".into(),
        p if p.abs() >= 10.0 => format!("{p:.0} %"),
        p if p.abs() >= 0.01 => format!("{} %", trimmed(format!("{p:.2}"))),
        p => format!("{} %", readable(p)),
    }
}

/// A number of bytes for people.
pub(super) fn bytes(n: u64) -> String {
    const UNITS: [&str; 4] = ["B", "KB", "MB", "GB"];
    let mut size = n as f64;
    let mut unit = 0;
    while size >= 1000.0 && unit + 1 < UNITS.len() {
        size /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{size:.1} {}", UNITS[unit]) }
}

fn trimmed(text: String) -> String {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_writes_what_json_cannot_hold_as_strings() {
        let all = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.5, 65536.0].map(Number);
        assert_eq!(serde_json::to_string(&all).unwrap(), r#"["NaN","Infinity","-Infinity",-0.5,65536.0]"#);
    }

    #[test]
    fn people_get_four_digits() {
        let cases = [
            (0.0, "0"),
            (65536.0, "65536"),
            (-3.0, "-3"),
            (1.0 / 3.0, "0.3333"),
            (12.345678, "12.35"),
            (0.5, "0.5"),
            (123456.7, "123457"),
            (6.103515625e-5, "6.104e-5"),
            (1e-8, "1e-8"),
            (2f64.powi(40), "2^40"),
            (2f64.powi(-113), "2^-113"),
            (1.1e12, "1.1e12"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "+inf"),
            (f64::NEG_INFINITY, "-inf"),
        ];
        for (x, text) in cases {
            assert_eq!(readable(x), text);
        }
    }

    #[test]
    fn a_small_share_never_reads_as_none() {
        let cases = [
            (0.0, "0 %"),
            (-0.0, "0 %"),
            (0.381, "38 %"),
            (1.0, "100 %"),
            (0.004, "0.4 %"),
            (0.0123, "1.23 %"),
            (1e-6, "1e-4 %"),
        ];
        for (share, text) in cases {
            assert_eq!(percent(share), text);
        }
    }

    #[test]
    fn bytes_have_a_unit() {
        assert_eq!([bytes(0), bytes(999), bytes(1500), bytes(2_300_000_000)], ["0 B", "999 B", "1.5 KB", "2.3 GB"]);
    }
}
