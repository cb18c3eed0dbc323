//! Moving averages that a loop keeps of its parameters, as people write them.

mod observed;

use ampdoctor::observation::{NoteKind, Observation, Probe};
use ampdoctor::scan::Fidelity;
use observed::{Run, batch, mlp, observe, store};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Kind, Tensor};

const DECAY: f64 = 0.999;
const STEPS: usize = 4;

/// Moves one average towards its weight.
type Move = fn(&mut Tensor, &Tensor);

/// Trains in FP32, moves an average of each parameter that is held in `kind`, and gives the recording with the averages of each step, the first being those before it.
fn average(kind: Kind, step: Move) -> (Run, Vec<Vec<Tensor>>, Vec<Vec<Tensor>>) {
    let vs = store(7);
    let net = mlp(&vs);
    let mut named: Vec<(String, Tensor)> = vs.variables().into_iter().collect();
    named.sort_by(|a, b| a.0.cmp(&b.0));
    let weights: Vec<Tensor> = named.into_iter().map(|(_, w)| w).collect();
    let copy = |all: &[Tensor]| all.iter().map(|t| t.detach().to_kind(Kind::Float).copy()).collect::<Vec<_>>();
    let mut averages: Vec<Tensor> = weights.iter().map(|w| w.detach().to_kind(kind).copy()).collect();
    let mut opt = nn::Adam::default().build(&vs, 1e-2).unwrap();
    let (mut held, mut towards) = (vec![copy(&averages)], Vec::new());
    let run = observe(&vs, |doctor| {
        for _ in 0..STEPS {
            let (x, y) = batch();
            let loss = net.forward(&x).cross_entropy_for_logits(&y);
            opt.backward_step(&loss);
            tch::no_grad(|| averages.iter_mut().zip(&weights).for_each(|(average, weight)| step(average, weight)));
            held.push(copy(&averages));
            towards.push(copy(&weights));
            doctor.step(&loss);
        }
    });
    (run, held, towards)
}

const NAMES: [&str; 4] = ["fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight"];

fn stepped(observation: &Observation) -> Fidelity {
    observation.rounding.as_deref().and_then(|r| r.stepped).expect("what is left of the average's step")
}

/// What is recorded is what happened to the averages, whatever way they are moved.
fn is_seen(kind: Kind, step: Move) {
    let (run, held, towards) = average(kind, step);
    assert_eq!(run.notes, []);
    for (i, name) in (0..STEPS).flat_map(|i| NAMES.into_iter().map(move |name| (i, name))) {
        let at = NAMES.iter().position(|n| *n == name).unwrap();
        let seen = run.one(i, Probe::Average, name);
        let decay = seen.provenance.as_deref().and_then(|p| p.argument).expect("the decay");
        assert!((decay - DECAY).abs() < 1e-9, "{name}: {decay}");
        let (before, after) = (&held[i][at], &held[i + 1][at]);
        let intended = (&towards[i][at] - before) * (1.0 - DECAY);
        let applied = after - before;
        let number = |t: Tensor| t.sum(Kind::Double).double_value(&[]);
        let expected = number(&applied.to_kind(Kind::Double) * &intended);
        let (f, energy) = (stepped(seen), number(intended.to_kind(Kind::Double).square()));
        assert!((f.energy - energy).abs() <= 1e-5 * energy, "{name}: {f:?}, not {energy}");
        assert!((f.dot - expected).abs() <= 1e-5 * energy, "{name}: {f:?}, not {expected}");
        assert_eq!(f.dead as f64, number(applied.eq(0.0).logical_and(&intended.ne(0.0))), "{name}");
        assert_eq!(seen.stats.max_abs, after.abs().max().double_value(&[]), "{name}");
    }
    let whole = run.one(STEPS - 1, Probe::Average, "fc1.weight");
    let unmoved = whole.rounding.as_deref().and_then(|r| r.unmoved).unwrap();
    assert!(unmoved > 0.5 * stepped(whole).energy, "{unmoved} {:?}", stepped(whole));
}

#[test]
fn lerp_in_its_own_format() {
    is_seen(Kind::Half, |average, weight| drop(average.lerp_(&weight.to_kind(Kind::Half), 1.0 - DECAY)));
}

#[test]
fn decayed_and_added_to() {
    is_seen(Kind::BFloat16, |average, weight| {
        *average *= DECAY;
        *average += weight.detach().to_kind(Kind::BFloat16) * (1.0 - DECAY);
    });
}

#[test]
fn added_to_by_a_sum_that_was_computed_in_fp32() {
    is_seen(Kind::Half, |average, weight| {
        average.copy_(&(average.to_kind(Kind::Float) * DECAY + weight * (1.0 - DECAY)))
    });
}

#[test]
fn the_difference_taken_off() {
    is_seen(Kind::BFloat16, |average, weight| {
        let mut difference = average.to_kind(Kind::Float) - weight;
        difference *= 1.0 - DECAY;
        *average -= difference;
    });
}

#[test]
fn a_new_tensor_in_its_place() {
    is_seen(Kind::Half, |average, weight| *average = &*average * DECAY + weight.to_kind(Kind::Half) * (1.0 - DECAY));
    is_seen(Kind::BFloat16, |average, weight| {
        let sum = average.to_kind(Kind::Float) * DECAY + weight * (1.0 - DECAY);
        *average = sum.to_kind(Kind::BFloat16);
    });
    is_seen(Kind::Half, |average, weight| *average = average.lerp(&weight.to_kind(Kind::Half), 1.0 - DECAY));
}

#[test]
fn a_sum_in_its_own_format_that_is_copied_back_is_told_once() {
    is_seen(Kind::Half, |average, weight| {
        let sum = &*average * DECAY + weight.to_kind(Kind::Half) * (1.0 - DECAY);
        average.copy_(&sum);
    });
    is_seen(Kind::BFloat16, |average, weight| {
        let difference = weight.to_kind(Kind::BFloat16) - &*average;
        *average += difference * (1.0 - DECAY);
    });
}

#[test]
fn an_average_in_fp32_is_not_followed() {
    let (run, ..) = average(Kind::Float, |average, weight| drop(average.lerp_(weight, 1.0 - DECAY)));
    assert!((0..STEPS).all(|i| run.at(i, |s| s.probe == Probe::Average).is_empty()));
}

#[test]
fn copies_sums_and_parts_of_parameters_in_16_bits_are_no_averages() {
    let moves: [Move; 5] = [
        |copy, weight| copy.copy_(weight),
        |sum, weight| *sum += weight.to_kind(Kind::Half),
        |scaled, weight| {
            *scaled *= 0.9;
            *scaled += weight.to_kind(Kind::Half) * 0.3;
        },
        // The average of something else.
        |average, weight| drop(average.lerp_(&weight.square().to_kind(Kind::Half), 0.001)),
        |part, weight| drop(part.narrow(0, 0, 2).lerp_(&weight.narrow(0, 0, 2).to_kind(Kind::Half), 0.001)),
    ];
    for step in moves {
        let (run, ..) = average(Kind::Half, step);
        assert!((0..STEPS).all(|i| run.at(i, |s| s.probe == Probe::Average).is_empty()), "{:?}", run.labels(1));
        assert!(run.notes.iter().all(|n| n.kind != NoteKind::BlindSpot), "{:?}", run.notes);
    }
}

#[test]
fn the_moments_of_an_optimizer_in_16_bits_are_no_averages_of_parameters() {
    for optimizer in ["sgd", "adamw"] {
        let mut vs = store(3);
        let net = mlp(&vs);
        vs.bfloat16();
        let mut opt = match optimizer {
            "sgd" => nn::sgd(0.9, 0.0, 0.01, false).build(&vs, 1e-2).unwrap(),
            _ => nn::AdamW::default().build(&vs, 1e-2).unwrap(),
        };
        let run = observe(&vs, |doctor| {
            for _ in 0..STEPS {
                let (x, y) = batch();
                let loss = net.forward(&x.to_kind(Kind::BFloat16)).to_kind(Kind::Float).cross_entropy_for_logits(&y);
                opt.backward_step(&loss);
                doctor.step(&loss);
            }
        });
        assert!((0..STEPS).all(|i| run.at(i, |s| s.probe == Probe::Average).is_empty()), "{optimizer}");
    }
}

#[test]
fn an_average_that_is_decayed_and_never_added_to_leaves_nothing_behind() {
    let (run, ..) = average(Kind::Half, |average, _| *average *= DECAY);
    assert!((0..STEPS).all(|i| run.at(i, |s| s.probe == Probe::Average).is_empty()));
}
