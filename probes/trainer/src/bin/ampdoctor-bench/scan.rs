//! The complete scan of a tensor, against reading it and against the extremes that ATen finds.

use std::hint::black_box;

use ampdoctor::scan::{Element, scan_slice};
use anyhow::Result;
use half::{bf16, f16};
use tch::{Device, Kind, Tensor};

use crate::clock::{median, time};

/// What stands above the lines.
pub(crate) const HEADER: &str = "\nThe complete scan of 64 MB against a plain read of it and against ATen's aminmax (extremes alone); one thread\n\
    dtype   read GB/s   scan GB/s   scan/read CPU, fastest wall   aminmax GB/s   scan/aminmax   to reach";

const BYTES: usize = 64 << 20;
/// A turn is short: more of them than of the steps.
const TURNS_A_ROUND: u32 = 3;

/// The lines, one a dtype.
pub(crate) fn measure(rounds: u32) -> Result<Vec<String>> {
    tch::manual_seed(1);
    let turns = rounds * TURNS_A_ROUND;
    Ok(vec![
        dtype::<f16>("f16", Kind::Half, turns)?,
        dtype::<bf16>("bf16", Kind::BFloat16, turns)?,
        dtype::<f32>("f32", Kind::Float, turns)?,
    ])
}

fn dtype<T: Element + tch::kind::Element + Default>(name: &str, kind: Kind, turns: u32) -> Result<String> {
    let count = BYTES / size_of::<T>();
    let tensor = Tensor::randn([count as i64], (Kind::Float, Device::Cpu)).to_kind(kind);
    let mut elements = vec![T::default(); count];
    tensor.f_copy_data(&mut elements, count)?;
    let words: Vec<u64> = {
        let mut bytes = vec![0u8; BYTES];
        tensor.f_copy_data_u8(&mut bytes, count)?;
        bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default())).collect()
    };
    let mut took = [const { Vec::new() }; 3];
    for _ in 0..turns {
        took[0].push(time(|| drop(black_box(read(&words)))));
        took[1].push(time(|| drop(black_box(scan_slice(&elements)))));
        took[2].push(time(|| drop(black_box(tensor.aminmax(None, false)))));
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

/// Touches every word, and cannot be left out.
fn read(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, word| sum ^ word)
}
