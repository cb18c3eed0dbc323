//! Loss and loss scale over the whole run.

use crate::aggregate::Timeline;

/// A number at a step.
pub type Point = (u64, f64);

/// The series of both charts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Charts {
    /// First and last step.
    pub steps: Option<(u64, u64)>,
    /// Finite losses.
    pub loss: Vec<Point>,
    /// Steps whose loss was NaN or infinite.
    pub loss_non_finite: Vec<u64>,
    /// Base-2 logarithm of the loss scale, where it was positive and finite.
    pub scale_log2: Vec<Point>,
    /// Steps (or stretches of steps) in which the optimizer step was withheld.
    pub skips: Vec<u64>,
}

impl Charts {
    /// The series of a timeline.
    pub fn new(timeline: &Timeline) -> Self {
        let mut charts = Self::default();
        for point in &timeline.points {
            let first = charts.steps.map_or(point.step, |(first, _)| first);
            charts.steps = Some((first, point.step + timeline.stride - 1));
            match point.loss {
                Some(loss) if loss.is_finite() => charts.loss.push((point.step, loss)),
                Some(_) => charts.loss_non_finite.push(point.step),
                None => {}
            }
            if let Some(scale) = point.loss_scale.filter(|s| *s > 0.0 && s.is_finite()) {
                charts.scale_log2.push((point.step, scale.log2()));
            }
            if point.skipped > 0 {
                charts.skips.push(point.step);
            }
        }
        charts
    }

    /// Whether the loss is drawn on a logarithmic axis: all of it positive, and more than a factor of 20 between its ends.
    pub fn loss_is_logarithmic(&self) -> bool {
        const LOGARITHMIC_FROM: f64 = 20.0;
        let low = self.loss.iter().map(|p| p.1).fold(f64::INFINITY, f64::min);
        let high = self.loss.iter().map(|p| p.1).fold(f64::NEG_INFINITY, f64::max);
        low > 0.0 && high > LOGARITHMIC_FROM * low
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::TimelinePoint;

    #[test]
    fn a_non_finite_loss_is_kept_apart_and_a_zero_scale_is_not_drawn() {
        let point =
            |step, loss, scale| TimelinePoint { step, loss: Some(loss), loss_scale: Some(scale), skipped: step };
        let timeline = Timeline { stride: 1, points: vec![point(0, 2.0, 1024.0), point(1, f64::NAN, 0.0)] };
        let charts = Charts::new(&timeline);
        assert_eq!(charts.loss, [(0, 2.0)]);
        assert_eq!(charts.loss_non_finite, [1]);
        assert_eq!(charts.scale_log2, [(0, 10.0)]);
        assert_eq!((charts.skips, charts.steps), (vec![1], Some((0, 1))));
    }
}
