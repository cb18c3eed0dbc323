//! Sizes as people type them.

/// A size in bytes: `268435456`, or in powers of 1024 `256M`, `256 MiB`, `1G`; `None` for anything else.
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1u64 << 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_number_with_a_unit_or_without() {
        let cases = [
            ("0", Some(0)),
            ("268435456", Some(256 << 20)),
            ("256M", Some(256 << 20)),
            (" 256 MiB ", Some(256 << 20)),
            ("64k", Some(64 << 10)),
            ("2GB", Some(2 << 30)),
            ("", None),
            ("M", None),
            ("-1", None),
            ("1.5G", None),
            ("256 M 3", None),
            ("99999999999G", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_size(text), expected, "{text}");
        }
    }
}
