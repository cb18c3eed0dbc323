//! How much of the older steps may stay.

/// What steps take in the file, by how often their number can be halved: it says which of them are left at which stride.
#[derive(Clone, Debug, Default)]
pub(super) struct Sizes {
    /// What was scanned, and all else; of steps without an event, and of those with one.
    plain: Halvings,
    event: Halvings,
    /// Bytes of records that are no steps.
    pub(super) other: u64,
}

#[derive(Clone, Debug)]
struct Halvings {
    scanned: [u64; 64],
    light: [u64; 64],
}

impl Default for Halvings {
    fn default() -> Self {
        Self { scanned: [0; 64], light: [0; 64] }
    }
}

impl Sizes {
    /// Adds a step: what of its frame is scans, and what is not.
    pub(super) fn add(&mut self, index: u64, has_event: bool, scanned: u64, light: u64) {
        let halvings = if has_event { &mut self.event } else { &mut self.plain };
        let at = halved(index) as usize;
        halvings.scanned[at] += scanned;
        halvings.light[at] += light;
    }

    /// Counts a step as one with an event that was added as one without.
    pub(super) fn promote(&mut self, index: u64, scanned: u64, light: u64) {
        let at = halved(index) as usize;
        self.plain.scanned[at] = self.plain.scanned[at].saturating_sub(scanned);
        self.plain.light[at] = self.plain.light[at].saturating_sub(light);
        self.add(index, true, scanned, light);
    }

    fn under(&self, plan: &Plan) -> u64 {
        self.other
            + left(&self.plain.scanned, plan.scanned)
            + left(&self.plain.light, plan.light)
            + left(&self.event.scanned, plan.scanned_events)
            + left(&self.event.light, plan.events)
    }
}

/// What is left of these where numbers stay that can be halved so often.
fn left(sizes: &[u64; 64], halvings: u32) -> u64 {
    sizes.iter().skip(halvings as usize).sum()
}

/// How often a number can be halved; 0 as often as one likes.
fn halved(index: u64) -> u32 {
    index.trailing_zeros().min(63)
}

/// Which of the older steps stay: those whose number is divisible by two to the power of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// What was scanned in steps without an event.
    pub(super) scanned: u32,
    /// The rest of steps without an event.
    pub(super) light: u32,
    /// What was scanned in steps with an event: only where there are so many of them that nothing else is left to leave out.
    pub(super) scanned_events: u32,
    /// The rest of them: the events themselves; where these alone would not fit.
    pub(super) events: u32,
}

/// Halvings beyond which nothing is left of a run of any length.
const MOST: u32 = 40;

impl Plan {
    /// The least that has to go so that at most `target` bytes stay. It begins with what went before: what is gone does not come back.
    ///
    /// Of steps without an event, scans and the rest take turns, the larger of the two first; those with one come last.
    pub(super) fn for_target(sizes: &Sizes, target: u64, before: Plan) -> Plan {
        let mut plan = before;
        while sizes.under(&plan) > target {
            let (scans, rest) = (left(&sizes.plain.scanned, plan.scanned), left(&sizes.plain.light, plan.light));
            match &mut plan {
                Plan { scanned, .. } if *scanned < MOST && scans >= rest && scans > 0 => *scanned += 1,
                Plan { light, .. } if *light < MOST && rest > 0 => *light += 1,
                Plan { scanned, light, .. } if *scanned < MOST || *light < MOST => (*scanned, *light) = (MOST, MOST),
                Plan { scanned_events, .. } if *scanned_events < MOST => *scanned_events += 1,
                Plan { events, .. } if *events < MOST => *events += 1,
                _ => break,
            }
        }
        plan
    }

    /// What becomes of an older step.
    pub(super) fn fate(&self, index: u64, has_event: bool) -> Fate {
        let halved = halved(index);
        let (scanned, light) = if has_event { (self.scanned_events, self.events) } else { (self.scanned, self.light) };
        match () {
            () if halved < light => Fate::Goes,
            () if halved < scanned => Fate::KeepsNoScan,
            () => Fate::Stays,
        }
    }
}

/// What becomes of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It stays as it is.
    Stays,
    /// What was scanned goes.
    KeepsNoScan,
    /// All of it goes.
    Goes,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn even(steps: u64, scanned: u64) -> Sizes {
        let mut sizes = Sizes::default();
        (0..steps).for_each(|index| sizes.add(index, index % 100 == 99, scanned, 100));
        sizes
    }

    #[test]
    fn scans_go_first_and_as_few_as_must() {
        let sizes = even(1000, 1000);
        let plan = |target| Plan::for_target(&sizes, target, Plan::default());
        assert_eq!(plan(2_000_000), Plan::default());
        assert_eq!(plan(700_000), Plan { scanned: 1, ..Plan::default() });
        assert_eq!(plan(400_000), Plan { scanned: 2, ..Plan::default() });
        assert_eq!(plan(65_000), Plan { scanned: 6, light: 2, ..Plan::default() }, "then all else takes its turn");
    }

    #[test]
    fn events_go_last_and_what_is_gone_does_not_come_back() {
        let sizes = even(1000, 1000);
        let before = Plan { scanned: 3, ..Plan::default() };
        assert_eq!(Plan::for_target(&sizes, u64::MAX, before), before);
        let plan = Plan::for_target(&sizes, 6_000, Plan::default());
        assert_eq!((plan.scanned, plan.light, plan.events), (MOST, MOST, 0));
        assert!(plan.scanned_events > 0);
        assert_eq!(plan.fate(99, true), Fate::KeepsNoScan);
        assert_eq!((plan.fate(98, false), plan.fate(0, false)), (Fate::Goes, Fate::Stays));
    }

    #[test]
    fn a_step_is_left_where_its_number_is_divisible() {
        let plan = Plan { scanned: 2, ..Plan::default() };
        let left: Vec<u64> = (0..9).filter(|index| plan.fate(*index, false) == Fate::Stays).collect();
        assert_eq!(left, [0, 4, 8]);
        assert!((0..9).all(|index| plan.fate(index, true) == Fate::Stays));
    }
}
