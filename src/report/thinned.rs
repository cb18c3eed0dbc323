//! What a recording lost so that it stays below its size, in words.

use super::number::bytes;
use crate::observation::Thinned;

/// What is left of the older steps, and what is not: `of the scanned steps before 80000 every 4th is left, ...`.
pub fn thinned_text(thinned: &Thinned) -> String {
    let Thinned { until, stride, lightened, removed, lightened_events, .. } = *thinned;
    let left = match stride {
        1 => "every scanned step is left".to_owned(),
        // So far apart that none is.
        stride if stride > until => "no scan is left".to_owned(),
        stride => format!("those divisible by {stride} are left with what was scanned"),
    };
    let mut text = format!(
        "to stay below {}, of the steps before {until} {left}, and all with an event",
        bytes(thinned.limit_bytes)
    );
    if lightened_events > 0 {
        text = text.replace(
            ", and all with an event",
            &format!("; {lightened_events} of those with an event have kept that alone"),
        );
    }
    text.push_str(&format!("; {lightened} others have lost that"));
    text.push_str(&match removed {
        0 => " and kept loss, loss scale and what the loop did".to_owned(),
        n => format!(", {n} steps are gone as a whole, and the rest have kept loss, loss scale and what the loop did"),
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_which_steps_are_left_and_what_became_of_the_others() {
        let thinned =
            Thinned { limit_bytes: 256 << 20, until: 80_000, stride: 4, lightened: 59_000, ..Thinned::default() };
        assert_eq!(
            thinned_text(&thinned),
            "to stay below 268.4 MB, of the steps before 80000 those divisible by 4 are left with what was scanned, and all with an event; 59000 others have lost that and kept \
             loss, loss scale and what the loop did"
        );
        let worse = Thinned { stride: 1 << 40, removed: 9, lightened_events: 3, ..thinned };
        let text = thinned_text(&worse);
        assert!(text.contains("no scan is left; 3 of those with an event have kept that alone"), "{text}");
        assert!(text.contains("59000 others have lost that, 9 steps are gone as a whole, and the rest"), "{text}");
    }
}
