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

fn cpu() -> f64 {
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

#[cfg(test)]
mod tests {
    use super::*;

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
