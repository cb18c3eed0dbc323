//! Characters of a book, each to be foretold from those before it.

use anyhow::{Result, ensure};
use tch::Tensor;

use super::{Data, Set};

const TEXT: &str = include_str!("../../../../fixtures/data/genesis.txt");
/// Different characters in the book.
pub const VOCABULARY: i64 = 70;
/// The last tenth is held out.
const TRAIN_SHARE: f64 = 0.9;
/// Rows of the held-out text that are judged, evenly spaced: some thousand characters are enough, and products in FP16 are slow.
const HELD_OUT_ROWS: usize = 64;

pub(super) fn load(context: usize) -> Result<Data> {
    let characters = encode(TEXT)?;
    let (train, held_out) = characters.split_at((characters.len() as f64 * TRAIN_SHARE) as usize);
    let spacing = held_out.len() / HELD_OUT_ROWS;
    Ok(Data { train: rows(train, context, context)?, held_out: rows(held_out, context, spacing)? })
}

/// The rank of each character among all that occur.
fn encode(text: &str) -> Result<Vec<i64>> {
    let mut alphabet: Vec<char> = text.chars().collect();
    alphabet.sort_unstable();
    alphabet.dedup();
    ensure!(alphabet.len() as i64 == VOCABULARY, "the text has {} characters, not {VOCABULARY}", alphabet.len());
    Ok(text.chars().filter_map(|c| alphabet.binary_search(&c).ok()).map(|rank| rank as i64).collect())
}

/// A row of `context` characters every `spacing`, and the same row one character later.
fn rows(characters: &[i64], context: usize, spacing: usize) -> Result<Set> {
    let starts: Vec<usize> = (0..characters.len().saturating_sub(context)).step_by(spacing.max(1)).collect();
    let cut = |offset: usize| {
        let flat: Vec<i64> =
            starts.iter().flat_map(|at| &characters[at + offset..at + offset + context]).copied().collect();
        Tensor::from_slice(&flat).view([starts.len() as i64, context as i64])
    };
    Set::new(cut(0), cut(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_the_input_one_character_later() {
        let data = load(32).unwrap();
        for set in [&data.train, &data.held_out] {
            let (inputs, targets) = set.all();
            assert_eq!(inputs.narrow(1, 1, 31), targets.narrow(1, 0, 31));
            assert_eq!(inputs.size(), [set.examples() as i64, 32]);
        }
        assert_eq!((data.train.examples(), data.held_out.examples()), (5670, 64));
    }

    #[test]
    fn rows_of_the_training_text_follow_each_other() {
        let set = rows(&[1, 2, 3, 4, 5, 6], 2, 2).unwrap();
        assert_eq!(set.inputs, Tensor::from_slice(&[1i64, 2, 3, 4]).view([2, 2]));
        assert_eq!(set.targets, Tensor::from_slice(&[2i64, 3, 4, 5]).view([2, 2]));
        assert!(rows(&[1, 2], 2, 2).is_err(), "no row has a character after it");
    }

    #[test]
    fn every_character_has_a_rank_below_the_vocabulary() {
        let (train, held_out) = (load(32).unwrap().train, load(32).unwrap().held_out);
        for set in [train, held_out] {
            assert!(set.inputs.min().int64_value(&[]) >= 0 && set.inputs.max().int64_value(&[]) < VOCABULARY);
        }
    }
}
