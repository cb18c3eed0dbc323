//! Shares and Ehat of real gradients: a small network that learns to foretell the next character, with its backward pass written out.

use super::tests::{FORMATS, Truth, histogram, shifts};
use crate::numerics::{Format, Lost, Outlook, Share};

const CONTEXT: usize = 4;
const EMBEDDING: usize = 12;
const HIDDEN: usize = 48;
const BATCH: usize = 48;
const STEPS: usize = 40;
const RATE: f32 = 0.5;

/// A matrix, row by row.
#[derive(Clone)]
struct Matrix {
    columns: usize,
    values: Vec<f32>,
}

impl Matrix {
    fn zeros(rows: usize, columns: usize) -> Self {
        Self { columns, values: vec![0.0; rows * columns] }
    }

    /// Even numbers, as large as keep the variance of what passes.
    fn random(rows: usize, columns: usize, seed: &mut u64) -> Self {
        let bound = (3.0 / rows as f32).sqrt();
        let mut even = || {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (*seed >> 40) as f32 / (1u64 << 24) as f32
        };
        let values = (0..rows * columns).map(|_| (2.0 * even() - 1.0) * bound).collect();
        Self { columns, values }
    }

    fn rows(&self) -> usize {
        self.values.len() / self.columns
    }

    fn transposed(&self) -> Self {
        let mut out = Self::zeros(self.columns, self.rows());
        for (at, value) in self.values.iter().enumerate() {
            out.values[at % self.columns * self.rows() + at / self.columns] = *value;
        }
        out
    }

    fn times(&self, other: &Self) -> Self {
        let mut out = Self::zeros(self.rows(), other.columns);
        for (row, into) in self.values.chunks(self.columns).zip(out.values.chunks_mut(other.columns)) {
            for (factor, of) in row.iter().zip(other.values.chunks(other.columns)) {
                into.iter_mut().zip(of).for_each(|(sum, x)| *sum += factor * x);
            }
        }
        out
    }

    fn step(&mut self, gradient: &Self) {
        self.values.iter_mut().zip(&gradient.values).for_each(|(w, g)| *w -= RATE * g);
    }
}

/// The gradients of a training run: of logits, hidden units before and after their function, embeddings and all weights.
fn gradients(relu: bool, seed: u64) -> Vec<Vec<f64>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/data/genesis.txt");
    let text: Vec<usize> = std::fs::read(path).expect("the text").iter().map(|b| usize::from(b % 64)).collect();
    let mut state = seed;
    let (mut table, mut first, mut last) = (
        Matrix::random(64, EMBEDDING, &mut state),
        Matrix::random(CONTEXT * EMBEDDING, HIDDEN, &mut state),
        Matrix::random(HIDDEN, 64, &mut state),
    );
    let mut found = Vec::new();
    for step in 0..STEPS {
        let starts: Vec<usize> = (0..BATCH).map(|i| (step * BATCH + i) * 7 % (text.len() - CONTEXT - 1)).collect();
        let mut inputs = Matrix::zeros(BATCH, CONTEXT * EMBEDDING);
        for (row, &start) in inputs.values.chunks_mut(CONTEXT * EMBEDDING).zip(&starts) {
            for (at, part) in row.chunks_mut(EMBEDDING).enumerate() {
                part.copy_from_slice(&table.values[text[start + at] * EMBEDDING..][..EMBEDDING]);
            }
        }
        let mut hidden = inputs.times(&first);
        hidden.values.iter_mut().for_each(|x| *x = if relu { x.max(0.0) } else { x.tanh() });
        let mut logits = hidden.times(&last);
        for (row, &start) in logits.values.chunks_mut(64).zip(&starts) {
            let largest = row.iter().copied().fold(f32::MIN, f32::max);
            let sum: f32 = row.iter().map(|x| (x - largest).exp()).sum();
            row.iter_mut().for_each(|x| *x = (*x - largest).exp() / sum / BATCH as f32);
            row[text[start + CONTEXT]] -= 1.0 / BATCH as f32;
        }
        let of_hidden = logits.times(&last.transposed());
        let mut before = of_hidden.clone();
        for (gradient, h) in before.values.iter_mut().zip(&hidden.values) {
            *gradient *= if relu { f32::from(u8::from(*h > 0.0)) } else { 1.0 - h * h };
        }
        let (of_first, of_last) = (inputs.transposed().times(&before), hidden.transposed().times(&logits));
        let of_inputs = before.times(&first.transposed());
        let mut of_table = Matrix::zeros(64, EMBEDDING);
        for (row, &start) in of_inputs.values.chunks(CONTEXT * EMBEDDING).zip(&starts) {
            for (at, part) in row.chunks(EMBEDDING).enumerate() {
                let into = &mut of_table.values[text[start + at] * EMBEDDING..][..EMBEDDING];
                into.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
            }
        }
        if step % 13 == 0 {
            let all = [&logits, &of_hidden, &before, &of_inputs, &of_first, &of_last, &of_table];
            found.extend(all.map(|m| m.values.iter().map(|x| f64::from(*x)).filter(|x| *x != 0.0).collect()));
        }
        table.step(&of_table);
        first.step(&of_first);
        last.step(&of_last);
    }
    found
}

/// How far what is said of shares lies from what was counted.
#[derive(Default)]
struct Errors {
    told: Vec<f64>,
    untold: Vec<f64>,
    outside: usize,
}

impl Errors {
    fn add(&mut self, counted: f64, share: Share) {
        /// What adding shares up costs.
        const ROUNDING: f64 = 1e-9;
        let error = (counted - share.likely).abs();
        if share.told { &mut self.told } else { &mut self.untold }.push(error);
        self.outside += usize::from(!(share.low - ROUNDING..=share.high + ROUNDING).contains(&counted));
    }

    fn quantile(of: &mut [f64], q: f64) -> f64 {
        of.sort_by(f64::total_cmp);
        of.get((q * (of.len().max(1) - 1) as f64).round() as usize).copied().unwrap_or(0.0)
    }

    /// Median, 97th percentile and worst, in points.
    fn text(of: &mut [f64]) -> String {
        let [median, most, worst] = [0.5, 0.97, 1.0].map(|q| 100.0 * Self::quantile(of, q));
        format!("{} within {median:.2} / {most:.2} / {worst:.2} points (50, 97, 100 %)", of.len())
    }
}

fn tensors() -> Vec<Vec<f64>> {
    [gradients(true, 1), gradients(false, 2)].concat()
}

/// Each tensor at each shift in a format, with what became of it.
fn cases(tensors: &[Vec<f64>], format: Format) -> impl Iterator<Item = (Truth, Outlook)> {
    tensors.iter().flat_map(move |values| {
        let (exponents, extremes) = histogram(values);
        let middle = -(extremes.1.log2().round() as i32);
        shifts(format).map(move |shift| shift + middle).map(move |shift| {
            let guess = Outlook::of(&exponents, extremes, Lost::default(), format, shift).expect("an element");
            (Truth::of(values, format, shift), guess)
        })
    })
}

#[test]
fn shares_of_real_gradients_that_are_told_are_right_to_half_a_point_and_the_others_lie_within_their_bounds() {
    let tensors = tensors();
    assert_eq!(tensors.len(), 2 * 4 * 7);
    for format in FORMATS {
        let mut errors = Errors::default();
        for (truth, guess) in cases(&tensors, format) {
            errors.add(truth.fading_share, guess.fading);
            errors.add(truth.lost_share, guess.lost);
            errors.add(truth.overflow_share, guess.overflow);
        }
        let Errors { mut told, mut untold, outside } = errors;
        println!("{}: told {}; not told {}", format.name, Errors::text(&mut told), Errors::text(&mut untold));
        assert_eq!(outside, 0, "{}", format.name);
        assert!(Errors::quantile(&mut told, 1.0) <= Share::TOLERANCE, "{}", format.name);
        // A claim that is hardly ever made is worth nothing.
        let all = told.len() + untold.len();
        let least = if format.fraction_bits < 4 { 0.85 } else { 0.98 };
        assert!(told.len() as f64 >= least * all as f64, "{}: {} of {all}", format.name, told.len());
    }
}

#[test]
fn ehat_of_real_gradients_is_within_a_factor_of_two_of_their_measured_harm_at_the_median() {
    let tensors = tensors();
    for format in FORMATS {
        let harmed = cases(&tensors, format).filter(|(truth, _)| truth.harm > 1e-6 && truth.overflow_share == 0.0);
        let mut ratios: Vec<f64> = harmed.map(|(truth, guess)| (guess.ehat / truth.harm).log2()).collect();
        let [low, median, high] = [0.1, 0.5, 0.9].map(|q| Errors::quantile(&mut ratios, q));
        println!(
            "{}: {} real gradients, log2 of predicted over measured {low:.2} / {median:.2} / {high:.2} (10, 50, 90 %)",
            format.name,
            ratios.len(),
        );
        assert!(ratios.len() > 100, "{}: {}", format.name, ratios.len());
        assert!(median.abs() < 1.0, "{}: {median}", format.name);
    }
}

/// The gradient of the logits of an untrained network: nearly all elements are alike, and on which side of an edge they lie no histogram of exponents tells. The
/// law alone was 70 points off.
#[test]
fn where_nearly_all_elements_of_a_real_gradient_are_alike_on_an_edge_bounds_are_given_and_no_number() {
    let logits = &tensors()[..1];
    let worst = cases(logits, Format::E5M2).max_by(|a, b| {
        let off = |(truth, guess): &(Truth, Outlook)| (truth.fading_share - guess.fading.likely).abs();
        off(a).total_cmp(&off(b))
    });
    let (truth, guess) = worst.expect("a case");
    assert!((truth.fading_share - guess.fading.likely).abs() > 0.4, "{guess:?}");
    assert!(!guess.fading.told && guess.fading.high - guess.fading.low > 0.5, "{guess:?}");
    assert!((guess.fading.low..=guess.fading.high).contains(&truth.fading_share), "{guess:?}");
}
