//! Where non-finite values begin, and how long they last.

use std::collections::BTreeMap;

use super::SiteSummary;
use super::descent::Descent;
use super::masks::{Masks, is_data, is_mask_constant};
use crate::numerics::Format;
use crate::observation::{Probe, ScalerEvent, Site, SiteId, Step, Tier};

/// Octaves between a gradient and FP16's end at which no plausible fluctuation takes it over.
const SAFE_OCTAVES: f64 = 8.0;

/// The first tensor of a step that held a non-finite value it had not been given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Origin {
    /// The step.
    pub step: u64,
    /// The tensor.
    pub site: SiteId,
    /// For a gradient: the operator whose backward computed it.
    pub via: Option<SiteId>,
    /// The loss scale in force.
    pub loss_scale: Option<f64>,
    /// Elements that are NaN.
    pub nan: u64,
    /// Elements that are infinite.
    pub inf: u64,
    /// All elements.
    pub count: u64,
    /// Whether it made NaN of infinities that a mask put there, which went into this very operator.
    pub after_mask: bool,
}

/// What one step showed of non-finite values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NonFiniteStep {
    /// The first origin in forward, masks apart.
    pub forward: Option<Origin>,
    /// The first non-finite gradient in the order of backward, whether or not forward was clean.
    pub backward: Option<Origin>,
    /// The first parameter that holds a non-finite value, and whether it did not before.
    pub parameter: Option<(SiteId, bool)>,
    /// Buffers that hold a non-finite value, masks apart.
    pub buffers: Vec<SiteId>,
    /// A forward value was non-finite although nothing observed in this step made it so: it came in from outside.
    pub brought_in: Option<SiteId>,
    /// Infinities that a mask wrote were seen.
    pub masked: bool,
    /// Places, among the observations of the step and rising, of activations whose only non-finite elements are -inf that a mask put there.
    pub by_mask: Vec<usize>,
    /// Data that came in non-finite; it is the origin only where the model was handed it, for a loop also keeps old losses and the like.
    pub data: Option<Origin>,
    /// Activations in which an infinity was born, masks apart, each from finite inputs.
    pub overflows: Vec<Origin>,
}

impl NonFiniteStep {
    /// Whether forward held no non-finite value but those of masks.
    pub fn forward_is_clean(&self) -> bool {
        self.forward.is_none() && self.brought_in.is_none()
    }
}

/// Consecutive steps with non-finite gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Streak {
    /// Its first step.
    pub first_step: u64,
    /// Its last step so far.
    pub last_step: u64,
    /// Steps in it.
    pub steps: u64,
    /// The loss scale at its first step.
    pub first_scale: Option<f64>,
    /// The loss scale at its last step.
    pub last_scale: Option<f64>,
    /// Whether forward, or the loss, was non-finite in one of them.
    pub from_forward: bool,
    /// Where the gradient became non-finite at the first step of it that was scanned.
    pub first_origin: Option<Origin>,
    /// The same at the last.
    pub last_origin: Option<Origin>,
    /// Of all tensors at which it did in this streak, the one that was the first over most octaves of the scale, as it was last: whose overflow it is
    /// where the scale falls, for what lies behind it in backward overflows with it.
    pub widest_origin: Option<Origin>,
}

impl Streak {
    /// Octaves by which the loss scale fell in it.
    pub fn octaves_fallen(&self) -> f64 {
        match (self.first_scale, self.last_scale) {
            (Some(first), Some(last)) if first > 0.0 => (first / last.max(f64::MIN_POSITIVE)).log2(),
            _ => 0.0,
        }
    }
}

/// All origins in backward at one site.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackwardOrigins {
    /// The first.
    pub first: Origin,
    /// How many.
    pub events: u64,
    /// The highest loss scale at one; 1 without a scaler.
    pub highest_scale: f64,
    /// The lowest.
    pub lowest_scale: f64,
    /// Events at which the same gradient, at the same scale, had stood 8 octaves or more below FP16's end until then.
    pub with_headroom: u64,
    /// The most octaves of headroom at one of those.
    pub headroom_octaves: f64,
}

/// The whole run's non-finite values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NonFinite {
    /// The latest step that was scanned or had a non-finite loss.
    pub latest: NonFiniteStep,
    /// The step `latest` describes.
    pub latest_step: u64,
    /// The first origin of the run, in forward or backward.
    pub first_origin: Option<Origin>,
    /// The first origin of the run in forward, or in backward at a step that no scaler withheld: what later ones may have come of. The overflow of a scaler that finds its
    /// scale is none.
    pub first_unguarded: Option<Origin>,
    /// The streak that is going on.
    pub streak: Option<Streak>,
    /// The deepest streak of the run: the one in which the loss scale fell furthest.
    pub deepest: Option<Streak>,
    /// Steps, among the last 64, whose gradients were not finite: bit 0 is the latest step.
    pub recent_bad: u64,
    /// Origins in backward, by site.
    pub backward: BTreeMap<SiteId, BackwardOrigins>,
    /// The step before the latest at which everything was scanned; the latest non-finite began after it at the earliest.
    pub previous_full_step: Option<u64>,
    /// First step of the present run of non-finite losses, and how many there were in a row.
    pub loss_bad: Option<(u64, u64)>,
    /// A step that was not scanned and had a non-finite loss, while no origin was known; until a scanned step shows one.
    pub unseen_loss: Option<u64>,
    /// Where gradients became non-finite in the streak that is going on.
    descent: Descent,
}

impl NonFinite {
    /// Steps, among the last `n` (at most 64), whose gradients were not finite.
    pub fn bad_among_last(&self, n: u32) -> u32 {
        let mask = if n >= 64 { u64::MAX } else { (1 << n) - 1 };
        (self.recent_bad & mask).count_ones()
    }

    /// Whose overflow the streak that is going on is: see [`Streak::widest_origin`]. `None` without a streak, and where no step of it was scanned.
    pub fn culprit(&self) -> Option<Origin> {
        self.streak?.widest_origin
    }

    /// Whether [`NonFinite::latest`] is of this step, the latest one, and not of an earlier one: most steps may be left out by sampling.
    pub fn is_of_latest_step(&self, latest: Option<&Step>) -> bool {
        latest.is_some_and(|step| step.index == self.latest_step)
    }

    /// The step at which a fault that was seen at `origin` began: an earlier one where the loss was bad already, on steps that were not scanned.
    pub fn onset(&self, origin: &Origin) -> u64 {
        let unscanned = |since: u64| since < origin.step && self.previous_full_step.is_none_or(|full| full < since);
        self.loss_bad.map(|(since, _)| since).filter(|&since| unscanned(since)).unwrap_or(origin.step)
    }

    pub(super) fn push(&mut self, step: &Step, sites: &[SiteSummary], previous_full_step: Option<u64>) {
        let loss_is_bad = step.loss.is_some_and(|l| !l.is_finite());
        let found = find(step, sites);
        self.follow_loss(step, &found);
        self.first_origin = self.first_origin.or(found.forward).or(found.backward);
        let unguarded = found.backward.filter(|_| !is_refused(step));
        self.first_unguarded = self.first_unguarded.or(found.forward).or(unguarded);
        if let Some(origin) = found.backward.filter(|_| found.forward_is_clean() && !loss_is_bad) {
            self.note_backward(origin, sites);
        }
        self.follow_streak(step, &found, loss_is_bad);
        self.latest = found;
        self.latest_step = step.index;
        self.previous_full_step = previous_full_step;
    }

    fn follow_loss(&mut self, step: &Step, found: &NonFiniteStep) {
        let Some(loss) = step.loss else { return };
        self.loss_bad = match (loss.is_finite(), self.loss_bad) {
            (true, _) => None,
            (false, Some((since, n))) => Some((since, n + 1)),
            (false, None) => Some((step.index, 1)),
        };
        if found.forward.is_some() {
            self.unseen_loss = None;
        } else if !loss.is_finite() && step.tier != Tier::Full && self.first_unguarded.is_none() {
            self.unseen_loss.get_or_insert(step.index);
        }
    }

    fn note_backward(&mut self, origin: Origin, sites: &[SiteSummary]) {
        let scale = origin.loss_scale.unwrap_or(1.0);
        let headroom = headroom(origin, sites).unwrap_or(0.0);
        let entry = self.backward.entry(origin.site).or_insert(BackwardOrigins {
            first: origin,
            events: 0,
            highest_scale: scale,
            lowest_scale: scale,
            with_headroom: 0,
            headroom_octaves: 0.0,
        });
        entry.events += 1;
        entry.highest_scale = entry.highest_scale.max(scale);
        entry.lowest_scale = entry.lowest_scale.min(scale);
        entry.with_headroom += u64::from(headroom >= SAFE_OCTAVES);
        entry.headroom_octaves = entry.headroom_octaves.max(headroom);
    }

    fn follow_streak(&mut self, step: &Step, found: &NonFiniteStep, loss_is_bad: bool) {
        let seen = step.tier == Tier::Full || !step.scaler.is_empty();
        let bad = is_refused(step) || found.backward.is_some();
        self.recent_bad = self.recent_bad << 1 | u64::from(bad);
        if !bad {
            // A step that nothing is known of neither ends nor lengthens a streak.
            if seen {
                self.streak = None;
            }
            return;
        }
        let streak = self.streak.get_or_insert(Streak {
            first_step: step.index,
            last_step: step.index,
            steps: 0,
            first_scale: step.loss_scale,
            last_scale: step.loss_scale,
            from_forward: false,
            first_origin: found.backward,
            last_origin: None,
            widest_origin: None,
        });
        if streak.steps == 0 {
            self.descent = Descent::default();
        }
        found.backward.into_iter().for_each(|origin| self.descent.push(origin));
        streak.last_step = step.index;
        streak.steps += 1;
        streak.last_scale = step.loss_scale.or(streak.last_scale);
        streak.from_forward |= loss_is_bad || !found.forward_is_clean();
        streak.first_origin = streak.first_origin.or(found.backward);
        streak.last_origin = found.backward.or(streak.last_origin);
        streak.widest_origin = self.descent.widest();
        let deeper = self.deepest.is_none_or(|d| streak.octaves_fallen() >= d.octaves_fallen());
        if deeper {
            self.deepest = Some(*streak);
        }
    }
}

/// Whether a scaler found gradients of the step that are not finite, and so withholds it.
fn is_refused(step: &Step) -> bool {
    step.skipped() || step.scaler.iter().any(is_found_inf)
}

fn is_found_inf(event: &ScalerEvent) -> bool {
    matches!(event, ScalerEvent::Unscaled { found_inf: true, .. })
}

/// Octaves between FP16's end and what this gradient had reached in recent clean samples, at the scale in force now.
fn headroom(origin: Origin, sites: &[SiteSummary]) -> Option<f64> {
    let scale = origin.loss_scale.unwrap_or(1.0);
    let recent = &sites.get(origin.site.0 as usize)?.recent;
    recent
        .iter()
        .filter(|s| s.stats.non_finite() == 0 && s.stats.max_abs > 0.0)
        .map(|s| (Format::F16.max / (s.stats.max_abs / s.loss_scale.unwrap_or(1.0) * scale)).log2())
        .min_by(f64::total_cmp)
}

fn find(step: &Step, sites: &[SiteSummary]) -> NonFiniteStep {
    let mut found = NonFiniteStep::default();
    let mut masks = Masks::default();
    for (place, observation) in step.observations.iter().enumerate() {
        let Some(summary) = sites.get(observation.site.0 as usize) else { continue };
        let stats = &observation.stats;
        if stats.non_finite() == 0 {
            if summary.site.probe == Probe::Activation {
                masks.see(&summary.site, stats);
            }
            continue;
        }
        let origin = Origin {
            step: step.index,
            site: observation.site,
            via: observation.via,
            loss_scale: step.loss_scale,
            nan: stats.nan,
            inf: stats.pos_inf + stats.neg_inf,
            count: stats.count,
            after_mask: found.masked && observation.inherited && stats.nan > 0,
        };
        match summary.site.probe {
            Probe::Activation => {
                let by_mask = masks.wrote(observation, &summary.site, found.masked, step, sites);
                masks.see(&summary.site, stats);
                if by_mask {
                    found.by_mask.push(place);
                }
                if is_data(&summary.site) {
                    found.data.get_or_insert(origin);
                } else {
                    let handed = match (has_ruined_parameter(&summary.site, sites), observation.inherited) {
                        (true, _) => Handed::ByParameter,
                        (false, true) => Handed::ByTensor,
                        (false, false) => Handed::Nothing,
                    };
                    found.see_activation(origin, handed, by_mask);
                }
            }
            Probe::ActivationGrad | Probe::CastGrad => {
                found.backward.get_or_insert(origin);
            }
            Probe::Param if found.parameter.is_none() => {
                let before = summary.latest().is_some_and(|s| s.stats.non_finite() > 0);
                found.parameter = Some((observation.site, !before));
            }
            Probe::Buffer if !is_mask_constant(summary.site.dtype, stats) => found.buffers.push(observation.site),
            Probe::ParamGrad
            | Probe::Param
            | Probe::Buffer
            | Probe::Update
            | Probe::OptimizerState
            | Probe::Average => {}
        }
    }
    if found.backward.is_none() {
        found.backward = first_parameter_gradient(step, sites);
    }
    found
}

/// Whether an operator was given non-finite values, and by what.
#[derive(Clone, Copy, PartialEq)]
enum Handed {
    Nothing,
    ByTensor,
    ByParameter,
}

impl NonFiniteStep {
    fn see_activation(&mut self, origin: Origin, handed: Handed, by_mask: bool) {
        if by_mask {
            self.masked = true;
            return;
        }
        if origin.inf > 0 && (handed == Handed::Nothing || self.masked && self.forward.is_none()) {
            self.overflows.push(origin);
        }
        if self.forward.is_none() && self.brought_in.is_none() {
            // What a mask wrote is no fault, but what was made of it is nobody else's.
            if handed == Handed::Nothing || self.masked && handed == Handed::ByTensor {
                self.forward = Some(origin);
            } else if self.data.is_some() && handed == Handed::ByTensor {
                self.forward = self.data;
            } else {
                self.brought_in = Some(origin.site);
            }
        }
    }
}

/// The non-finite parameter gradient whose layer backward reached first; where no activation gradient tells, the last in the model.
fn first_parameter_gradient(step: &Step, sites: &[SiteSummary]) -> Option<Origin> {
    let layer_of = |id: SiteId| sites.get(id.0 as usize).map(|s| (s.site.probe, s.site.layer.as_str()));
    let reached = |layer: &str| {
        step.observations
            .iter()
            .position(|o| layer_of(o.site) == Some((Probe::ActivationGrad, layer)))
            .unwrap_or(usize::MAX)
    };
    step.observations
        .iter()
        .enumerate()
        .filter(|(_, o)| o.stats.non_finite() > 0)
        .filter_map(|(i, o)| match layer_of(o.site)? {
            (Probe::ParamGrad, layer) => Some((reached(layer), std::cmp::Reverse(i), o)),
            _ => None,
        })
        .min_by_key(|&(rank, last, _)| (rank, last))
        .map(|(_, _, o)| Origin {
            step: step.index,
            site: o.site,
            via: o.via,
            loss_scale: step.loss_scale,
            nan: o.stats.nan,
            inf: o.stats.pos_inf + o.stats.neg_inf,
            count: o.stats.count,
            after_mask: false,
        })
}

/// Whether a parameter of the site's layer was not finite after the step before: then what the layer makes is no origin.
fn has_ruined_parameter(site: &Site, sites: &[SiteSummary]) -> bool {
    let of_layer = sites.iter().filter(|s| s.site.probe == Probe::Param && s.site.layer == site.layer);
    of_layer.filter_map(SiteSummary::latest).any(|sample| sample.stats.non_finite() > 0)
}
