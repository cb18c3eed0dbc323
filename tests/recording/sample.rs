//! A small run with one of everything, and how to read bytes back.

use ampdoctor::observation::{
    Act, Cost, End, EndReason, Note, NoteKind, Observation, Parameter, Probe, Product, Provenance, RecipeEvent, Record,
    Refusal, Rounding, RunInfo, Sampling, ScalerConfig, ScalerEvent, Shadow, ShadowGradient, Site, SiteId, Step, Tier,
};
use ampdoctor::recording::{DecodeError, Decoder, Integrity, encode_frame};
use ampdoctor::scan::{Dtype, ExponentHistogram, Fidelity, Likeness, Scaled, Stats};

pub fn run_info() -> RunInfo {
    RunInfo {
        name: "digits".into(),
        command: vec!["train".into(), "--precision".into(), "fp16".into()],
        started_unix_ms: 1_750_000_000_000,
        pid: 4711,
        rank: 0,
        world_size: None,
        producer: "test 1.0".into(),
        framework: "LibTorch 2.13.0".into(),
        device: "cpu".into(),
        threads: 1,
        sampling: Sampling::Budget(0.02),
        parameters: vec![Parameter {
            name: "fc.weight".into(),
            dtype: "f32".into(),
            shape: vec![10, 64],
            trainable: true,
        }],
    }
}

pub fn site(layer: &str) -> Site {
    Site {
        layer: layer.into(),
        operator: "linear".into(),
        tensor: String::new(),
        probe: Probe::ActivationGrad,
        dtype: Dtype::F16,
    }
}

pub fn stats() -> Stats {
    Stats {
        count: 640,
        zeros: 100,
        nan: 1,
        pos_inf: 2,
        neg_inf: 3,
        min_abs: 2f64.powi(-24),
        max_abs: 1.5,
        sum: Scaled { value: -0.25, exponent: 4 },
        sum_squares: Scaled { value: 0.75, exponent: -3 },
        exponents: [(-24, 500), (-14, 30), (0, 4)].into_iter().fold(ExponentHistogram::default(), |mut h, (e, n)| {
            h.add(e, n);
            h
        }),
    }
}

/// One of every event of the recipe.
fn recipe() -> Vec<RecipeEvent> {
    let product = Product { loss: 2.5, factor: 65536.0, dtype: Dtype::F16 };
    let names = || vec!["fc.weight".to_owned()];
    let acts = [
        Act::Backward { holding: 2, used: 1, product: Some(product) },
        Act::Multiplied { factor: 0.25, gradients: 2 },
        Act::Clamped { limit: 1.0, gradients: 2 },
        Act::Cleared { gradients: 2 },
        Act::Stepped { parameters: 2, stale: 1, adaptive: true },
        Act::UpdatedAgain,
        Act::HalfUnscaled { parameters: names() },
        Act::Refused { optimizer: Some(1), refusal: Refusal::NoGradients, parameters: names() },
    ];
    acts.into_iter().enumerate().map(|(i, act)| RecipeEvent { after: i as u32 / 3, act }).collect()
}

/// A step without observations.
pub fn step(index: u64) -> Step {
    Step {
        index,
        time_ns: 1_000_000 * (index + 1),
        tier: Tier::Full,
        observations: vec![],
        loss: Some(2.5 / (index + 1) as f64),
        loss_scale: Some(65536.0),
        scaler: vec![
            ScalerEvent::Unscaled { optimizer: 0, scale: 65536.0, found_inf: true },
            ScalerEvent::Stepped { optimizer: 0, applied: false },
            ScalerEvent::Updated { from: 65536.0, to: 32768.0, growth_tracker: 0 },
        ],
        recipe: recipe(),
        lr: Some(1e-3),
        metrics: vec![("accuracy".into(), 0.5)],
        cost: Cost { step_ns: 1_000_000, probe_ns: 50_000, dropped_steps: 0, unscanned: 2 },
    }
}

pub fn observation(site: SiteId) -> Observation {
    let fidelity = Fidelity { intended: 64, dead: 8, non_finite: 1, dot: 1e-9, energy: 2e-9 };
    let rounding = Rounding {
        stepped: Some(fidelity),
        without_masters: Some(fidelity),
        decay: Some(fidelity),
        unlike_master: Some(3),
        unmoved: Some(1e-9),
    };
    let provenance = Provenance { inputs: vec![Some(site), None], argument: Some(1e-8), inexact: Some(5) };
    Observation {
        site,
        stats: stats(),
        inherited: true,
        via: Some(site),
        rounding: Some(Box::new(rounding)),
        provenance: Some(Box::new(provenance)),
    }
}

pub fn observed(index: u64, sites: &[SiteId]) -> Step {
    Step { observations: sites.iter().map(|&site| observation(site)).collect(), ..step(index) }
}

/// The step with sums that a double holds: its observations stand in columns, where those of others are messages.
pub fn in_columns(mut step: Step) -> Step {
    for observation in &mut step.observations {
        (observation.stats.sum.exponent, observation.stats.sum_squares.exponent) = (0, 0);
    }
    step
}

/// A comparison with FP32 in which each number is another one.
pub fn shadow(step: u64, site: SiteId) -> Shadow {
    let likeness = Likeness {
        count: 640,
        nonzero: 600,
        lost: 60,
        kept: 540,
        fading: 30,
        non_finite: 4,
        non_finite_in_fp32: 2,
        dot: 1e-9,
        energy: 2e-9,
        fp32_energy: 3e-9,
        lost_energy: 1e-12,
        sum: -1e-5,
        magnitude: 3e-5,
        fp32_sum: -2e-5,
        fp32_magnitude: 4e-5,
    };
    Shadow {
        step,
        loss_scale: Some(65536.0),
        loss: Some(2.25),
        recomputed: true,
        time_ns: 5_000_000,
        gradients: vec![ShadowGradient { site, likeness }],
        failure: Some("none, in truth".into()),
    }
}

/// One of everything.
pub fn records() -> Vec<Record> {
    let scaler = ScalerConfig {
        init_scale: 65536.0,
        growth_factor: 2.0,
        backoff_factor: 0.5,
        growth_interval: 2000,
        min_scale: Some(1.0),
        max_scale: None,
        hysteresis: 1,
        foreign: false,
    };
    vec![
        Record::Run(run_info()),
        Record::Site(SiteId(0), site("fc")),
        Record::Scaler(scaler),
        Record::Step(in_columns(observed(0, &[SiteId(0)]))),
        Record::Note(Note { step: 0, kind: NoteKind::BlindSpot, text: "a sparse tensor was not scanned".into() }),
        Record::Site(SiteId(1), site("head")),
        Record::Shadow(shadow(1, SiteId(0))),
        Record::Step(observed(1, &[SiteId(0), SiteId(1)])),
        Record::Step(Step { loss: None, loss_scale: None, lr: None, ..step(2) }),
        Record::End(End { steps: 3, dropped_steps: 0, reason: EndReason::Finished }),
    ]
}

/// The bytes of a recording, and where each frame ends.
pub fn encode(records: &[Record]) -> (Vec<u8>, Vec<usize>) {
    let mut bytes = Vec::new();
    let ends = records
        .iter()
        .map(|record| {
            encode_frame(record, &mut bytes);
            bytes.len()
        })
        .collect();
    (bytes, ends)
}

/// The records in bytes that come in chunks, with all that is to be said of them.
pub fn decode<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Record>, Result<Integrity, DecodeError>) {
    let mut decoder = Decoder::new();
    let mut records = Vec::new();
    let outcome = feed(&mut decoder, chunks, &mut records);
    (records, outcome.map(|()| decoder.integrity().clone()))
}

fn feed<'a>(
    decoder: &mut Decoder,
    chunks: impl IntoIterator<Item = &'a [u8]>,
    records: &mut Vec<Record>,
) -> Result<(), DecodeError> {
    for chunk in chunks {
        decoder.push(chunk);
        while let Some(record) = decoder.next_record()? {
            records.push(record);
        }
    }
    while decoder.finish()? {
        while let Some(record) = decoder.next_record()? {
            records.push(record);
        }
    }
    Ok(())
}
