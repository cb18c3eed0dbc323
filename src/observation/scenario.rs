//! A run written by hand, for tests and documentation: tensors in, records out, no trainer in between.
//!
//! ```
//! use ampdoctor::observation::scenario::{Scenario, normal};
//! use ampdoctor::scan::Dtype;
//!
//! let mut run = Scenario::new();
//! for step in 0..3 {
//!     run.step(|s| {
//!         s.loss(1.0).loss_scale(1024.0);
//!         s.activation("fc1", "linear", Dtype::F16, &normal(256, 1.0, step));
//!         s.gradient("fc1", "linear", Dtype::F16, &normal(256, 1e-2, step));
//!     });
//! }
//! assert_eq!(run.records().len(), 1 + 2 + 3);
//! ```

use half::{bf16, f16};

use super::{
    Act, Cost, Note, NoteKind, Observation, Probe, Provenance, RecipeEvent, Record, Rounding, RunInfo, Sampling,
    ScalerConfig, ScalerEvent, Shadow, ShadowGradient, Site, SiteId, Step, Tier,
};
use crate::scan::{Dtype, Stats, TensorView, likeness, scan};

/// A run, built step by step.
#[derive(Clone, Debug)]
pub struct Scenario {
    records: Vec<Record>,
    sites: Vec<Site>,
    next_step: u64,
}

impl Default for Scenario {
    fn default() -> Self {
        Self::new()
    }
}

impl Scenario {
    /// A run that samples every step and has no scaler.
    pub fn new() -> Self {
        Self::sampled(Sampling::Every(1))
    }

    /// A run with this sampling.
    pub fn sampled(sampling: Sampling) -> Self {
        let run = RunInfo {
            name: "scenario".into(),
            command: vec!["train".into()],
            started_unix_ms: 0,
            pid: 1,
            rank: 0,
            world_size: None,
            producer: "scenario".into(),
            framework: "none".into(),
            device: "cpu".into(),
            threads: 1,
            sampling,
            parameters: Vec::new(),
        };
        Self { records: vec![Record::Run(run)], sites: Vec::new(), next_step: 0 }
    }

    /// Adds a dynamic scaler with PyTorch's factors and interval.
    pub fn dynamic_scaler(&mut self, init_scale: f64) -> &mut Self {
        self.scaler(init_scale, 2.0, 0.5)
    }

    /// Adds a scaler whose scale never moves.
    pub fn static_scaler(&mut self, scale: f64) -> &mut Self {
        self.scaler(scale, 1.0, 1.0)
    }

    /// Adds a scaler with these settings, or changes the settings there were.
    pub fn scaler_config(&mut self, config: ScalerConfig) -> &mut Self {
        self.records.push(Record::Scaler(config));
        self
    }

    fn scaler(&mut self, init_scale: f64, growth_factor: f64, backoff_factor: f64) -> &mut Self {
        self.scaler_config(ScalerConfig {
            init_scale,
            growth_factor,
            backoff_factor,
            growth_interval: 2000,
            min_scale: None,
            max_scale: None,
            hysteresis: 1,
            foreign: false,
        })
    }

    /// Adds the next step: full, unless `build` says otherwise.
    pub fn step(&mut self, build: impl FnOnce(&mut StepBuilder<'_>)) -> &mut Self {
        let step = Step {
            index: self.next_step,
            time_ns: self.next_step * 1_000_000,
            tier: Tier::Full,
            observations: Vec::new(),
            loss: None,
            loss_scale: None,
            scaler: Vec::new(),
            recipe: Vec::new(),
            lr: None,
            metrics: Vec::new(),
            cost: Cost { step_ns: 1_000_000, ..Cost::default() },
        };
        let mut builder = StepBuilder { sites: &mut self.sites, new_sites: Vec::new(), step };
        build(&mut builder);
        let StepBuilder { new_sites, step, .. } = builder;
        self.records.extend(new_sites);
        self.records.push(Record::Step(step));
        self.next_step += 1;
        self
    }

    /// Adds a comparison with FP32 before the next step: of one parameter, `held` as it was in mixed precision, with the loss scale, and FP32's.
    pub fn shadow(
        &mut self,
        layer: &str,
        tensor: &str,
        loss_scale: Option<f64>,
        held: &[f64],
        fp32: &[f64],
    ) -> &mut Self {
        let site = Site {
            layer: layer.into(),
            operator: String::new(),
            tensor: tensor.into(),
            probe: Probe::ParamGrad,
            dtype: Dtype::F32,
        };
        let id = self.sites.iter().position(|known| *known == site).unwrap_or_else(|| {
            self.sites.push(site.clone());
            self.records.push(Record::Site(SiteId(self.sites.len() as u32 - 1), site));
            self.sites.len() - 1
        });
        let narrow = |values: &[f64]| values.iter().map(|&x| x as f32).collect::<Vec<f32>>();
        let bytes: Vec<u8> = narrow(held).into_iter().flat_map(f32::to_ne_bytes).collect();
        let likeness = likeness(Dtype::F32, &bytes, loss_scale.unwrap_or(1.0), &narrow(fp32));
        let gradient = ShadowGradient { site: SiteId(id as u32), likeness };
        // Several parameters before one step are one comparison; it stands behind their sites.
        let open = self.records.iter().rposition(|record| !matches!(record, Record::Site(..)));
        match open.map(|at| self.records.remove(at)) {
            Some(Record::Shadow(mut shadow)) => {
                shadow.gradients.push(gradient);
                self.records.push(Record::Shadow(shadow));
            }
            Some(other) => {
                self.records.insert(open.unwrap_or(0), other);
                let shadow = Shadow { step: self.next_step, loss_scale, time_ns: 1_000_000, ..Shadow::default() };
                self.records.push(Record::Shadow(Shadow { gradients: vec![gradient], ..shadow }));
            }
            None => {}
        }
        self
    }

    /// Adds `n` steps alike; `build` also gets the step's number, to seed its tensors with.
    pub fn steps(&mut self, n: u64, mut build: impl FnMut(&mut StepBuilder<'_>, u64)) -> &mut Self {
        for _ in 0..n {
            let index = self.next_step;
            self.step(|s| build(s, index));
        }
        self
    }

    /// Adds a note of the instrument.
    pub fn note(&mut self, kind: NoteKind, text: &str) -> &mut Self {
        self.records.push(Record::Note(Note { step: self.next_step, kind, text: text.into() }));
        self
    }

    /// The records so far, in the order of a recording.
    pub fn records(&self) -> &[Record] {
        &self.records
    }
}

/// One step of a [`Scenario`], being built. Observations stand in the order in which they are added.
#[derive(Debug)]
pub struct StepBuilder<'a> {
    sites: &'a mut Vec<Site>,
    new_sites: Vec<Record>,
    step: Step,
}

impl StepBuilder<'_> {
    /// Sets the loss.
    pub fn loss(&mut self, loss: f64) -> &mut Self {
        self.step.loss = Some(loss);
        self
    }

    /// Sets the learning rate.
    pub fn lr(&mut self, lr: f64) -> &mut Self {
        self.step.lr = Some(lr);
        self
    }

    /// Adds a metric.
    pub fn metric(&mut self, name: &str, value: f64) -> &mut Self {
        self.step.metrics.push((name.into(), value));
        self
    }

    /// Sets the loss scale of this step's backward.
    pub fn loss_scale(&mut self, scale: f64) -> &mut Self {
        self.step.loss_scale = Some(scale);
        self
    }

    /// Sets how closely the step was watched.
    pub fn tier(&mut self, tier: Tier) -> &mut Self {
        self.step.tier = tier;
        self
    }

    /// The scaler found finite gradients at `scale` and let the optimizer step.
    pub fn applied(&mut self, scale: f64) -> &mut Self {
        self.scaler(scale, true, scale)
    }

    /// The scaler found non-finite gradients at `scale`, withheld the step and went to `next`.
    pub fn skipped(&mut self, scale: f64, next: f64) -> &mut Self {
        self.scaler(scale, false, next)
    }

    /// The scaler found finite gradients at `scale`, let the optimizer step and went to `next`.
    pub fn moved(&mut self, scale: f64, next: f64) -> &mut Self {
        self.scaler(scale, true, next)
    }

    /// Adds an event of the scaler to those of the step.
    pub fn event(&mut self, event: ScalerEvent) -> &mut Self {
        self.step.scaler.push(event);
        self
    }

    /// Adds what the loop did to the events of the recipe, behind the scaler's events so far.
    pub fn act(&mut self, act: Act) -> &mut Self {
        let after = self.step.scaler.len() as u32;
        self.step.recipe.push(RecipeEvent { after, act });
        self
    }

    fn scaler(&mut self, scale: f64, applied: bool, next: f64) -> &mut Self {
        self.step.loss_scale = Some(scale);
        self.step.scaler = vec![
            ScalerEvent::Unscaled { optimizer: 0, scale, found_inf: !applied },
            ScalerEvent::Stepped { optimizer: 0, applied },
            ScalerEvent::Updated { from: scale, to: next, growth_tracker: u64::from(applied) },
        ];
        self
    }

    /// Steps dropped since the start of the run.
    pub fn dropped(&mut self, steps: u64) -> &mut Self {
        self.step.cost.dropped_steps = steps;
        self
    }

    /// An operator's output.
    pub fn activation(&mut self, layer: &str, operator: &str, dtype: Dtype, values: &[f64]) -> &mut Self {
        self.observe(site(layer, operator, "", Probe::Activation, dtype), values)
    }

    /// The gradient of an operator's output, as it was held: times the loss scale.
    pub fn gradient(&mut self, layer: &str, operator: &str, dtype: Dtype, values: &[f64]) -> &mut Self {
        self.observe(site(layer, operator, "", Probe::ActivationGrad, dtype), values)
    }

    /// An FP32 gradient that backward is about to cast to half precision.
    pub fn cast_gradient(&mut self, layer: &str, operator: &str, values: &[f64]) -> &mut Self {
        self.observe(site(layer, operator, "", Probe::CastGrad, Dtype::F32), values)
    }

    /// The gradient of a parameter, before it is unscaled.
    pub fn param_grad(&mut self, layer: &str, tensor: &str, dtype: Dtype, values: &[f64]) -> &mut Self {
        self.observe(site(layer, "", tensor, Probe::ParamGrad, dtype), values)
    }

    /// A parameter after the step.
    pub fn param(&mut self, layer: &str, tensor: &str, dtype: Dtype, values: &[f64]) -> &mut Self {
        self.observe(site(layer, "", tensor, Probe::Param, dtype), values)
    }

    /// The change of a parameter.
    pub fn update(&mut self, layer: &str, operator: &str, tensor: &str, values: &[f64]) -> &mut Self {
        self.update_in(layer, operator, tensor, Dtype::F32, values)
    }

    /// The change of a parameter held in `dtype`.
    pub fn update_in(&mut self, layer: &str, operator: &str, tensor: &str, dtype: Dtype, values: &[f64]) -> &mut Self {
        // As the scan has it: the difference of halves is taken in f32.
        self.push(site(layer, operator, tensor, Probe::Update, dtype), stats_of(values, Dtype::F32))
    }

    /// A buffer after the step.
    pub fn buffer(&mut self, layer: &str, tensor: &str, values: &[f64]) -> &mut Self {
        self.observe(site(layer, "", tensor, Probe::Buffer, Dtype::F32), values)
    }

    /// Says that the tensor added last was computed from one that already held a non-finite value.
    pub fn inherited(&mut self) -> &mut Self {
        if let Some(last) = self.step.observations.last_mut() {
            last.inherited = true;
        }
        self
    }

    /// Says that the gradient added last was computed by the backward of this operator.
    pub fn via(&mut self, layer: &str, operator: &str, dtype: Dtype) -> &mut Self {
        let via = self.intern(site(layer, operator, "", Probe::Activation, dtype));
        if let Some(last) = self.step.observations.last_mut() {
            last.via = Some(via);
        }
        self
    }

    /// A tensor of the optimizer's own that is not finite, as it went into the update of a parameter.
    pub fn optimizer_state(&mut self, layer: &str, operator: &str, tensor: &str, values: &[f64]) -> &mut Self {
        self.observe(site(layer, operator, tensor, Probe::OptimizerState, Dtype::F32), values)
    }

    /// A moving average of a parameter, after the step; the rounding says what its format left of the step towards the parameter.
    pub fn average(
        &mut self,
        layer: &str,
        tensor: &str,
        dtype: Dtype,
        values: &[f64],
        decay: f64,
        rounding: Rounding,
    ) -> &mut Self {
        self.observe(site(layer, "lerp_", tensor, Probe::Average, dtype), values);
        self.argument(decay).rounding(rounding)
    }

    /// Says that the activation added last was computed from these, each the label of the latest activation, parameter or buffer added under it;
    /// one that there is not is an input that was not observed.
    pub fn from(&mut self, labels: &[&str]) -> &mut Self {
        // What an operator takes is named as a parameter, where it is a buffer too.
        let is_buffer = |s: &&Site| s.probe == Probe::Buffer && labels.contains(&s.label().as_str());
        let buffers: Vec<Site> = self.sites.iter().filter(is_buffer).cloned().collect();
        for buffer in buffers {
            self.intern(Site { probe: Probe::Param, ..buffer });
        }
        let is_input = |site: &Site| matches!(site.probe, Probe::Activation | Probe::Param);
        let find = |label: &&str| {
            let latest = self.step.observations.iter().rev().map(|o| o.site).collect::<Vec<_>>();
            let earlier = (0..self.sites.len() as u32).rev().map(SiteId);
            let matches =
                |id: &SiteId| self.sites.get(id.0 as usize).is_some_and(|s| is_input(s) && s.label() == **label);
            latest.into_iter().chain(earlier).find(matches)
        };
        let inputs = labels.iter().map(find).collect();
        self.provenance(|p| p.inputs = inputs)
    }

    /// Says that the operator of the activation added last was given this number.
    pub fn argument(&mut self, argument: f64) -> &mut Self {
        self.provenance(|p| p.argument = Some(argument))
    }

    /// Says that so many integers in the activation added last are not what they were.
    pub fn inexact(&mut self, elements: u64) -> &mut Self {
        self.provenance(|p| p.inexact = Some(elements))
    }

    fn provenance(&mut self, change: impl FnOnce(&mut Provenance)) -> &mut Self {
        if let Some(last) = self.step.observations.last_mut() {
            change(last.provenance.get_or_insert_default());
        }
        self
    }

    /// What low precision did to the step, in the latest observation.
    pub fn rounding(&mut self, rounding: Rounding) -> &mut Self {
        if let Some(last) = self.step.observations.last_mut() {
            last.rounding = Some(Box::new(rounding));
        }
        self
    }

    fn observe(&mut self, site: Site, values: &[f64]) -> &mut Self {
        let stats = stats_of(values, site.dtype);
        self.push(site, stats)
    }

    fn push(&mut self, site: Site, stats: Stats) -> &mut Self {
        let site = self.intern(site);
        self.step.observations.push(Observation::new(site, stats));
        self
    }

    fn intern(&mut self, site: Site) -> SiteId {
        if let Some(at) = self.sites.iter().position(|s| *s == site) {
            return SiteId(at as u32);
        }
        let id = SiteId(self.sites.len() as u32);
        self.sites.push(site.clone());
        self.new_sites.push(Record::Site(id, site));
        id
    }
}

fn site(layer: &str, operator: &str, tensor: &str, probe: Probe, dtype: Dtype) -> Site {
    Site { layer: layer.into(), operator: operator.into(), tensor: tensor.into(), probe, dtype }
}

/// The statistics of `values`, each rounded to `dtype` first, as the scan finds them.
pub fn stats_of(values: &[f64], dtype: Dtype) -> Stats {
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|&x| match dtype {
            Dtype::F16 => f16::from_f64(x).to_ne_bytes().to_vec(),
            Dtype::Bf16 => bf16::from_f64(x).to_ne_bytes().to_vec(),
            Dtype::F32 => (x as f32).to_ne_bytes().to_vec(),
            Dtype::F64 => x.to_ne_bytes().to_vec(),
        })
        .collect();
    let view = TensorView { data: bytes.as_ptr(), dtype, sizes: &[values.len() as i64], strides: &[1] };
    // SAFETY: the view describes `bytes`, which holds `values.len()` dense elements of `dtype` and outlives the call.
    unsafe { scan(&view) }
}

/// `n` normal numbers of this standard deviation, the same for the same seed.
pub fn normal(n: usize, deviation: f64, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x2545_f491_4f6c_dd1d);
    let mut uniform = || {
        // SplitMix64: enough for tests, and needs no dependency.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    };
    let mut one = || (-2.0 * uniform().max(f64::MIN_POSITIVE).ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
    (0..n).map(|_| one() * deviation).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_is_written_once_before_its_first_step() {
        let mut run = Scenario::new();
        run.steps(2, |s, _| {
            s.activation("a", "linear", Dtype::F16, &[1.0, 70000.0]);
        });
        let kinds: Vec<_> = run.records().iter().map(std::mem::discriminant).collect();
        assert_eq!(kinds.len(), 4);
        assert_eq!(kinds[2], kinds[3]);
        let Record::Step(step) = &run.records()[2] else { panic!("{:?}", run.records()[2]) };
        assert_eq!((step.observations[0].stats.pos_inf, step.observations[0].stats.max_abs), (1, 1.0));
    }

    #[test]
    fn normal_numbers_are_the_same_for_the_same_seed() {
        assert_eq!(normal(5, 1.0, 3), normal(5, 1.0, 3));
        assert_ne!(normal(5, 1.0, 3), normal(5, 1.0, 4));
        let rms = stats_of(&normal(10_000, 2.0, 1), Dtype::F64).rms().unwrap();
        assert!((rms - 2.0).abs() < 0.1, "{rms}");
    }
}
