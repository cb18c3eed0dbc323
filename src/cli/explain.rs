//! `ampdoctor rules` and `ampdoctor explain`.

use anyhow::Context;
use serde::Serialize;

use super::args::{ExplainArgs, RulesArgs};
use super::exit::Exit;
use super::terminal::Terminal;
use crate::report::nearest;
use crate::report::{Layout, render_page};
use crate::rules::{self, Rule, RuleInfo, Threshold};

pub(super) fn rules(args: RulesArgs, terminal: &Terminal) -> anyhow::Result<Exit> {
    let text = match args.format.as_str() {
        "json" => as_json(rules::all())?,
        _ => as_table(&infos(), &terminal.layout),
    };
    terminal.print(&text)?;
    Ok(Exit::Success)
}

pub(super) fn explain(args: &ExplainArgs, terminal: &Terminal) -> anyhow::Result<Exit> {
    let rule = rules::find(&args.rule).with_context(|| unknown_rule(&args.rule))?;
    terminal.print(&render_page(rule, &terminal.layout))?;
    Ok(Exit::Success)
}

fn infos() -> Vec<&'static RuleInfo> {
    rules::all().iter().map(|rule| rule.info()).collect()
}

/// What there is in place of a rule that there is not. A code that is none is no slip of the pen: its family is named, not a neighbour of it.
fn unknown_rule(typed: &str) -> String {
    if let Some(family) = family_of(typed) {
        let names: Vec<String> = family.iter().map(|info| format!("{} {}", info.code, info.name)).collect();
        return format!("there is no rule {typed}. Of its family there are {}.", names.join(", "));
    }
    if code_digits(typed).is_some() {
        return format!("there is no rule {typed}, nor one of its family. `ampdoctor rules` lists them all.");
    }
    let hint = match nearest(typed, infos().into_iter().flat_map(|info| [info.code, info.name])) {
        Some(name) => format!("Did you mean {name}? "),
        None => String::new(),
    };
    format!("there is no rule {typed}. {hint}`ampdoctor rules` lists them all.")
}

/// The rules whose code begins as the one that was typed, where a code was typed.
fn family_of(typed: &str) -> Option<Vec<&'static RuleInfo>> {
    let digits = code_digits(typed)?;
    let family: Vec<_> = infos().into_iter().filter(|info| info.code[3..4] == digits[..1]).collect();
    (!family.is_empty()).then_some(family)
}

/// The three digits of a code, of a rule that there is or not; `None` of what is no code.
fn code_digits(typed: &str) -> Option<String> {
    let code = typed.trim().to_uppercase();
    let digits = code.strip_prefix("AMP").unwrap_or(&code);
    (digits.len() == 3 && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.to_owned())
}

fn as_table(rules: &[&RuleInfo], layout: &Layout) -> String {
    let width = rules.iter().map(|info| info.name.len()).max().unwrap_or(0);
    let indent = " ".repeat("AMP000  ".len() + width + "  warning  ".len());
    let row = |info: &&RuleInfo| {
        let painted = format!(
            "{}  {:width$}  {}  ",
            layout.bold(info.code),
            info.name,
            layout.severity(info.severity, &format!("{:7}", info.severity.name()))
        );
        layout.wrap(&painted, &indent, info.summary)
    };
    rules.iter().map(row).collect()
}

#[derive(Serialize)]
struct RuleDocument<'a> {
    code: &'a str,
    name: &'a str,
    severity: &'a str,
    summary: &'a str,
    thresholds: Vec<ThresholdDocument<'a>>,
}

#[derive(Serialize)]
struct ThresholdDocument<'a> {
    name: &'a str,
    default: f64,
    unit: &'a str,
    by_layer: bool,
    reason: &'a str,
}

fn as_json(rules: &[&dyn Rule]) -> anyhow::Result<String> {
    let documents: Vec<RuleDocument<'_>> = rules.iter().map(|rule| RuleDocument::of(*rule)).collect();
    Ok(serde_json::to_string_pretty(&documents)? + "\n")
}

impl<'a> RuleDocument<'a> {
    fn of(rule: &'a dyn Rule) -> Self {
        let RuleInfo { code, name, severity, summary, .. } = *rule.info();
        let thresholds = rule.thresholds().iter().map(|threshold| ThresholdDocument::of(rule, threshold)).collect();
        Self { code, name, severity: severity.name(), summary, thresholds }
    }
}

impl<'a> ThresholdDocument<'a> {
    fn of(rule: &dyn Rule, threshold: &'a Threshold) -> Self {
        let Threshold { name, default, unit, reason, .. } = *threshold;
        Self { name, default, unit, by_layer: rule.thresholds_by_layer().contains(&name), reason }
    }
}
