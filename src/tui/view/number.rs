//! Numbers in few characters.

use std::time::Duration;

/// A magnitude in at most seven characters: `65504`, `312`, `1.25`, `0.031`, `6.1e-5`, `NaN`.
pub fn magnitude(x: f64) -> String {
    let a = x.abs();
    match a {
        _ if x.is_nan() => "NaN".into(),
        _ if a.is_infinite() => if x > 0.0 { "inf" } else { "-inf" }.into(),
        0.0 => "0".into(),
        99_999.5.. => scientific(x),
        99.95.. => format!("{x:.0}"),
        9.995.. => format!("{x:.1}"),
        0.9995.. => format!("{x:.2}"),
        0.00995.. => format!("{x:.3}"),
        _ => scientific(x),
    }
}

fn scientific(x: f64) -> String {
    format!("{x:.1e}")
}

/// A value that may be missing.
pub fn or_dash(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".into())
}

/// A share in percent, without the sign, in at most four characters; what rounds to 0 or 100 but is not says so.
pub fn percent(share: f64) -> String {
    let p = share * 100.0;
    match p {
        _ if p.is_nan() => "NaN".into(),
        ..=0.0 => "0".into(),
        ..0.1 => "<0.1".into(),
        ..9.95 => format!("{p:.1}"),
        ..99.5 => format!("{p:.0}"),
        ..100.0 => ">99".into(),
        _ => "100".into(),
    }
}

/// A whole number with its thousands apart: `1,204`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 scanned step`, `2 scanned steps`.
pub fn scanned_steps(n: u64) -> String {
    format!("{} scanned step{}", grouped(n), if n == 1 { "" } else { "s" })
}

/// A loss scale as a power of two and as a number: `2^13 = 8,192`, `2^13.3 = 10,000`, `2^-3 = 0.125`.
pub fn scale(x: f64) -> String {
    if x <= 0.0 || !x.is_finite() {
        return magnitude(x);
    }
    let power = power(x);
    let number = if (1.0..1e9).contains(&x) && x == x.round() { grouped(x as u64) } else { magnitude(x) };
    format!("{power} = {number}")
}

/// A positive number as a power of two: `2^13`, `2^13.3`.
pub fn power(x: f64) -> String {
    if x <= 0.0 || !x.is_finite() {
        return magnitude(x);
    }
    let log = x.log2();
    if log == log.round() { format!("2^{log:.0}") } else { format!("2^{log:.1}") }
}

/// A time in its largest unit or two: `42 s`, `3 min`, `2 h 10 min`.
pub fn duration(d: Duration) -> String {
    let seconds = d.as_secs();
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn magnitudes_fit_in_seven_characters() {
        for exponent in -149..=127 {
            for factor in [1.0, 1.5, 1.9999] {
                let text = magnitude(-factor * 2f64.powi(exponent));
                assert!(text.len() <= 8, "{text}");
                assert!(magnitude(factor * 2f64.powi(exponent)).len() <= 7);
            }
        }
        let shown: Vec<_> = [65504.0, 312.4, 1.25, 0.0312, 6.1035e-5, 0.0].map(magnitude).into();
        assert_eq!(shown, ["65504", "312", "1.25", "0.031", "6.1e-5", "0"]);
    }

    #[test]
    fn a_share_never_rounds_to_nothing_or_all() {
        let shown: Vec<_> = [0.0, 1e-6, 0.004, 0.5, 0.999, 1.0].map(percent).into();
        assert_eq!(shown, ["0", "<0.1", "0.4", "50", ">99", "100"]);
    }

    #[test]
    fn a_scale_says_its_power_and_its_number() {
        let shown: Vec<_> = [8192.0, 0.125, 10_000.0, 0.0, f64::INFINITY, 1.5e-42].map(scale).into();
        assert_eq!(shown, ["2^13 = 8,192", "2^-3 = 0.125", "2^13.3 = 10,000", "0", "inf", "2^-138.9 = 1.5e-42"]);
    }

    #[test]
    fn thousands_stand_apart() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
