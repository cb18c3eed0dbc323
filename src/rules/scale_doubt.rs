//! Why the rules on the loss scale may be unable to tell.

use super::Verdict;
use crate::aggregate::Aggregate;

/// The doubt of a rule that follows one scale, where several scalers take turns or share a step.
pub(super) fn several_scalers(aggregate: &Aggregate) -> Option<Verdict> {
    aggregate.scale_dynamics.several_scalers.then(|| {
        Verdict::Unsure(
            "several loss scalers share the steps of this run, and their scales cannot be told apart; let one scaler serve all optimizers, or record \
             each model as a run of its own"
                .into(),
        )
    })
}
