//! Every kernel against the naive twin.

use half::{bf16, f16};
use proptest::prelude::*;

use super::block::BLOCK;
use super::*;

const DTYPES: [Dtype; 4] = [Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::F64];

fn kernels() -> Vec<Kernel> {
    std::iter::once(Kernel::PORTABLE).chain(Kernel::avx2()).collect()
}

#[track_caller]
fn assert_agree(dtype: Dtype, found: &Stats, expected: &Stats) {
    assert_eq!(disagreement(dtype, found, expected), None);
}

#[track_caller]
fn check(view: &TensorView<'_>) {
    // SAFETY: the tests' views lie within their buffers.
    let expected = unsafe { naive::scan(view) };
    // SAFETY: as above.
    let found: Vec<Stats> = kernels().into_iter().map(|kernel| unsafe { scan_with(kernel, view) }).collect();
    assert_agree(view.dtype, &found[0], &expected);
    assert!(found.iter().all(|stats| stats == &found[0]), "the kernels differ: {found:?}");
    let complete = Summary::from(found[0].clone());
    for kernel in kernels() {
        // SAFETY: as above.
        assert_eq!(unsafe { summary_with(kernel, view) }, complete, "{}", kernel.name());
    }
}

#[track_caller]
fn check_bytes(dtype: Dtype, bytes: &[u8]) {
    check(&TensorView { data: bytes.as_ptr(), dtype, sizes: &[(bytes.len() / dtype.size()) as i64], strides: &[1] });
}

#[track_caller]
fn check_slice<T: Element>(elements: &[T]) {
    check_bytes(T::DTYPE, bytes_of(elements));
}

#[track_caller]
fn check_difference(dtype: Dtype, new: &[u8], old: &[u8]) {
    let expected = naive::scan_difference(dtype, new, old);
    for kernel in kernels() {
        let found = dense::difference(kernel, dtype, new, old);
        assert_agree(dtype, &found, &expected);
        assert_eq!(found, dense::difference(Kernel::PORTABLE, dtype, new, old));
    }
}

/// Bits of which many are special: zeros, subnormals, infinities, NaN, extremes, and any.
fn bits(dtype: Dtype) -> BoxedStrategy<u64> {
    let (exponent, mantissa) = match dtype {
        Dtype::F16 => (5, 10),
        Dtype::Bf16 => (8, 7),
        Dtype::F32 => (8, 23),
        Dtype::F64 => (11, 52),
    };
    let (fields, fractions) = (1u64 << exponent, 1u64 << mantissa);
    let field = prop_oneof![
        1 => Just(0),
        1 => Just(1),
        1 => Just(fields - 2),
        1 => Just(fields - 1),
        4 => fields / 2 - 8..fields / 2 + 8,
        2 => 0..fields
    ];
    let fraction = prop_oneof![2 => Just(0), 1 => Just(1), 1 => Just(fractions - 1), 4 => 0..fractions];
    (0..2u64, field, fraction)
        .prop_map(move |(sign, field, fraction)| (sign << exponent | field) << mantissa | fraction)
        .boxed()
}

fn tensor(lengths: std::ops::Range<usize>) -> impl Strategy<Value = (Dtype, Vec<u8>)> {
    (0..DTYPES.len(), lengths).prop_flat_map(|(dtype, length)| {
        let dtype = DTYPES[dtype];
        prop::collection::vec(bits(dtype), length).prop_map(move |bits| {
            (dtype, bits.iter().flat_map(|b| b.to_le_bytes().into_iter().take(dtype.size())).collect())
        })
    })
}

/// `bytes` at an address that is `offset` above a multiple of 8, in a buffer that ends with them.
fn shifted(bytes: &[u8], offset: usize) -> (Vec<u8>, usize) {
    let mut buffer = Vec::<u8>::with_capacity(bytes.len() + 16);
    let start = buffer.as_ptr().align_offset(8) % 8 + offset;
    buffer.resize(start, 0);
    buffer.extend_from_slice(bytes);
    (buffer, start)
}

proptest! {
    #[test]
    fn short_tensors_of_any_bits_at_any_alignment((dtype, bytes) in tensor(0..200), offset in 0..8usize) {
        let (buffer, start) = shifted(&bytes, offset);
        check_bytes(dtype, &buffer[start..]);
    }

    #[test]
    fn differences_of_any_bits((dtype, bytes) in tensor(0..300), offset in 0..8usize) {
        let half = bytes.len() / dtype.size() / 2 * dtype.size();
        let (new, start) = shifted(&bytes[..half], offset);
        check_difference(dtype, &new[start..], &bytes[half..2 * half]);
    }

    #[test]
    fn any_layout(
        (dtype, bytes) in tensor(1..60),
        dims in prop::collection::vec((0..5i64, -4..5i64), 0..4),
    ) {
        let count = (bytes.len() / dtype.size()) as i64;
        let (sizes, mut strides): (Vec<i64>, Vec<i64>) = dims.into_iter().unzip();
        let reach = |strides: &[i64], sign: i64| -> i64 {
            sizes.iter().zip(strides).map(|(&n, &s)| (n - 1).max(0) * (s * sign).max(0)).sum()
        };
        while reach(&strides, 1) + reach(&strides, -1) >= count {
            strides.iter_mut().for_each(|s| *s /= 2);
        }
        let first = reach(&strides, -1) as usize * dtype.size();
        check(&TensorView { data: bytes[first..].as_ptr(), dtype, sizes: &sizes, strides: &strides });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn blocks_join_without_a_seam((dtype, bytes) in tensor(300..700), length in BLOCK - 40..3 * BLOCK) {
        let repeated: Vec<u8> = bytes.iter().copied().cycle().take(length * dtype.size()).collect();
        check_bytes(dtype, &repeated);
    }
}

#[test]
fn all_half_precision_patterns_together() {
    let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    let brains: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    check_slice(&halves);
    check_slice(&brains);
    let stats = scan_slice(&halves);
    assert_eq!((stats.zeros, stats.pos_inf, stats.neg_inf, stats.nan), (2, 1, 1, 2 * 1023));
    assert_eq!((stats.min_abs, stats.max_abs), (2f64.powi(-24), 65504.0));
    assert_eq!(stats.exponents.count(-24), 2);
    assert_eq!(stats.exponents.count(-15), 2 * 512);
    assert_eq!(stats.exponents.count(15), 2 * 1024);
}

#[test]
fn all_half_precision_patterns_one_by_one_as_half_reads_them() {
    for bits in 0..=u16::MAX {
        for kernel in kernels() {
            let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
            let found = dense::scan(Scanner::complete(kernel, Dtype::F16), &bits.to_ne_bytes());
            assert_agree(Dtype::F16, &found, &naive::of(std::iter::once(half.to_f64())));
            let found = dense::scan(Scanner::complete(kernel, Dtype::Bf16), &bits.to_ne_bytes());
            assert_agree(Dtype::Bf16, &found, &naive::of(std::iter::once(brain.to_f64())));
        }
    }
}

#[test]
fn each_exponent_of_f32_and_f64_is_counted_at_its_place() {
    let singles: Vec<f32> =
        (0..32 * 256).map(|i| f32::from_bits((1u32 << (i % 32)).wrapping_add((i / 32) << 23))).collect();
    check_slice(&singles);
    let subnormals: Vec<f32> = (0..23).map(|i| f32::from_bits(1 << i)).collect();
    assert_eq!(scan_slice(&subnormals).exponents.parts(), (-149, &[1; 23][..]));
    let doubles: Vec<f64> = (-1074..1024).map(|e| Scaled { value: -1.0, exponent: e }.to_f64()).collect();
    check_slice(&doubles);
    assert_eq!(scan_slice(&doubles).exponents.parts(), (-1074, &[1; 2098][..]));
}

#[test]
fn squares_outside_f64_are_summed() {
    let large = vec![1e308f64; 3 * BLOCK + 1];
    check_slice(&large);
    let squares = scan_slice(&large).sum_squares.log2().unwrap();
    assert!((squares - (2.0 * 1e308f64.log2() + (large.len() as f64).log2())).abs() < 1e-9);
    let tiny = vec![f64::from_bits(5); 3 * BLOCK + 1];
    check_slice(&tiny);
    assert!((scan_slice(&tiny).rms().unwrap() / f64::from_bits(5) - 1.0).abs() < 1e-9);
    check_slice(&[1e308, f64::from_bits(1), -1e308, 0.0, f64::MIN_POSITIVE, 1.0]);
    let mixed: Vec<f64> = (0..4 * BLOCK).map(|i| if i < BLOCK { 1e-200 } else { 1e200 / i as f64 }).collect();
    check_slice(&mixed);
}

#[test]
fn one_special_element_is_found_wherever_it_lies() {
    for at in (0..2 * BLOCK).step_by(61).chain([0, BLOCK - 1, BLOCK, 2 * BLOCK - 1]) {
        for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN, 1e-45, -1e-39, -0.0, f32::MAX] {
            let mut elements = vec![0.75f32; 2 * BLOCK];
            elements[at] = special;
            check_slice(&elements);
        }
    }
}

#[test]
fn counters_hold_when_all_elements_are_alike() {
    for value in [0.0f32, 1.0, -3.5, 1e-42, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        check_slice(&vec![value; 3 * BLOCK - 7]);
        check_slice(&vec![f16::from_f32(value); 3 * BLOCK - 7]);
        check_slice(&vec![bf16::from_f32(value); 3 * BLOCK - 7]);
        check_slice(&vec![f64::from(value); 3 * BLOCK - 7]);
    }
}

#[test]
fn any_range_of_exponents_is_counted() {
    for octaves in [1, 14, 15, 16, 30, 31, 45, 60, 90, 104, 105, 106, 120, 200, 253] {
        for low in [1, 100.min(254 - octaves), 254 - octaves] {
            let elements: Vec<f32> = (0..5000u32)
                .map(|i| f32::from_bits((low + i.wrapping_mul(i) % (octaves + 1)) << 23 | (i % 2) << 31))
                .collect();
            check_slice(&elements);
            let with_zeros: Vec<f32> =
                elements.iter().enumerate().map(|(i, &x)| if i % 3 == 0 { 0.0 } else { x }).collect();
            check_slice(&with_zeros);
        }
    }
}

#[test]
fn a_stride_of_zero_counts_beyond_32_bits() {
    let element = [1.5f32, f32::NAN];
    let view =
        TensorView { data: element.as_ptr().cast(), dtype: Dtype::F32, sizes: &[1 << 34, 2, 3], strides: &[0, 1, 0] };
    // SAFETY: two elements are reached, and two there are.
    let stats = unsafe { scan(&view) };
    let times = 3u64 << 34;
    assert_eq!((stats.count, stats.nan, stats.exponents.count(0)), (2 * times, times, times));
    assert_eq!(stats.sum.to_f64(), 1.5 * times as f64);
    assert_eq!(stats.sum_squares.to_f64(), 2.25 * times as f64);
}

/// Five thousand million elements: a minute of a slow machine.
#[test]
#[ignore = "scans 5e9 elements"]
fn more_than_32_bits_of_elements_are_counted() {
    let row: Vec<f16> = (0..1 << 21).map(|i| f16::from_f32(if i % 2 == 0 { 1.0 } else { 0.0 })).collect();
    let view = TensorView { data: row.as_ptr().cast(), dtype: Dtype::F16, sizes: &[5000, 1 << 20], strides: &[2, 1] };
    // SAFETY: the last element reached is 2 * 4999 + 2^20 - 1, below 2^21.
    let stats = unsafe { scan(&view) };
    assert_eq!((stats.count, stats.zeros, stats.exponents.count(0)), (5000 << 20, 2500 << 20, 2500 << 20));
    assert_eq!(stats.sum.to_f64(), (2500u64 << 20) as f64);
}

#[test]
fn a_summary_says_whether_and_how_a_tensor_is_not_finite() {
    let mut elements = vec![f16::ONE; 2 * BLOCK];
    assert!(summary_slice(&elements).is_finite());
    (elements[3], elements[BLOCK], elements[2 * BLOCK - 1]) = (f16::NAN, f16::NEG_INFINITY, f16::NEG_ZERO);
    let summary = summary_slice(&elements);
    assert!(!summary.is_finite());
    assert_eq!((summary.nan, summary.pos_inf, summary.neg_inf, summary.zeros), (1, 0, 1, 1));
    assert_eq!(summary.sum_squares.to_f64(), (2 * BLOCK - 3) as f64);
}

#[test]
fn an_empty_tensor_has_statistics_of_nothing() {
    for dtype in DTYPES {
        for (sizes, strides) in [(&[0][..], &[1][..]), (&[3, 0, 2], &[2, 2, 1]), (&[0], &[0])] {
            // SAFETY: no element is reached.
            let stats = unsafe { scan(&TensorView { data: std::ptr::null(), dtype, sizes, strides }) };
            assert_eq!(stats, Stats::default());
            // SAFETY: as above.
            let summary = unsafe { summary(&TensorView { data: std::ptr::null(), dtype, sizes, strides }) };
            assert_eq!(summary, Summary::default());
            assert!(summary.is_finite());
        }
    }
}

#[test]
fn a_zero_dimensional_tensor_is_one_element() {
    let element = -2.0f64;
    check(&TensorView { data: (&raw const element).cast(), dtype: Dtype::F64, sizes: &[], strides: &[] });
}

#[test]
#[should_panic(expected = "dimension 1 of a tensor view has the negative size -2")]
fn a_negative_size_is_refused() {
    let view = TensorView { data: std::ptr::null(), dtype: Dtype::F32, sizes: &[3, -2], strides: &[1, 1] };
    // SAFETY: refused before any element is read.
    unsafe { scan(&view) };
}

#[test]
fn differences_follow_the_memory_of_permuted_tensors() {
    let new = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let old = [1.0f32, 2.5, 3.0, 4.0, 1.0, 6.0];
    let view = TensorView { data: new.as_ptr().cast(), dtype: Dtype::F32, sizes: &[3, 2], strides: &[1, 3] };
    let (start, length) = view.dense_bytes().unwrap();
    assert_eq!((start, length), (new.as_ptr().cast(), 24));
    // SAFETY: the view lies within `new`.
    let difference = unsafe { scan_difference(&view, bytes_of(&old)) };
    assert_eq!(difference, scan_slice(&[0.0f32, -0.5, 0.0, 0.0, 4.0, 0.0]));
}

#[test]
#[should_panic(expected = "does not fill one run of memory")]
fn a_difference_of_a_view_with_gaps_is_refused() {
    let new = [1.0f32; 6];
    let view = TensorView { data: new.as_ptr().cast(), dtype: Dtype::F32, sizes: &[3], strides: &[2] };
    // SAFETY: the view lies within `new`.
    unsafe { scan_difference(&view, bytes_of(&[0.0f32; 3])) };
}

#[test]
#[should_panic(expected = "another length than the tensor")]
fn a_difference_to_a_copy_of_another_length_is_refused() {
    let new = [1.0f32; 6];
    let view = TensorView { data: new.as_ptr().cast(), dtype: Dtype::F32, sizes: &[6], strides: &[1] };
    // SAFETY: the view lies within `new`.
    unsafe { scan_difference(&view, bytes_of(&[0.0f32; 5])) };
}

#[test]
fn half_precision_differences_are_not_rounded_to_half() {
    let (new, old) = ([f16::from_bits(0x3c01)], [f16::from_bits(0x3c00)]);
    let stats = dense::difference(Kernel::best(), Dtype::F16, bytes_of(&new), bytes_of(&old));
    assert_eq!(stats.sum.to_f64(), 2f64.powi(-10));
    let (new, old) = ([bf16::from_bits(0x0081)], [bf16::from_bits(0x0080)]);
    let stats = dense::difference(Kernel::best(), Dtype::Bf16, bytes_of(&new), bytes_of(&old));
    assert_eq!(stats.exponents.parts(), (-133, &[1][..]));
}
