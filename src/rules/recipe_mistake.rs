//! What the rules on the recipe have in common: each tells of one kind of mistake that the aggregate has noticed.

use super::text::counted;
use super::{Evidence, Firing, Needs, Remedy, Severity, Verdict};
use crate::aggregate::{Aggregate, Mistake, Sighting};

/// The operators of one watched step, in runs that have a scaler; the first steps of a run are always watched.
pub(super) const WATCHED_WITH_SCALER: Needs =
    Needs::Scans { steps: 1, applies: |a| a.instrument.full_steps == 0 || a.scaler_config.is_some() };

/// A finding in the making.
pub(super) struct Telling {
    pub severity: Severity,
    pub evidence: Vec<Evidence>,
    pub explanation: String,
    pub remedy: Remedy,
}

/// The verdict on the mistake that `tell` takes up, where it was made at the latest step.
pub(super) fn judge(aggregate: &Aggregate, tell: impl Fn(&Mistake, &Sighting) -> Option<Telling>) -> Vec<Verdict> {
    let now = aggregate.latest.as_ref().map(|step| step.index);
    let present = aggregate.recipe.sightings.iter().filter(|sighting| Some(sighting.latest) == now);
    let firing = |(sighting, telling): (&Sighting, Telling)| {
        let Telling { severity, mut evidence, explanation, remedy } = telling;
        evidence.push(counted("times", sighting.times));
        Verdict::Firing(Box::new(Firing {
            severity,
            layer: String::new(),
            operator: String::new(),
            probe: None,
            since: sighting.first,
            strength: sighting.times as f64,
            evidence,
            explanation,
            remedy,
        }))
    };
    present.filter_map(|sighting| Some((sighting, tell(&sighting.mistake, sighting)?))).map(firing).collect()
}

/// `a`, `a and b`, `a, b and 3 more`.
pub(super) fn named(names: &[String]) -> String {
    const SPELLED_OUT: usize = 4;
    let quoted: Vec<String> = names.iter().take(SPELLED_OUT).map(|name| format!("`{name}`")).collect();
    match (names.len().saturating_sub(SPELLED_OUT), &quoted[..]) {
        (0, []) => "parameters that are not known by name".into(),
        (0, [all @ .., last]) if !all.is_empty() => format!("{} and {last}", all.join(", ")),
        (0, _) => quoted.join(", "),
        (more, _) => format!("{} and {more} more", quoted.join(", ")),
    }
}

/// Loops in the library's words, for the tests of these rules.
#[cfg(test)]
pub(super) mod testing {
    use crate::observation::ScalerEvent::{Scaled, Stepped, Unscaled, Updated};
    use crate::observation::scenario::{Scenario, StepBuilder};
    use crate::observation::{Act, Product, Refusal};
    use crate::rules::silence::{diagnose, found};
    use crate::rules::{Diagnosis, Finding};
    use crate::scan::Dtype::F32;

    pub const SCALE: f64 = 1024.0;

    pub fn backward(s: &mut StepBuilder<'_>, holding: u32) {
        let product = Some(Product { loss: 2.0, factor: SCALE, dtype: F32 });
        s.loss_scale(SCALE).event(Scaled { scale: SCALE }).act(Act::Backward { holding, used: 0, product });
    }

    pub fn unscale(s: &mut StepBuilder<'_>, optimizer: u32) {
        s.event(Unscaled { optimizer, scale: SCALE, found_inf: false });
    }

    pub fn step(s: &mut StepBuilder<'_>, optimizer: u32) {
        apply(s, false);
        s.event(Stepped { optimizer, applied: true });
    }

    pub fn apply(s: &mut StepBuilder<'_>, adaptive: bool) {
        s.act(Act::Stepped { parameters: 2, stale: 0, adaptive });
    }

    pub fn update(s: &mut StepBuilder<'_>) {
        s.event(Updated { from: SCALE, to: SCALE, growth_tracker: 1 });
    }

    pub fn refused(s: &mut StepBuilder<'_>, refusal: Refusal, names: &[&str]) {
        let parameters = names.iter().map(|&name| name.to_owned()).collect();
        s.act(Act::Refused { optimizer: Some(0), refusal, parameters });
    }

    /// A sound step.
    pub fn sound(s: &mut StepBuilder<'_>) {
        backward(s, 0);
        unscale(s, 0);
        step(s, 0);
        update(s);
    }

    pub fn run(steps: u64, build: impl FnMut(&mut StepBuilder<'_>, u64)) -> Diagnosis {
        let mut run = Scenario::new();
        run.dynamic_scaler(SCALE).steps(steps, build);
        diagnose(&run)
    }

    /// The one finding.
    pub fn only(diagnosis: &Diagnosis, code: &str) -> Finding {
        assert_eq!(found(diagnosis), [code], "{:#?}", diagnosis.findings());
        diagnosis.findings()[0].clone()
    }
}

#[cfg(test)]
mod tests {
    use super::named;

    #[test]
    fn names_are_spelled_out_up_to_four() {
        let names = |n: usize| (0..n).map(|i| format!("p{i}")).collect::<Vec<_>>();
        assert_eq!((named(&names(1)), named(&names(2))), ("`p0`".into(), "`p0` and `p1`".into()));
        assert_eq!(named(&names(6)), "`p0`, `p1`, `p2`, `p3` and 2 more");
        assert_eq!(named(&[]), "parameters that are not known by name");
    }
}
