//! How the loss scale is governed.

use crate::aggregate::Aggregate;

/// How the loss scale is governed at the latest step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scaling {
    /// The loss is not scaled.
    None,
    /// By a number that never moves, whoever multiplies with it.
    Static,
    /// By a scaler whose scale stands at its `max_scale` and cannot rise.
    AtCeiling,
    /// By a scaler that raises and lowers it.
    Dynamic,
}

impl Scaling {
    pub fn of(aggregate: &Aggregate) -> Self {
        let now = aggregate.latest.as_ref().and_then(|s| s.loss_scale);
        match (&aggregate.scaler_config, now) {
            (Some(config), _) if config.is_static() => Self::Static,
            (Some(config), Some(now)) if config.max_scale.is_some_and(|ceiling| now >= ceiling) => Self::AtCeiling,
            (Some(_), _) => Self::Dynamic,
            (None, Some(_)) => Self::Static,
            (None, None) => Self::None,
        }
    }
}
