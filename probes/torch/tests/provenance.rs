//! How an activation was made: its inputs, in order; integers that 16 bits changed; optimizer state that is not finite.

mod observed;

use ampdoctor::observation::{Observation, Probe, Provenance};
use observed::{Run, batch, mlp, observe, store};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};

/// One step of SGD on a loss over `fc`'s output (`[4, 8]`), observed.
fn one_step(loss: impl FnOnce(Tensor) -> Tensor) -> Run {
    let vs = store(1);
    let fc = nn::linear(vs.root() / "fc", 8, 8, Default::default());
    let mut opt = nn::Sgd::default().build(&vs, 0.1).unwrap();
    observe(&vs, |doctor| {
        let loss = loss(fc.forward(&Tensor::randn([4, 8], (Kind::Float, Device::Cpu))));
        opt.backward_step(&loss);
        doctor.step(&loss);
    })
}

fn provenance<'a>(run: &'a Run, label: &str) -> &'a Provenance {
    run.one(0, Probe::Activation, label).provenance.as_deref().expect("it is known how it was made")
}

/// The labels of an activation's inputs; `-` for one that is not observed.
fn inputs(run: &Run, label: &str) -> Vec<String> {
    let name =
        |id: &Option<ampdoctor::observation::SiteId>| id.map_or("-".into(), |id| run.sites[id.0 as usize].label());
    provenance(run, label).inputs.iter().map(name).collect()
}

#[test]
fn inputs_stand_in_the_order_of_the_arguments_whoever_made_them() {
    let run = one_step(|y| {
        let constant = Tensor::ones([4, 8], (Kind::Float, Device::Cpu));
        let root = y.square().mean_dim(-1, true, Kind::Float).sqrt();
        (y / root + constant).relu().mean(Kind::Float)
    });
    assert_eq!(inputs(&run, "fc/linear"), ["input/data", "fc.weight", "fc.bias"]);
    assert_eq!(inputs(&run, "fc/square"), ["fc/linear"]);
    assert_eq!(inputs(&run, "fc/div"), ["fc/linear", "fc/sqrt"]);
    assert_eq!(inputs(&run, "fc/add")[0], "fc/div");
    assert_eq!(inputs(&run, "fc/relu"), ["fc/add"]);
}

#[test]
fn a_view_is_the_tensor_that_it_shows_and_a_number_is_an_argument() {
    let run = one_step(|y| {
        let eps = y.square().view([8, 4]).transpose(0, 1) + 1e-8;
        eps.pow_tensor_scalar(0.5).softmax(-1, Kind::Float).mean(Kind::Float)
    });
    assert_eq!(inputs(&run, "fc/add"), ["fc/square"]);
    let argument = |label| provenance(&run, label).argument;
    assert_eq!((argument("fc/add"), argument("fc/pow"), argument("fc/square")), (Some(1e-8), Some(0.5), None));
    assert_eq!(argument("fc/softmax"), Some(-1.0));
}

fn inexact(run: &Run) -> Vec<u64> {
    run.at(0, |s| s.probe == Probe::Activation && s.layer == "input")
        .iter()
        .filter_map(|o: &&Observation| o.provenance.as_ref()?.inexact)
        .collect()
}

#[test]
fn positions_that_are_cast_to_half_are_counted_where_they_changed_and_what_is_made_of_them_remembers() {
    let positions = |first: i64| Tensor::arange_start(first, first + 8, (Kind::Int64, Device::Cpu));
    let with = |first: i64, kind: Kind, factor: f64| {
        one_step(|y| (y.to_kind(kind) + positions(first).to_kind(kind) * factor).sum(Kind::Float))
    };
    // Between 4096 and 8192 every fourth is held.
    assert_eq!(inexact(&with(5000, Kind::Half, 1e-4)), [6]);
    assert_eq!(inexact(&with(256, Kind::BFloat16, 1.0)), [4]);
    for (first, kind) in [(2000, Kind::Half), (200, Kind::BFloat16), (5000, Kind::Float)] {
        assert_eq!(inexact(&with(first, kind, 1e-4)), [0u64; 0], "{first} {kind:?}");
    }
}

#[test]
fn integers_that_were_made_in_half_repeat_beyond_2048() {
    let with = |first: i64| {
        one_step(|y| {
            let positions = Tensor::arange_start(first, first + 8, (Kind::Half, Device::Cpu));
            (y.to_kind(Kind::Half) + positions).sum(Kind::Float)
        })
    };
    assert_eq!(inexact(&with(1000)), [0u64; 0]);
    assert!(inexact(&with(3000)).iter().all(|&n| n > 0) && inexact(&with(3000)).len() == 1);
}

#[test]
fn a_count_in_half_that_is_infinite_is_told_as_the_sum_that_made_it() {
    let run = one_step(|y| {
        let count = Tensor::ones([70_000], (Kind::Half, Device::Cpu)).sum(Kind::Half);
        (y.to_kind(Kind::Half) / count).sum(Kind::Float)
    });
    assert_eq!(run.one(0, Probe::Activation, "input/sum").stats.pos_inf, 1);
}

#[test]
fn optimizer_state_is_written_down_where_it_is_not_finite_and_not_else() {
    let vs = store(2);
    let net = mlp(&vs);
    let mut opt = nn::Adam::default().build(&vs, 1e-3).unwrap();
    let run = observe(&vs, |doctor| {
        for spike in [1.0, 1e30, 1.0] {
            let (x, y) = batch();
            let loss = net.forward(&x).cross_entropy_for_logits(&y) * spike;
            opt.backward_step(&loss);
            doctor.step(&loss);
        }
    });
    let state = |step| run.at(step, |s| s.probe == Probe::OptimizerState);
    assert!(state(0).is_empty());
    for step in [1, 2] {
        assert!(state(step).iter().any(|o| run.site(o).label() == "fc1.weight" && o.stats.pos_inf > 0), "{step}");
    }
}
