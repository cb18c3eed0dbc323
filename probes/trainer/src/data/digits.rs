//! The 8x8 digits: 1,797 images, a fifth of them held out.

use std::io::Read;

use anyhow::{Context, Result, ensure};
use flate2::read::GzDecoder;
use tch::Tensor;

use super::{Data, Set};
use crate::random::SplitMix64;

const COMPRESSED: &[u8] = include_bytes!("../../../../fixtures/data/digits.csv.gz");
const IMAGES: usize = 1797;
const PIXELS: usize = 64;
const BRIGHTEST: f32 = 16.0;
const HELD_OUT: usize = 360;
/// The split is the same for every run, whatever its seed: accuracies are comparable.
const SPLIT_SEED: u64 = 8;

pub(super) fn load() -> Result<Data> {
    let mut text = String::new();
    GzDecoder::new(COMPRESSED).read_to_string(&mut text).context("the digits could not be unpacked")?;
    let mut rows = text.lines().map(parse_row).collect::<Result<Vec<_>>>()?;
    ensure!(rows.len() == IMAGES, "the digits have {} rows, not {IMAGES}", rows.len());
    SplitMix64::new(SPLIT_SEED).shuffle(&mut rows);
    let train = rows.split_off(HELD_OUT);
    Ok(Data { train: set(&train)?, held_out: set(&rows)? })
}

fn set(rows: &[(Vec<f32>, i64)]) -> Result<Set> {
    let pixels: Vec<f32> = rows.iter().flat_map(|(pixels, _)| pixels.iter().copied()).collect();
    let labels: Vec<i64> = rows.iter().map(|&(_, label)| label).collect();
    Set::new(Tensor::from_slice(&pixels).view([rows.len() as i64, PIXELS as i64]), Tensor::from_slice(&labels))
}

fn parse_row(row: &str) -> Result<(Vec<f32>, i64)> {
    let mut fields = row.split(',').map(|field| field.trim().parse::<u8>()).collect::<Result<Vec<_>, _>>()?;
    ensure!(fields.len() == PIXELS + 1, "a row of the digits has {} fields, not {}", fields.len(), PIXELS + 1);
    let label = i64::from(fields[PIXELS]);
    fields.truncate(PIXELS);
    Ok((fields.into_iter().map(|value| f32::from(value) / BRIGHTEST).collect(), label))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_split_is_fixed_and_loses_no_image() {
        let (digits, again) = (load().unwrap(), load().unwrap());
        assert_eq!((digits.train.examples(), digits.held_out.examples()), (1437, 360));
        assert_eq!(digits.held_out.inputs, again.held_out.inputs);
        assert_eq!(digits.train.targets, again.train.targets);
    }

    #[test]
    fn pixels_are_between_0_and_1_and_every_digit_is_held_out() {
        let data = load().unwrap();
        let (images, labels) = data.held_out.all();
        assert_eq!(images.min().double_value(&[]), 0.0);
        assert_eq!(images.max().double_value(&[]), 1.0);
        for digit in 0..10 {
            assert!(labels.eq(digit).sum(tch::Kind::Int64).int64_value(&[]) >= 20, "few of digit {digit}");
        }
    }
}
