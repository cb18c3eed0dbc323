//! How the learning rate changes over a run.

use clap::ValueEnum;

/// The shape of the learning rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Schedule {
    /// The same at every step.
    Constant,
    /// Falls to zero along half a cosine.
    Cosine,
    /// Rises over the first tenth of the steps, then falls to zero along half a cosine.
    WarmupCosine,
}

/// Steps to one of warm-up.
const WARMUP: u64 = 10;

impl Schedule {
    /// What the learning rate is multiplied by at a step, counted from 0, of a run of `steps`; above 0 at every one.
    pub fn factor(self, step: u64, steps: u64) -> f64 {
        match self {
            Self::Constant => 1.0,
            Self::Cosine => cosine(step, steps),
            Self::WarmupCosine => {
                let warmup = (steps / WARMUP).max(1);
                if step < warmup { (step + 1) as f64 / warmup as f64 } else { cosine(step - warmup, steps - warmup) }
            }
        }
    }
}

/// 1 at step 0; would be 0 at `steps`, which is one behind the last.
fn cosine(step: u64, steps: u64) -> f64 {
    let done = step as f64 / steps.max(1) as f64;
    0.5 + 0.5 * (std::f64::consts::PI * done).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cosine_falls_from_1_to_almost_0() {
        let factors: Vec<f64> = (0..100).map(|step| Schedule::Cosine.factor(step, 100)).collect();
        assert_eq!(factors[0], 1.0);
        assert!(factors.windows(2).all(|pair| pair[1] < pair[0]));
        assert!((factors[50] - 0.5).abs() < 1e-12);
        assert!(factors[99] > 0.0 && factors[99] < 1e-3);
    }

    #[test]
    fn a_warm_up_rises_to_1_and_no_step_is_without_a_rate() {
        let factor = |step, steps| Schedule::WarmupCosine.factor(step, steps);
        assert_eq!((factor(0, 100), factor(9, 100), factor(10, 100)), (0.1, 1.0, 1.0));
        for steps in [1, 2, 9, 10, 11, 1000] {
            assert!((0..steps).all(|step| factor(step, steps) > 0.0), "{steps} steps");
        }
    }
}
