//! The scan of a tensor, complete and without the histogram, against reading it and against the extremes that ATen finds.

use std::hint::black_box;

use ampdoctor::scan::{Dtype, TensorView, scan, summary};
use anyhow::Result;
use tch::{Device, Kind, Tensor};

use crate::clock::{Took, median, time};

/// The titles of the columns of [`large`].
pub(crate) const LARGE_TITLES: &[&str] = &[
    "dtype",
    "read, GB/s",
    "scan, GB/s",
    "scan/read, CPU",
    "fastest",
    "to reach",
    "summary, GB/s",
    "summary/read, CPU",
    "fastest",
    "to reach",
    "aminmax, GB/s",
    "scan/aminmax",
];

/// The titles of the columns of [`small`].
pub(crate) const SMALL_TITLES: &[&str] =
    &["dtype", "scan, µs", "ATen's three, µs", "times as fast, CPU", "fastest", "to reach"];

/// The dtypes that are measured.
pub(crate) const DTYPES: &[Dtype] = &[Dtype::F16, Dtype::Bf16, Dtype::F32];

const LARGE: usize = 64 << 20;
const SMALL: usize = 64 << 10;
/// A turn is short: more of them than of the steps.
const TURNS_A_ROUND: u32 = 5;
/// A small scan is over before a clock has moved.
const SCANS_A_TURN: usize = 50;
/// The share of a plain read's speed that the summary is to reach, in percent.
const SUMMARY_TO_REACH: u32 = 85;

/// 64 MB: the complete scan and the summary against a plain read of the same memory, and against ATen's `aminmax`, which finds the extremes
/// alone.
pub(crate) fn large(dtype: Dtype, rounds: u32) -> Result<Vec<String>> {
    let data = Data::normal(dtype, LARGE)?;
    let view = data.view();
    let words: Vec<u64> = data.bytes.as_chunks().0.iter().copied().map(u64::from_ne_bytes).collect();
    let mut took = [const { Vec::new() }; 4];
    for _ in 0..rounds * TURNS_A_ROUND {
        took[0].push(time_of(|| read(&words)));
        // SAFETY: the view is of the data's own bytes.
        took[1].push(time_of(|| unsafe { scan(&view) }));
        // SAFETY: as above.
        took[2].push(time_of(|| unsafe { summary(&view) }));
        took[3].push(time_of(|| data.tensor.aminmax(None, false)));
    }
    let (cpu, wall) = (cpu(&took), wall(&took));
    let [read, scan, summary, aminmax] = wall.map(|seconds| format!("{:.1}", LARGE as f64 / seconds / 1e9));
    let share = |of: [f64; 4], who: usize| format!("{:.0} %", 100.0 * of[0] / of[who]);
    let to_reach = |percent: u32| format!("{percent} %");
    Ok(vec![
        dtype.name().to_owned(),
        read,
        scan,
        share(cpu, 1),
        share(wall, 1),
        to_reach(if dtype == Dtype::F32 { 50 } else { 40 }),
        summary,
        share(cpu, 2),
        share(wall, 2),
        to_reach(SUMMARY_TO_REACH),
        aminmax,
        format!("{:.2}", wall[3] / wall[1]),
    ])
}

/// 64 kB, in the cache: the complete scan against ATen's `aminmax`, `norm` and `isfinite().all()` together.
pub(crate) fn small(dtype: Dtype, rounds: u32) -> Result<Vec<String>> {
    let data = Data::normal(dtype, SMALL)?;
    let view = data.view();
    let mut took = [const { Vec::new() }; 2];
    for _ in 0..rounds * TURNS_A_ROUND {
        // SAFETY: the view is of the data's own bytes.
        took[0].push(time(|| (0..SCANS_A_TURN).for_each(|_| drop(black_box(unsafe { scan(&view) })))));
        took[1].push(time(|| (0..SCANS_A_TURN).for_each(|_| by_aten(&data.tensor))));
    }
    let (cpu, wall) = (cpu(&took), wall(&took));
    let [ours, theirs] = wall.map(|seconds| format!("{:.1}", 1e6 * seconds / SCANS_A_TURN as f64));
    let times = |of: [f64; 2]| format!("{:.1}", of[1] / of[0]);
    Ok(vec![dtype.name().to_owned(), ours, theirs, times(cpu), times(wall), "3".to_owned()])
}

/// What there is of the scan in ATen, each a pass of its own and each brought to the host, as a loop would that looks at them.
fn by_aten(tensor: &Tensor) {
    let (least, most) = tensor.aminmax(None, false);
    black_box((least.double_value(&[]), most.double_value(&[])));
    black_box(tensor.norm().double_value(&[]));
    black_box(tensor.isfinite().all().int64_value(&[]));
}

/// Standard normal elements: a tensor, and a copy of its bytes.
struct Data {
    dtype: Dtype,
    tensor: Tensor,
    bytes: Vec<u8>,
    sizes: [i64; 1],
}

impl Data {
    fn normal(dtype: Dtype, bytes: usize) -> Result<Self> {
        let kind = match dtype {
            Dtype::F16 => Kind::Half,
            Dtype::Bf16 => Kind::BFloat16,
            Dtype::F32 => Kind::Float,
            Dtype::F64 => Kind::Double,
        };
        let sizes = [(bytes / dtype.size()) as i64];
        let tensor = Tensor::randn(sizes, (Kind::Float, Device::Cpu)).to_kind(kind);
        let mut copy = vec![0; bytes];
        tensor.f_copy_data_u8(&mut copy, tensor.numel())?;
        Ok(Self { dtype, tensor, bytes: copy, sizes })
    }

    fn view(&self) -> TensorView<'_> {
        TensorView { data: self.bytes.as_ptr(), dtype: self.dtype, sizes: &self.sizes, strides: &[1] }
    }
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
