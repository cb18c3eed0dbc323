//! Which loss scale to set, from the gradients that were seen.

mod outliers;

pub(super) use self::outliers::Outliers;
use super::Remedy;
use super::graph::Graph;
use super::range::Reach;
use super::scaling::Scaling;
use super::text::{layer_name, number, power_of_two, scale, share};
use super::whatif::Held;
use crate::aggregate::{Aggregate, FEWEST_ELEMENTS, Sample, SiteSummary};
use crate::numerics::{Format, Lost, ScaleWindow, Zones};
use crate::observation::{Probe, ScalerConfig, Site};
use crate::scan::{Dtype, Stats};

/// Samples that the lower end of the window stands on where no scale was good at all steps: those that the verdict stands on.
const SAMPLES: usize = 3;
/// Bits below the upper end where gradients were lost whole: those of models that learn again were up to 2^7 larger.
const SPARE_WHERE_LOST: i32 = 7;

/// Octaves by which layers behind the one at fault may add to what they inherit: so much less than all is enough of the first.
const SLACK: i32 = 3;
/// Skips in a row at its floor from which a scale counts as one that does not give way.
const HELD: u64 = 3;

/// The gradient that a rule blames, where it does.
pub(super) enum Blamed<'a> {
    /// One that underflows.
    TooSmall(&'a SiteSummary),
    /// One that overflows.
    TooLarge(&'a SiteSummary),
    /// The rule leaves it to the window which one stands out.
    Nobody,
}

/// The loss scales at which all gradients of the run are well, and the layers that set the ends.
///
/// It is the one place that computes them: what rules advise is what what-if shows.
pub(super) struct ScaleAdvice<'a> {
    /// The window of all gradients; its lower end is a lower bound where `incomplete`.
    pub window: ScaleWindow,
    /// Whether a gradient was all zero, so that nothing of it could be asked what scale it needs.
    pub incomplete: bool,
    /// Whether no scale was good at all steps, though one is for the gradients as they are now: the window is of these.
    pub shrank: bool,
    /// Whether no scale was good at all steps though one is for the gradients as they are now, and the scaler is dynamic: then it follows, and no layer is to
    /// blame.
    pub is_followed: bool,
    /// Whether gradients were infinite at a scale that does not give way: how large they were FP16 cannot tell, and the upper end is a guess.
    pub high_is_guess: bool,
    /// Where steps were skipped at scales that the scanned gradients would bear, and none has been taken there since: the lowest, as an exponent. The window
    /// ends below it.
    pub refused_from: Option<i32>,
    /// The few steps that stand so far above all others that they are left out of the window and of what sets it.
    pub outliers: Outliers,
    /// The upper end were they counted too.
    pub high_with_outliers: i32,
    /// The gradient that needs the highest scale.
    pub lowest: Option<&'a SiteSummary>,
    /// The gradient that overflows first.
    pub highest: &'a SiteSummary,
    /// Largest gradient of the run, outliers left out, without the loss scale; what it is at least where a scale that does not give way made it infinite.
    pub max_unscaled: f64,
    lowest_is_the_outlier: bool,
    /// Where no scale serves all: the first gradient in backward that is too small, or nearly; those after it may only have inherited it.
    first_too_small: Option<&'a SiteSummary>,
    /// And the first that is too large, or nearly.
    first_too_large: Option<&'a SiteSummary>,
    /// The gradients that no scale below the upper end serves, in the order of backward.
    too_small: Vec<&'a SiteSummary>,
    /// Those that overflow at the lower end, in the order of backward.
    too_large: Vec<&'a SiteSummary>,
    aggregate: &'a Aggregate,
}

impl<'a> ScaleAdvice<'a> {
    /// Where nothing of the gradient is left to compute a scale from: what PyTorch starts with, as an exponent.
    pub const DEFAULT_INIT: i32 = 16;
    /// Below this scale, as an exponent, gradients are not too large but wrong: 1 itself would be FP16's smallest number there.
    const LOWEST_SENSIBLE: i32 = -24;

    /// What the gradients that FP16 carries say; `None` when none of them has a non-zero element.
    pub fn of(aggregate: &'a Aggregate) -> Option<Self> {
        let dynamics = &aggregate.scale_dynamics;
        let refused = dynamics.tried.refused_from().filter(|_| !dynamics.several_scalers && gives_way(aggregate));
        Self::among(aggregate, refused, |s| Held::Fp16.carries(aggregate, s))
    }

    /// The same of a run in FP32 or BF16, had FP16 carried its gradients.
    pub fn as_if_in_fp16(aggregate: &'a Aggregate) -> Option<Self> {
        let held = Held::of(aggregate);
        Self::among(aggregate, None, move |s| held.carries(aggregate, s))
    }

    fn among(
        aggregate: &'a Aggregate,
        refused: Option<i32>,
        is_carried: impl Fn(&SiteSummary) -> bool,
    ) -> Option<Self> {
        let gradients = || aggregate.sites.iter().filter(|s| is_carried(s));
        let outliers = Outliers::among(gradients());
        let gives_way = gives_way(aggregate);
        let largest = |s: &SiteSummary| largest_unscaled(s, &outliers, gives_way);
        let highest = gradients().max_by(|a, b| largest(a).total_cmp(&largest(b))).filter(|s| largest(s) > 0.0)?;
        let of_scanned = upper_end(largest(highest))?;
        let refused_from = refused.filter(|refused| *refused <= of_scanned);
        let high = refused_from.map_or(of_scanned, |refused| refused - 1);
        let needs = |of: fn(&SiteSummary) -> Option<i32>| -> Vec<(i32, &'a SiteSummary)> {
            gradients().filter_map(|s| Some((of(s)?, s))).collect()
        };
        let most = |needs: &[(i32, &'a SiteSummary)]| needs.iter().max_by_key(|(low, _)| *low).copied();
        let (at_all_steps, lately) = (needs(lower_end), needs(lower_end_lately));
        // Gradients that shrank below what any scale serves from the first step on: then what they need now counts, for a dynamic scale follows.
        let moved = |(low, _): (i32, _)| low > high;
        let shrank = most(&at_all_steps).is_some_and(moved) && !most(&lately).is_some_and(moved);
        let high_lately = gradients().filter_map(upper_end_lately).min().unwrap_or(high);
        let fits_lately = most(&lately).is_some_and(|(low, _)| low <= high_lately);
        let is_followed = Scaling::of(aggregate) == Scaling::Dynamic && fits_lately;
        let needs = if shrank { lately } else { at_all_steps };
        let lowest = most(&needs);
        // Without a gradient to ask, the lower end is where scalers begin.
        let low = lowest.map_or(high.min(Self::DEFAULT_INIT), |(low, _)| low);
        let incomplete = gradients().any(|s| s.latest().and_then(|l| l.underflow).is_some_and(|u| u.ehat == 1.0));
        let too_small = |slack| needs.iter().filter(move |(low, _)| *low + slack > high).map(|(_, s)| *s);
        let too_large =
            |slack| gradients().filter(move |s| upper_end(largest(s)).is_some_and(|high| high - slack < low));
        let first_too_small = too_small(SLACK).next();
        // What a layer hands on is not at fault for the gradient of a parameter that backward came to before.
        let first_too_large = too_large(SLACK).min_by_key(|s| reached(aggregate, Some(*s)).unwrap_or(usize::MAX));
        Some(Self {
            aggregate,
            window: ScaleWindow { low, high },
            incomplete,
            shrank,
            is_followed: is_followed && low > high,
            refused_from,
            lowest: lowest.map(|(_, s)| s),
            highest,
            max_unscaled: largest(highest),
            high_is_guess: largest(highest) > highest.max_unscaled
                || !gives_way && gradients().any(|s| is_cut_off(aggregate, s)),
            // All that is computed from a tiny gradient is tiny, and from a huge one huge, so that most may stand at one end. Backward begins with those
            // that are well: of the two ends the one that it comes to later is at fault.
            lowest_is_the_outlier: reached(aggregate, first_too_small) >= reached(aggregate, first_too_large),
            too_small: too_small(0).collect(),
            too_large: too_large(0).collect(),
            first_too_small,
            first_too_large,
            high_with_outliers: upper_end(gradients().map(|s| s.max_unscaled).fold(0.0, f64::max))
                .map_or(of_scanned, |all| all.min(of_scanned)),
            outliers,
        })
    }

    /// Whether gradients overflow at every scale that can be meant: then none is to be set.
    pub fn overflows_at_all(&self) -> bool {
        self.window.high < Self::LOWEST_SENSIBLE
    }

    /// The scale to set, as an exponent of two. `None` when no scale is good for all gradients, or none that can be meant.
    pub fn exponent(&self) -> Option<i32> {
        let recommended = self.window.recommended().filter(|_| !self.overflows_at_all())?;
        Some(if self.incomplete && recommended > Self::DEFAULT_INIT {
            // A run that lost its gradients has learnt nothing: they grow once it does, and those of parameters, lost too, are sums over the batch.
            (recommended.min(self.window.high - SPARE_WHERE_LOST)).max(Self::DEFAULT_INIT).max(self.window.low)
        } else if self.incomplete || self.lowest.is_none() {
            recommended.max(Self::DEFAULT_INIT).min(self.window.high)
        } else {
            recommended
        })
    }

    /// Bits between the largest gradient of the run and FP16's end at scale `2^exponent`.
    pub fn headroom_bits(&self, exponent: i32) -> f64 {
        (Format::F16.max / (self.max_unscaled * f64::from(exponent).exp2())).log2()
    }

    /// Why no scale helps, and which layer to change: the one that a rule blames, else the one that stands out.
    pub fn layer_to_fix(&self, blamed: Blamed<'_>) -> Remedy {
        let low = self.window.low;
        let Some(lowest) = self.lowest else { return Remedy::default() };
        let fix = match blamed {
            Blamed::TooSmall(site) | Blamed::TooLarge(site) => site,
            Blamed::Nobody if self.lowest_is_the_outlier => self.first_too_small.unwrap_or(lowest),
            Blamed::Nobody => self.first_too_large.unwrap_or(self.highest),
        };
        let too_small =
            matches!(blamed, Blamed::TooSmall(_)) || matches!(blamed, Blamed::Nobody) && self.lowest_is_the_outlier;
        let limits = if too_small { lowest } else { self.highest };
        let how = match (too_small, fix.site.layer == limits.site.layer) {
            (true, true) => {
                "its gradient is far smaller than all others: look for a factor in it that shrinks what passes backward"
            }
            (true, false) => {
                "of the gradients far smaller than the others, the first in the order of backward: look for a factor in it that shrinks what passes backward"
            }
            (false, true) => {
                "its gradient is far larger than all others: look for a factor in it that blows up what passes backward"
            }
            (false, false) => {
                "of the gradients far larger than the others, the first in the order of backward: look for a factor in it that blows up what passes backward"
            }
        };
        let why = match () {
            () if self.overflows_at_all() => format!("no loss scale helps: {}", self.upper_limit()),
            () => format!(
                "no loss scale is good for all gradients: `{}` needs 2^{low} or more, {}",
                lowest.site.label(),
                self.upper_limit()
            ),
        };
        let text = format!("{why}. Change layer `{}` ({how}), or", layer_name(&fix.site));
        match Held::of(self.aggregate) {
            Held::Fp16 => {
                let reach = self.reach(&fix.site, if too_small { &self.too_small } else { &self.too_large });
                reach.set(format!("{text} {}", reach.clause(self.aggregate)).into(), self.aggregate)
            }
            wide => format!("{text} stay in {}, which needs no loss scale", wide.name().to_uppercase()).into(),
        }
    }

    /// What ends the window above.
    fn upper_limit(&self) -> String {
        match self.refused_from {
            Some(refused) => format!("steps were skipped from 2^{refused} on"),
            None => {
                format!("`{}` has less than a bit of headroom above 2^{}", self.highest.site.label(), self.window.high)
            }
        }
    }

    /// What has to leave FP16 so that none of these gradients is held in it: the layers that the first one reaches, where all the others are in them.
    fn reach(&self, first: &Site, all: &[&SiteSummary]) -> Reach {
        match Reach::of_gradient(&Graph::of(self.aggregate), first) {
            Reach::Layers(layers) if all.iter().all(|s| layers.contains(&s.site.layer)) => Reach::Layers(layers),
            _ => Reach::Run,
        }
    }
}

/// The other way, where a static scale is to be set.
const OR_DYNAMIC: &str = ", or let it be dynamic";

/// The remedy in place of a static scale where none is known to be safe: a dynamic one, and the static one to try otherwise.
pub(super) fn dynamic_rather_than(set: &Remedy, what_it_does: &str) -> Remedy {
    let otherwise = set.text.trim_end_matches(OR_DYNAMIC);
    Remedy::from(format!("use a dynamic scaler: `GradScaler::default()` {what_it_does}. Or {otherwise}"))
        .set("scaler", "dynamic")
}

/// What to do with the scaler there is so that its scale becomes `2^exponent`; `None` where that is the scale in force, or where a dynamic scaler began
/// there or beyond and has come to `now` by itself, so that no setting of it helps.
pub(super) fn set_scale(config: Option<&ScalerConfig>, now: Option<f64>, exponent: i32) -> Option<Remedy> {
    let wanted = f64::from(exponent).exp2();
    let target = scale(wanted);
    let verb = |from: f64| if from < wanted { "raise" } else { "lower" };
    if now == Some(wanted) {
        return None;
    }
    let (text, setting) = match (config, now) {
        (Some(c), _) if c.is_static() => (
            format!(
                "{} the static loss scale from {} to {target}{OR_DYNAMIC}",
                verb(c.init_scale),
                scale(c.init_scale)
            ),
            Some("static_scale"),
        ),
        (Some(c), _) if c.max_scale.is_some_and(|ceiling| ceiling < wanted) => (
            format!(
                "raise the ceiling of the scale, `max_scale`, from {} to {target} or more",
                scale(c.max_scale.unwrap_or(wanted))
            ),
            Some("max_scale"),
        ),
        (Some(c), Some(now)) if now < wanted && wanted <= c.init_scale => (
            format!(
                "find out why the scale fell from {} to {}: look at the steps that were skipped, for it has to be {target}",
                scale(c.init_scale),
                scale(now)
            ),
            None,
        ),
        (Some(c), Some(now)) if c.init_scale <= wanted && wanted < now => (
            format!(
                "begin at {target} and let it grow less often (`growth_interval`), for it has grown to {}",
                scale(now)
            ),
            Some("init_scale"),
        ),
        (Some(c), _) => (
            format!("{} `init_scale` from {} to {target}", verb(c.init_scale), scale(c.init_scale)),
            Some("init_scale"),
        ),
        (None, Some(s)) if s != 1.0 => {
            (format!("{} the loss scale from {} to {target}", verb(s), scale(s)), Some("static_scale"))
        }
        (None, _) => (format!("scale the loss: use a `GradScaler` with `init_scale` = {target}"), Some("init_scale")),
    };
    let is_new = config.is_none() && now.is_none_or(|s| s == 1.0);
    let remedy = Remedy::from(text);
    let remedy = if is_new { remedy.set("scaler", "dynamic") } else { remedy };
    Some(match setting {
        Some(name) => remedy.set(name, wanted),
        None => remedy,
    })
}

/// What the tensor of `site` looks like now and would at `2^exponent`: `at 2^7 38 % of ... is subnormal ...; at 2^13 none is`.
pub(super) fn compare(site: &SiteSummary, stats: &Stats, now: f64, exponent: i32) -> String {
    let shift = exponent - now.log2().round() as i32;
    let (before, after) =
        (Zones::of(&stats.exponents, Format::F16, 0), Zones::of(&stats.exponents, Format::F16, shift));
    format!(
        "at {} {} of the non-zero elements of the gradient of `{}` {} subnormal in FP16 and the largest value is {}; at 2^{exponent} {} of these elements would be",
        if now == 1.0 { "scale 1".into() } else { power_of_two(now) },
        share(before.share(before.fading)),
        site.site.label(),
        if before.fading == 1 { "is" } else { "are" },
        power_of_two(stats.max_abs),
        share(after.share(after.fading + after.lost)),
    )
}

/// `leaves the largest gradient of the run (0.02 unscaled) 3 bits of headroom`.
pub(super) fn headroom(advice: &ScaleAdvice<'_>, exponent: i32) -> String {
    let bits = advice.headroom_bits(exponent).floor();
    format!(
        "the largest gradient of the run ({} unscaled) still has {} bit{} of headroom{}",
        number(advice.max_unscaled),
        number(bits),
        if bits == 1.0 { "" } else { "s" },
        if advice.incomplete { " (those of which nothing is left are not counted)" } else { "" }
    )
}

/// The smallest scale that is good for a gradient at every step, where it is one whose underflow a scale has to prevent.
pub(super) fn lower_end(site: &SiteSummary) -> Option<i32> {
    site.unscaled.as_ref()?.hardest.as_ref().map(|hardest| hardest.low)
}

/// The same over its latest samples.
fn lower_end_lately(site: &SiteSummary) -> Option<i32> {
    if !matches!(site.site.probe, Probe::ActivationGrad | Probe::CastGrad) {
        return None;
    }
    let is_held = site.site.dtype == Dtype::F16;
    let latest = site.recent.iter().rev().take(SAMPLES);
    latest
        .filter(|s| s.stats.non_finite() == 0 && s.stats.count >= FEWEST_ELEMENTS)
        .filter_map(|s| {
            let lost = if is_held { Lost::estimate(&s.stats.exponents) } else { Lost::default() };
            ScaleWindow::of(&s.stats.exponents, s.stats.max_abs, lost, s.loss_scale.unwrap_or(1.0))
        })
        .map(|w| w.low)
        .max()
}

/// The upper end over its latest samples; `None` where one was not finite, for that may have been too large.
fn upper_end_lately(site: &SiteSummary) -> Option<i32> {
    let latest = || site.recent.iter().rev().take(SAMPLES);
    let largest = latest().map(|s| s.stats.max_abs / s.loss_scale.unwrap_or(1.0)).fold(0.0, f64::max);
    upper_end(largest).filter(|_| latest().all(|s| s.stats.non_finite() == 0))
}

/// The largest scale that leaves a gradient of this largest value one bit of headroom.
pub(super) fn upper_end(max_unscaled: f64) -> Option<i32> {
    let one = crate::scan::ExponentHistogram::from_counts(0, [1]);
    ScaleWindow::of(&one, max_unscaled, Lost::default(), 1.0).map(|w| w.high)
}

/// The largest value ever seen at this site but in outliers, without the loss scale. What overflowed at a scale that does not give way counts as FP16's end
/// times an octave for each four times as many infinite elements; a dynamic scaler overflows on purpose, and gives way.
fn largest_unscaled(site: &SiteSummary, outliers: &Outliers, gives_way: bool) -> f64 {
    let seen = outliers.largest_but(site);
    if gives_way {
        return seen;
    }
    let infinite = cut_off(site).filter(|s| !outliers.steps.contains(&s.step)).map(|s| {
        let elements = s.stats.pos_inf + s.stats.neg_inf;
        Format::F16.max * (elements as f64).sqrt() / s.loss_scale.unwrap_or(1.0)
    });
    infinite.fold(seen, f64::max)
}

/// Whether the scale falls where gradients overflow: it is neither static nor held at its floor.
fn gives_way(aggregate: &Aggregate) -> bool {
    Scaling::of(aggregate) != Scaling::Static
        && aggregate.scale_dynamics.held_at_floor.is_none_or(|(_, skips)| skips < HELD)
}

/// The samples in which a part of the tensor became infinite by itself.
fn cut_off(site: &SiteSummary) -> impl Iterator<Item = &Sample> {
    site.recent.iter().filter(|s| !s.inherited && s.stats.pos_inf + s.stats.neg_inf > 0)
}

/// Whether a part of it is infinite now, so that its largest value has not been seen.
fn is_cut_off(aggregate: &Aggregate, site: &SiteSummary) -> bool {
    let now = aggregate.latest.as_ref().map(|step| step.index);
    cut_off(site).any(|s| Some(s.step) == now)
}

/// Where backward comes to a gradient: to that of a parameter when it comes to its layer.
fn reached(aggregate: &Aggregate, gradient: Option<&SiteSummary>) -> Option<usize> {
    let layer = &gradient?.site.layer;
    aggregate.sites.iter().position(|s| is_gradient_of(s, layer))
}

/// Whether it is the gradient of an activation of this layer, which has a place in the order of backward.
fn is_gradient_of(site: &SiteSummary, layer: &str) -> bool {
    matches!(site.site.probe, Probe::ActivationGrad | Probe::CastGrad) && site.site.layer == layer
}
