//! The table of rules, and how one is found.

use super::{
    Rule, RuleInfo, activation_near_overflow, activation_overflow, activation_underflow, blind_spots, broken_masters,
    clip_before_unscale, dead_updates, evaluation_worse, exploding_updates, flat_loss, gradient_headroom,
    gradient_overflow, gradient_underflow, gradient_unlike_fp32, gradients_apart, half_loss_scaled, inexact_integers,
    lone_non_finite, loss_jump, loss_not_finite, lost_moving_average, lost_weight_decay, masked_row, missing_masters,
    no_gradient_for_optimizer, no_loss_scale, non_finite_optimizer_state, non_finite_origin, nothing_observed,
    poisoned_buffer, rank_stopped, scale_changed_between_optimizers, scale_changed_in_accumulation, scale_floor,
    scale_jump, scale_ratchet, scale_runaway, scale_thrash, scaled_loss_reported, scaler_not_restored, scalers_apart,
    scheduler_ahead, silent_zeros, stale_gradients, stalled_updates, starved_layers, static_scale_wrong,
    step_on_scaled_gradients, unmoved_weights, unsafe_operator, unscale_twice, update_misplaced, update_missing,
    updates_below_normal, useless_scaler, vanishing_eps, weights_beyond_fp16,
};

/// All rules, by code.
pub fn all() -> &'static [&'static dyn Rule] {
    &[
        &nothing_observed::NothingObserved,
        &blind_spots::BlindSpots,
        &activation_near_overflow::ActivationNearOverflow,
        &activation_overflow::ActivationOverflow,
        &activation_underflow::ActivationUnderflow,
        &silent_zeros::SilentZeros,
        &unsafe_operator::UnsafeOperator,
        &inexact_integers::InexactIntegers,
        &gradient_underflow::GradientUnderflow,
        &gradient_overflow::GradientOverflow,
        &starved_layers::StarvedLayers,
        &gradient_headroom::GradientHeadroom,
        &gradient_unlike_fp32::GradientUnlikeFp32,
        &scale_thrash::ScaleThrash,
        &scale_ratchet::ScaleRatchet,
        &scale_floor::ScaleFloor,
        &scale_runaway::ScaleRunaway,
        &scale_jump::ScaleJump,
        &static_scale_wrong::StaticScaleWrong,
        &no_loss_scale::NoLossScale,
        &useless_scaler::UselessScaler,
        &scaler_not_restored::ScalerNotRestored,
        &dead_updates::DeadUpdates,
        &updates_below_normal::UpdatesBelowNormal,
        &exploding_updates::ExplodingUpdates,
        &lost_weight_decay::LostWeightDecay,
        &broken_masters::BrokenMasters,
        &stalled_updates::StalledUpdates,
        &vanishing_eps::VanishingEps,
        &unmoved_weights::UnmovedWeights,
        &lost_moving_average::LostMovingAverage,
        &weights_beyond_fp16::WeightsBeyondFp16,
        &missing_masters::MissingMasters,
        &non_finite_origin::NonFiniteOrigin,
        &poisoned_buffer::PoisonedBuffer,
        &non_finite_optimizer_state::NonFiniteOptimizerState,
        &masked_row::MaskedRow,
        &unscale_twice::UnscaleTwice,
        &clip_before_unscale::ClipBeforeUnscale,
        &update_missing::UpdateMissing,
        &update_misplaced::UpdateMisplaced,
        &step_on_scaled_gradients::StepOnScaledGradients,
        &stale_gradients::StaleGradients,
        &scale_changed_in_accumulation::ScaleChangedInAccumulation,
        &scale_changed_between_optimizers::ScaleChangedBetweenOptimizers,
        &half_loss_scaled::HalfLossScaled,
        &scaled_loss_reported::ScaledLossReported,
        &no_gradient_for_optimizer::NoGradientForOptimizer,
        &scheduler_ahead::SchedulerAhead,
        &loss_jump::LossJump,
        &flat_loss::FlatLoss,
        &loss_not_finite::LossNotFinite,
        &evaluation_worse::EvaluationWorse,
        &scalers_apart::ScalersApart,
        &rank_stopped::RankStopped,
        &lone_non_finite::LoneNonFinite,
        &gradients_apart::GradientsApart,
    ]
}

/// Rules that judge the run as a whole: their findings name no layer.
const OF_THE_RUN: [&str; 41] = [
    "AMP001", "AMP002", "AMP301", "AMP302", "AMP303", "AMP304", "AMP306", "AMP307", "AMP308", "AMP309", "AMP310",
    "AMP401", "AMP402", "AMP403", "AMP404", "AMP405", "AMP406", "AMP407", "AMP408", "AMP409", "AMP411", "AMP601",
    "AMP602", "AMP603", "AMP604", "AMP605", "AMP606", "AMP607", "AMP608", "AMP609", "AMP610", "AMP611", "AMP612",
    "AMP701", "AMP702", "AMP703", "AMP704", "AMP801", "AMP802", "AMP803", "AMP804",
];

/// Whether the findings of the rule of this code may name a layer; those of the others are of the run as a whole.
pub fn names_layers(code: &str) -> bool {
    !OF_THE_RUN.contains(&code)
}

/// Whether the rule of this code makes findings; the one that only doubts has nothing that could be accepted.
pub fn makes_findings(code: &str) -> bool {
    code != "AMP001"
}

/// The rule of this code (`AMP201`, `amp201`, `201`) or name (`gradient-underflow`).
pub fn find(code_or_name: &str) -> Option<&'static dyn Rule> {
    let asked = code_or_name.trim().to_lowercase().replace('_', "-");
    all().iter().copied().find(|rule| {
        let RuleInfo { code, name, .. } = *rule.info();
        let code = code.to_lowercase();
        asked == name || asked == code || Some(asked.as_str()) == code.strip_prefix("amp")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADINGS: [&str; 5] =
        ["What it finds", "Why it matters", "How it decides", "What to do", "When it stays silent"];

    #[test]
    fn the_set_of_codes_is_this_one() {
        let codes: Vec<String> =
            all().iter().map(|r| format!("{} {} {}", r.info().code, r.info().name, r.info().severity.name())).collect();
        insta::assert_snapshot!(codes.join("\n"), @r"
        AMP001 nothing-observed info
        AMP002 blind-spots info
        AMP101 activation-near-overflow error
        AMP102 activation-overflow error
        AMP104 activation-underflow error
        AMP105 silent-zeros error
        AMP106 unsafe-operator error
        AMP107 inexact-integers warning
        AMP201 gradient-underflow error
        AMP202 gradient-overflow error
        AMP203 starved-layers warning
        AMP204 gradient-headroom warning
        AMP205 gradient-unlike-fp32 error
        AMP301 scale-thrash warning
        AMP302 scale-ratchet error
        AMP303 scale-floor error
        AMP304 scale-runaway info
        AMP306 scale-jump warning
        AMP307 static-scale-wrong error
        AMP308 no-loss-scale error
        AMP309 useless-scaler warning
        AMP310 scaler-not-restored warning
        AMP401 dead-updates error
        AMP402 updates-below-normal warning
        AMP403 exploding-updates error
        AMP404 lost-weight-decay warning
        AMP405 broken-masters error
        AMP406 stalled-updates warning
        AMP407 vanishing-eps error
        AMP408 unmoved-weights error
        AMP409 lost-moving-average warning
        AMP410 weights-beyond-fp16 error
        AMP411 missing-masters error
        AMP501 non-finite-origin error
        AMP502 poisoned-buffer error
        AMP503 non-finite-optimizer-state error
        AMP504 masked-row error
        AMP601 unscale-twice error
        AMP602 clip-before-unscale error
        AMP603 update-missing error
        AMP604 update-misplaced error
        AMP605 step-on-scaled-gradients error
        AMP606 stale-gradients error
        AMP607 scale-changed-in-accumulation error
        AMP608 scale-changed-between-optimizers error
        AMP609 half-loss-scaled error
        AMP610 scaled-loss-reported warning
        AMP611 no-gradient-for-optimizer error
        AMP612 scheduler-ahead warning
        AMP701 loss-jump error
        AMP702 flat-loss error
        AMP703 loss-not-finite error
        AMP704 evaluation-worse error
        AMP801 scalers-apart error
        AMP802 rank-stopped warning
        AMP803 lone-non-finite warning
        AMP804 gradients-apart warning
        ");
    }

    #[test]
    fn rules_stand_in_the_order_of_their_codes_and_no_name_is_used_twice() {
        let infos: Vec<_> = all().iter().map(|r| r.info()).collect();
        assert!(infos.windows(2).all(|w| w[0].code < w[1].code));
        let mut names: Vec<_> = infos.iter().map(|i| i.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), infos.len());
    }

    #[test]
    fn rules_of_the_run_are_rules_and_have_no_threshold_by_layer() {
        assert!(OF_THE_RUN.iter().all(|code| find(code).is_some_and(|rule| rule.thresholds_by_layer().is_empty())));
        assert!(names_layers("AMP501") && !names_layers("AMP302"));
    }

    #[test]
    fn every_page_has_the_fixed_headings_in_order() {
        for info in all().iter().map(|rule| rule.info()) {
            let headings: Vec<&str> = info
                .source
                .lines()
                .map_while(|line| line.strip_prefix("//!"))
                .filter_map(|line| line.trim().strip_prefix("## "))
                .collect();
            assert_eq!(headings, HEADINGS, "{}", info.code);
        }
    }

    #[test]
    fn thresholds_have_names_of_their_own_sound_defaults_and_reasons() {
        for rule in all() {
            let mut names = std::collections::BTreeSet::new();
            for t in rule.thresholds() {
                let who = format!("{} {}", rule.info().code, t.name);
                assert_eq!(t.rule, rule.info().name, "{who}");
                assert!(names.insert(t.name) && t.name != "level", "{who}");
                let is_kebab = t.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
                assert!(is_kebab && !t.unit.is_empty() && t.reason.len() > 20, "{who}");
                assert_eq!(t.refuses(t.default), None, "{who}");
            }
            let by_layer = rule.thresholds_by_layer();
            assert!(by_layer.iter().all(|name| names.contains(name)), "{}", rule.info().code);
            assert!(!by_layer.is_empty() || !rule.info().source.contains("limits.at(&"), "{}", rule.info().code);
        }
    }

    #[test]
    fn a_rule_is_found_by_code_number_and_name() {
        for asked in ["AMP201", "amp201", "201", " gradient-underflow ", "gradient_underflow"] {
            assert_eq!(find(asked).map(|r| r.info().code), Some("AMP201"), "{asked}");
        }
        assert!(find("gradient-underflw").is_none() && find("").is_none());
    }
}
