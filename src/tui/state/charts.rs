//! Loss and loss scale over the whole run.

use crate::aggregate::Timeline;

/// A number at a step.
pub type Point = (u64, f64);

/// The series of both charts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Charts {
    /// First and last step.
    pub steps: Option<(u64, u64)>,
    /// Steps that a point stands for.
    pub stride: u64,
    /// Finite losses.
    pub loss: Vec<Point>,
    /// Steps whose loss was NaN or infinite.
    pub loss_non_finite: Vec<u64>,
    /// Base-2 logarithm of the loss scale, where it was positive and finite.
    pub scale_log2: Vec<Point>,
    /// Steps (or stretches of steps) in which the optimizer step was withheld.
    pub skips: Vec<u64>,
}

/// What is known of a step, or of the stretch of steps that a point of the charts stands for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AtStep {
    /// First and last step of the stretch.
    pub steps: (u64, u64),
    /// The last loss in it; NaN where it was not finite.
    pub loss: Option<f64>,
    /// The last loss scale in it.
    pub loss_scale: Option<f64>,
    /// Whether a step in it was withheld.
    pub skipped: bool,
}

impl Charts {
    /// The series of a timeline.
    pub fn new(timeline: &Timeline) -> Self {
        let mut charts = Self { stride: timeline.stride, ..Self::default() };
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

    /// What is known of a step, or of the stretch of steps that a point stands for.
    pub fn at(&self, step: u64) -> AtStep {
        let stride = self.stride.max(1);
        let first = step / stride * stride;
        let value = |points: &[Point]| points.iter().find(|point| point.0 == first).map(|point| point.1);
        let non_finite = self.loss_non_finite.contains(&first).then_some(f64::NAN);
        AtStep {
            steps: (first, first + stride - 1),
            loss: value(&self.loss).or(non_finite),
            loss_scale: value(&self.scale_log2).map(f64::exp2),
            skipped: self.skips.contains(&first),
        }
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
        assert_eq!((&charts.skips[..], charts.steps), (&[1][..], Some((0, 1))));
        let at = charts.at(0);
        assert_eq!((at.steps, at.loss, at.loss_scale, at.skipped), ((0, 0), Some(2.0), Some(1024.0), false));
        assert!(charts.at(1).loss.is_some_and(f64::is_nan) && charts.at(1).skipped);
        assert_eq!(charts.at(7).loss, None);
    }

    #[test]
    fn a_step_of_a_long_run_is_told_with_its_stretch() {
        let point = |step| TimelinePoint { step, loss: Some(step as f64), loss_scale: None, skipped: 0 };
        let charts = Charts::new(&Timeline { stride: 4, points: vec![point(0), point(4)] });
        assert_eq!((charts.at(6).steps, charts.at(6).loss), ((4, 7), Some(4.0)));
    }
}
