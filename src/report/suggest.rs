//! "Did you mean": the nearest of some names.

/// The candidate that is nearest to what was typed, where one is near enough to be meant.
pub(crate) fn nearest<'a>(typed: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let typed = typed.to_lowercase();
    let allowed = typed.chars().count().max(3) / 3;
    candidates
        .into_iter()
        .map(|candidate| (distance(&typed, &candidate.to_lowercase()), candidate))
        .filter(|&(distance, _)| distance <= allowed)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

/// Edits that turn `a` into `b`: characters inserted, removed or replaced, neighbours swapped.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = match (i, j) {
                (0, n) | (n, 0) => n,
                _ => {
                    let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                    let edited = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                    let swaps = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                    if swaps { edited.min(rows[i - 2][j - 2] + 1) } else { edited }
                }
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_understood() {
        let names = ["gradient-underflow", "overflow", "AMP201"];
        assert_eq!(nearest("gradient-underlow", names), Some("gradient-underflow"));
        assert_eq!(nearest("amp210", names), Some("AMP201"));
        assert_eq!(nearest("OVREFLOW", names), Some("overflow"));
    }

    #[test]
    fn what_is_far_from_everything_suggests_nothing() {
        assert_eq!(nearest("zzz", ["overflow", "AMP201"]), None);
        assert_eq!(nearest("", ["overflow"]), None);
        assert_eq!(nearest("x", []), None);
    }
}
