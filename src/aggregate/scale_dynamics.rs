//! How the loss scale moves over the run, in bounded memory: skips, the bursts they come in, and jumps.
//!
//! Time is counted in *scaler steps*, steps in which the scaler did something: a loop that calls `doctor.step` for every micro-batch has fewer of them
//! than steps. Two skips at most [`ScaleDynamics::BURST_GAP`] clean scaler steps apart belong to one burst: a descent from a scale that is too high is
//! one event, however long it is.

use std::collections::VecDeque;

use super::ScalesTried;
use crate::observation::{ScalerConfig, ScalerEvent, Step};

/// One step that the scaler refused because a gradient was not finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Skip {
    /// The step.
    pub step: u64,
    /// Scaler steps up to this one, counted from 1.
    pub ordinal: u64,
    /// Whether the scale grew since the previous skip.
    pub grown_before: bool,
}

/// Skips that follow closely on one another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burst {
    /// Its first step.
    pub first_step: u64,
    /// Scaler steps up to its first one.
    pub first_ordinal: u64,
    /// Scaler steps up to its last one.
    pub last_ordinal: u64,
    /// Skips in it.
    pub skips: u64,
    /// Of those, skips at which the scale fell: all but those that a floor or hysteresis held.
    pub backoffs: u64,
    /// Whether the scale grew since the previous burst.
    pub grown_before: bool,
    /// The loss scale at its first skip.
    pub first_scale: f64,
    /// Scaler steps between the previous burst and this one; `None` for the first of the run.
    pub clean_before: Option<u64>,
}

/// A change of the scale by none of the scaler's own factors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Jump {
    /// The step.
    pub step: u64,
    /// The scale before.
    pub from: f64,
    /// The scale after.
    pub to: f64,
    /// Updates in that step; 0 where the scale changed between two steps.
    pub updates: u32,
}

/// How the loss scale moves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScaleDynamics {
    /// Steps in which the scaler did something.
    pub scaler_steps: u64,
    /// Skips of the whole run.
    pub skips_total: u64,
    /// The latest skips, oldest first: at most [`ScaleDynamics::SKIPS`].
    pub skips: VecDeque<Skip>,
    /// The latest bursts of skips, oldest first: at most [`ScaleDynamics::BURSTS`].
    pub bursts: VecDeque<Burst>,
    /// Growths since the latest skip.
    pub growths_since_skip: u64,
    /// Whether the latest step was refused.
    pub refused: bool,
    /// Skips in a row that left the scale at its floor, and the step of the first; a clean scaler step ends them.
    pub held_at_floor: Option<(u64, u64)>,
    /// The step since which the scale in force is below 1, and the scaler steps since; only where it fell there.
    pub below_one: Option<(u64, u64)>,
    /// The first jump.
    pub first_jump: Option<Jump>,
    /// The step of the latest jump.
    pub latest_jump: Option<u64>,
    /// Jumps of the whole run.
    pub jumps: u64,
    /// Scales of several scalers are mixed: nothing here can be told apart.
    pub several_scalers: bool,
    /// The scale after the latest update.
    pub scale: Option<f64>,
    /// What was seen of each scale, at every step.
    pub tried: ScalesTried,
    last_index: Option<u64>,
    /// A change between two steps that the next scaler step confirms, unless the scale is back then: two scalers that take turns.
    unconfirmed: Option<Jump>,
}

impl ScaleDynamics {
    /// Skips kept.
    pub const SKIPS: usize = 64;
    /// Bursts kept.
    pub const BURSTS: usize = 64;
    /// Clean scaler steps between two skips of one burst, at most.
    pub const BURST_GAP: u64 = 2;

    /// The steps of the latest skips that no growth had gone before, oldest first: not the scaler's own probing.
    pub fn growthless_steps(&self) -> impl DoubleEndedIterator<Item = u64> + '_ {
        self.skips.iter().filter(|s| !s.grown_before).map(|s| s.step)
    }

    /// New settings begin a new history: what the old ones did says nothing of these.
    pub(super) fn restart(&mut self) {
        let Self { first_jump, latest_jump, jumps, several_scalers, .. } = *self;
        *self = Self { first_jump, latest_jump, jumps, several_scalers, ..Self::default() };
    }

    pub(super) fn push(&mut self, step: &Step, config: Option<&ScalerConfig>) {
        let follows = self.last_index.is_some_and(|last| step.index == last + 1);
        self.last_index = Some(step.index);
        self.refused = false;
        if step.scaler.is_empty() {
            return;
        }
        self.scaler_steps += 1;
        let updates = Updates::of(step);
        self.several_scalers |= updates.as_ref().is_some_and(|u| u.broken);
        self.follow_jumps(step, updates.as_ref(), config, follows);
        if let Some(u) = &updates {
            // A rise on steps that were dropped is a growth too.
            let unseen = self.scale.is_some_and(|before| u.from > before);
            self.growths_since_skip += u64::from(unseen) + u64::from(u.to > u.from);
            self.scale = Some(u.to);
        }
        self.refused = is_refused(step);
        if self.refused {
            self.note_skip(step, updates.as_ref());
        }
        if let Some(scale) = updates.as_ref().map(|u| u.from).or(step.loss_scale) {
            self.tried.push(step.index, scale, self.refused, step.loss.is_none_or(f64::is_finite));
        }
        self.follow_floor(step, updates.as_ref(), config);
        self.follow_below_one(step);
    }

    fn note_skip(&mut self, step: &Step, updates: Option<&Updates>) {
        let fell = updates.is_some_and(|u| u.to < u.from);
        let ordinal = self.scaler_steps;
        let grown_before = self.growths_since_skip > 0;
        self.growths_since_skip = 0;
        self.skips_total += 1;
        push_bounded(&mut self.skips, Self::SKIPS, Skip { step: step.index, ordinal, grown_before });
        let clean_before = self.bursts.back().map(|last| ordinal - last.last_ordinal - 1);
        match self.bursts.back_mut() {
            Some(last) if clean_before.is_some_and(|clean| clean <= Self::BURST_GAP) => {
                last.last_ordinal = ordinal;
                last.skips += 1;
                last.backoffs += u64::from(fell);
            }
            _ => {
                let burst = Burst {
                    first_step: step.index,
                    first_ordinal: ordinal,
                    last_ordinal: ordinal,
                    skips: 1,
                    backoffs: u64::from(fell),
                    grown_before,
                    first_scale: updates.map(|u| u.from).or(step.loss_scale).unwrap_or(1.0),
                    clean_before,
                };
                push_bounded(&mut self.bursts, Self::BURSTS, burst);
            }
        }
    }

    fn follow_floor(&mut self, step: &Step, updates: Option<&Updates>, config: Option<&ScalerConfig>) {
        let floor = config.and_then(|c| c.min_scale);
        let at_floor = updates.zip(floor).is_some_and(|(u, floor)| u.to <= floor && u.from <= floor);
        self.held_at_floor = match (self.refused && at_floor, self.held_at_floor) {
            (true, Some((since, n))) => Some((since, n + 1)),
            (true, None) => Some((step.index, 1)),
            (false, _) => None,
        };
    }

    fn follow_below_one(&mut self, step: &Step) {
        let Some(scale) = step.loss_scale else { return };
        self.below_one = match (scale < 1.0, self.below_one) {
            (true, Some((since, n))) => Some((since, n + 1)),
            (true, None) if self.skips_total > 0 => Some((step.index, 1)),
            _ => None,
        };
    }

    fn follow_jumps(&mut self, step: &Step, updates: Option<&Updates>, config: Option<&ScalerConfig>, follows: bool) {
        let (Some(u), Some(config)) = (updates, config) else { return };
        if let Some(jump) = self.unconfirmed.take() {
            if u.from == jump.from && u.from != jump.to {
                self.several_scalers = true;
            } else {
                self.note_jump(jump);
            }
        } else if let Some(before) = self.scale.filter(|&before| follows && before != u.from) {
            self.unconfirmed = Some(Jump { step: step.index, from: before, to: u.from, updates: 0 });
        }
        if u.broken {
            return;
        }
        // One that no factor explains is told alone, and not laid to the number of updates.
        let set = updates_of(step).find(|&(from, to)| !is_own_move(from, to, config));
        let ((from, to), updates) = set.map_or(((u.from, u.to), u.count), |set| (set, 1));
        if !is_own_move(from, to, config) {
            self.note_jump(Jump { step: step.index, from, to, updates });
        }
    }

    fn note_jump(&mut self, jump: Jump) {
        self.jumps += 1;
        self.first_jump.get_or_insert(jump);
        self.latest_jump = Some(jump.step);
    }
}

/// The updates of one step, taken together.
struct Updates {
    from: f64,
    to: f64,
    count: u32,
    /// One does not begin where the one before ended: they are of several scalers.
    broken: bool,
}

impl Updates {
    fn of(step: &Step) -> Option<Self> {
        let mut all: Option<Self> = None;
        for (from, to) in updates_of(step) {
            all = Some(match all {
                None => Self { from, to, count: 1, broken: false },
                Some(u) => Self { from: u.from, to, count: u.count + 1, broken: u.broken || from != u.to },
            });
        }
        all
    }
}

/// The scale before and after each update of a step.
fn updates_of(step: &Step) -> impl Iterator<Item = (f64, f64)> + '_ {
    step.scaler.iter().filter_map(|event| match *event {
        ScalerEvent::Updated { from, to, .. } => Some((from, to)),
        _ => None,
    })
}

/// Whether a gradient was not finite. Where unscaling said so it is believed; else a withheld step or a fallen scale tells.
fn is_refused(step: &Step) -> bool {
    let mut unscaled = step.scaler.iter().filter_map(|e| match e {
        ScalerEvent::Unscaled { found_inf, .. } => Some(*found_inf),
        _ => None,
    });
    match unscaled.next() {
        Some(first) => first || unscaled.any(|found| found),
        None => step.skipped() || Updates::of(step).is_some_and(|u| u.to < u.from),
    }
}

/// Whether one update of this scaler leads from one scale to the other.
fn is_own_move(from: f64, to: f64, config: &ScalerConfig) -> bool {
    /// Scales are f32 in most scalers.
    const ROUNDING: f64 = 1e-6;
    let near = |x: f64| (to - x).abs() <= ROUNDING * x.abs();
    let bounded = |x: f64| x.max(config.min_scale.unwrap_or(0.0)).min(config.max_scale.unwrap_or(f64::INFINITY));
    // Among f32's subnormals halving rounds, and ends at 0.
    from < f64::from(f32::MIN_POSITIVE)
        || [1.0, config.growth_factor, config.backoff_factor].iter().any(|f| near(from * f) || near(bounded(from * f)))
}

fn push_bounded<T>(queue: &mut VecDeque<T>, capacity: usize, item: T) {
    if queue.len() == capacity {
        queue.pop_front();
    }
    queue.push_back(item);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::scenario::Scenario;
    use crate::observation::{Record, ScalerEvent};

    /// The dynamics of steps of one update each, `(from, to)`; the scale falls where a step was refused.
    fn dynamics(moves: &[(f64, f64)]) -> ScaleDynamics {
        let mut run = Scenario::new();
        run.dynamic_scaler(65536.0);
        for &(from, to) in moves {
            run.step(|s| {
                if to < from {
                    s.skipped(from, to)
                } else {
                    s.moved(from, to)
                };
            });
        }
        of(&run)
    }

    fn of(run: &Scenario) -> ScaleDynamics {
        let mut aggregate = crate::aggregate::Aggregate::default();
        run.records().iter().cloned().for_each(|r| aggregate.apply(r));
        aggregate.scale_dynamics
    }

    #[test]
    fn skips_two_clean_steps_apart_are_one_burst_and_three_are_two() {
        let still = |s| (s, s);
        let near = dynamics(&[(8.0, 4.0), still(4.0), still(4.0), (4.0, 2.0)]);
        assert_eq!(near.bursts.iter().map(|b| (b.skips, b.clean_before)).collect::<Vec<_>>(), [(2, None)]);
        let apart = dynamics(&[(8.0, 4.0), still(4.0), still(4.0), still(4.0), (4.0, 2.0)]);
        assert_eq!(
            apart.bursts.iter().map(|b| (b.skips, b.clean_before)).collect::<Vec<_>>(),
            [(1, None), (1, Some(3))]
        );
    }

    #[test]
    fn a_skip_knows_whether_the_scale_grew_before_it() {
        let d = dynamics(&[(8.0, 16.0), (16.0, 8.0), (8.0, 8.0), (8.0, 4.0)]);
        assert_eq!(d.skips.iter().map(|s| (s.step, s.grown_before)).collect::<Vec<_>>(), [(1, true), (3, false)]);
        assert_eq!(d.growthless_steps().collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn memory_is_bounded() {
        let moves: Vec<_> = (0..10_000).flat_map(|_| [(8.0, 4.0), (4.0, 4.0), (4.0, 4.0), (4.0, 8.0)]).collect();
        let d = dynamics(&moves);
        assert_eq!((d.skips.len(), d.bursts.len(), d.skips_total), (64, 64, 10_000));
    }

    #[test]
    fn growth_backoff_standing_still_and_the_bounds_are_no_jumps() {
        assert_eq!(dynamics(&[(8.0, 16.0), (16.0, 16.0), (16.0, 8.0)]).jumps, 0);
        // PyTorch's scale ends at 0 after 2^-149.
        let tiny = 2f64.powi(-149);
        assert_eq!(dynamics(&[(tiny, 0.0), (0.0, 0.0)]).jumps, 0);
    }

    #[test]
    fn two_updates_in_a_step_are_a_jump_where_they_quarter_the_scale() {
        let mut run = Scenario::new();
        run.dynamic_scaler(65536.0).step(|s| {
            s.skipped(16.0, 8.0).event(ScalerEvent::Updated { from: 8.0, to: 4.0, growth_tracker: 0 });
        });
        assert_eq!(of(&run).first_jump, Some(Jump { step: 0, from: 16.0, to: 4.0, updates: 2 }));
    }

    #[test]
    fn an_update_that_sets_the_scale_is_a_jump_of_its_own_beside_the_one_of_the_step() {
        let mut run = Scenario::new();
        run.dynamic_scaler(65536.0).step(|s| {
            s.skipped(16.0, 65536.0).event(ScalerEvent::Updated { from: 65536.0, to: 32768.0, growth_tracker: 0 });
        });
        assert_eq!(of(&run).first_jump, Some(Jump { step: 0, from: 16.0, to: 65536.0, updates: 1 }));
    }

    #[test]
    fn a_scale_set_between_steps_is_a_jump_and_two_scalers_that_take_turns_are_none() {
        let set = dynamics(&[(8.0, 8.0), (64.0, 64.0), (64.0, 64.0)]);
        assert_eq!(set.first_jump, Some(Jump { step: 1, from: 8.0, to: 64.0, updates: 0 }));
        let turns = dynamics(&[(8.0, 8.0), (64.0, 64.0), (8.0, 8.0), (64.0, 64.0)]);
        assert_eq!((turns.jumps, turns.several_scalers), (0, true));
    }

    #[test]
    fn steps_that_were_dropped_hide_a_growth_and_are_no_jump() {
        let mut run = Scenario::new();
        run.dynamic_scaler(65536.0).step(|s| {
            s.skipped(16.0, 8.0);
        });
        let mut records = run.records().to_vec();
        for (index, (from, to)) in [(5, (32.0, 32.0)), (6, (32.0, 16.0))] {
            let Some(Record::Step(mut step)) = records.last().cloned() else { panic!() };
            step.index = index;
            step.scaler = vec![ScalerEvent::Updated { from, to, growth_tracker: 0 }];
            records.push(Record::Step(step));
        }
        let mut aggregate = crate::aggregate::Aggregate::default();
        records.into_iter().for_each(|r| aggregate.apply(r));
        let d = &aggregate.scale_dynamics;
        assert_eq!((d.jumps, d.skips.back().map(|s| (s.step, s.grown_before))), (0, Some((6, true))));
    }
}
