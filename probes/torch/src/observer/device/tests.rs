//! What a device's operators find is what the scan finds: tried on the CPU, where both can read a tensor.

use ampdoctor::scan::{
    disagreement, elements_like, fidelity, fidelity_in, scan, scan_difference, unlike_rounded, unmoved_energy,
};
use proptest::prelude::*;
use tch::{Kind, Tensor};

use super::super::border::{dense_memory, tensor};
use super::super::integers::{Inexact, repeated};
use super::*;

#[track_caller]
fn assert_agree(dtype: Dtype, found: &Stats, expected: &Stats) {
    assert_eq!(disagreement(dtype, found, expected), None);
}

fn on_device(t: &Tensor) -> Stats {
    let described = tensor::describe(t).unwrap();
    let mut reductions = Reductions::default();
    let waiting = reductions.statistics(&described).unwrap();
    assert!(reductions.numbers(waiting.ticket).is_none_or(<[f64]>::is_empty), "nothing is there before it is fetched");
    reductions.fetch().unwrap();
    reductions.stats(&waiting).unwrap()
}

fn by_scan(t: &Tensor) -> Stats {
    let described = tensor::describe(t).unwrap();
    // SAFETY: a live tensor in host memory.
    unsafe { scan(&described.view().unwrap()) }
}

#[track_caller]
fn check_agree(t: &Tensor) {
    let dtype = tensor::describe(t).unwrap().dtype().unwrap();
    assert_agree(dtype, &on_device(t), &by_scan(t));
}

/// A tensor of these bits.
fn from_bits(dtype: Dtype, bits: &[u64]) -> Tensor {
    let kind = match dtype {
        Dtype::F16 => Kind::Half,
        Dtype::Bf16 => Kind::BFloat16,
        Dtype::F32 => Kind::Float,
        Dtype::F64 => Kind::Double,
    };
    let bytes: Vec<u8> = bits.iter().flat_map(|b| b.to_le_bytes()[..dtype.size()].to_vec()).collect();
    Tensor::from_data_size(&bytes, &[bits.len() as i64], kind)
}

/// Any bits, many of them special: zeros, subnormals, the largest and smallest numbers, infinities, NaN.
fn bits(dtype: Dtype) -> BoxedStrategy<u64> {
    let (size, mantissa, exponent) = match dtype {
        Dtype::F16 => (16, 10, 31u64),
        Dtype::Bf16 => (16, 7, 255),
        Dtype::F32 => (32, 23, 255),
        Dtype::F64 => (64, 52, 2047),
    };
    let most = u64::MAX >> (64 - size);
    let (sign, one) = (1u64 << (size - 1), (1u64 << mantissa) - 1);
    let infinite = exponent << mantissa;
    let special = vec![0, 1, one, one + 1, infinite - 1, infinite, infinite + 1, infinite + one];
    let special = prop::sample::select(special);
    let subnormal = 0..=one;
    prop_oneof![0..=most, special.clone(), special.prop_map(move |b| b | sign), subnormal].boxed()
}

fn dtypes() -> impl Strategy<Value = Dtype> {
    prop::sample::select(vec![Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::F64])
}

fn elements(lengths: std::ops::Range<usize>) -> impl Strategy<Value = (Dtype, Vec<u64>)> {
    dtypes().prop_flat_map(move |dtype| (Just(dtype), prop::collection::vec(bits(dtype), lengths.clone())))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_device_finds_what_the_scan_finds_in_any_bits((dtype, bits) in elements(0..300)) {
        check_agree(&from_bits(dtype, &bits));
    }

    #[test]
    fn however_a_tensor_lies_in_memory((dtype, bits) in elements(60..61), how in 0..6) {
        let t = from_bits(dtype, &bits).view([3, 4, 5]);
        check_agree(&match how {
            0 => t.permute([2, 0, 1]),
            1 => t.slice(1, 0, 4, 2),
            2 => t.select(2, 1).unsqueeze(2).expand([3, 4, 7], false),
            3 => t.unfold(2, 3, 1),
            4 => t.select(0, 0).select(0, 0).select(0, 0),
            _ => t.slice(0, 1, 3, 1),
        });
    }

    #[test]
    fn differences_of_any_bits((dtype, mut bits) in elements(2..200)) {
        let old = bits.split_off(bits.len() / 2);
        let now = from_bits(dtype, &bits[..old.len().min(bits.len())]);
        let before = from_bits(dtype, &old[..now.numel()]);
        let (now_at, before_at) = (tensor::describe(&now).unwrap(), tensor::describe(&before).unwrap());
        let held = Held::copy_of(&before_at).unwrap();
        let mut reductions = Reductions::default();
        let waiting = reductions.difference(&now_at, &held).unwrap();
        reductions.fetch().unwrap();
        // SAFETY: live tensors in host memory.
        let expected = unsafe { scan_difference(&now_at.view().unwrap(), dense_memory(&before_at.view().unwrap()).unwrap()) };
        assert_agree(dtype, &reductions.stats(&waiting).unwrap(), &expected);
    }

    #[test]
    fn what_rounding_leaves_of_a_step(
        dtype in prop::sample::select(vec![Dtype::F16, Dtype::Bf16]),
        before in prop::collection::vec(-2.0..2.0f32, 8),
        sizes in prop::collection::vec(-14..2i32, 8),
        special in 0..10usize,
    ) {
        let kind = if dtype == Dtype::F16 { Kind::Half } else { Kind::BFloat16 };
        let mut intended: Vec<f32> = sizes.iter().map(|&e| 1.3 * 2f32.powi(e)).collect();
        if let Some(one) = intended.get_mut(special) {
            *one = [f32::NAN, f32::INFINITY, 0.0, f32::NEG_INFINITY][special % 4];
        }
        let exact = Tensor::from_slice(&before);
        let before = exact.to_kind(kind);
        let wanted = Tensor::from_slice(&intended);
        let after = (before.to_kind(Kind::Float) + &wanted).to_kind(kind);
        let stepped = &exact + &wanted;
        let [before, after, wanted, exact, stepped] =
            [&before, &after, &wanted, &exact, &stepped].map(|t| tensor::describe(t).unwrap());
        let mut reductions = Reductions::default();
        let kept = Held::copy_of(&before).unwrap();
        let of_intended = reductions.fidelity(&kept, &after, &Held::itself(&wanted).unwrap()).unwrap();
        let in_weights = reductions.fidelity_in(dtype, &Held::copy_of(&exact).unwrap(), &stepped).unwrap();
        let unlike = reductions.unlike(&after, &stepped).unwrap();
        reductions.fetch().unwrap();

        let [before, after, exact, stepped] = [&before, &after, &exact, &stepped].map(|t| {
            // SAFETY: live tensors in host memory.
            unsafe { dense_memory(&t.view().unwrap()) }.unwrap()
        });
        let (found, unmoved) = reductions.fidelity_at(of_intended).unwrap();
        assert_same_fidelity(&found, &fidelity(dtype, before, after, &intended));
        assert_near(unmoved.unwrap(), unmoved_energy(dtype, before, after, &intended));
        let (found, none) = reductions.fidelity_at(in_weights).unwrap();
        assert_same_fidelity(&found, &fidelity_in(dtype, exact, stepped));
        assert_eq!(none, None);
        assert_eq!(reductions.one(unlike), Some(unlike_rounded(dtype, after, stepped) as f64));
    }
}

#[track_caller]
fn assert_near(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-13 * expected.abs(), "{found}, not {expected}");
}

#[track_caller]
fn assert_same_fidelity(found: &Fidelity, expected: &Fidelity) {
    assert_near(found.energy, expected.energy);
    let slack = 1e-13 * expected.energy + f64::MIN_POSITIVE;
    assert!((found.dot - expected.dot).abs() <= slack.max(1e-13 * expected.dot.abs()), "{found:?}, not {expected:?}");
    assert_eq!(&Fidelity { dot: expected.dot, energy: expected.energy, ..*found }, expected);
}

#[test]
fn every_pattern_of_the_16_bit_formats() {
    let all: Vec<u64> = (0..=u64::from(u16::MAX)).collect();
    check_agree(&from_bits(Dtype::F16, &all));
    check_agree(&from_bits(Dtype::Bf16, &all));
}

#[test]
fn the_tally_without_atomic_additions_is_the_same() {
    let all: Vec<u64> = (0..=u64::from(u16::MAX)).collect();
    let doubles: Vec<u64> =
        (0..2098).map(|i| if i < 52 { 1 << i } else { (i - 51) << 52 }).chain([0x7ff << 52]).collect();
    for t in [from_bits(Dtype::F16, &all), from_bits(Dtype::F64, &doubles)] {
        let (mut usual, mut without) = (Reductions::default(), Reductions::default());
        let described = tensor::describe(&t).unwrap();
        let a = usual.statistics(&described).unwrap();
        // SAFETY: a switch of the shim; other tests of this program pass either way.
        unsafe { ampd_count_without_atomics(1) };
        let b = without.statistics(&described).unwrap();
        // SAFETY: as above.
        unsafe { ampd_count_without_atomics(0) };
        usual.fetch().unwrap();
        without.fetch().unwrap();
        assert_eq!(usual.stats(&a), without.stats(&b));
    }
}

#[test]
fn a_tensor_of_several_rows_is_one_tensor() {
    let n = CHUNK as i64 + 1000;
    tch::manual_seed(1);
    let t = Tensor::randn([n], (Kind::Float, tch::Device::Cpu));
    let _ = t.narrow(0, n - 1, 1).fill_(f64::NAN);
    check_agree(&t);
    let found = on_device(&t);
    assert_eq!((found.count, found.nan), (n as u64, 1));
}

#[test]
fn squares_outside_f64_are_summed_on_a_device() {
    for t in
        [Tensor::from_slice(&[1e308f64; 9]), Tensor::from_slice(&[f64::from_bits(3); 4]), Tensor::from_slice(&[0f64])]
    {
        check_agree(&t);
    }
    assert_eq!(on_device(&Tensor::from_slice(&[1e308f64; 9])).rms(), Some(1e308));
}

#[test]
fn the_numbers_are_those_of_the_moment() {
    let mut t = Tensor::from_slice(&[1f32, 2.0]);
    let mut reductions = Reductions::default();
    let waiting = reductions.statistics(&tensor::describe(&t).unwrap()).unwrap();
    let number = reductions.number(&tensor::describe(&t.select(0, 1)).unwrap()).unwrap();
    let _ = t.fill_(100.0);
    reductions.fetch().unwrap();
    assert_eq!(reductions.stats(&waiting).unwrap().max_abs, 2.0);
    assert_eq!(reductions.one(number), Some(2.0));
    reductions.begin_step();
    assert_eq!(reductions.one(number), None, "a step's numbers are gone with it");
}

#[test]
fn a_reduction_leaves_autograd_and_random_numbers_as_they_were() {
    tch::manual_seed(3);
    let w = Tensor::ones([4], (Kind::Float, tch::Device::Cpu)).set_requires_grad(true);
    let y = &w * 2.0;
    let version = tensor::version(&y);
    let found = on_device(&y);
    assert_eq!((found.count, tensor::version(&y)), (4, version));
    y.sum(Kind::Float).backward();
    assert_eq!(Vec::<f32>::try_from(&w.grad()).unwrap(), [2.0; 4]);
    let drawn = Tensor::rand([1], (Kind::Float, tch::Device::Cpu));
    tch::manual_seed(3);
    assert_eq!(drawn, Tensor::rand([1], (Kind::Float, tch::Device::Cpu)));
}

/// What an element is to be changed by.
type Change<'a> = Box<dyn Fn(usize) -> f64 + 'a>;

#[test]
fn what_was_meant_is_added_up_as_on_the_host() {
    let before = Tensor::from_slice(&[1f32, -2.0, 0.5, 8.0]).to_kind(Kind::Half).view([2, 2]).tr();
    let a = Tensor::from_slice(&[1e-3f32, 2.0, -3e-4, 7.0]).view([2, 2]);
    let b = Tensor::from_slice(&[3f32, 0.7]);
    let [before, a, b] = [&before, &a, &b].map(|t| tensor::describe(t).unwrap());
    let read = |t: &RawTensor| {
        let mut out = Vec::new();
        // SAFETY: live tensors in host memory.
        assert!(unsafe { elements_like(&t.view().unwrap(), &before.view().unwrap(), &mut out) });
        out.into_iter().map(f64::from).collect::<Vec<f64>>()
    };
    let (w, x, y) = (read(&before), read(&a), read(&b));
    let cases: [(Intention<'_>, Change<'_>); 8] = [
        (Intention::Adds(&a, -0.1), Box::new(|i| -0.1 * x[i])),
        (Intention::AddsNumber(0.3), Box::new(|_| 0.3)),
        (Intention::AddsQuotient(&a, &b, -0.01), Box::new(|i| -0.01 * (x[i] / y[i]))),
        (Intention::AddsProduct(&a, &b, 0.02), Box::new(|i| 0.02 * (x[i] * y[i]))),
        (Intention::Scales(-1e-4), Box::new(|i| -1e-4 * w[i])),
        (Intention::Multiplies(&b), Box::new(|i| w[i] * (y[i] - 1.0))),
        (Intention::Divides(&b), Box::new(|i| w[i] * (1.0 / y[i] - 1.0))),
        (Intention::Towards(&a, 0.25), Box::new(|i| 0.25 * (x[i] - w[i]))),
    ];
    let mut sum = Held::zeros_like(&before).unwrap();
    let mut expected = [0f32; 4];
    for (intention, change) in cases {
        sum.add_intention(&before, &intention).unwrap();
        expected.iter_mut().enumerate().for_each(|(i, sum)| *sum += change(i) as f32);
    }
    let mut reductions = Reductions::default();
    let kept = Held::copy_of(&before).unwrap();
    let ticket = reductions.fidelity(&kept, &before, &sum).unwrap();
    reductions.fetch().unwrap();
    let energy: f64 = expected.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    assert_near(reductions.fidelity_at(ticket).unwrap().0.energy, energy);
}

#[test]
fn integers_that_a_format_does_not_hold_are_counted_alike() {
    let integers =
        [0i64, 1, -255, 257, 2048, 2049, 2050, -4097, 65504, 65505, 65536, 1 << 40, (1 << 40) + 1, i64::MIN, i64::MAX];
    let floats = [0f32, -3.0, 2049.0, 65536.0, 257.0, 1e9];
    for t in
        [Tensor::from_slice(&integers), Tensor::from_slice(&integers.map(|x| x as i32)), Tensor::from_slice(&floats)]
    {
        let described = tensor::describe(&t).unwrap();
        let mut reductions = Reductions::default();
        let ticket = reductions.integers(&described).unwrap();
        reductions.fetch().unwrap();
        let expected = Inexact::of(&described).unwrap();
        let expected = [Dtype::F16, Dtype::Bf16].map(|dtype| expected.within(dtype).unwrap() as f64);
        assert_eq!(reductions.numbers(ticket).unwrap(), [expected[0], expected[1], 0.0]);
    }
    let mut reductions = Reductions::default();
    let with_fraction = Tensor::from_slice(&[1f32, 0.5, f32::NAN]);
    let ticket = reductions.integers(&tensor::describe(&with_fraction).unwrap()).unwrap();
    reductions.fetch().unwrap();
    assert_eq!(reductions.numbers(ticket).unwrap()[2], 2.0);
}

#[test]
fn neighbours_that_became_one_number_are_counted_alike() {
    let exact: Vec<f32> = (2040..2070).map(|x| x as f32).collect();
    let t = Tensor::from_slice(&exact).to_kind(Kind::Half);
    let described = tensor::describe(&t).unwrap();
    let mut reductions = Reductions::default();
    let ticket = reductions.neighbours(&described, 2048.0).unwrap();
    reductions.fetch().unwrap();
    let beyond = repeated(&described, &by_scan(&t)).unwrap();
    assert_eq!(reductions.numbers(ticket).unwrap(), [0.0, 0.0, beyond as f64]);
}
