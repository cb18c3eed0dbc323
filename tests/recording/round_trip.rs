//! Any record is read as it was written, in whatever pieces it comes.

use ampdoctor::observation::{
    Act, Cost, End, EndReason, Note, NoteKind, Observation, Parameter, Probe, Product, Provenance, RecipeEvent, Record,
    Refusal, Rounding, RunInfo, Sampling, ScalerConfig, ScalerEvent, Shadow, ShadowGradient, Site, SiteId, Step,
    Thinned, Tier,
};
use ampdoctor::scan::{Dtype, ExponentHistogram, Fidelity, Likeness, Scaled, Stats};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::sample::{decode, encode, run_info};

/// Any `f64`: NaN, infinities, subnormals.
fn number() -> impl Strategy<Value = f64> {
    prop_oneof![any::<u64>().prop_map(f64::from_bits), Just(f64::NAN), Just(f64::INFINITY), Just(f64::NEG_INFINITY)]
}

fn sampling() -> impl Strategy<Value = Sampling> {
    prop_oneof![any::<u64>().prop_map(Sampling::Every), number().prop_map(Sampling::Budget), Just(Sampling::Off)]
}

fn parameter() -> impl Strategy<Value = Parameter> {
    (any::<String>(), any::<String>(), vec(any::<i64>(), 0..4), any::<bool>())
        .prop_map(|(name, dtype, shape, trainable)| Parameter { name, dtype, shape, trainable })
}

fn info() -> impl Strategy<Value = RunInfo> {
    let texts = (any::<String>(), any::<String>(), any::<String>(), any::<String>(), vec(any::<String>(), 0..4));
    let numbers = (any::<u64>(), any::<u32>(), any::<u32>(), any::<u32>(), any::<Option<u32>>());
    (texts, numbers, sampling(), vec(parameter(), 0..4)).prop_map(|(t, n, sampling, parameters)| RunInfo {
        name: t.0,
        producer: t.1,
        framework: t.2,
        device: t.3,
        command: t.4,
        started_unix_ms: n.0,
        pid: n.1,
        rank: n.2,
        threads: n.3,
        world_size: n.4,
        sampling,
        parameters,
    })
}

fn site() -> impl Strategy<Value = Site> {
    let dtypes = select(vec![Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::F64]);
    (any::<String>(), any::<String>(), any::<String>(), select(Probe::ALL.to_vec()), dtypes)
        .prop_map(|(layer, operator, tensor, probe, dtype)| Site { layer, operator, tensor, probe, dtype })
}

fn histogram() -> impl Strategy<Value = ExponentHistogram> {
    vec((-1074..=1023, 0..1u64 << 50), 0..6).prop_map(|parts| {
        let mut histogram = ExponentHistogram::default();
        parts.into_iter().for_each(|(exponent, n)| histogram.add(exponent, n));
        histogram
    })
}

fn scaled() -> impl Strategy<Value = Scaled> {
    (number(), -65536..=65536).prop_map(|(value, exponent)| Scaled { value, exponent })
}

fn stats() -> impl Strategy<Value = Stats> {
    let n = || 0..1u64 << 40;
    let magnitude = || (1..f64::MAX.to_bits()).prop_map(f64::from_bits);
    (histogram(), [n(), n(), n(), n()], magnitude(), magnitude(), scaled(), scaled()).prop_map(
        |(exponents, [zeros, nan, pos_inf, neg_inf], a, b, sum, sum_squares)| {
            let any = exponents.total() > 0;
            Stats {
                count: zeros + nan + pos_inf + neg_inf + exponents.total(),
                zeros,
                nan,
                pos_inf,
                neg_inf,
                min_abs: if any { a.min(b) } else { 0.0 },
                max_abs: if any { a.max(b) } else { 0.0 },
                sum,
                sum_squares,
                exponents,
            }
        },
    )
}

fn scaler() -> impl Strategy<Value = ScalerConfig> {
    let factors = (number(), number(), number());
    let limits = (proptest::option::of(number()), proptest::option::of(number()));
    (factors, limits, any::<u64>(), any::<u64>(), any::<bool>()).prop_map(|(f, l, interval, hysteresis, foreign)| {
        ScalerConfig {
            init_scale: f.0,
            growth_factor: f.1,
            backoff_factor: f.2,
            growth_interval: interval,
            min_scale: l.0,
            max_scale: l.1,
            hysteresis,
            foreign,
        }
    })
}

fn event() -> impl Strategy<Value = ScalerEvent> {
    prop_oneof![
        number().prop_map(|scale| ScalerEvent::Scaled { scale }),
        (any::<u32>(), number(), any::<bool>()).prop_map(|(optimizer, scale, found_inf)| ScalerEvent::Unscaled {
            optimizer,
            scale,
            found_inf
        }),
        (any::<u32>(), any::<bool>()).prop_map(|(optimizer, applied)| ScalerEvent::Stepped { optimizer, applied }),
        (number(), number(), any::<u64>()).prop_map(|(from, to, growth_tracker)| ScalerEvent::Updated {
            from,
            to,
            growth_tracker
        }),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    let formats = select(vec![Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::F64]);
    let product = (number(), number(), formats).prop_map(|(loss, factor, dtype)| Product { loss, factor, dtype });
    let names = || vec(any::<String>(), 0..3);
    let refusals = select(vec![
        Refusal::UnscaledTwice,
        Refusal::UnscaledAfterStep,
        Refusal::SteppedTwice,
        Refusal::NoGradients,
        Refusal::NothingScaled,
        Refusal::NothingChecked,
        Refusal::HalfGradients,
    ]);
    prop_oneof![
        (any::<u32>(), any::<u32>(), proptest::option::of(product))
            .prop_map(|(holding, used, product)| Act::Backward { holding, used, product }),
        (number(), any::<u32>()).prop_map(|(factor, gradients)| Act::Multiplied { factor, gradients }),
        (number(), any::<u32>()).prop_map(|(limit, gradients)| Act::Clamped { limit, gradients }),
        any::<u32>().prop_map(|gradients| Act::Cleared { gradients }),
        (any::<u32>(), any::<u32>(), any::<bool>()).prop_map(|(parameters, stale, adaptive)| Act::Stepped {
            parameters,
            stale,
            adaptive
        }),
        Just(Act::UpdatedAgain),
        names().prop_map(|parameters| Act::HalfUnscaled { parameters }),
        (proptest::option::of(any::<u32>()), refusals, names())
            .prop_map(|(optimizer, refusal, parameters)| Act::Refused { optimizer, refusal, parameters }),
    ]
}

fn recipe() -> impl Strategy<Value = Vec<RecipeEvent>> {
    vec((any::<u32>(), act()).prop_map(|(after, act)| RecipeEvent { after, act }), 0..4)
}

/// Observations of the sites 0 to `sites`, exclusive.
fn observation(sites: u32) -> impl Strategy<Value = Observation> {
    let rounding = proptest::option::of(rounding().prop_map(Box::new));
    let provenance = proptest::option::of(provenance(sites).prop_map(Box::new));
    (0..sites, stats(), any::<bool>(), proptest::option::of(0..sites), rounding, provenance).prop_map(
        |(site, stats, inherited, via, rounding, provenance)| Observation {
            site: SiteId(site),
            stats,
            inherited,
            via: via.map(SiteId),
            rounding,
            provenance,
        },
    )
}

fn provenance(sites: u32) -> impl Strategy<Value = Provenance> {
    let input = || proptest::option::of((0..sites).prop_map(SiteId));
    (vec(input(), 0..4), proptest::option::of(number()), proptest::option::of(any::<u64>()))
        .prop_map(|(inputs, argument, inexact)| Provenance { inputs, argument, inexact })
}

fn rounding() -> impl Strategy<Value = Rounding> {
    let fidelity = || proptest::option::of(fidelity());
    let unmoved = proptest::option::of(0.0..1e300f64);
    (fidelity(), fidelity(), fidelity(), proptest::option::of(any::<u64>()), unmoved).prop_map(
        |(stepped, without_masters, decay, unlike_master, unmoved)| Rounding {
            stepped,
            without_masters,
            decay,
            unlike_master,
            unmoved,
        },
    )
}

fn fidelity() -> impl Strategy<Value = Fidelity> {
    let sum = || -1e300..1e300f64;
    (any::<u64>(), any::<u64>(), any::<u64>(), sum(), sum()).prop_map(|(a, b, non_finite, dot, energy)| Fidelity {
        intended: a.max(b),
        dead: a.min(b),
        non_finite,
        dot,
        energy: energy.abs(),
    })
}

fn step(sites: u32) -> impl Strategy<Value = Step> {
    let observations = vec(observation(sites.max(1)), if sites == 0 { 0..1 } else { 0..6 });
    let tier = select(vec![Tier::Off, Tier::Light, Tier::Full]);
    let floats = || proptest::option::of(number());
    let cost = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>());
    let lists = (observations, vec(event(), 0..4), recipe(), vec((any::<String>(), number()), 0..3));
    ((any::<u64>(), any::<u64>(), tier), lists, (floats(), floats(), floats()), cost).prop_map(
        |((index, time_ns, tier), (observations, scaler, recipe, metrics), (loss, loss_scale, lr), c)| Step {
            index,
            time_ns,
            tier,
            observations,
            loss,
            loss_scale,
            scaler,
            recipe,
            lr,
            metrics,
            cost: Cost { step_ns: c.0, probe_ns: c.1, dropped_steps: c.2, unscanned: c.3 },
        },
    )
}

fn likeness() -> impl Strategy<Value = Likeness> {
    let part = || 0..1u64 << 40;
    let (square, sum) = (|| 0.0..1e300f64, || -1e300..1e300f64);
    let counts = ([part(), part(), part(), part()], part(), part());
    (counts, [square(), square(), square(), square()], [sum(), sum(), sum()], 0.0..=1.0f64).prop_map(
        |(([a, b, c, d], e, f), [energy, fp32_energy, magnitude, fp32_magnitude], [dot, sum, fp32_sum], share)| {
            Likeness {
                count: a.max(b).max(c).max(d) + 1,
                nonzero: a,
                lost: e.min(a),
                kept: b,
                fading: f.min(b),
                non_finite: c,
                non_finite_in_fp32: d,
                dot,
                energy,
                fp32_energy,
                lost_energy: share * fp32_energy,
                sum,
                magnitude,
                fp32_sum,
                fp32_magnitude,
            }
        },
    )
}

/// Comparisons at the sites 0 to `sites`, exclusive.
fn shadow(sites: u32) -> impl Strategy<Value = Shadow> {
    let gradient =
        (0..sites.max(1), likeness()).prop_map(|(site, likeness)| ShadowGradient { site: SiteId(site), likeness });
    let gradients = vec(gradient, if sites == 0 { 0..1 } else { 0..4 });
    let numbers = (proptest::option::of(number()), proptest::option::of(number()));
    let failure = proptest::option::of(any::<String>());
    (any::<u64>(), any::<u64>(), numbers, any::<bool>(), gradients, failure).prop_map(
        |(step, time_ns, (loss_scale, loss), recomputed, gradients, failure)| Shadow {
            step,
            loss_scale,
            loss,
            recomputed,
            time_ns,
            gradients,
            failure,
        },
    )
}

fn note() -> impl Strategy<Value = Note> {
    let kinds = vec![NoteKind::BlindSpot, NoteKind::Detached, NoteKind::Dropped, NoteKind::Information];
    (any::<u64>(), select(kinds), any::<String>()).prop_map(|(step, kind, text)| Note { step, kind, text })
}

fn end() -> impl Strategy<Value = End> {
    let reasons = vec![EndReason::Finished, EndReason::Dropped, EndReason::Panicked, EndReason::Detached];
    (any::<u64>(), any::<u64>(), select(reasons)).prop_map(|(steps, dropped_steps, reason)| End {
        steps,
        dropped_steps,
        reason,
    })
}

fn thinned() -> impl Strategy<Value = Thinned> {
    proptest::array::uniform8(any::<u64>()).prop_map(|n| Thinned {
        limit_bytes: n[0],
        until: n[1],
        stride: n[2],
        lightened: n[3],
        removed: n[4],
        lightened_events: n[5],
        removed_step_ns: n[6],
        removed_probe_ns: n[7],
    })
}

fn run() -> impl Strategy<Value = Vec<Record>> {
    vec(site(), 0..4).prop_flat_map(|sites| {
        let n = sites.len() as u32;
        let later = prop_oneof![
            4 => step(n).prop_map(Record::Step),
            1 => scaler().prop_map(Record::Scaler),
            1 => note().prop_map(Record::Note),
            1 => shadow(n).prop_map(Record::Shadow),
            1 => thinned().prop_map(Record::Thinned),
        ];
        (info(), Just(sites), vec(later, 0..6), end()).prop_map(|(info, sites, later, end)| {
            let sites = sites.into_iter().enumerate().map(|(i, site)| Record::Site(SiteId(i as u32), site));
            let mut records = vec![Record::Run(info)];
            records.extend(sites);
            records.extend(later);
            records.push(Record::End(end));
            records
        })
    })
}

/// Records compared by their bits: NaN is itself. Rust prints NaN without its payload, which nothing here looks at.
fn text(records: &[Record]) -> Vec<String> {
    records.iter().map(|record| format!("{record:?}")).collect()
}

proptest! {
    #[test]
    fn what_is_written_is_what_is_read_in_whatever_pieces(records in run(), chunk in 1usize..400) {
        let (bytes, _) = encode(&records);
        let (read, integrity) = decode(bytes.chunks(chunk));
        prop_assert_eq!(text(&read), text(&records));
        prop_assert!(integrity.expect("readable").is_whole());
    }

    #[test]
    fn any_bytes_behind_a_run_are_read_without_a_panic(junk in vec(any::<u8>(), 0..300), chunk in 1usize..50) {
        let (mut bytes, _) = encode(&[Record::Run(run_info())]);
        bytes.extend(&junk);
        let (read, integrity) = decode(bytes.chunks(chunk));
        prop_assert_eq!(read, vec![Record::Run(run_info())]);
        let integrity = integrity.expect("readable");
        prop_assert_eq!(integrity.damaged_bytes + integrity.tail_bytes, junk.len() as u64);
    }

    #[test]
    fn any_payload_is_decoded_without_a_panic(payload in vec(any::<u8>(), 0..200)) {
        let (mut bytes, _) = encode(&[Record::Run(run_info())]);
        let masked = |bytes: &[u8]| crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
        let length = (payload.len() as u64).to_le_bytes();
        bytes.extend([&length[..], &masked(&length), &payload, &masked(&payload)].concat());
        let (_, integrity) = decode([&bytes[..]]);
        prop_assert!(integrity.is_ok());
    }
}

#[test]
fn a_sites_definition_is_given_once_however_often_it_is_written() {
    let site = crate::sample::site("fc");
    let twice = [Record::Run(run_info()), Record::Site(SiteId(0), site.clone()), Record::Site(SiteId(0), site)];
    let (bytes, _) = encode(&twice);
    let (read, integrity) = decode([&bytes[..]]);
    assert_eq!(read, twice[..2]);
    assert_eq!(integrity.expect("readable").damage_count, 0);
}
