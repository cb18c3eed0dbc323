use super::*;
use crate::aggregate::Aggregate;
use crate::observation::ScalerEvent::{Scaled, Stepped, Unscaled, Updated};
use crate::observation::scenario::{Scenario, StepBuilder};
use crate::observation::{Act, Product, Refusal};

const SCALE: f64 = 1024.0;

/// What was noticed in `steps` steps alike, under the library's scaler.
fn noticed(steps: u64, build: impl FnMut(&mut StepBuilder<'_>, u64)) -> Vec<Sighting> {
    let mut run = Scenario::new();
    run.dynamic_scaler(SCALE).steps(steps, build);
    sightings(&run)
}

fn sightings(run: &Scenario) -> Vec<Sighting> {
    Aggregate::of(run).recipe.sightings
}

fn only(sightings: &[Sighting]) -> &Mistake {
    assert_eq!(sightings.len(), 1, "{sightings:#?}");
    &sightings[0].mistake
}

fn backward(holding: u32, used: u32) -> Act {
    Act::Backward { holding, used, product: Some(Product { loss: 2.0, factor: SCALE, dtype: Dtype::F32 }) }
}

fn step_of(parameters: u32) -> Act {
    Act::Stepped { parameters, stale: 0, adaptive: false }
}

fn scaled(s: &mut StepBuilder<'_>, holding: u32) {
    s.loss_scale(SCALE).event(Scaled { scale: SCALE }).act(backward(holding, 0));
}

fn unscale(s: &mut StepBuilder<'_>, optimizer: u32) {
    s.event(Unscaled { optimizer, scale: SCALE, found_inf: false });
}

fn step(s: &mut StepBuilder<'_>, optimizer: u32) {
    s.act(step_of(2)).event(Stepped { optimizer, applied: true });
}

fn update(s: &mut StepBuilder<'_>) {
    s.event(Updated { from: SCALE, to: SCALE, growth_tracker: 1 });
}

/// Two optimizers, accumulation, GAN-like loops, clipping after unscale, a mean over micro-batches by hand, steps that are skipped.
#[test]
fn sound_loops_are_silent() {
    let two_optimizers = noticed(5, |s, _| {
        scaled(s, 0);
        for optimizer in [0, 1] {
            unscale(s, optimizer);
            s.act(Act::Multiplied { factor: 0.3, gradients: 2 });
            step(s, optimizer);
        }
        update(s);
    });
    let accumulation = noticed(5, |s, _| {
        for micro_batch in 0..4 {
            scaled(s, if micro_batch == 0 { 0 } else { 4 });
        }
        s.act(Act::Multiplied { factor: 0.25, gradients: 4 });
        unscale(s, 0);
        step(s, 0);
        update(s);
    });
    let gan = noticed(5, |s, _| {
        for optimizer in [0, 1] {
            scaled(s, 2);
            unscale(s, optimizer);
            step(s, optimizer);
            update(s);
        }
    });
    let skipped = noticed(5, |s, _| {
        scaled(s, 0);
        s.event(Unscaled { optimizer: 0, scale: SCALE, found_inf: true });
        s.event(Stepped { optimizer: 0, applied: false });
        update(s);
    });
    for found in [two_optimizers, accumulation, gan, skipped] {
        assert_eq!(found, []);
    }
}

#[test]
fn clipping_what_carries_the_scale_is_noticed_with_its_factor_and_the_norm() {
    let found = noticed(1, |s, _| {
        scaled(s, 0);
        s.param_grad("fc", "weight", Dtype::F32, &[3.0 * SCALE, 4.0 * SCALE]);
        s.act(Act::Multiplied { factor: 1.0 / (5.0 * SCALE + 1e-6), gradients: 2 });
        unscale(s, 0);
        step(s, 0);
        update(s);
    });
    let Mistake::ClippedBeforeUnscale(clip) = only(&found) else { panic!("{found:#?}") };
    assert_eq!((clip.scale, clip.norm, clip.elements, clip.adaptive), (SCALE, Some(5.0 * SCALE), 2, false));
    assert!(clip.factor.is_some_and(|f| (f * 5.0 * SCALE - 1.0).abs() < 1e-9));
}

#[test]
fn a_division_by_the_scale_by_hand_makes_the_scalers_own_a_second_one() {
    let found = noticed(1, |s, _| {
        scaled(s, 0);
        s.act(Act::Multiplied { factor: 1.0 / SCALE, gradients: 2 });
        unscale(s, 0);
        step(s, 0);
        update(s);
    });
    assert!(matches!(only(&found), Mistake::UnscaledTwice { by_hand: true, .. }), "{found:#?}");
}

#[test]
fn stepping_without_unscale_is_noticed_and_unscaling_by_hand_is_none() {
    let forgotten = noticed(3, |s, _| {
        scaled(s, 0);
        s.act(step_of(2));
    });
    assert_eq!((forgotten[0].first, forgotten[0].times), (0, 3));
    assert_eq!(*only(&forgotten), Mistake::SteppedScaled { scale: SCALE, adaptive: false });
    let by_hand = noticed(3, |s, _| {
        scaled(s, 0);
        s.act(Act::Multiplied { factor: 1.0 / SCALE, gradients: 2 }).act(step_of(2));
    });
    assert_eq!(by_hand, []);
    // Another optimizer, on a loss without a scale, steps in between.
    let mixed = noticed(3, |s, _| {
        scaled(s, 0);
        s.act(step_of(2));
        unscale(s, 0);
        step(s, 0);
        update(s);
    });
    assert_eq!(mixed, []);
    // It has a backward pass of its own, and the scaled gradients are still being collected when the step ends.
    let collecting = noticed(3, |s, _| {
        scaled(s, 0);
        s.act(Act::Backward { holding: 2, used: 0, product: None });
        s.act(Act::Multiplied { factor: 0.3, gradients: 2 }).act(step_of(2));
    });
    assert_eq!(collecting, []);
}

#[test]
fn the_optimizers_own_step_between_unscale_and_update_goes_past_the_scaler() {
    let found = noticed(2, |s, _| {
        scaled(s, 0);
        unscale(s, 0);
        s.act(step_of(2));
        update(s);
    });
    assert_eq!(*only(&found), Mistake::Misplaced(Misplaced::SteppedPastScaler));
}

#[test]
fn an_update_before_the_step_makes_the_step_unscale_again() {
    let found = noticed(2, |s, _| {
        scaled(s, 0);
        unscale(s, 0);
        update(s);
        unscale(s, 0);
        step(s, 0);
        update(s);
    });
    assert_eq!(*only(&found), Mistake::Misplaced(Misplaced::UpdatedBeforeStep));
}

#[test]
fn unscaling_every_micro_batch_is_noticed_only_where_gradients_are_added_up() {
    let micro_batches = |holding| {
        noticed(1, |s, _| {
            for micro_batch in 0..2 {
                scaled(s, if micro_batch == 0 { 0 } else { holding });
                unscale(s, 0);
                update(s);
            }
        })
    };
    assert!(matches!(only(&micro_batches(2)), Mistake::UnscaledTwice { backward_between: true, refused: false, .. }));
    assert_eq!(micro_batches(0), []);
}

#[test]
fn an_update_between_two_optimizers_is_noticed_even_where_the_scale_stays() {
    let found = noticed(1, |s, _| {
        scaled(s, 0);
        for optimizer in [0, 1] {
            unscale(s, optimizer);
            step(s, optimizer);
            update(s);
        }
    });
    assert_eq!(*only(&found), Mistake::ScaleChangedBetween { optimizer: 1, from: SCALE, to: SCALE });
}

#[test]
fn a_scale_that_moves_within_an_accumulation_is_noticed() {
    let moved = |holding| {
        noticed(1, |s, _| {
            scaled(s, 0);
            s.event(Updated { from: SCALE, to: 2.0 * SCALE, growth_tracker: 0 });
            s.event(Scaled { scale: 2.0 * SCALE }).act(backward(holding, 0));
        })
    };
    assert_eq!(*only(&moved(2)), Mistake::ScaleChangedWithin { from: SCALE, to: 2.0 * SCALE });
    assert_eq!(moved(0), []);
}

#[test]
fn what_the_scaler_refused_is_told_by_what_came_before() {
    let refused = |refusal| Act::Refused { optimizer: Some(0), refusal, parameters: vec!["fc.weight".into()] };
    let twice = noticed(1, |s, _| {
        scaled(s, 0);
        unscale(s, 0);
        s.act(refused(Refusal::UnscaledTwice));
    });
    assert!(matches!(only(&twice), Mistake::UnscaledTwice { refused: true, backward_between: false, .. }));
    let no_update = noticed(2, |s, i| {
        scaled(s, 0);
        if i == 0 {
            unscale(s, 0);
            step(s, 0);
        } else {
            s.act(refused(Refusal::UnscaledAfterStep));
        }
    });
    let missing = |within_one_step| Mistake::UpdateMissing { optimizer: 0, within_one_step };
    assert_eq!((only(&no_update), no_update[0].first), (&missing(false), 1));
    let same_store = noticed(1, |s, _| {
        scaled(s, 0);
        unscale(s, 0);
        step(s, 0);
        scaled(s, 0);
        s.act(refused(Refusal::SteppedTwice));
    });
    assert_eq!(*only(&same_store), missing(true));
    let none = noticed(1, |s, _| {
        scaled(s, 0);
        s.act(refused(Refusal::NoGradients));
    });
    assert_eq!(*only(&none), Mistake::NoGradients { optimizer: 0, parameters: vec!["fc.weight".into()] });
}

#[test]
fn an_infinite_product_of_a_half_loss_is_noticed_and_a_finite_one_is_not() {
    let half = |loss| {
        noticed(1, |s, _| {
            let product = Some(Product { loss, factor: 65536.0, dtype: Dtype::F16 });
            s.act(Act::Backward { holding: 0, used: 0, product });
        })
    };
    assert_eq!(*only(&half(2.0)), Mistake::HalfLoss { loss: 2.0, scale: 65536.0 });
    assert_eq!(half(0.5), []);
    assert_eq!(half(f64::INFINITY), []);
}

#[test]
fn the_scaled_loss_is_told_from_the_loss_and_from_the_mean_of_micro_batches() {
    let reported = |loss, micro_batches: u32| {
        noticed(1, |s, _| {
            for micro_batch in 0..micro_batches {
                scaled(s, micro_batch);
            }
            s.loss(loss);
            unscale(s, 0);
            step(s, 0);
            update(s);
        })
    };
    for (loss, micro_batches) in [(2.0 * SCALE, 1), (2.0 * SCALE, 4), (8.0 * SCALE, 4)] {
        assert!(matches!(only(&reported(loss, micro_batches)), Mistake::ScaledLossReported { .. }));
    }
    for (loss, micro_batches) in [(2.0, 1), (8.0, 4), (f64::NAN, 1), (0.0, 1)] {
        assert_eq!(reported(loss, micro_batches), []);
    }
}

#[test]
fn a_rate_that_falls_over_skipped_steps_adds_up_and_one_that_rises_does_not() {
    let lr = |rate: fn(u64) -> f64| {
        noticed(8, move |s, i| {
            s.lr(rate(i));
            if i < 3 {
                s.skipped(SCALE, SCALE)
            } else {
                s.applied(SCALE)
            };
        })
    };
    let halved = lr(|i| 0.5f64.powi(i as i32));
    let Mistake::SchedulerAhead { moves, from, to, lost_share } = *only(&halved) else { panic!("{halved:#?}") };
    assert_eq!((moves, from, to, lost_share), (3, 1.0, 0.125, 0.875));
    assert_eq!(lr(|i| (i + 1) as f64), []);
    assert_eq!(lr(|_| 1.0), []);
}

#[test]
fn two_scalers_that_take_turns_are_no_mistake() {
    let found = noticed(4, |s, _| {
        for scale in [SCALE, 8.0] {
            s.event(Scaled { scale }).act(backward(0, 0));
        }
        for scale in [SCALE, 8.0] {
            s.event(Unscaled { optimizer: 0, scale, found_inf: false }).act(step_of(2));
            s.event(Stepped { optimizer: 0, applied: true });
        }
        for scale in [SCALE, 8.0] {
            s.event(Updated { from: scale, to: scale, growth_tracker: 1 });
        }
    });
    assert_eq!(found, []);
}
