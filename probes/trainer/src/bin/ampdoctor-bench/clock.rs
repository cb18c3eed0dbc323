//! Time as it is measured here: of the wall, and of the processor over all threads of this process.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Time that something took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Took {
    /// Seconds that passed.
    pub(crate) wall: f64,
    /// Seconds of processor time, of every thread: the recorder's writer is paid for too.
    pub(crate) cpu: f64,
}

/// How long `work` takes.
pub(crate) fn time(work: impl FnOnce()) -> Took {
    let (cpu, wall) = (cpu(), Instant::now());
    work();
    Took { wall: wall.elapsed().as_secs_f64(), cpu: self::cpu() - cpu }
}

/// Seconds of processor time that all threads of this process have taken.
pub(crate) fn cpu() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32).as_secs_f64()
}

/// The middle value, the mean of both middle ones for an even count; NaN of nothing.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

/// Between which two of the values the median of what they are drawn from lies, at least 19 times in 20, whatever their distribution: as many of them lie below
/// it as heads fall when a fair coin is tossed for each (normal approximation of the binomial distribution). NaN of nothing.
pub(crate) fn median_interval(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    let rank = (0.5 * (count - 1.96 * count.sqrt())).max(1.0) as usize;
    match values.len() {
        0 => (f64::NAN, f64::NAN),
        n => (values[rank - 1], values[n - rank]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_median_narrows_with_the_root_of_the_count() {
        let interval = |count: u32| median_interval((0..count).map(f64::from).collect());
        // Tables of the binomial distribution: the 40th to the 61st of 100 hold it 96.5 times in 100, the 7th to the 19th of 25 98.6 times.
        assert_eq!(interval(100), (39.0, 60.0));
        assert_eq!(interval(25), (6.0, 18.0));
        assert_eq!(interval(1), (0.0, 0.0));
        assert!(interval(0).0.is_nan() && interval(0).1.is_nan());
    }

    #[test]
    fn the_median_of_an_even_count_lies_between() {
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert!(median(vec![]).is_nan());
    }

    #[test]
    fn sleeping_takes_time_and_no_processor() {
        let took = time(|| std::thread::sleep(Duration::from_millis(50)));
        assert!(took.wall >= 0.05);
        assert!(took.cpu < 0.04, "{took:?}");
    }
}
