//! What of the model was seen, and why anything was not.

use super::Rank;
use super::layout::Layout;
use crate::aggregate::Coverage;

/// A line where all was seen; else a line for each thing that was not. Nothing where no backward pass was scanned: the rules say that.
pub(super) fn text(rank: &Rank<'_>, layout: &Layout) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(coverage) = Coverage::of(rank.aggregate) {
        lines.extend(seen(&coverage));
        lines.extend(coverage.missing());
    }
    lines.extend(rank.aggregate.blind_spots().map(|spot| format!("blind spot: {spot}")));
    lines.iter().map(|line| layout.wrap("  ", "    ", line)).collect()
}

/// How much was seen, in numbers; `None` where the run has no trainable parameter that is known of.
fn seen(coverage: &Coverage) -> Option<String> {
    let (parameters, layers) = (coverage.parameters.len(), coverage.layers.len());
    (parameters > 0).then(|| {
        format!(
            "seen: gradient and update of {} of {parameters} trainable parameters, activation and its gradient of {} of {layers} layers",
            coverage.seen_parameters(),
            coverage.seen_layers()
        )
    })
}
