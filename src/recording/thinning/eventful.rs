//! Which steps are worth their place: those at which something happened, with the step before and the step after.

use crate::observation::{Act, Record, ScalerEvent, Step};

/// The first steps are kept: what a run began with is asked for to the end.
const BEGINNING: u64 = 32;
/// Steps that are skipped in a row beyond this are no news.
const SKIPS: u32 = 8;
/// Ways in which the loop treats gradients and parameters that are known at a time; an accumulation or an evaluation alternates between a few.
const WAYS: usize = 8;
/// Losses before a loss can stand apart.
const LOSSES: u32 = 16;
/// Mean deviations from the mean loss at which one stands apart.
const APART: f64 = 6.0;
/// Weight of the latest loss in its running mean.
const SMOOTHING: f64 = 0.05;

/// Tells steps with an event from others, as they come.
#[derive(Debug, Default)]
pub(super) struct Eventful {
    steps: u64,
    /// A record that came before the step belongs to it.
    announced: bool,
    skips: u32,
    scale: Option<u64>,
    /// By site: whether its latest observation was not finite.
    non_finite: Vec<bool>,
    had_metrics: bool,
    ways: Vec<Vec<std::mem::Discriminant<Act>>>,
    loss: Losses,
    /// The step before had an event: what it led to is seen in this one.
    after: bool,
}

/// What is to be kept of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Keep {
    /// The step itself.
    pub(super) this: bool,
    /// The step before it, too.
    pub(super) before: bool,
}

impl Eventful {
    /// A record that is no step.
    pub(super) fn hear(&mut self, record: &Record) {
        self.announced |= matches!(record, Record::Scaler(_) | Record::Shadow(_) | Record::Note(_));
    }

    /// Whether a step is to be kept, and the one before it.
    pub(super) fn judge(&mut self, step: &Step) -> Keep {
        self.steps += 1;
        let metrics_came = !step.metrics.is_empty() && !self.had_metrics;
        self.had_metrics = !step.metrics.is_empty();
        // All of them look, for each remembers.
        let events = [
            std::mem::take(&mut self.announced),
            self.scaler_moved(step),
            self.non_finite_came_or_went(step),
            self.way_changed(step),
            self.loss.stands_apart(step.loss),
            metrics_came,
        ];
        let event = events.contains(&true);
        let after = std::mem::replace(&mut self.after, event);
        let this = event || after || self.steps <= BEGINNING;
        Keep { this, before: event }
    }

    fn scaler_moved(&mut self, step: &Step) -> bool {
        self.skips = if step.skipped() { self.skips.saturating_add(1) } else { 0 };
        let scale = step.loss_scale.map(f64::to_bits);
        let other = self.scale.is_some() && scale.is_some() && self.scale != scale;
        self.scale = scale.or(self.scale);
        let moved =
            step.scaler.iter().any(|event| matches!(event, ScalerEvent::Updated { from, to, .. } if from != to));
        (moved || other || self.skips > 0) && self.skips <= SKIPS
    }

    /// A mask is not finite at every step, and no news.
    fn non_finite_came_or_went(&mut self, step: &Step) -> bool {
        let mut changed = step.loss.is_some_and(|loss| !loss.is_finite()) && self.loss.was_finite;
        for observation in &step.observations {
            let (site, now) = (observation.site.0 as usize, observation.stats.non_finite() > 0);
            if site >= self.non_finite.len() {
                self.non_finite.resize(site + 1, false);
            }
            if let Some(before) = self.non_finite.get_mut(site) {
                changed |= std::mem::replace(before, now) != now;
            }
        }
        changed
    }

    fn way_changed(&mut self, step: &Step) -> bool {
        let way: Vec<_> = step.recipe.iter().map(|event| std::mem::discriminant(&event.act)).collect();
        let refused = step.recipe.iter().any(|event| matches!(event.act, Act::Refused { .. }));
        if self.ways.contains(&way) {
            return refused;
        }
        if self.ways.len() >= WAYS {
            self.ways.remove(0);
        }
        self.ways.push(way);
        true
    }
}

/// The running mean of the loss, and how far losses are from it.
#[derive(Debug)]
struct Losses {
    seen: u32,
    mean: f64,
    deviation: f64,
    was_finite: bool,
}

impl Default for Losses {
    fn default() -> Self {
        Self { seen: 0, mean: 0.0, deviation: 0.0, was_finite: true }
    }
}

impl Losses {
    fn stands_apart(&mut self, loss: Option<f64>) -> bool {
        let Some(loss) = loss else { return false };
        let came_back = loss.is_finite() && !self.was_finite;
        self.was_finite = loss.is_finite();
        if !self.was_finite {
            return false;
        }
        if self.seen == 0 {
            self.mean = loss;
        }
        let off = (loss - self.mean).abs();
        let apart = self.seen >= LOSSES && off > APART * self.deviation;
        self.seen = self.seen.saturating_add(1);
        self.mean += SMOOTHING * (loss - self.mean);
        self.deviation += SMOOTHING * (off - self.deviation);
        apart || came_back
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::scenario::{Scenario, StepBuilder, normal};
    use crate::scan::Dtype::F16;

    /// The steps of 200 that are kept, the first ones apart.
    fn kept(build: impl Fn(&mut StepBuilder<'_>, u64)) -> Vec<u64> {
        let mut run = Scenario::new();
        run.steps(200, |s, i| {
            s.loss(2.0 + 0.1 * (i as f64 * 1.7).sin());
            build(s, i);
        });
        let mut eventful = Eventful::default();
        let mut kept = std::collections::BTreeSet::new();
        for record in run.records() {
            let Record::Step(step) = record else {
                eventful.hear(record);
                continue;
            };
            let Keep { this, before } = eventful.judge(step);
            kept.extend(this.then_some(step.index));
            kept.extend(before.then(|| step.index.saturating_sub(1)));
        }
        kept.into_iter().filter(|step| *step >= BEGINNING).collect()
    }

    #[test]
    fn an_even_run_has_no_event_and_neither_has_a_mask() {
        let even = kept(|s, i| {
            s.applied(1024.0).activation("a", "masked_fill", F16, &[1.0, f64::NEG_INFINITY]);
            s.activation("b", "linear", F16, &normal(32, 1.0, i));
        });
        assert!(even.is_empty(), "{even:?}");
    }

    #[test]
    fn what_happens_is_kept_with_the_step_before_and_after() {
        let skip = kept(|s, i| {
            if i == 100 {
                s.skipped(1024.0, 512.0)
            } else {
                s.applied(if i > 100 { 512.0 } else { 1024.0 })
            };
        });
        assert_eq!(skip, [99, 100, 101, 102], "the scale is another from the step after on");
        let nan = kept(|s, i| {
            s.activation("a", "linear", F16, &[1.0, if (100..150).contains(&i) { f64::NAN } else { 2.0 }]);
        });
        assert_eq!(nan, [99, 100, 101, 149, 150, 151], "where it came and where it went");
        let spike = kept(|s, i| {
            if i == 100 {
                s.loss(9.0);
            }
        });
        assert_eq!(spike, [99, 100, 101]);
        let cleared = kept(|s, i| {
            if i == 100 {
                s.act(Act::Cleared { gradients: 4 });
            }
        });
        assert_eq!(cleared, [99, 100, 101]);
    }

    #[test]
    fn a_run_that_skips_for_ever_is_no_news_for_ever() {
        let skips = kept(|s, i| {
            if i >= 100 {
                s.skipped(1024.0, 1024.0)
            } else {
                s.applied(1024.0)
            };
        });
        assert_eq!(skips, (99..=108).collect::<Vec<_>>());
    }
}
