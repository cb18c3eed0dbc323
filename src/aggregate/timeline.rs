//! Loss and loss scale over the whole run, thinned as it grows.

use crate::observation::Step;

/// A stretch of steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimelinePoint {
    /// The first step of the stretch.
    pub step: u64,
    /// The last loss given in it; may be non-finite.
    pub loss: Option<f64>,
    /// The last loss scale in it.
    pub loss_scale: Option<f64>,
    /// Steps withheld in it.
    pub skipped: u64,
}

/// At most [`Timeline::CAPACITY`] stretches of equal length that cover the run; when full, neighbours are joined.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// Steps in each stretch: a power of two.
    pub stride: u64,
    /// The stretches, oldest first.
    pub points: Vec<TimelinePoint>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { stride: 1, points: Vec::new() }
    }
}

impl Timeline {
    /// Stretches kept.
    pub const CAPACITY: usize = 2048;

    pub(super) fn push(&mut self, step: &Step) {
        let start = step.index / self.stride * self.stride;
        let skipped = u64::from(step.skipped());
        match self.points.last_mut() {
            Some(last) if last.step == start => {
                last.loss = step.loss.or(last.loss);
                last.loss_scale = step.loss_scale.or(last.loss_scale);
                last.skipped += skipped;
            }
            _ => {
                if self.points.len() == Self::CAPACITY {
                    self.halve();
                    return self.push(step);
                }
                self.points.push(TimelinePoint { step: start, loss: step.loss, loss_scale: step.loss_scale, skipped });
            }
        }
    }

    fn halve(&mut self) {
        self.stride *= 2;
        let stride = self.stride;
        let mut joined: Vec<TimelinePoint> = Vec::with_capacity(Self::CAPACITY);
        for point in self.points.drain(..) {
            let start = point.step / stride * stride;
            match joined.last_mut() {
                Some(last) if last.step == start => {
                    last.loss = point.loss.or(last.loss);
                    last.loss_scale = point.loss_scale.or(last.loss_scale);
                    last.skipped += point.skipped;
                }
                _ => joined.push(TimelinePoint { step: start, ..point }),
            }
        }
        self.points = joined;
    }
}
