//! The document against its schema, both ways: what is written is described, and what is described is written.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::json;
use crate::observation::Sampling;
use crate::observation::scenario::{Scenario, normal};
use crate::report::fixture::{Fixture, run_info};
use crate::report::{Comparison, Rank, Run, Selection, compare_json, whatif_json};
use crate::rules::whatif::WhatIf;
use crate::rules::{Diagnosis, Health};
use crate::scan::Dtype;

const SCHEMA: &str = include_str!("../../../docs/report.schema.json");

/// A run with gradients, so that there is a window of loss scales.
fn with_gradients() -> Diagnosis {
    let mut run = Scenario::new();
    run.steps(2, |s, i| {
        s.activation("fc", "linear", Dtype::F16, &normal(256, 1e-5, i));
        s.gradient("fc", "linear", Dtype::F16, &normal(256, 1e-4, i));
        s.param_grad("fc", "weight", Dtype::F16, &normal(256, 1e-3, i));
    });
    let mut diagnosis = Diagnosis::new();
    run.records().iter().cloned().for_each(|record| diagnosis.apply(record));
    diagnosis
}

fn parsed(run: &Run<'_>) -> Value {
    serde_json::from_str(&json(run)).expect("the report is JSON")
}

#[test]
fn the_report_is_as_it_was() {
    insta::assert_snapshot!(json(&Fixture::sick().run()).replace(env!("CARGO_PKG_VERSION"), "<version>"));
}

#[test]
fn the_same_run_gives_the_same_bytes() {
    assert_eq!(json(&Fixture::sick().three_ranks()), json(&Fixture::sick().three_ranks()));
}

#[test]
fn non_finite_numbers_are_strings() {
    let report = parsed(&Fixture::sick().run());
    assert_eq!(report["findings"][0]["evidence"]["max_abs"], "Infinity");
    assert_eq!(report["ranks"][0]["timeline"]["loss"][1], "NaN");
}

#[test]
fn every_report_follows_the_schema() {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let (fixture, empty) = (Fixture::sick(), Diagnosis::new());
    let mut budget = Diagnosis::new();
    budget.apply(crate::observation::Record::Run(run_info(Sampling::Budget(0.02))));
    let runs = [
        fixture.run(),
        fixture.three_ranks(),
        Run::empty(),
        Run::single(Rank::of(&empty)),
        Run::single(Rank { health: Health::Healthy, ..Rank::of(&budget) }),
    ];
    for run in &runs {
        let mut met = BTreeSet::new();
        let mut wrong = Vec::new();
        Checker { root: &schema, met: &mut met }.check(&parsed(run), &schema, "", &mut wrong);
        assert_eq!(wrong, Vec::<String>::new());
    }
}

#[test]
fn everything_in_the_schema_is_written() {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let (mut met, mut wrong) = (BTreeSet::new(), Vec::new());
    for run in [Fixture::sick().three_ranks(), Run::single(Rank::of(&with_gradients()))] {
        Checker { root: &schema, met: &mut met }.check(&parsed(&run), &schema, "", &mut wrong);
    }
    assert_eq!(wrong, Vec::<String>::new());
    let mut described = BTreeSet::new();
    properties(&schema, &mut described);
    assert_eq!(described.difference(&met).collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
fn the_whatif_follows_its_schema_and_all_of_that_is_written() {
    let schema: Value = serde_json::from_str(include_str!("../../../docs/whatif.schema.json")).unwrap();
    let (mut met, mut described) = (BTreeSet::new(), BTreeSet::new());
    properties(&schema, &mut described);
    let (fixture, empty, gradients) = (Fixture::sick(), Diagnosis::new(), with_gradients());
    for aggregate in [fixture.run().ranks[0].aggregate, empty.aggregate(), gradients.aggregate()] {
        let text = whatif_json(&WhatIf::of(&[aggregate]), &Selection::default());
        let mut wrong = Vec::new();
        let document = serde_json::from_str(&text).expect("it is JSON");
        Checker { root: &schema, met: &mut met }.check(&document, &schema, "", &mut wrong);
        assert_eq!(wrong, Vec::<String>::new());
    }
    assert_eq!(described.difference(&met).collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
fn the_comparison_follows_its_schema_and_all_of_that_is_written() {
    let schema: Value = serde_json::from_str(include_str!("../../../docs/compare.schema.json")).unwrap();
    let (mut met, mut described) = (BTreeSet::new(), BTreeSet::new());
    properties(&schema, &mut described);
    let (fixture, empty, gradients) = (Fixture::sick(), Diagnosis::new(), with_gradients());
    let (sick, nothing) = (fixture.run(), Run::single(Rank::of(&empty)));
    let well = Run::single(Rank::of(&gradients));
    for (base, run) in [(&sick, &well), (&well, &sick), (&sick, &nothing), (&sick, &sick)] {
        let text = compare_json(&Comparison::of(base, run));
        let mut wrong = Vec::new();
        let document = serde_json::from_str(&text).expect("it is JSON");
        Checker { root: &schema, met: &mut met }.check(&document, &schema, "", &mut wrong);
        assert_eq!(wrong, Vec::<String>::new());
    }
    assert_eq!(described.difference(&met).collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
fn the_checker_sees_what_is_wrong() {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    type Break = fn(&mut Map<String, Value>);
    let broken: [Break; 4] = [
        |report| drop(report.remove("verdict")),
        |report| drop(report.insert("extra".into(), Value::Null)),
        |report| report["verdict"]["health"] = "fine".into(),
        |report| report["findings"][0]["onset_step"] = "one".into(),
    ];
    for change in broken {
        let mut report = parsed(&Fixture::sick().run());
        change(report.as_object_mut().unwrap());
        let mut wrong = Vec::new();
        Checker { root: &schema, met: &mut BTreeSet::new() }.check(&report, &schema, "", &mut wrong);
        assert_eq!(wrong.len(), 1, "{wrong:?}");
    }
}

/// The names of all properties of the schema.
fn properties(schema: &Value, into: &mut BTreeSet<String>) {
    if let Some(object) = schema.get("properties").and_then(Value::as_object) {
        into.extend(object.keys().cloned());
    }
    match schema {
        Value::Object(object) => object.values().for_each(|value| properties(value, into)),
        Value::Array(array) => array.iter().for_each(|value| properties(value, into)),
        _ => {}
    }
}

/// The part of JSON Schema that `docs/report.schema.json` uses; a keyword that it does not know is a panic, not a pass.
struct Checker<'a> {
    root: &'a Value,
    met: &'a mut BTreeSet<String>,
}

impl Checker<'_> {
    fn check(&mut self, value: &Value, schema: &Value, at: &str, wrong: &mut Vec<String>) {
        for (keyword, rule) in schema.as_object().expect("a schema is an object") {
            match keyword.as_str() {
                "$schema" | "$id" | "$defs" | "title" | "description" | "properties" => {}
                "$ref" => {
                    let path = rule.as_str().unwrap().strip_prefix('#').unwrap();
                    let target = self.root.pointer(path).expect("a definition of that name");
                    self.check(value, target, at, wrong);
                }
                "type" if !is_type(value, rule) => wrong.push(format!("{at} is not {rule}: {value}")),
                "enum" if !rule.as_array().unwrap().contains(value) => wrong.push(format!("{at}: {value}")),
                "const" if rule != value => wrong.push(format!("{at}: {value}")),
                "minimum" if value.as_f64().is_some_and(|x| Some(x) < rule.as_f64()) => {
                    wrong.push(format!("{at}: {value}"))
                }
                "type" | "enum" | "const" | "minimum" => {}
                "anyOf" => self.any(value, rule, at, wrong),
                "required" => required(value, rule, at, wrong),
                "items" => {
                    for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.check(item, rule, &format!("{at}/{i}"), wrong);
                    }
                }
                "additionalProperties" => self.members(value, schema, rule, at, wrong),
                other => panic!("the checker does not know {other}"),
            }
        }
    }

    fn any(&mut self, value: &Value, choices: &Value, at: &str, wrong: &mut Vec<String>) {
        let mut best: Option<Vec<String>> = None;
        for choice in choices.as_array().unwrap() {
            let mut mistakes = Vec::new();
            self.check(value, choice, at, &mut mistakes);
            if best.as_ref().is_none_or(|best| mistakes.len() < best.len()) {
                best = Some(mistakes);
            }
        }
        wrong.extend(best.unwrap_or_default());
    }

    /// The members of an object; each `properties` of the schema stands with an `additionalProperties`.
    fn members(&mut self, value: &Value, schema: &Value, others: &Value, at: &str, wrong: &mut Vec<String>) {
        for (key, member) in value.as_object().into_iter().flatten() {
            let path = format!("{at}/{key}");
            match schema.get("properties").and_then(|known| known.get(key)) {
                Some(known) => {
                    self.met.insert(key.clone());
                    self.check(member, known, &path, wrong);
                }
                None if others == &Value::Bool(false) => wrong.push(format!("{path} is not described")),
                None => self.check(member, others, &path, wrong),
            }
        }
    }
}

fn required(value: &Value, names: &Value, at: &str, wrong: &mut Vec<String>) {
    let Some(object) = value.as_object() else { return };
    for name in names.as_array().unwrap().iter().filter_map(Value::as_str) {
        if !object.contains_key(name) {
            wrong.push(format!("{at}/{name} is missing"));
        }
    }
}

fn is_type(value: &Value, types: &Value) -> bool {
    let is = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("there is no type {other}"),
    };
    match types {
        Value::Array(all) => all.iter().filter_map(Value::as_str).any(is),
        one => is(one.as_str().expect("a type is a name")),
    }
}
