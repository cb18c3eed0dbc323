//! The observations of a step in columns, and back: no names of fields between the numbers, and none of what follows from another.
//!
//! What does not fit (an `f64` that no `f32` holds, a sum beyond a double, a histogram that does not end at the extremes) is written as a message for each
//! observation; then all of the step are.

use super::decode::Nonsense;
use super::schema::{Columns, Observation as Message, Stats};
use super::{decode, encode};
use crate::observation::Observation;
use crate::scan::{Scaled, Stats as Scan};

/// The columns of these observations; `None` where one does not fit, or there is none.
pub(super) fn encode(observations: &[Observation]) -> Option<Columns> {
    let mut columns = Columns::default();
    let mut before = Before::default();
    let mut site = -1;
    for (place, observation) in (0..).zip(observations) {
        let number = i32::try_from(observation.site.0).ok()?;
        columns.site_steps.push(number - site - 1);
        site = number;
        add_stats(&mut columns, &observation.stats)?;
        add_rare(&mut columns, &mut before, place, observation);
    }
    narrow_sums(&mut columns);
    (!observations.is_empty()).then_some(columns)
}

/// Sums that are floats, as those of a probe are, take half the room.
fn narrow_sums(columns: &mut Columns) {
    let all = |sums: &[f64]| sums.iter().map(|&sum| narrow(sum)).collect::<Option<Vec<f32>>>();
    if let (Some(sum), Some(squares)) = (all(&columns.sum), all(&columns.sum_squares)) {
        (columns.sum, columns.sum_squares) = (Vec::new(), Vec::new());
        (columns.narrow_sum, columns.narrow_sum_squares) = (sum, squares);
    }
}

fn add_stats(columns: &mut Columns, stats: &Scan) -> Option<()> {
    let (min, max) = (narrow(stats.min_abs)?, narrow(stats.max_abs)?);
    let (first, counts) = stats.exponents.parts();
    if counts.len() != span(min, max)? || (!counts.is_empty() && first != exponent(min)) || stats.count != count(stats)?
    {
        return None;
    }
    columns.zeros.push(stats.zeros);
    columns.min_abs.push(min);
    columns.max_abs.push(max);
    columns.sum.push(plain(stats.sum)?);
    columns.sum_squares.push(plain(stats.sum_squares)?);
    columns.exponent_counts.extend(counts);
    Some(())
}

/// What few observations have, each with the distance from the one before that has it too.
fn add_rare(columns: &mut Columns, before: &mut Before, place: u32, observation: &Observation) {
    let stats = &observation.stats;
    if stats.non_finite() > 0 {
        columns.non_finite_at.push(distance(&mut before.non_finite, place));
        columns.nan.push(stats.nan);
        columns.pos_inf.push(stats.pos_inf);
        columns.neg_inf.push(stats.neg_inf);
    }
    if observation.inherited {
        columns.inherited_at.push(distance(&mut before.inherited, place));
    }
    if let Some(via) = observation.via {
        columns.via_at.push(distance(&mut before.via, place));
        columns.via.push(via.0);
    }
    if let Some(rounding) = observation.rounding.as_deref() {
        columns.rounding_at.push(distance(&mut before.rounding, place));
        columns.rounding.push(encode::rounding(rounding));
    }
    if let Some(provenance) = observation.provenance.as_deref() {
        columns.provenance_at.push(distance(&mut before.provenance, place));
        columns.provenance.push(encode::provenance(provenance));
    }
}

/// The places after the last ones that had something.
#[derive(Default)]
struct Before {
    non_finite: u32,
    inherited: u32,
    via: u32,
    rounding: u32,
    provenance: u32,
}

fn distance(next: &mut u32, place: u32) -> u32 {
    let distance = place - *next;
    *next = place + 1;
    distance
}

/// The number as an `f32`, where that is exact.
fn narrow(number: f64) -> Option<f32> {
    let narrow = number as f32;
    (f64::from(narrow).to_bits() == number.to_bits()).then_some(narrow)
}

fn plain(sum: Scaled) -> Option<f64> {
    (sum.exponent == 0).then_some(sum.value)
}

fn count(stats: &Scan) -> Option<u64> {
    let (_, counts) = stats.exponents.parts();
    let parts = [stats.zeros, stats.nan, stats.pos_inf, stats.neg_inf];
    parts.into_iter().chain(counts.iter().copied()).try_fold(0u64, u64::checked_add)
}

/// `floor(log2 x)` of a positive magnitude: an `f32` is never subnormal as an `f64`.
fn exponent(magnitude: f32) -> i32 {
    (f64::from(magnitude).to_bits() >> 52) as i32 - 1023
}

/// Exponents from that of the smallest to that of the largest magnitude; none where all are zero. `None` where the two contradict each other.
fn span(min: f32, max: f32) -> Option<usize> {
    match (min, max) {
        (0.0, 0.0) => Some(0),
        (min, max) if 0.0 < min && min <= max && max.is_finite() => Some((exponent(max) - exponent(min)) as usize + 1),
        _ => None,
    }
}

/// The observations that stand in columns, each as its message.
pub(super) fn decode(mut columns: Columns) -> Result<Vec<Message>, Nonsense> {
    widen_sums(&mut columns);
    let n = columns.site_steps.len();
    let lengths = [
        columns.zeros.len(),
        columns.min_abs.len(),
        columns.max_abs.len(),
        columns.sum.len(),
        columns.sum_squares.len(),
    ];
    if lengths.iter().any(|&length| length != n) {
        return Err(Nonsense(format!("columns of {lengths:?} numbers for {n} observations")));
    }
    let mut messages = Vec::with_capacity(n);
    let mut counts = columns.exponent_counts.as_slice();
    let mut site = -1i64;
    for (place, step) in columns.site_steps.iter().enumerate() {
        site += i64::from(*step) + 1;
        let number = u32::try_from(site).map_err(|_| Nonsense(format!("site {site}")))?;
        let stats = stats(&columns, place, &mut counts)?;
        messages.push(Message { site: number, stats: Some(stats), ..Message::default() });
    }
    if !counts.is_empty() {
        return Err(Nonsense(format!("{} counts of no observation", counts.len())));
    }
    give_rare(columns, &mut messages)?;
    messages.iter_mut().for_each(|message| message.stats.iter_mut().for_each(add_up));
    Ok(messages)
}

fn widen_sums(columns: &mut Columns) {
    columns.sum.extend(columns.narrow_sum.iter().copied().map(f64::from));
    columns.sum_squares.extend(columns.narrow_sum_squares.iter().copied().map(f64::from));
}

fn stats(columns: &Columns, place: usize, counts: &mut &[u64]) -> Result<Stats, Nonsense> {
    let (min, max) = (columns.min_abs[place], columns.max_abs[place]);
    let here = span(min, max).and_then(|span| counts.split_at_checked(span));
    let Some((exponent_counts, rest)) = here else {
        return Err(Nonsense(format!("magnitudes from {min} to {max}, and {} counts", counts.len())));
    };
    *counts = rest;
    Ok(Stats {
        zeros: columns.zeros[place],
        min_abs: min.into(),
        max_abs: max.into(),
        sum: Some(decode::plain(columns.sum[place])),
        sum_squares: Some(decode::plain(columns.sum_squares[place])),
        first_exponent: if exponent_counts.is_empty() { 0 } else { exponent(min) },
        exponent_counts: exponent_counts.to_vec(),
        ..Stats::default()
    })
}

/// The count is what its parts add up to; where that is no number it stays what the check of a message refuses.
fn add_up(stats: &mut Stats) {
    let parts = [stats.zeros, stats.nan, stats.pos_inf, stats.neg_inf];
    let counted = parts.into_iter().chain(stats.exponent_counts.iter().copied()).try_fold(0u64, u64::checked_add);
    stats.count = counted.unwrap_or(0);
}

fn give_rare(columns: Columns, messages: &mut [Message]) -> Result<(), Nonsense> {
    let non_finite = columns.nan.into_iter().zip(columns.pos_inf).zip(columns.neg_inf);
    give(messages, &columns.non_finite_at, non_finite, |message, ((nan, pos_inf), neg_inf)| {
        if let Some(stats) = &mut message.stats {
            (stats.nan, stats.pos_inf, stats.neg_inf) = (nan, pos_inf, neg_inf);
        }
    })?;
    give(messages, &columns.inherited_at, std::iter::repeat(()), |message, ()| message.inherited = true)?;
    give(messages, &columns.via_at, columns.via, |message, via| message.via = Some(via))?;
    give(messages, &columns.rounding_at, columns.rounding, |message, rounding| message.rounding = Some(rounding))?;
    give(messages, &columns.provenance_at, columns.provenance, |message, provenance| {
        message.provenance = Some(provenance);
    })
}

/// Gives each place its value.
fn give<T>(
    messages: &mut [Message],
    distances: &[u32],
    values: impl IntoIterator<Item = T>,
    set: impl Fn(&mut Message, T),
) -> Result<(), Nonsense> {
    let mut values = values.into_iter();
    let mut next = 0usize;
    for &distance in distances {
        let place = next.saturating_add(distance as usize);
        let (Some(message), Some(value)) = (messages.get_mut(place), values.next()) else {
            return Err(Nonsense(format!("something of observation {place}, which is not there")));
        };
        set(message, value);
        next = place + 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::scenario::{normal, stats_of};
    use crate::observation::{Provenance, SiteId};
    use crate::scan::Dtype::{F16, F32, F64};

    fn observed(site: u32, values: &[f64]) -> Observation {
        Observation::new(SiteId(site), stats_of(values, F32))
    }

    fn stands_in_columns(observation: Observation) -> bool {
        encode(&[observation]).is_some()
    }

    #[test]
    fn ordinary_tensors_stand_in_columns_and_what_follows_from_others_is_not_written() {
        let observations =
            [observed(7, &normal(500, 1.0, 1)), observed(8, &[0.0; 9]), observed(2, &[f64::NAN, -1e-40, 3.0])];
        let columns = encode(&observations).expect("they fit");
        assert_eq!(columns.site_steps, [7, 0, -7]);
        assert_eq!((columns.non_finite_at.as_slice(), columns.nan.as_slice()), (&[2][..], &[1][..]));
        let messages = decode(columns).expect("they make sense");
        let counts: Vec<u64> = messages.iter().filter_map(|m| Some(m.stats.as_ref()?.count)).collect();
        assert_eq!((messages.iter().map(|m| m.site).collect::<Vec<_>>(), counts), (vec![7, 8, 2], vec![500, 9, 3]));
    }

    #[test]
    fn what_columns_cannot_hold_is_left_to_messages() {
        assert!(stands_in_columns(Observation::new(SiteId(0), stats_of(&[0.5, 3.0], F16))));
        assert!(!stands_in_columns(Observation::new(SiteId(0), stats_of(&[0.1], F64))));
        let mut odd = observed(0, &[1.0, 8.0]);
        odd.stats.max_abs = 32.0;
        assert!(!stands_in_columns(odd));
        let mut miscounted = observed(0, &[1.0]);
        miscounted.stats.count = 2;
        assert!(!stands_in_columns(miscounted));
        assert!(encode(&[]).is_none());
    }

    #[test]
    fn sums_that_are_floats_take_half_the_room_and_come_back_as_they_were() {
        let sums = |messages: &[Message]| -> Vec<f64> {
            messages.iter().filter_map(|m| m.stats.as_ref()?.sum.as_ref().map(|sum| sum.value)).collect()
        };
        let mut observations = [observed(0, &normal(500, 1.0, 1)), observed(1, &[-0.0; 9])];
        let exact: Vec<f64> = observations.iter().map(|o| o.stats.sum.value).collect();
        let wide = encode(&observations).expect("they fit");
        assert_eq!((wide.sum.len(), wide.narrow_sum.len()), (2, 0), "{exact:?} is no float");
        assert_eq!(sums(&decode(wide).expect("sound")), exact);
        observations.iter_mut().for_each(|o| o.stats.round_sums());
        let rounded: Vec<f64> = observations.iter().map(|o| o.stats.sum.value).collect();
        let narrow = encode(&observations).expect("they fit");
        assert_eq!((narrow.sum.len(), narrow.narrow_sum.len(), narrow.narrow_sum_squares.len()), (0, 2, 2));
        assert_eq!(sums(&decode(narrow).expect("sound")), rounded);
        assert!((rounded[0] / exact[0] - 1.0).abs() <= 2f64.powi(-24), "{rounded:?} {exact:?}");
    }

    #[test]
    fn columns_that_contradict_each_other_make_no_sense() {
        let sound = || {
            let mut two = [observed(0, &[1.0, 2.0]), observed(1, &[4.0])];
            two[1].provenance = Some(Box::new(Provenance { inputs: vec![Some(SiteId(0))], ..Provenance::default() }));
            encode(&two).expect("they fit")
        };
        assert!(decode(sound()).is_ok());
        let breaks: [fn(&mut Columns); 9] = [
            |c| c.sum = vec![0.0, 0.0],
            |c| c.zeros.truncate(1),
            |c| c.exponent_counts.truncate(2),
            |c| c.exponent_counts.push(1),
            |c| c.min_abs[0] = 8.0,
            |c| c.max_abs[0] = f32::NAN,
            |c| c.site_steps[0] = -5,
            |c| c.provenance_at[0] = 2,
            |c| c.via_at.push(0),
        ];
        for (which, spoil) in breaks.into_iter().enumerate() {
            let mut columns = sound();
            spoil(&mut columns);
            assert!(decode(columns).is_err(), "{which}");
        }
    }
}
