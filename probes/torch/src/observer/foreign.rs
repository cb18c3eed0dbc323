//! A loss scaler that somebody else wrote, read off ATen's `_amp_*` operators.

use ampdoctor::observation::{ScalerConfig, ScalerEvent};

use super::border::{RawOp, RawTensor};
use super::device::{Held, Reductions};
use super::later::Number;
use crate::shim::ShimError;

/// A tensor of the scaler's, which an operator is about to write.
enum Place {
    /// Its memory, which belongs to the scaler and outlives the operator; null where there is none.
    Host {
        data: *const u8,
        is_float: bool,
    },
    Device(Held),
}

// The pointers are used only by the end callback of the operator that brought them, on the same thread.
unsafe impl Send for Place {}

impl Place {
    /// A tensor of one `f32`, or `i32`; `None` for any other.
    fn of(t: &RawTensor) -> Option<Result<Self, ShimError>> {
        let is_float = t.dtype() == Some(ampdoctor::scan::Dtype::F32);
        if t.count() != 1 || !is_float && !t.is_integral() {
            return None;
        }
        if t.is_on_device() {
            return Some(Held::itself(t).map(Self::Device));
        }
        Some(Ok(Self::Host { data: t.data.cast(), is_float }))
    }

    /// What it holds now.
    fn read(&self, device: &mut Reductions) -> Result<Number, ShimError> {
        Ok(match self {
            Place::Device(held) => Number::Later(device.number_of(held)?),
            Place::Host { data, .. } if data.is_null() => Number::Known(0.0),
            // SAFETY: not null, one f32 or i32 that the scaler owns.
            Place::Host { data, is_float: true } => {
                Number::Known(f64::from(unsafe { data.cast::<f32>().read_unaligned() }))
            }
            // SAFETY: as above.
            Place::Host { data, .. } => Number::Known(f64::from(unsafe { data.cast::<i32>().read_unaligned() })),
        })
    }
}

/// Where an operator of the scaler leaves its result.
enum Running {
    Unscale { optimizer: u32, inverse: Number, found_inf: Place },
    Update { from: Number, scale: Place, tracker: Place, settings: Option<[f64; 3]> },
}

/// What an operator of the scaler did.
enum Seen {
    Unscaled { optimizer: u32, inverse: Number, found_inf: Number },
    Updated { from: Number, to: Number, tracker: Number, settings: Option<[f64; 3]> },
}

/// What was seen of a foreign scaler.
#[derive(Default)]
pub(super) struct ForeignScaler {
    /// Whether one was ever seen.
    pub seen: bool,
    /// Why what it did could not be read.
    pub failure: Option<ShimError>,
    /// Its settings, when they became known or changed.
    pub config: Option<ScalerConfig>,
    /// What it did in this step, as far as it is known; the rest is known at its end.
    events: Vec<ScalerEvent>,
    seen_in_step: Vec<Seen>,
    /// The scale in force in this step.
    pub scale: Option<f64>,
    /// The scale that the next backward will carry, as far as it was seen.
    pub in_force: Option<f64>,
    known: Option<ScalerConfig>,
    /// The first parameter of each optimizer, as far as it is known; the index is the optimizer's number.
    optimizers: Vec<usize>,
    /// The scale that was updated since something was unscaled.
    updated: Option<usize>,
    running: Option<Running>,
}

impl ForeignScaler {
    pub(super) fn begin_step(&mut self) {
        self.events.clear();
        self.seen_in_step.clear();
        self.config = None;
        self.scale = None;
        self.running = None;
    }

    /// `owner` is the parameter whose gradient an unscale begins with. True where a scale is updated a second time, with nothing unscaled in between.
    pub(super) fn operator_starts(
        &mut self,
        name: &str,
        op: &RawOp,
        owner: Option<usize>,
        device: &mut Reductions,
    ) -> bool {
        let mut again = false;
        let running = match name {
            "_amp_foreach_non_finite_check_and_unscale_" => {
                self.updated = None;
                unscale(op.tensors(), self.number(owner), device)
            }
            "_amp_update_scale_" => {
                let scale = op.tensors().first().map(|t| t.storage);
                again = scale.is_some() && std::mem::replace(&mut self.updated, scale) == scale;
                update(op, device)
            }
            _ => None,
        };
        self.running = self.keep(running);
        self.seen |= self.running.is_some();
        again
    }

    /// The number of the optimizer that steps this parameter first; where it is not known, how many were unscaled in this step.
    fn number(&mut self, owner: Option<usize>) -> u32 {
        let Some(owner) = owner else { return self.unscaled() };
        let known = self.optimizers.iter().position(|&first| first == owner);
        known.unwrap_or_else(|| {
            self.optimizers.push(owner);
            self.optimizers.len() - 1
        }) as u32
    }

    /// What an operator's tensors told; where the device refused, that is kept.
    fn keep<T>(&mut self, answer: Option<Result<T, ShimError>>) -> Option<T> {
        match answer? {
            Ok(told) => Some(told),
            Err(error) => {
                self.failure = Some(error);
                None
            }
        }
    }

    fn learn(&mut self, init_scale: f64, [growth_factor, backoff_factor, interval]: [f64; 3]) {
        let init_scale = self.known.as_ref().map_or(init_scale, |known| known.init_scale);
        let config = ScalerConfig {
            init_scale,
            growth_factor,
            backoff_factor,
            growth_interval: interval as u64,
            min_scale: None,
            max_scale: None,
            hysteresis: 1,
            foreign: true,
        };
        if self.known.as_ref() != Some(&config) {
            self.known = Some(config.clone());
            self.config = Some(config);
        }
    }

    /// Whether an operator of the scaler has begun.
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    pub(super) fn operator_ends(&mut self, device: &mut Reductions) {
        let Some(running) = self.running.take() else { return };
        let seen = read(running, device);
        if let Some(seen) = self.keep(Some(seen)) {
            self.seen_in_step.push(seen);
            self.resolve(device);
        }
    }

    /// Whether anything was done in this step.
    pub(super) fn acted(&self) -> bool {
        !self.seen_in_step.is_empty()
    }

    /// How many times it acted in this step.
    pub(super) fn acts(&self) -> u32 {
        self.seen_in_step.len() as u32
    }

    /// Puts down what is known by now, in the order in which it happened.
    pub(super) fn resolve(&mut self, device: &Reductions) {
        while let Some(seen) = self.seen_in_step.get(self.events.len()) {
            let (event, scale, settings) = match *seen {
                Seen::Unscaled { optimizer, inverse, found_inf } => {
                    let (Some(inverse), Some(found)) = (inverse.value(device), found_inf.value(device)) else { return };
                    let scale = 1.0 / inverse;
                    (ScalerEvent::Unscaled { optimizer, scale, found_inf: found != 0.0 }, (scale, scale), None)
                }
                Seen::Updated { from, to, tracker, settings } => {
                    let (Some(from), Some(to)) = (from.value(device), to.value(device)) else { return };
                    let Some(tracker) = tracker.value(device) else { return };
                    let event = ScalerEvent::Updated { from, to, growth_tracker: tracker.max(0.0) as u64 };
                    (event, (from, to), settings)
                }
            };
            let (carried, in_force) = scale;
            if let Some(settings) = settings {
                self.learn(carried, settings);
            }
            match event {
                ScalerEvent::Unscaled { .. } => self.scale = Some(carried),
                _ => _ = self.scale.get_or_insert(carried),
            }
            self.in_force = Some(in_force);
            self.events.push(event);
        }
    }

    /// Unscales seen in this step.
    fn unscaled(&self) -> u32 {
        self.seen_in_step.iter().filter(|seen| matches!(seen, Seen::Unscaled { .. })).count() as u32
    }

    /// The step's events, and how many of them stand before and with each one that was seen. Whether the optimizer stepped is read off the parameters:
    /// a foreign scaler does not say.
    pub(super) fn take_events(&mut self, updated: bool) -> (Vec<ScalerEvent>, Vec<u32>) {
        let events = std::mem::take(&mut self.events);
        let mut all = Vec::with_capacity(events.len() + 1);
        let mut positions = vec![0];
        let mut steps: Vec<ScalerEvent> = Vec::new();
        for event in events {
            match event {
                ScalerEvent::Updated { .. } => all.append(&mut steps),
                ScalerEvent::Unscaled { optimizer, found_inf, .. } => {
                    steps.push(ScalerEvent::Stepped { optimizer, applied: updated && !found_inf });
                }
                _ => {}
            }
            all.push(event);
            positions.push(all.len() as u32);
        }
        all.append(&mut steps);
        (all, positions)
    }
}

/// The arguments are the gradients, `found_inf` and the inverse scale.
fn unscale(tensors: &[RawTensor], optimizer: u32, device: &mut Reductions) -> Option<Result<Running, ShimError>> {
    let [.., found_inf, inverse] = tensors else { return None };
    let (found_inf, inverse) = (Place::of(found_inf)?, Place::of(inverse)?);
    Some((|| Ok(Running::Unscale { optimizer, inverse: inverse?.read(device)?, found_inf: found_inf? }))())
}

/// The arguments are the scale, the growth tracker, `found_inf` and the settings.
fn update(op: &RawOp, device: &mut Reductions) -> Option<Result<Running, ShimError>> {
    let [scale, tracker, ..] = op.tensors() else { return None };
    let (scale, tracker) = (Place::of(scale)?, Place::of(tracker)?);
    let settings = match *op.scalars() {
        [growth_factor, backoff_factor, interval, ..] => Some([growth_factor, backoff_factor, interval]),
        _ => None,
    };
    Some((|| {
        let scale = scale?;
        Ok(Running::Update { from: scale.read(device)?, scale, tracker: tracker?, settings })
    })())
}

fn read(running: Running, device: &mut Reductions) -> Result<Seen, ShimError> {
    Ok(match running {
        Running::Unscale { optimizer, inverse, found_inf } => {
            Seen::Unscaled { optimizer, inverse, found_inf: found_inf.read(device)? }
        }
        Running::Update { from, scale, tracker, settings } => {
            Seen::Updated { from, to: scale.read(device)?, tracker: tracker.read(device)?, settings }
        }
    })
}
