//! The complete scan and the summary against a plain read of the same memory, one thread: `cargo bench --bench scan`.
//!
//! Rounds are interleaved: in each, every contestant runs once over the same 64 MB buffer, so that a machine that slows down slows
//! all of them. The buffer is timed in slices of 1 MB, and the fastest time of each slice is added up: other work on the machine
//! interrupts few slices, but nearly every whole round. Printed are this time, the median round, and the speed as a share of the
//! plain read's.

use std::hint::black_box;
use std::time::{Duration, Instant};

use ampdoctor::scan::{Dtype, Kernel, TensorView, scan_difference, scan_with, summary_with};
use half::{bf16, f16};

const BYTES: usize = 64 << 20;
const SLICE: usize = 1 << 20;
const ROUNDS: usize = 25;

fn main() {
    // A word on the command line picks the tests whose title holds it; cargo adds `--bench`.
    let wanted = std::env::args().skip(1).find(|word| !word.starts_with('-')).unwrap_or_default();
    for data in [Data::Normal, Data::Gradients, Data::Subnormals] {
        for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::F64] {
            if format!("{} {data:?}", dtype.name()).contains(&wanted) {
                large(dtype, data);
            }
        }
    }
    if "small".contains(&wanted) {
        small();
    }
}

/// What the elements look like.
#[derive(Clone, Copy, Debug)]
enum Data {
    /// Standard normal.
    Normal,
    /// Half of them zero, the rest spread evenly over 25 octaves: 2^-24 to 2.
    Gradients,
    /// Evenly spread over 20 octaves, half of them below the smallest normal number of the format.
    Subnormals,
}

impl Data {
    fn element(self, dtype: Dtype, random: &mut Random) -> f64 {
        let sign = if random.next() & 1 == 0 { 1.0 } else { -1.0 };
        match self {
            Data::Normal => random.normal(),
            Data::Gradients if random.next() & 1 == 0 => 0.0,
            Data::Gradients => sign * (random.unit() * 25.0 - 24.0).exp2(),
            Data::Subnormals => sign * (random.unit() * 20.0 - 10.0 + f64::from(dtype.min_normal_exponent())).exp2(),
        }
    }

    fn fill(self, dtype: Dtype) -> Vec<u8> {
        let mut random = Random(7);
        let mut bytes = Vec::with_capacity(BYTES);
        while bytes.len() < BYTES {
            let x = self.element(dtype, &mut random);
            match dtype {
                Dtype::F16 => bytes.extend(f16::from_f64(x).to_ne_bytes()),
                Dtype::Bf16 => bytes.extend(bf16::from_f64(x).to_ne_bytes()),
                Dtype::F32 => bytes.extend((x as f32).to_ne_bytes()),
                Dtype::F64 => bytes.extend(x.to_ne_bytes()),
            }
        }
        bytes
    }
}

/// A generator of pseudo-random numbers (SplitMix64) that gives the same data on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In `(0, 1]`.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// What is timed, over a slice of the new and of the old values.
type Run = Box<dyn Fn(&[u8], &[u8])>;

fn large(dtype: Dtype, data: Data) {
    let new = data.fill(dtype);
    let old: Vec<u8> = new.iter().copied().cycle().skip(dtype.size()).take(BYTES).collect();
    let mut contestants: Vec<(String, usize, Run)> = vec![("plain read".into(), 1, Box::new(|new, _| read(new)))];
    for kernel in Kernel::avx2().into_iter().chain([Kernel::PORTABLE]) {
        let run = move |view: &TensorView<'_>, _: &[u8]| {
            // SAFETY: the view covers a slice.
            black_box(unsafe { scan_with(kernel, view) });
        };
        contestants.push((kernel.name().into(), 1, on_views(dtype, run)));
        let run = move |view: &TensorView<'_>, _: &[u8]| {
            // SAFETY: the view covers a slice.
            black_box(unsafe { summary_with(kernel, view) });
        };
        contestants.push((format!("{} summary", kernel.name()), 1, on_views(dtype, run)));
    }
    let difference = |view: &TensorView<'_>, old: &[u8]| {
        // SAFETY: the view covers a slice.
        black_box(unsafe { scan_difference(view, old) });
    };
    contestants.push(("difference".into(), 2, on_views(dtype, difference)));
    println!("\n{} {data:?}: 64 MB, {ROUNDS} interleaved rounds", dtype.name());
    report(&new, &old, &contestants);
}

fn on_views(dtype: Dtype, run: impl Fn(&TensorView<'_>, &[u8]) + 'static) -> Run {
    Box::new(move |new, old| {
        let sizes = [(new.len() / dtype.size()) as i64];
        run(&TensorView { data: new.as_ptr(), dtype, sizes: &sizes, strides: &[1] }, old);
    })
}

fn report(new: &[u8], old: &[u8], contestants: &[(String, usize, Run)]) {
    let mut times = vec![vec![Vec::new(); BYTES / SLICE]; contestants.len()];
    for _ in 0..ROUNDS {
        for ((.., run), times) in contestants.iter().zip(&mut times) {
            for ((new, old), times) in new.chunks(SLICE).zip(old.chunks(SLICE)).zip(times) {
                times.push(timed(&|| run(new, old)));
            }
        }
    }
    let mut plain = Duration::ZERO;
    for ((name, buffers, _), slices) in contestants.iter().zip(&times) {
        let fastest: Duration = slices.iter().filter_map(|slice| slice.iter().min()).sum();
        let mut rounds: Vec<Duration> =
            (0..ROUNDS).map(|round| slices.iter().map(|slice| slice[round]).sum()).collect();
        rounds.sort();
        if plain == Duration::ZERO {
            plain = fastest;
        }
        println!(
            "  {name:<16} fastest {:7.2} ms, median {:7.2} ms, {:5.1} GB/s, {:5.1} % of plain read",
            fastest.as_secs_f64() * 1e3,
            rounds[ROUNDS / 2].as_secs_f64() * 1e3,
            (buffers * BYTES) as f64 / fastest.as_secs_f64() / 1e9,
            100.0 * *buffers as f64 * plain.as_secs_f64() / fastest.as_secs_f64()
        );
    }
}

fn timed(run: &dyn Fn()) -> Duration {
    let start = Instant::now();
    run();
    start.elapsed()
}

/// The sum of the buffer as 64-bit integers: what reading alone costs.
fn read(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        #[target_feature(enable = "avx2")]
        fn fast(bytes: &[u8]) -> u64 {
            add(bytes)
        }
        // SAFETY: the processor has just been asked.
        black_box(unsafe { fast(bytes) });
        return;
    }
    black_box(add(bytes));
}

#[inline(always)]
fn add(bytes: &[u8]) -> u64 {
    bytes.as_chunks::<8>().0.iter().fold(0, |sum, &word| sum.wrapping_add(u64::from_ne_bytes(word)))
}

/// Small tensors, in the cache: the fixed cost of a scan.
fn small() {
    println!("\nsmall tensors, normal, in cache: nanoseconds a scan");
    for dtype in [Dtype::F16, Dtype::F32, Dtype::F64] {
        let bytes = Data::Normal.fill(dtype);
        for count in [1, 16, 64, 256, 1024, 4096] {
            let sizes = [count];
            let view = TensorView { data: bytes.as_ptr(), dtype, sizes: &sizes, strides: &[1] };
            let times = Kernel::avx2().into_iter().chain([Kernel::PORTABLE]).map(|kernel| {
                // SAFETY: the view covers the beginning of `bytes`.
                let scan = || (0..100).for_each(|_| drop(black_box(unsafe { scan_with(kernel, &view) })));
                // SAFETY: as above.
                let summary = || (0..100).for_each(|_| _ = black_box(unsafe { summary_with(kernel, &view) }));
                let [scan, summary] = [&scan as &dyn Fn(), &summary].map(|run| (0..200).map(|_| timed(run)).min());
                let nanoseconds = |fastest: Option<Duration>| fastest.unwrap_or_default().as_secs_f64() * 1e7;
                format!("{} {:6.0}, summary {:6.0}", kernel.name(), nanoseconds(scan), nanoseconds(summary))
            });
            println!("  {} {count:>5} elements: {}", dtype.name(), times.collect::<Vec<_>>().join("  "));
        }
    }
}
