//! The complete scan of a tensor, against reading it and against the extremes that ATen finds.

use std::hint::black_box;

use ampdoctor::scan::{Element, scan_slice};
use anyhow::Result;
use half::{bf16, f16};
use tch::{Device, Kind, Tensor};

use crate::clock::{Took, median, time};

/// The titles of the columns of [`large`].
pub(crate) const LARGE_TITLES: &[&str] = &[
    "dtype",
    "read, GB/s",
    "scan, GB/s",
    "scan/read, CPU",
    "scan/read, fastest",
    "to reach",
    "aminmax, GB/s",
    "scan/aminmax",
];

/// The titles of the columns of [`small`].
pub(crate) const SMALL_TITLES: &[&str] =
    &["dtype", "scan, µs", "ATen's three, µs", "times as fast, CPU", "fastest", "to reach"];

const LARGE: usize = 64 << 20;
const SMALL: usize = 64 << 10;
/// A turn is short: more of them than of the steps.
const TURNS_A_ROUND: u32 = 5;
/// A small scan is over before a clock has moved.
const SCANS_A_TURN: usize = 50;

/// 64 MB: the complete scan against a plain read of the same memory, and against ATen's `aminmax`, which finds the extremes alone.
pub(crate) fn large(rounds: u32) -> Result<Vec<Vec<String>>> {
    tch::manual_seed(1);
    let turns = rounds * TURNS_A_ROUND;
    Ok(vec![
        large_row("f16", Kind::Half, 40, turns, f16::from_ne_bytes)?,
        large_row("bf16", Kind::BFloat16, 40, turns, bf16::from_ne_bytes)?,
        large_row("f32", Kind::Float, 50, turns, f32::from_ne_bytes)?,
    ])
}

/// 64 kB, in the cache: the complete scan against ATen's `aminmax`, `norm` and `isfinite().all()` together.
pub(crate) fn small(rounds: u32) -> Result<Vec<Vec<String>>> {
    tch::manual_seed(1);
    let turns = rounds * TURNS_A_ROUND;
    Ok(vec![
        small_row("f16", Kind::Half, turns, f16::from_ne_bytes)?,
        small_row("bf16", Kind::BFloat16, turns, bf16::from_ne_bytes)?,
        small_row("f32", Kind::Float, turns, f32::from_ne_bytes)?,
    ])
}

fn small_row<T: Element, const SIZE: usize>(
    name: &str,
    kind: Kind,
    turns: u32,
    element: fn([u8; SIZE]) -> T,
) -> Result<Vec<String>> {
    let (tensor, bytes) = normal::<SIZE>(kind, SMALL)?;
    let elements: Vec<T> = bytes.as_chunks().0.iter().copied().map(element).collect();
    let mut took = [const { Vec::new() }; 2];
    for _ in 0..turns {
        took[0].push(time(|| (0..SCANS_A_TURN).for_each(|_| drop(black_box(scan_slice(&elements))))));
        took[1].push(time(|| (0..SCANS_A_TURN).for_each(|_| by_aten(&tensor))));
    }
    let (cpu, wall) = (cpu(&took), wall(&took));
    let micros = wall.map(|seconds| format!("{:.1}", 1e6 * seconds / SCANS_A_TURN as f64));
    let [ours, theirs] = micros;
    let times = |of: [f64; 2]| format!("{:.1}", of[1] / of[0]);
    Ok(vec![name.to_owned(), ours, theirs, times(cpu), times(wall), "3".to_owned()])
}

/// What there is of the scan in ATen, each a pass of its own and each brought to the host, as a loop would that looks at them.
fn by_aten(tensor: &Tensor) {
    let (least, most) = tensor.aminmax(None, false);
    black_box((least.double_value(&[]), most.double_value(&[])));
    black_box(tensor.norm().double_value(&[]));
    black_box(tensor.isfinite().all().int64_value(&[]));
}

fn large_row<T: Element, const SIZE: usize>(
    name: &str,
    kind: Kind,
    to_reach: u32,
    turns: u32,
    element: fn([u8; SIZE]) -> T,
) -> Result<Vec<String>> {
    let (tensor, bytes) = normal::<SIZE>(kind, LARGE)?;
    let words: Vec<u64> = bytes.as_chunks().0.iter().copied().map(u64::from_ne_bytes).collect();
    let elements: Vec<T> = bytes.as_chunks().0.iter().copied().map(element).collect();
    let mut took = [const { Vec::new() }; 3];
    for _ in 0..turns {
        took[0].push(time_of(|| read(&words)));
        took[1].push(time_of(|| scan_slice(&elements)));
        took[2].push(time_of(|| tensor.aminmax(None, false)));
    }
    let (cpu, wall) = (cpu(&took), wall(&took));
    let speed = wall.map(|seconds| format!("{:.1}", LARGE as f64 / seconds / 1e9));
    let [read, scan, aminmax] = speed;
    let share = |of: [f64; 3]| format!("{:.0} %", 100.0 * of[0] / of[1]);
    let target = format!("{to_reach} %");
    Ok(vec![name.to_owned(), read, scan, share(cpu), share(wall), target, aminmax, format!("{:.2}", wall[2] / wall[1])])
}

/// Standard normal elements, and their bytes.
fn normal<const SIZE: usize>(kind: Kind, bytes: usize) -> Result<(Tensor, Vec<u8>)> {
    let tensor = Tensor::randn([(bytes / SIZE) as i64], (Kind::Float, Device::Cpu)).to_kind(kind);
    let mut copy = vec![0; bytes];
    tensor.f_copy_data_u8(&mut copy, tensor.numel())?;
    Ok((tensor, copy))
}

/// Processor seconds of each contestant, the median turn.
fn cpu<const N: usize>(took: &[Vec<Took>; N]) -> [f64; N] {
    took.each_ref().map(|turns| median(turns.iter().map(|turn| turn.cpu).collect()))
}

/// Wall seconds of each contestant, the fastest turn.
fn wall<const N: usize>(took: &[Vec<Took>; N]) -> [f64; N] {
    took.each_ref().map(|turns| turns.iter().map(|turn| turn.wall).fold(f64::INFINITY, f64::min))
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
