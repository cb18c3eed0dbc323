//! Autocast on the CPU: what is cast, where it ends, and what it leaves behind.

use ampdoctor_torch::{AutocastError, autocast, autocast_if, f_autocast, is_autocast_enabled, no_autocast};
use tch::{Device, Kind, Tensor};

const CPU: Device = Device::Cpu;

/// The dtype in which a linear layer of FP32 operands answers now.
fn linear_kind() -> Kind {
    tch::set_num_threads(1);
    let (x, w) = (Tensor::ones([2, 3], (Kind::Float, CPU)), Tensor::ones([4, 3], (Kind::Float, CPU)));
    x.linear(&w, None::<&Tensor>).kind()
}

#[test]
fn products_are_low_precision_inside_and_fp32_outside() {
    for kind in [Kind::Half, Kind::BFloat16] {
        assert_eq!(linear_kind(), Kind::Float);
        assert_eq!(autocast(CPU, kind, linear_kind), kind);
        assert_eq!(linear_kind(), Kind::Float);
    }
}

#[test]
fn an_operator_that_needs_fp32_gets_it() {
    let loss = autocast(CPU, Kind::Half, || {
        let x = Tensor::ones([2, 3], (Kind::Half, CPU)).set_requires_grad(true);
        x.cross_entropy_for_logits(&Tensor::from_slice(&[0i64, 1]))
    });
    assert_eq!(loss.kind(), Kind::Float);
}

#[test]
fn levels_nest_and_each_restores_the_one_outside() {
    let kinds = autocast(CPU, Kind::Half, || {
        let inner = autocast(CPU, Kind::BFloat16, linear_kind);
        let island = no_autocast(|| (linear_kind(), autocast(CPU, Kind::BFloat16, linear_kind), linear_kind()));
        (inner, island, linear_kind())
    });
    assert_eq!(kinds, (Kind::BFloat16, (Kind::Float, Kind::BFloat16, Kind::Float), Kind::Half));
    assert_eq!(linear_kind(), Kind::Float);
}

#[test]
fn an_inner_level_of_another_dtype_is_not_served_the_outer_ones_weights() {
    let w = Tensor::ones([4, 3], (Kind::Float, CPU)).set_requires_grad(true);
    let x = Tensor::ones([2, 3], (Kind::Float, CPU));
    let kind = || x.linear(&w, None::<&Tensor>).kind();
    let seen = autocast(CPU, Kind::Half, || (kind(), autocast(CPU, Kind::BFloat16, kind), kind()));
    assert_eq!(seen, (Kind::Half, Kind::BFloat16, Kind::Half));
}

#[test]
fn a_weight_changed_between_two_calls_is_cast_anew() {
    let mut w = Tensor::ones([1, 1], (Kind::Float, CPU)).set_requires_grad(true);
    let x = Tensor::ones([1, 1], (Kind::Float, CPU));
    let product = |w: &Tensor| autocast(CPU, Kind::Half, || x.linear(w, None::<&Tensor>)).double_value(&[0, 0]);
    assert_eq!(product(&w), 1.0);
    tch::no_grad(|| drop(w.fill_(3.0)));
    assert_eq!(product(&w), 3.0);
}

#[test]
fn a_panic_restores_what_was_before() {
    let caught = std::panic::catch_unwind(|| {
        autocast(CPU, Kind::Half, || no_autocast(|| autocast(CPU, Kind::BFloat16, || panic!("planted: expected here"))))
    });
    assert!(caught.is_err());
    assert!(!is_autocast_enabled(CPU));
    assert_eq!(linear_kind(), Kind::Float);
    assert_eq!(autocast(CPU, Kind::Half, linear_kind), Kind::Half);
}

#[test]
fn a_panic_inside_leaves_the_outer_level_on() {
    autocast(CPU, Kind::BFloat16, || {
        let caught = std::panic::catch_unwind(|| autocast(CPU, Kind::Half, || panic!("planted: expected here")));
        assert!(caught.is_err());
        assert_eq!(linear_kind(), Kind::BFloat16);
    });
}

#[test]
fn another_thread_is_not_touched() {
    let elsewhere = autocast(CPU, Kind::Half, || std::thread::spawn(linear_kind).join().unwrap());
    assert_eq!(elsewhere, Kind::Float);
}

#[test]
fn the_precision_can_be_a_setting() {
    assert_eq!(autocast(CPU, Kind::Float, linear_kind), Kind::Float);
    assert_eq!(autocast_if(true, CPU, Kind::Half, linear_kind), Kind::Half);
    assert_eq!(autocast_if(false, CPU, Kind::Half, linear_kind), Kind::Float);
    let island = autocast(CPU, Kind::Half, || autocast_if(false, CPU, Kind::Half, linear_kind));
    assert_eq!(island, Kind::Float);
}

#[test]
fn the_other_device_has_a_state_of_its_own() {
    let cuda = Device::Cuda(0);
    autocast(cuda, Kind::Half, || {
        assert_eq!((is_autocast_enabled(cuda), is_autocast_enabled(CPU)), (true, false));
        assert_eq!(linear_kind(), Kind::Float);
        assert!(no_autocast(|| !is_autocast_enabled(cuda)));
        assert!(is_autocast_enabled(cuda));
    });
    assert!(!is_autocast_enabled(cuda));
}

#[test]
fn a_dtype_or_device_that_autocast_does_not_know_is_refused_before_the_body_runs() {
    let refuse = |device, kind| f_autocast(device, kind, || unreachable!()).unwrap_err();
    assert_eq!(refuse(CPU, Kind::Int64), AutocastError::Dtype(Kind::Int64));
    assert_eq!(refuse(Device::Mps, Kind::Half), AutocastError::Device(Device::Mps));
    assert!(refuse(CPU, Kind::Double).to_string().contains("Use Kind::Half or Kind::BFloat16"));
}

#[test]
fn gradients_reach_the_fp32_weights_in_fp32() {
    let w = Tensor::ones([4, 3], (Kind::Float, CPU)).set_requires_grad(true);
    let x = Tensor::ones([2, 3], (Kind::Float, CPU));
    let y = autocast(CPU, Kind::Half, || x.linear(&w, None::<&Tensor>));
    y.to_kind(Kind::Float).sum(Kind::Float).backward();
    assert_eq!(w.grad().kind(), Kind::Float);
    assert_eq!(w.grad().double_value(&[0, 0]), 2.0);
}
