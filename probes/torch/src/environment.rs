//! What the environment says of a doctor, so that a program need not be built again to be watched more closely, or not at all.

use ampdoctor::observation::Sampling;
use ampdoctor::recording::{DEFAULT_LIMIT, LEAST_LIMIT, parse_size};

/// Whether `AMPDOCTOR=off` asks for no doctor at all: then nothing is observed and nothing is written.
pub(crate) fn is_off() -> bool {
    match variable("AMPDOCTOR").as_deref() {
        Some("off") => true,
        None | Some("on") => false,
        Some(other) => {
            eprintln!("ampdoctor: AMPDOCTOR is `on` or `off`, not `{other}`; it stays on");
            false
        }
    }
}

/// `AMPDOCTOR_SAMPLING`: `every:1`, `budget:0.05` or `off`; `None` where it says nothing. What it says wrongly is told on standard error.
pub(crate) fn sampling() -> Option<Sampling> {
    let text = variable("AMPDOCTOR_SAMPLING")?;
    let parsed = parse(&text);
    if parsed.is_none() {
        eprintln!(
            "ampdoctor: AMPDOCTOR_SAMPLING is `every:N` with N of at least 1, `budget:SHARE` with a share of the step time between 0 and 1, or `off`, \
             not `{text}`; the default holds"
        );
    }
    parsed
}

/// `AMPDOCTOR_LIMIT`: the size below which the recording stays, such as `64M` or `1G`, or `off` to let it grow; the default where it says nothing. What it says
/// wrongly is told on standard error.
pub(crate) fn limit() -> Option<u64> {
    let Some(text) = variable("AMPDOCTOR_LIMIT") else { return Some(DEFAULT_LIMIT) };
    if text == "off" {
        return None;
    }
    parse_size(&text).filter(|bytes| *bytes >= LEAST_LIMIT).or_else(|| {
        eprintln!(
            "ampdoctor: AMPDOCTOR_LIMIT is a size of at least {LEAST_LIMIT} bytes, such as `64M` or `1G`, or `off`, not `{text}`; the default holds"
        );
        Some(DEFAULT_LIMIT)
    })
}

fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().trim().to_owned()).filter(|value| !value.is_empty())
}

fn parse(text: &str) -> Option<Sampling> {
    match text.split_once(':') {
        None => (text == "off").then_some(Sampling::Off),
        Some(("every", n)) => n.parse().ok().filter(|&n| n > 0).map(Sampling::Every),
        Some(("budget", share)) => share.parse().ok().filter(|&share| is_share(share)).map(Sampling::Budget),
        Some(_) => None,
    }
}

/// Whether a number is a share of the step time that can be kept: above 0, at most 1.
pub(crate) fn is_share(share: f64) -> bool {
    share > 0.0 && share <= 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampling_is_read_as_the_builder_writes_it() {
        let cases = [
            ("off", Some(Sampling::Off)),
            ("every:1", Some(Sampling::Every(1))),
            ("every:100", Some(Sampling::Every(100))),
            ("budget:0.05", Some(Sampling::Budget(0.05))),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_sampling_is_refused() {
        for text in ["every", "every:0", "every:-1", "budget:0", "budget:2", "budget:nan", "on", "light:3", "every:1:2"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
