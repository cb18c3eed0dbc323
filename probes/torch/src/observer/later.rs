//! What is only known at the end of a step, because the numbers that it follows from are on a device until then.
//!
//! What host memory holds is known at once; but whether a NaN came from here or from there is worked out for both in one place, in the order in which
//! things happened, once everything is there.

use ampdoctor::scan::{Dtype, Stats};

use super::device::{Reductions, StatsTicket, Ticket};
use super::integers::{reach, were_repeated};

/// The statistics of a tensor.
pub(super) enum Scanned {
    /// Taken.
    Now(Stats),
    /// To be fetched.
    Later(StatsTicket),
}

/// A number that a tensor holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    /// Read.
    Known(f64),
    /// To be fetched.
    Later(Ticket),
}

impl Number {
    /// `None` where it could not be fetched, or was not yet.
    pub(super) fn value(self, device: &Reductions) -> Option<f64> {
        match self {
            Number::Known(value) => Some(value),
            Number::Later(ticket) => device.one(ticket),
        }
    }
}

/// Whether something of several was not finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fault(u32);

impl Fault {
    /// Nothing was.
    pub(super) const NONE: Self = Self(0);
}

/// What faults are made of; the first one is number 1.
#[derive(Default)]
pub(super) struct Faults(Vec<Cause>);

enum Cause {
    /// A tensor that was scanned, by its entry.
    Entry(usize),
    Either(Fault, Fault),
}

impl Faults {
    /// Whether the tensor of an entry was not finite.
    pub(super) fn of_entry(&mut self, entry: usize) -> Fault {
        self.push(Cause::Entry(entry))
    }

    /// Whether one of them is.
    pub(super) fn either(&mut self, a: Fault, b: Fault) -> Fault {
        match (a, b) {
            (Fault::NONE, other) | (other, Fault::NONE) => other,
            (a, b) if a == b => a,
            (a, b) => self.push(Cause::Either(a, b)),
        }
    }

    fn push(&mut self, cause: Cause) -> Fault {
        self.0.push(cause);
        Fault(self.0.len() as u32)
    }

    /// Each of them, by its number, given which entries were not finite.
    pub(super) fn resolve(&self, of_entry: impl Fn(usize) -> bool) -> Vec<bool> {
        let mut known = vec![false; self.0.len() + 1];
        for (before, cause) in self.0.iter().enumerate() {
            known[before + 1] = match cause {
                Cause::Entry(entry) => of_entry(*entry),
                Cause::Either(a, b) => known[a.0 as usize] || known[b.0 as usize],
            };
        }
        known
    }
}

impl std::ops::Index<Fault> for Vec<bool> {
    type Output = bool;

    fn index(&self, fault: Fault) -> &bool {
        &self[fault.0 as usize]
    }
}

/// How many integers are not what they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
    /// Counted.
    Known(u64),
    /// By its number.
    Later(u32),
}

/// What counts are made of that are to be fetched.
#[derive(Default)]
pub(super) struct Counts(Vec<Tally>);

enum Tally {
    /// Of integers that were cast to a format in 16 bits.
    Cast(Ticket, Dtype),
    /// Of integers that were made in 16 bits: an entry, and what its neighbours tell.
    Neighbours(Ticket, usize),
    Largest(Option<Count>, Option<Count>),
    /// The first one that is there, or that is more than none.
    First {
        a: Option<Count>,
        b: Option<Count>,
        above_zero: bool,
    },
}

impl Counts {
    pub(super) fn of_cast(&mut self, ticket: Ticket, dtype: Dtype) -> Count {
        self.push(Tally::Cast(ticket, dtype))
    }

    pub(super) fn of_neighbours(&mut self, ticket: Ticket, entry: usize) -> Count {
        self.push(Tally::Neighbours(ticket, entry))
    }

    /// The larger one of those that are there.
    pub(super) fn largest(&mut self, a: Option<Count>, b: Option<Count>) -> Option<Count> {
        match (a, b) {
            (None, other) | (other, None) => other,
            (Some(Count::Known(a)), Some(Count::Known(b))) => Some(Count::Known(a.max(b))),
            (a, b) if a == b => a,
            (a, b) => Some(self.push(Tally::Largest(a, b))),
        }
    }

    /// The first, where it is there, else the second.
    pub(super) fn first(&mut self, a: Option<Count>, b: Option<Count>) -> Option<Count> {
        match (a, b) {
            (Some(Count::Known(_)), _) => a,
            (None, b) => b,
            (a, b) => Some(self.push(Tally::First { a, b, above_zero: false })),
        }
    }

    /// The first, where it counts any, else the second.
    pub(super) fn first_above_zero(&mut self, a: Option<Count>, b: Option<Count>) -> Option<Count> {
        match (a, b) {
            (Some(Count::Known(1..)), _) => a,
            (None | Some(Count::Known(0)), b) => b,
            (a, b) => Some(self.push(Tally::First { a, b, above_zero: true })),
        }
    }

    fn push(&mut self, tally: Tally) -> Count {
        self.0.push(tally);
        Count::Later(self.0.len() as u32 - 1)
    }

    /// Each of them, by its number; `None` where there were no integers.
    pub(super) fn resolve(
        &self,
        device: &Reductions,
        of_entry: impl Fn(usize) -> Option<(Dtype, Stats)>,
    ) -> Vec<Option<u64>> {
        let mut known: Vec<Option<u64>> = Vec::with_capacity(self.0.len());
        for tally in &self.0 {
            let count = match tally {
                Tally::Cast(ticket, dtype) => of_cast(device, *ticket, *dtype),
                Tally::Neighbours(ticket, entry) => {
                    of_entry(*entry).and_then(|(dtype, stats)| of_neighbours(device, *ticket, dtype, &stats))
                }
                Tally::Largest(a, b) => value(*a, &known).max(value(*b, &known)),
                Tally::First { a, b, above_zero } => {
                    value(*a, &known).filter(|&n| n > 0 || !above_zero).or_else(|| value(*b, &known))
                }
            };
            known.push(count);
        }
        known
    }
}

/// A count, given those that were resolved.
pub(super) fn value(count: Option<Count>, known: &[Option<u64>]) -> Option<u64> {
    match count? {
        Count::Known(count) => Some(count),
        Count::Later(number) => known.get(number as usize).copied().flatten(),
    }
}

fn of_cast(device: &Reductions, ticket: Ticket, dtype: Dtype) -> Option<u64> {
    let [f16, bf16, none] = *device.numbers(ticket)? else { return None };
    let count = match dtype {
        Dtype::F16 => f16,
        Dtype::Bf16 => bf16,
        Dtype::F32 | Dtype::F64 => return None,
    };
    (none == 0.0).then_some(count as u64)
}

fn of_neighbours(device: &Reductions, ticket: Ticket, dtype: Dtype, stats: &Stats) -> Option<u64> {
    let [none, within, beyond] = *device.numbers(ticket)? else { return None };
    let may_be = were_repeated(stats, reach(dtype)?) && none == 0.0;
    (may_be && within == 0.0 && beyond > 0.0).then_some(beyond as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_one_where_any_of_its_causes_is() {
        let mut faults = Faults::default();
        let (a, b) = (faults.of_entry(3), faults.of_entry(5));
        let both = faults.either(a, b);
        assert_eq!(faults.either(Fault::NONE, both), both);
        assert_eq!(faults.either(both, both), both);
        let known = faults.resolve(|entry| entry == 5);
        assert!(!known[Fault::NONE] && !known[a] && known[b] && known[both]);
        assert!(!faults.resolve(|_| false)[both]);
    }

    #[test]
    fn counts_that_are_known_are_worked_out_at_once() {
        let mut counts = Counts::default();
        let known = |n| Some(Count::Known(n));
        assert_eq!(counts.largest(known(2), known(5)), known(5));
        assert_eq!(counts.largest(None, known(0)), known(0));
        assert_eq!(counts.first(known(0), known(4)), known(0));
        assert_eq!(counts.first_above_zero(known(0), known(4)), known(4));
        assert_eq!(counts.first_above_zero(None, None), None);
        assert!(counts.0.is_empty());
    }

    #[test]
    fn a_count_that_was_not_fetched_is_none() {
        let mut counts = Counts::default();
        let mut device = Reductions::default();
        let t = tch::Tensor::from_slice(&[2049i64, 3]);
        let described = super::super::border::tensor::describe(&t).unwrap();
        let ticket = device.integers(&described).unwrap();
        let cast = counts.of_cast(ticket, Dtype::F16);
        let most = counts.largest(Some(cast), Some(Count::Known(0)));
        let unknown = counts.resolve(&device, |_| None);
        assert_eq!((value(Some(cast), &unknown), value(most, &unknown)), (None, Some(0)));
        device.fetch().unwrap();
        let fetched = counts.resolve(&device, |_| None);
        assert_eq!((value(Some(cast), &fetched), value(most, &fetched)), (Some(1), Some(1)));
    }
}
