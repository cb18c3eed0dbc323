//! A loss scaler that somebody else wrote, read off ATen's `_amp_*` operators.

use ampdoctor::observation::{ScalerConfig, ScalerEvent};

use super::border::{RawOp, RawTensor};

/// Where an operator of the scaler leaves its result; the memory belongs to the scaler and outlives the operator.
enum Running {
    Unscale { optimizer: u32, scale: f64, found_inf: *const f32 },
    Update { from: f64, scale: *const f32, tracker: *const i32 },
}

// The pointers are used only by the end callback of the operator that brought them, on the same thread.
unsafe impl Send for Running {}

/// What was seen of a foreign scaler.
#[derive(Default)]
pub(super) struct ForeignScaler {
    /// Whether one was ever seen.
    pub seen: bool,
    /// Its settings, when they became known or changed.
    pub config: Option<ScalerConfig>,
    /// What it did in this step.
    pub events: Vec<ScalerEvent>,
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
        self.config = None;
        self.scale = None;
        self.running = None;
    }

    /// `owner` is the parameter whose gradient an unscale begins with. True where a scale is updated a second time, with nothing unscaled in between.
    pub(super) fn operator_starts(&mut self, name: &str, op: &RawOp, owner: Option<usize>) -> bool {
        let mut again = false;
        self.running = match name {
            "_amp_foreach_non_finite_check_and_unscale_" => {
                self.updated = None;
                unscale(op.tensors(), self.number(owner))
            }
            "_amp_update_scale_" => {
                let scale = op.tensors().first().map(|t| t.storage);
                again = scale.is_some() && std::mem::replace(&mut self.updated, scale) == scale;
                self.update(op)
            }
            _ => None,
        };
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

    fn update(&mut self, op: &RawOp) -> Option<Running> {
        let [scale, tracker, ..] = op.tensors() else { return None };
        let running = Running::Update { from: number(scale)?, scale: scale.data.cast(), tracker: tracker.data.cast() };
        if let [growth_factor, backoff_factor, interval, ..] = *op.scalars() {
            self.learn(number(scale)?, growth_factor, backoff_factor, interval);
        }
        Some(running)
    }

    fn learn(&mut self, init_scale: f64, growth_factor: f64, backoff_factor: f64, interval: f64) {
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

    pub(super) fn operator_ends(&mut self) {
        match self.running.take() {
            Some(Running::Unscale { optimizer, scale, found_inf }) => {
                // SAFETY: not null (checked at the start), one f32 owned by the scaler.
                let found_inf = unsafe { found_inf.read_unaligned() } != 0.0;
                self.scale = Some(scale);
                self.in_force = Some(scale);
                self.events.push(ScalerEvent::Unscaled { optimizer, scale, found_inf });
            }
            Some(Running::Update { from, scale, tracker }) => {
                // SAFETY: as above; the tracker is one i32.
                let (to, tracker) = unsafe {
                    (f64::from(scale.read_unaligned()), if tracker.is_null() { 0 } else { tracker.read_unaligned() })
                };
                self.scale.get_or_insert(from);
                self.in_force = Some(to);
                self.events.push(ScalerEvent::Updated { from, to, growth_tracker: tracker.max(0) as u64 });
            }
            None => {}
        }
    }

    /// Unscales seen in this step.
    fn unscaled(&self) -> u32 {
        self.events.iter().filter(|e| matches!(e, ScalerEvent::Unscaled { .. })).count() as u32
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
fn unscale(tensors: &[RawTensor], optimizer: u32) -> Option<Running> {
    let [.., found_inf, inverse] = tensors else { return None };
    let found = found_inf.view().filter(|v| v.count() == 1)?;
    Some(Running::Unscale { optimizer, scale: 1.0 / number(inverse)?, found_inf: found.data.cast() })
}

/// The value of a tensor of one f32.
fn number(t: &RawTensor) -> Option<f64> {
    let view = t.view().filter(|v| v.count() == 1 && v.dtype == ampdoctor::scan::Dtype::F32)?;
    // SAFETY: one readable f32.
    Some(f64::from(unsafe { view.data.cast::<f32>().read_unaligned() }))
}
