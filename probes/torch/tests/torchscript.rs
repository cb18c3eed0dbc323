//! A TorchScript module that LibTorch compiles hides what is in it; one that it does not compile is like any other. Alone: the setting holds for the whole process.

mod observed;

use ampdoctor::observation::{NoteKind, Probe};
use observed::{Run, observe, store};
use tch::nn::{self, ModuleT, OptimizerConfig};
use tch::{Device, Kind, Tensor, TrainableCModule};

const MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/fixtures/classifier.pt");

/// Four steps of the module.
fn train(optimized: bool) -> Run {
    tch::jit::set_graph_executor_optimize(optimized);
    let vs = store(1);
    let mut net = TrainableCModule::load(MODULE, vs.root()).unwrap();
    net.set_train();
    let mut opt = nn::Adam::default().build(&vs, 1e-3).unwrap();
    observe(&vs, |doctor| {
        for _ in 0..4 {
            let loss =
                net.forward_t(&Tensor::randn([16, 16], (Kind::Float, Device::Cpu)), true).square().mean(Kind::Float);
            opt.backward_step(&loss);
            doctor.step(&loss);
        }
    })
}

/// Activations and gradients of activations that a step has of the module.
fn seen(run: &Run, step: usize) -> [Vec<&str>; 2] {
    [Probe::Activation, Probe::ActivationGrad].map(|probe| {
        let observations = run.at(step, |s| s.probe == probe && s.layer.is_empty());
        observations.into_iter().map(|o| run.site(o).operator.as_str()).collect()
    })
}

#[test]
fn a_compiled_graph_hides_gradients_and_says_so_and_an_interpreted_one_hides_nothing() {
    let compiled = train(true);
    let spots: Vec<_> = compiled.notes.iter().filter(|n| n.kind == NoteKind::BlindSpot).map(|n| &n.text).collect();
    assert!(spots.iter().any(|text| text.contains("set_graph_executor_optimize(false)")), "{spots:?}");
    let operators = ["linear", "batch_norm", "relu", "linear#2", "square", "mean"];
    assert_eq!(seen(&compiled, 0)[0], operators, "the first call is not compiled yet");
    let [activations, gradients] = seen(&compiled, 3);
    assert_eq!(activations.len(), operators.len(), "what is computed is seen: {activations:?}");
    assert_eq!(gradients, ["mean", "square"], "the gradients within are not");
    assert_eq!(compiled.at(3, |s| s.probe == Probe::ParamGrad).len(), 6);
    assert_eq!(compiled.at(3, |s| s.probe == Probe::Update).len(), 6);

    let interpreted = train(false);
    let [activations, gradients] = seen(&interpreted, 3);
    assert_eq!((activations, gradients.len()), (operators.to_vec(), operators.len()));
    assert!(interpreted.notes.iter().all(|note| !note.text.contains("compiled")), "{:?}", interpreted.notes);
}
