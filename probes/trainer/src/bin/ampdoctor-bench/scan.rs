//! The complete scan of a tensor, against reading it and against the extremes that ATen finds.

use std::hint::black_box;

use ampdoctor::scan::{Element, scan_slice};
use anyhow::Result;
use half::{bf16, f16};
use tch::{Device, Kind, Tensor};

use crate::clock::{Took, median, time};

/// What stands above the lines.
pub(crate) const HEADER: &str = "\nThe complete scan of 64 MB against a plain read of it and against ATen's aminmax (extremes alone); one thread\n\
    dtype   read GB/s   scan GB/s   scan/read CPU, fastest wall   aminmax GB/s   scan/aminmax   to reach";

const BYTES: usize = 64 << 20;
/// A turn is short: more of them than of the steps.
const TURNS_A_ROUND: u32 = 5;

/// The lines, one a dtype.
pub(crate) fn measure(rounds: u32) -> Result<Vec<String>> {
    tch::manual_seed(1);
    let turns = rounds * TURNS_A_ROUND;
    Ok(vec![
        dtype("f16", Kind::Half, turns, f16::from_ne_bytes)?,
        dtype("bf16", Kind::BFloat16, turns, bf16::from_ne_bytes)?,
        dtype("f32", Kind::Float, turns, f32::from_ne_bytes)?,
    ])
}

fn dtype<T: Element, const SIZE: usize>(
    name: &str,
    kind: Kind,
    turns: u32,
    element: fn([u8; SIZE]) -> T,
) -> Result<String> {
    let tensor = Tensor::randn([(BYTES / SIZE) as i64], (Kind::Float, Device::Cpu)).to_kind(kind);
    let mut bytes = vec![0; BYTES];
    tensor.f_copy_data_u8(&mut bytes, tensor.numel())?;
    let words: Vec<u64> = bytes.as_chunks().0.iter().copied().map(u64::from_ne_bytes).collect();
    let elements: Vec<T> = bytes.as_chunks().0.iter().copied().map(element).collect();
    let mut took = [const { Vec::new() }; 3];
    for _ in 0..turns {
        took[0].push(time_of(|| read(&words)));
        took[1].push(time_of(|| scan_slice(&elements)));
        took[2].push(time_of(|| tensor.aminmax(None, false)));
    }
    let cpu = took.each_ref().map(|turns| median(turns.iter().map(|turn| turn.cpu).collect()));
    let wall = took.each_ref().map(|turns| turns.iter().map(|turn| turn.wall).fold(f64::INFINITY, f64::min));
    let speed = wall.map(|seconds| BYTES as f64 / seconds / 1e9);
    Ok(format!(
        "{name:5}   {:9.1}   {:9.1}   {:11.0} % {:11.0} %   {:12.1}   {:10.2} x   at least 35 %",
        speed[0],
        speed[1],
        100.0 * cpu[0] / cpu[1],
        100.0 * wall[0] / wall[1],
        speed[2],
        wall[2] / wall[1],
    ))
}

/// How long `work` takes; its result counts as used.
fn time_of<R>(work: impl FnOnce() -> R) -> Took {
    time(|| {
        black_box(work());
    })
}

/// Touches every word, and cannot be left out.
fn read(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, word| sum ^ word)
}
