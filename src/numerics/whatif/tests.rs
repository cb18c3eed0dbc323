//! The what-if of a histogram against the truth: the elements themselves, rounded one by one.

use half::f16;
use proptest::prelude::*;

use super::*;
use crate::numerics::{ScaleWindow, exponent_of};

/// What becomes of elements that are really rounded.
pub(super) struct Truth {
    pub harm: f64,
    pub fading_share: f64,
    pub lost_share: f64,
    pub overflow_share: f64,
}

impl Truth {
    /// Rounds each element times `2^shift`; shares are of the non-zero ones.
    pub fn of(values: &[f64], format: Format, shift: i32) -> Self {
        let (mut dot, mut full, mut kept) = (0.0, 0.0, 0.0);
        let (mut fading, mut lost, mut overflow) = (0.0, 0.0, 0.0);
        for x in values.iter().map(|x| x * f64::from(shift).exp2()) {
            let rounded = format.round(x);
            if !rounded.is_finite() {
                overflow += 1.0;
                continue;
            }
            lost += f64::from(u8::from(rounded == 0.0));
            fading += f64::from(u8::from(rounded != 0.0 && rounded.abs() < format.min_normal()));
            (dot, full, kept) = (dot + x * rounded, full + x * x, kept + rounded * rounded);
        }
        let n = values.len() as f64;
        // What is lost whole has no direction left.
        let harm = if kept > 0.0 { 1.0 - dot / (full * kept).sqrt() } else { 1.0 };
        Self { harm, fading_share: fading / n, lost_share: lost / n, overflow_share: overflow / n }
    }
}

/// Exponents, and the smallest and the largest magnitude.
pub(super) fn histogram(values: &[f64]) -> (ExponentHistogram, (f64, f64)) {
    let mut exponents = ExponentHistogram::default();
    values.iter().for_each(|&x| exponents.add(exponent_of(x), 1));
    let magnitudes = || values.iter().map(|x| x.abs());
    (exponents, (magnitudes().fold(f64::INFINITY, f64::min), magnitudes().fold(0.0, f64::max)))
}

fn outlook(values: &[f64], format: Format, shift: i32) -> Outlook {
    let (exponents, extremes) = histogram(values);
    Outlook::of(&exponents, extremes, Lost::default(), format, shift).expect("an element")
}

/// A number of a normal deviate and an even one in (0, 1).
type Shape = fn(f64, f64) -> f64;

/// Shapes that tensors have.
const SHAPES: [(&str, Shape); 6] = [
    ("normal", |z, _| z),
    ("even", |_, u| u - 0.5),
    ("narrow lognormal", |z, _| (0.7 * z).exp()),
    ("wide lognormal", |z, _| (2.5 * z).exp()),
    ("laplace", |z, u| -u.ln() * z.signum()),
    ("heavy tail", |z, u| z / u.sqrt()),
];

fn tensor(shape: Shape, n: usize, seed: u64) -> Vec<f64> {
    let mut state = seed;
    let mut even = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((z ^ (z >> 31)) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    };
    let mut one = || {
        let (a, b, u) = (even(), even(), even());
        shape((-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos(), u)
    };
    // As FP32 holds them: that is what is scanned.
    (0..n).map(|_| f64::from(one() as f32)).filter(|x| *x != 0.0).collect()
}

pub(super) const FORMATS: [Format; 4] = [Format::F16, Format::BF16, Format::E4M3, Format::E5M2];

/// Shifts that bring a tensor of magnitude 1 from above the end of a format to below its beginning.
pub(super) fn shifts(format: Format) -> impl Iterator<Item = i32> {
    let (low, high) = (format.min_subnormal_exponent() - 4, format.max_exponent() + 3);
    let step = ((high - low) / 24).max(1) as usize;
    (low..=high).step_by(step)
}

#[test]
fn fading_lost_and_overflowing_shares_are_those_counted_within_half_a_point() {
    for format in FORMATS {
        let mut worst: f64 = 0.0;
        for (seed, (name, shape)) in (1..).zip(SHAPES) {
            let values = tensor(shape, 40_000, seed);
            for shift in shifts(format) {
                let (truth, guess) = (Truth::of(&values, format, shift), outlook(&values, format, shift));
                for (what, counted, predicted) in [
                    ("fading", truth.fading_share, guess.fading.likely),
                    ("lost", truth.lost_share, guess.lost.likely),
                    ("overflow", truth.overflow_share, guess.overflow.likely),
                ] {
                    let error = (counted - predicted).abs();
                    worst = worst.max(error);
                    assert!(error < 0.005, "{} {name} 2^{shift} {what}: {predicted} for {counted}", format.name);
                }
            }
        }
        println!("{}: shares within {:.3} points", format.name, 100.0 * worst);
    }
}

#[test]
fn ehat_is_within_a_factor_of_two_of_the_measured_harm_at_the_median() {
    for format in FORMATS {
        let mut ratios = Vec::new();
        for (seed, (_, shape)) in (100..).zip(SHAPES) {
            let values = tensor(shape, 20_000, seed);
            for shift in shifts(format) {
                let truth = Truth::of(&values, format, shift);
                if truth.harm > 1e-6 && truth.overflow_share == 0.0 {
                    ratios.push((outlook(&values, format, shift).ehat / truth.harm).log2());
                }
            }
        }
        ratios.sort_by(f64::total_cmp);
        let quantile = |q: f64| ratios[(q * (ratios.len() - 1) as f64).round() as usize];
        println!(
            "{}: {} tensors, log2 ratio {:.2} / {:.2} / {:.2}",
            format.name,
            ratios.len(),
            quantile(0.1),
            quantile(0.5),
            quantile(0.9)
        );
        assert!(ratios.len() >= 20, "{}: {}", format.name, ratios.len());
        assert!(quantile(0.5).abs() < 1.0, "{}: {ratios:?}", format.name);
    }
}

#[test]
fn every_fp16_number_lies_in_the_zone_in_which_rounding_puts_it() {
    let all: Vec<f64> =
        (0..=u16::MAX).map(|bits| f16::from_bits(bits).to_f64()).filter(|x| x.is_finite() && *x != 0.0).collect();
    for format in FORMATS {
        let (truth, guess) = (Truth::of(&all, format, 0), outlook(&all, format, 0));
        // Magnitudes are spread evenly in each binade here and not over them: the law that shares out a binade with an edge does not hold.
        assert!((truth.fading_share - guess.fading.likely).abs() < 0.005, "{}", format.name);
        assert!((truth.lost_share - guess.lost.likely).abs() < 0.005, "{}", format.name);
        assert!((truth.overflow_share - guess.overflow.likely).abs() < 0.005, "{}", format.name);
    }
    // One by one: a single number is known to its binade, and no binade but those with an edge holds two zones.
    for &x in all.iter().filter(|x| **x > 0.0) {
        let guess = outlook(&[x], Format::F16, 0);
        assert_eq!(guess.fading.likely > 0.5, x < Format::F16.min_normal(), "{x:e}");
        assert_eq!((guess.lost.likely, guess.overflow.likely), (0.0, 0.0), "{x:e}");
    }
}

#[test]
fn what_fp16_held_says_as_much_of_lower_scales_as_the_tensor_itself() {
    for (seed, (name, shape)) in (7..).zip(SHAPES) {
        let exact = tensor(shape, 40_000, seed);
        let held: Vec<f64> =
            exact.iter().map(|x| f16::from_f64(*x).to_f64()).filter(|x| x.is_finite() && *x != 0.0).collect();
        let (exponents, extremes) = histogram(&held);
        let lost = Lost::estimate(&exponents);
        for shift in [-2, -6, -10, -14, -18] {
            let truth = Truth::of(&exact, Format::F16, shift);
            let guess = Outlook::of(&exponents, extremes, lost, Format::F16, shift).expect("an element");
            assert!((truth.fading_share - guess.fading.likely).abs() < 0.005, "{name} 2^{shift}");
        }
    }
}

#[test]
fn zeros_alone_have_no_outlook() {
    assert_eq!(Outlook::of(&ExponentHistogram::default(), (0.0, 0.0), Lost::default(), Format::F16, 3), None);
}

#[test]
fn a_tensor_of_one_number_is_known_exactly_whatever_edge_its_binade_has() {
    for format in FORMATS {
        let edges = [format.largest_lost(), format.min_normal(), format.max];
        let near = [0.9, 0.95, 1.0, 1.01, 1.05, 1.1, 1.5];
        for x in edges.iter().flat_map(|edge| near.map(|by| edge * by)) {
            let (truth, guess) = (Truth::of(&[x; 70], format, 0), outlook(&[x; 70], format, 0));
            let counted = [truth.fading_share, truth.lost_share, truth.overflow_share].map(Share::exact);
            assert_eq!([guess.fading, guess.lost, guess.overflow], counted, "{} {x:e}", format.name);
        }
    }
}

#[test]
fn elements_alike_on_one_side_of_an_edge_are_not_told_and_lie_between_the_bounds() {
    // Nearly all below 1.75, where E5M2 begins to round up to its smallest normal number, and some far away, so that the extremes tell nothing.
    let smallest = Format::E5M2.min_normal();
    for at in [1.6, 1.9] {
        let mut values = vec![at / 2.0 * smallest; 1000];
        values.extend([smallest * 0.1, smallest * 40.0]);
        let (truth, guess) = (Truth::of(&values, Format::E5M2, 0), outlook(&values, Format::E5M2, 0).fading);
        assert!(!guess.told && guess.low < 0.01 && guess.high > 0.99, "{guess:?}");
        assert!((guess.low..=guess.high).contains(&truth.fading_share), "{guess:?}");
    }
    // FP16's edge cuts off a thousandth: elements alike lie below it, but for a chance of one in a thousand.
    let guess = outlook(&[0.7 * Format::F16.min_normal(); 1000], Format::F16, 0);
    assert!(guess.fading.told && guess.fading.likely == 1.0, "{guess:?}");
}

#[test]
fn nothing_overflows_where_the_largest_element_does_not() {
    // 300 lies in E4M3's highest binade, below its end.
    assert_eq!(outlook(&[300.0; 50], Format::E4M3, 0).overflow.likely, 0.0);
    assert!(outlook(&[500.0; 50], Format::E4M3, 0).overflow.likely > 0.1);
    assert_eq!(outlook(&[500.0; 50], Format::E4M3, 1).overflow.likely, 1.0);
}

proptest! {
    #[test]
    fn shares_are_shares_and_fade_before_they_are_lost(
        counts in prop::collection::vec(0u64..10_000, 1..40), first in -40i32..30, shift in -60i32..60,
    ) {
        let exponents = ExponentHistogram::from_counts(first, counts);
        let max_abs = exponents.highest().map_or(0.0, |e| 1.99 * f64::from(e).exp2());
        for format in FORMATS {
            let Some(now) = Outlook::of(&exponents, (0.0, max_abs), Lost::default(), format, shift) else { continue };
            let higher = Outlook::of(&exponents, (0.0, max_abs), Lost::default(), format, shift + 1).expect("an element");
            for Share { low, likely, high, .. } in [now.fading, now.lost, now.overflow] {
                let rising = [-1e-12, low, likely, high, 1.0 + 1e-12];
                prop_assert!(rising.windows(2).all(|pair| pair[0] <= pair[1] + 1e-12), "{now:?}");
            }
            prop_assert!(higher.lost.likely <= now.lost.likely);
            prop_assert!(higher.overflow.likely >= now.overflow.likely - 1e-12);
        }
    }

    /// Inside the window of a format the tensor is well by the truth too, and well beyond its upper end it overflows.
    #[test]
    fn inside_its_window_a_tensor_loses_no_direction(seed in 0u64..1000, which in 0usize..6, format in 0usize..4) {
        let (values, format) = (tensor(SHAPES[which].1, 2_000, seed), FORMATS[format]);
        let (exponents, (_, max_abs)) = histogram(&values);
        let window = ScaleWindow::in_format(&exponents, max_abs, Lost::default(), 1.0, format).expect("an element");
        if !window.is_empty() {
            for shift in [window.low, window.high] {
                let truth = Truth::of(&values, format, shift);
                prop_assert_eq!(truth.overflow_share, 0.0);
                prop_assert!(truth.harm < 4.0 * format.tolerated_error(), "{} at 2^{shift}", truth.harm);
            }
        }
        prop_assert!(Truth::of(&values, format, window.high + 3).overflow_share > 0.0);
    }
}
