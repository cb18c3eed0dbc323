//! Straight lines by least squares.

/// `y = intercept + slope * x`.
pub(super) struct Line {
    pub slope: f64,
    intercept: f64,
    /// The standard error of the slope, for deviations that are independent of each other.
    pub slope_error: f64,
}

impl Line {
    /// The line through points `(x, y)`; `None` of fewer than three, and where all stand at one `x`.
    pub fn through(points: &[(f64, f64)]) -> Option<Self> {
        Self::fitted(points, 2)
    }

    /// The same of what a third quantity leaves of both, `z` of each point: how `y` goes with `x` where `z` stays what it is. `None` also where `z` does not
    /// vary, or where nothing is left to fit.
    ///
    /// By the theorem of Frisch, Waugh and Lovell its slope is that of `x` in the regression of `y` on `x` and `z`.
    pub fn apart_from(z: &[f64], points: &[(f64, f64)]) -> Option<Self> {
        let on_z = |of: fn(&(f64, f64)) -> f64| {
            Self::through(&z.iter().copied().zip(points.iter().map(of)).collect::<Vec<_>>())
        };
        let (x_on_z, y_on_z) = (on_z(|p| p.0)?, on_z(|p| p.1)?);
        let left = z.iter().zip(points).map(|(&z, p)| (p.0 - x_on_z.at(z), p.1 - y_on_z.at(z)));
        Self::fitted(&left.collect::<Vec<_>>(), 3)
    }

    /// A fit that has taken so many degrees of freedom.
    fn fitted(points: &[(f64, f64)], taken: usize) -> Option<Self> {
        let n = points.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
        let (x0, y0) = (mean(|p| p.0), mean(|p| p.1));
        let xx: f64 = points.iter().map(|(x, _)| (x - x0).powi(2)).sum();
        let xy: f64 = points.iter().map(|(x, y)| (x - x0) * (y - y0)).sum();
        if points.len() <= taken || !(xx > 0.0 && xx.is_finite() && xy.is_finite()) {
            return None;
        }
        let slope = xy / xx;
        let intercept = y0 - slope * x0;
        let off: f64 = points.iter().map(|(x, y)| (y - intercept - slope * x).powi(2)).sum();
        Some(Self { slope, intercept, slope_error: (off / (n - taken as f64) / xx).sqrt() })
    }

    pub fn at(&self, x: f64) -> f64 {
        self.intercept + self.slope * x
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::scenario::normal;

    #[test]
    fn the_line_through_four_points() {
        let line = Line::through(&[(0.0, 1.0), (1.0, 2.0), (2.0, 4.0), (3.0, 5.0)]).unwrap();
        let close = |a: f64, b: f64| (a - b).abs() < 1e-12;
        assert!(
            close(line.slope, 1.4) && close(line.at(0.0), 0.9) && close(line.at(10.0), 14.9),
            "{} {}",
            line.slope,
            line.at(0.0)
        );
        // Residuals 0.1, -0.3, 0.3, -0.1: sqrt(0.2 / 2 / 5).
        assert!(close(line.slope_error, 0.02f64.sqrt()), "{}", line.slope_error);
    }

    #[test]
    fn points_without_a_line_have_none() {
        assert!(Line::through(&[]).is_none());
        assert!(Line::through(&[(0.0, 1.0), (1.0, 2.0)]).is_none());
        assert!(Line::through(&[(2.0, 1.0), (2.0, 2.0), (2.0, 3.0)]).is_none());
        assert!(Line::through(&[(0.0, 1.0), (1.0, f64::INFINITY), (2.0, 3.0)]).is_none());
        let rising = [(0.0, 0.0), (1.0, 1.0), (2.0, 2.0), (3.0, 3.0)];
        assert!(Line::apart_from(&[1.0; 4], &rising).is_none(), "the same everywhere");
        assert!(Line::apart_from(&[1.0, 2.0, 3.0, 4.0], &rising).is_none(), "nothing is left of x");
    }

    #[test]
    fn what_goes_with_a_third_quantity_is_told_apart_from_what_goes_with_x() {
        let (z, noise) = (normal(32, 2.0, 1), normal(32, 0.1, 2));
        let points: Vec<_> = (0..32).map(|i| (i as f64, 0.125 * i as f64 + 1.5 * z[i] + noise[i])).collect();
        let (with, without) = (Line::through(&points).unwrap(), Line::apart_from(&z, &points).unwrap());
        assert!((without.slope - 0.125).abs() < 3.0 * without.slope_error, "{}", without.slope);
        assert!(with.slope_error > 10.0 * without.slope_error, "{} {}", with.slope_error, without.slope_error);
    }
}
