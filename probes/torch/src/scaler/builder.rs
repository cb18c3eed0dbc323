//! The settings of a scaler, validated once.

use super::policy::Policy;
use super::{GradScaler, ScalerError};

/// PyTorch's default: high enough that calibration starts by falling.
const INIT_SCALE: f64 = 65536.0;
const GROWTH_FACTOR: f64 = 2.0;
const BACKOFF_FACTOR: f64 = 0.5;
const GROWTH_INTERVAL: u64 = 2000;
/// ATen counts clean steps in an int32.
const LONGEST_INTERVAL: u64 = i32::MAX as u64;

/// The settings of a [`GradScaler`], from [`GradScaler::builder`]; what is not set is as in PyTorch.
///
/// ```
/// use ampdoctor_torch::GradScaler;
///
/// let scaler = GradScaler::builder().init_scale(1024.0).min_scale(1.0).growth_interval(500).build()?;
/// assert_eq!(scaler.get_scale(), 1024.0);
/// assert!(GradScaler::builder().growth_factor(0.5).build().is_err());
/// # Ok::<(), ampdoctor_torch::ScalerError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct GradScalerBuilder {
    init_scale: f64,
    growth_factor: Option<f64>,
    backoff_factor: Option<f64>,
    growth_interval: u64,
    min_scale: Option<f64>,
    max_scale: Option<f64>,
    hysteresis: u64,
    is_static: bool,
    enabled: bool,
}

impl Default for GradScalerBuilder {
    fn default() -> Self {
        GradScalerBuilder {
            init_scale: INIT_SCALE,
            growth_factor: None,
            backoff_factor: None,
            growth_interval: GROWTH_INTERVAL,
            min_scale: None,
            max_scale: None,
            hysteresis: 1,
            is_static: false,
            enabled: true,
        }
    }
}

impl GradScalerBuilder {
    /// The scale to start with; 65536 by default. Positive, and finite in FP32, in which it is held.
    pub fn init_scale(mut self, scale: f64) -> Self {
        self.init_scale = scale;
        self
    }

    /// What the scale is multiplied by after `growth_interval` clean steps; 2 by default, above 1.
    pub fn growth_factor(mut self, factor: f64) -> Self {
        self.growth_factor = Some(factor);
        self
    }

    /// What the scale is multiplied by after a step with a non-finite gradient; 0.5 by default, between 0 and 1.
    pub fn backoff_factor(mut self, factor: f64) -> Self {
        self.backoff_factor = Some(factor);
        self
    }

    /// Clean steps in a row before the scale grows; 2000 by default, at least 1.
    pub fn growth_interval(mut self, steps: u64) -> Self {
        self.growth_interval = steps;
        self
    }

    /// A floor: the scale never falls below it. None by default, as in PyTorch, whose scale can fall to zero.
    pub fn min_scale(mut self, floor: f64) -> Self {
        self.min_scale = Some(floor);
        self
    }

    /// A ceiling: the scale never grows above it. None by default.
    pub fn max_scale(mut self, ceiling: f64) -> Self {
        self.max_scale = Some(ceiling);
        self
    }

    /// Non-finite steps in a row before the scale falls, and from there at each one more; 1 by default, as in PyTorch.
    ///
    /// The steps themselves are skipped all the same. For runs in which a rare batch is bad by itself, whatever the scale.
    pub fn hysteresis(mut self, steps: u64) -> Self {
        self.hysteresis = steps;
        self
    }

    /// A scale that never moves; steps with non-finite gradients are still skipped.
    pub fn static_scale(mut self, scale: f64) -> Self {
        self.init_scale = scale;
        self.is_static = true;
        self
    }

    /// Whether the scaler does anything; a disabled one passes losses and steps through, so that a loop needs no branches.
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// The scaler, or what is wrong with a setting.
    pub fn build(self) -> Result<GradScaler, ScalerError> {
        let policy = self.policy()?;
        let scale = valid_scale("init_scale", self.init_scale)?;
        if policy.min_scale.is_some_and(|floor| scale < floor) {
            return Err(refuse("init_scale", self.init_scale, "it is below min_scale; start at or above the floor"));
        }
        if policy.max_scale.is_some_and(|ceiling| scale > ceiling) {
            return Err(refuse("init_scale", self.init_scale, "it is above max_scale; start at or below the ceiling"));
        }
        Ok(GradScaler::from_parts(policy, scale, self.enabled))
    }

    fn policy(&self) -> Result<Policy, ScalerError> {
        let (growth_factor, backoff_factor) = if self.is_static {
            self.refuse_movement()?;
            (1.0, 1.0)
        } else {
            (
                valid_growth_factor(self.growth_factor.unwrap_or(GROWTH_FACTOR))?,
                valid_backoff_factor(self.backoff_factor.unwrap_or(BACKOFF_FACTOR))?,
            )
        };
        let min_scale = self.min_scale.map(|floor| valid_scale("min_scale", floor)).transpose()?;
        let max_scale = self.max_scale.map(|ceiling| valid_scale("max_scale", ceiling)).transpose()?;
        if let (Some(floor), Some(ceiling)) = (min_scale, max_scale)
            && floor > ceiling
        {
            return Err(refuse(
                "min_scale",
                f64::from(floor),
                "it is above max_scale; the floor must not exceed the ceiling",
            ));
        }
        if self.hysteresis == 0 {
            return Err(refuse(
                "hysteresis",
                0.0,
                "it counts non-finite steps before the scale falls; 1 is PyTorch's behaviour",
            ));
        }
        Ok(Policy {
            growth_factor,
            backoff_factor,
            growth_interval: valid_growth_interval(self.growth_interval)?,
            min_scale,
            max_scale,
            hysteresis: self.hysteresis,
        })
    }

    fn refuse_movement(&self) -> Result<(), ScalerError> {
        let reason = "static_scale never moves; leave the factor out, or use init_scale in place of static_scale";
        match (self.growth_factor, self.backoff_factor) {
            (Some(factor), _) if factor != 1.0 => Err(refuse("growth_factor", factor, reason)),
            (_, Some(factor)) if factor != 1.0 => Err(refuse("backoff_factor", factor, reason)),
            _ => Ok(()),
        }
    }
}

/// A scale as it will be held: positive and finite in FP32.
pub(super) fn valid_scale(setting: &'static str, scale: f64) -> Result<f32, ScalerError> {
    let held = scale as f32;
    if held.is_finite() && held > 0.0 {
        return Ok(held);
    }
    Err(refuse(setting, scale, "a scale must be positive and finite in FP32, between 2^-149 and 2^127; 65536 is usual"))
}

pub(super) fn valid_growth_factor(factor: f64) -> Result<f64, ScalerError> {
    if factor > 1.0 && factor.is_finite() {
        return Ok(factor);
    }
    Err(refuse(
        "growth_factor",
        factor,
        "it must be above 1 for the scale to grow; 2 is usual, static_scale for a scale that stays",
    ))
}

pub(super) fn valid_backoff_factor(factor: f64) -> Result<f64, ScalerError> {
    if factor > 0.0 && factor < 1.0 {
        return Ok(factor);
    }
    let reason = "it must lie between 0 and 1 for the scale to fall; 0.5 is usual, static_scale for a scale that stays";
    Err(refuse("backoff_factor", factor, reason))
}

pub(super) fn valid_growth_interval(steps: u64) -> Result<u64, ScalerError> {
    if (1..=LONGEST_INTERVAL).contains(&steps) {
        return Ok(steps);
    }
    let reason =
        "it counts clean steps between growths, from 1 to 2^31 - 1; 2000 is usual, static_scale for a scale that stays";
    Err(refuse("growth_interval", steps as f64, reason))
}

fn refuse(setting: &'static str, value: f64, reason: &'static str) -> ScalerError {
    ScalerError::Setting { setting, value, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(builder: GradScalerBuilder) -> String {
        builder.build().unwrap_err().to_string()
    }

    #[test]
    fn the_defaults_are_those_of_pytorch() {
        let scaler = GradScaler::default();
        assert_eq!(scaler.get_scale(), 65536.0);
        assert_eq!(scaler.get_growth_factor(), 2.0);
        assert_eq!(scaler.get_backoff_factor(), 0.5);
        assert_eq!(scaler.get_growth_interval(), 2000);
        assert!(scaler.is_enabled());
    }

    #[test]
    fn a_setting_that_makes_no_scaler_is_named_with_what_it_must_be() {
        let new = GradScaler::builder;
        for factor in [1.0, 0.5, f64::NAN, f64::INFINITY] {
            assert!(refused(new().growth_factor(factor)).contains("must be above 1"), "{factor}");
        }
        for factor in [1.0, 2.0, 0.0, -0.5, f64::NAN] {
            assert!(refused(new().backoff_factor(factor)).contains("between 0 and 1"), "{factor}");
        }
        for scale in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e39, 1e-46] {
            assert!(refused(new().init_scale(scale)).starts_with("init_scale ="), "{scale}");
            assert!(refused(new().static_scale(scale)).starts_with("init_scale ="), "{scale}");
            assert!(refused(new().min_scale(scale)).starts_with("min_scale ="), "{scale}");
            assert!(refused(new().max_scale(scale)).starts_with("max_scale ="), "{scale}");
        }
        for interval in [0, 1 << 31] {
            assert!(refused(new().growth_interval(interval)).contains("from 1 to 2^31 - 1"), "{interval}");
        }
        assert!(refused(new().hysteresis(0)).contains("hysteresis = 0"));
    }

    #[test]
    fn settings_that_contradict_each_other_are_refused() {
        let new = GradScaler::builder;
        assert!(refused(new().min_scale(8.0).max_scale(4.0)).contains("above max_scale"));
        assert!(refused(new().min_scale(8.0).init_scale(4.0)).contains("below min_scale"));
        assert!(refused(new().max_scale(8.0)).contains("above max_scale"));
        assert!(refused(new().static_scale(8.0).growth_factor(2.0)).contains("static_scale never moves"));
        assert!(refused(new().static_scale(8.0).backoff_factor(0.5)).contains("static_scale never moves"));
        assert!(new().static_scale(8.0).growth_factor(1.0).build().is_ok());
    }
}
