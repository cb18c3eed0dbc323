//! The 8x8 digits: 1,797 images, split once and for all into training and test images, and the order of the batches.

use std::io::Read;

use anyhow::{Context, Result, ensure};
use flate2::read::GzDecoder;
use tch::Tensor;

use crate::random::SplitMix64;

const COMPRESSED: &[u8] = include_bytes!("../../../fixtures/data/digits.csv.gz");
const IMAGES: usize = 1797;
const PIXELS: usize = 64;
const BRIGHTEST: f32 = 16.0;
/// A fifth of the images is held out for the test.
const TEST_IMAGES: usize = 360;
/// The split is the same for every run, whatever its seed: accuracies are comparable.
const SPLIT_SEED: u64 = 8;

/// Images (`[n, 64]`, f32, 0 to 1) and their labels (`[n]`, i64, 0 to 9).
#[derive(Debug)]
pub struct Set {
    /// One image a row.
    pub images: Tensor,
    /// The digit of each image.
    pub labels: Tensor,
}

/// The digits, split.
#[derive(Debug)]
pub struct Digits {
    /// The 1,437 images to learn from.
    pub train: Set,
    /// The 360 images to judge by.
    pub test: Set,
}

impl Digits {
    /// Reads the images that are part of this program.
    pub fn load() -> Result<Self> {
        let mut text = String::new();
        GzDecoder::new(COMPRESSED).read_to_string(&mut text).context("the digits could not be unpacked")?;
        let mut rows = text.lines().map(parse_row).collect::<Result<Vec<_>>>()?;
        ensure!(rows.len() == IMAGES, "the digits have {} rows, not {IMAGES}", rows.len());
        SplitMix64::new(SPLIT_SEED).shuffle(&mut rows);
        let train = rows.split_off(TEST_IMAGES);
        Ok(Self { train: Set::from_rows(&train), test: Set::from_rows(&rows) })
    }
}

impl Set {
    fn from_rows(rows: &[(Vec<f32>, i64)]) -> Self {
        let pixels: Vec<f32> = rows.iter().flat_map(|(pixels, _)| pixels.iter().copied()).collect();
        let labels: Vec<i64> = rows.iter().map(|&(_, label)| label).collect();
        Self {
            images: Tensor::from_slice(&pixels).view([rows.len() as i64, PIXELS as i64]),
            labels: Tensor::from_slice(&labels),
        }
    }

    /// How many images there are.
    pub fn len(&self) -> usize {
        self.labels.size().first().map_or(0, |&rows| rows as usize)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The images and labels at these indices.
    pub fn batch(&self, indices: &[i64]) -> (Tensor, Tensor) {
        let indices = Tensor::from_slice(indices);
        (self.images.index_select(0, &indices), self.labels.index_select(0, &indices))
    }
}

fn parse_row(row: &str) -> Result<(Vec<f32>, i64)> {
    let mut fields = row.split(',').map(|field| field.trim().parse::<u8>()).collect::<Result<Vec<_>, _>>()?;
    ensure!(fields.len() == PIXELS + 1, "a row of the digits has {} fields, not {}", fields.len(), PIXELS + 1);
    let label = i64::from(fields[PIXELS]);
    fields.truncate(PIXELS);
    Ok((fields.into_iter().map(|value| f32::from(value) / BRIGHTEST).collect(), label))
}

/// Batches without end: every image once an epoch, in an order that only the seed decides; an incomplete last batch is left out.
#[derive(Debug)]
pub struct Batches {
    order: Vec<i64>,
    next: usize,
    batch: usize,
    random: SplitMix64,
}

impl Batches {
    /// Batches of `batch` out of `images`; at least one image, at most all of them.
    pub fn new(images: usize, batch: usize, seed: u64) -> Self {
        let order = (0..images as i64).collect();
        // Full, so that the first call shuffles.
        Self { order, next: images, batch: batch.clamp(1, images), random: SplitMix64::new(seed) }
    }

    /// The indices of the next batch.
    pub fn next_indices(&mut self) -> &[i64] {
        if self.next + self.batch > self.order.len() {
            self.random.shuffle(&mut self.order);
            self.next = 0;
        }
        let begin = self.next;
        self.next += self.batch;
        &self.order[begin..self.next]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_split_is_fixed_and_loses_no_image() {
        let digits = Digits::load().unwrap();
        assert_eq!((digits.train.len(), digits.test.len()), (1437, 360));
        let again = Digits::load().unwrap();
        assert_eq!(digits.test.images, again.test.images);
        assert_eq!(digits.train.labels, again.train.labels);
    }

    #[test]
    fn pixels_are_between_0_and_1_and_every_digit_is_tested() {
        let test = Digits::load().unwrap().test;
        assert_eq!(test.images.min().double_value(&[]), 0.0);
        assert_eq!(test.images.max().double_value(&[]), 1.0);
        for digit in 0..10 {
            assert!(test.labels.eq(digit).sum(tch::Kind::Int64).int64_value(&[]) >= 20, "few of digit {digit}");
        }
    }

    #[test]
    fn an_epoch_shows_each_image_at_most_once() {
        let mut batches = Batches::new(10, 3, 1);
        let mut seen: Vec<i64> = (0..3).flat_map(|_| batches.next_indices().to_vec()).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 9);
    }

    #[test]
    fn a_batch_larger_than_the_set_is_the_set() {
        let mut batches = Batches::new(4, 100, 1);
        assert_eq!(batches.next_indices().len(), 4);
        assert_eq!(batches.next_indices().len(), 4);
    }

    #[test]
    fn the_seed_decides_the_order() {
        let order = |seed| Batches::new(50, 50, seed).next_indices().to_vec();
        assert_eq!(order(3), order(3));
        assert_ne!(order(3), order(4));
    }
}
