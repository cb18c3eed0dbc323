//! Ehat of real gradients: a small network that learns to foretell the next character, with its backward pass written out.

use super::tests::{FORMATS, Truth, histogram, shifts};
use crate::numerics::{Lost, Outlook};

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

#[test]
fn ehat_of_real_gradients_is_within_a_factor_of_two_of_their_measured_harm_at_the_median() {
    let tensors: Vec<Vec<f64>> = [gradients(true, 1), gradients(false, 2)].concat();
    assert_eq!(tensors.len(), 2 * 4 * 7);
    for format in FORMATS {
        let (mut ratios, mut errors) = (Vec::new(), Vec::new());
        for values in &tensors {
            let (exponents, max_abs) = histogram(values);
            let middle = -(max_abs.log2().round() as i32);
            for shift in shifts(format).map(|shift| shift + middle) {
                let truth = Truth::of(values, format, shift);
                let guess = Outlook::of(&exponents, max_abs, Lost::default(), format, shift).expect("an element");
                errors.push((truth.fading_share - guess.fading_share).abs());
                errors.push((truth.overflow_share - guess.overflow_share).abs());
                if truth.harm > 1e-6 && truth.overflow_share == 0.0 {
                    ratios.push((guess.ehat / truth.harm).log2());
                }
            }
        }
        ratios.sort_by(f64::total_cmp);
        let quantile = |q: f64| ratios[(q * (ratios.len() - 1) as f64).round() as usize];
        let close = errors.iter().filter(|error| **error <= 0.005).count() as f64 / errors.len() as f64;
        println!(
            "{}: {} real gradients, log2 of predicted over measured {:.2} / {:.2} / {:.2} (10, 50, 90 %); {:.1} % of {} shares within half a point",
            format.name,
            ratios.len(),
            quantile(0.1),
            quantile(0.5),
            quantile(0.9),
            100.0 * close,
            errors.len()
        );
        assert!(ratios.len() > 100, "{}: {}", format.name, ratios.len());
        assert!(quantile(0.5).abs() < 1.0, "{}: {}", format.name, quantile(0.5));
        // Of the logits of an untrained network nearly all elements are alike: where an edge of FP8 cuts their binade, on which side they lie no histogram
        // of exponents tells.
        let least = if format.fraction_bits < 4 { 0.9 } else { 1.0 };
        assert!(close >= least, "{}: {close}", format.name);
    }
}
