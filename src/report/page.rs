//! A rule's page: the text that stands at the top of the rule's file, under a heading.

use super::Layout;
use super::markdown::on_terminal;
use super::number::readable;
use crate::rules::{Rule, RuleInfo, Threshold};

/// The file name of a rule's page under `docs/rules`: `AMP201-gradient-underflow.md`.
pub fn page_file_name(rule: &RuleInfo) -> String {
    format!("{}-{}.md", rule.code, rule.name)
}

/// A rule's page in Markdown: code, name, severity and summary, then the rule's own text, its thresholds and how to set them.
pub fn page(rule: &dyn Rule) -> String {
    of_rule(rule, thresholds_table)
}

/// A rule's page for a terminal.
pub fn render_page(rule: &dyn Rule, layout: &Layout) -> String {
    on_terminal(&of_rule(rule, thresholds_list), layout)
}

fn of_rule(rule: &dyn Rule, thresholds: fn(&[Threshold]) -> String) -> String {
    let RuleInfo { code, name, severity, summary, source } = rule.info();
    let severity = severity.name();
    let text = body(source);
    let numbers = match rule.thresholds() {
        [] => String::new(),
        all => format!("## Thresholds\n\n{}\n", thresholds(all)),
    };
    let setting = how_to_set(rule);
    format!("# {code} {name}\n\n{summary}\n\nGravest severity: {severity}.\n\n{text}\n\n{numbers}{setting}")
}

fn thresholds_table(thresholds: &[Threshold]) -> String {
    let row = |t: &Threshold| {
        let reason = t.reason.replace('|', "\\|");
        format!("| `{}` | {} | {} | {reason} |\n", t.name, readable(t.default), t.unit)
    };
    format!("| name | default | in | why |\n|---|---|---|---|\n{}", thresholds.iter().map(row).collect::<String>())
}

fn thresholds_list(thresholds: &[Threshold]) -> String {
    thresholds.iter().map(|t| format!("- `{}` = {} {}: {}\n", t.name, readable(t.default), t.unit, t.reason)).collect()
}

/// The lines of `ampdoctor.toml` that change this rule.
fn how_to_set(rule: &dyn Rule) -> String {
    let RuleInfo { code, name, .. } = rule.info();
    let threshold = rule.thresholds().first().map_or(String::new(), |t| format!("{} = {:?}\n", t.name, t.default));
    let by_layer = match rule.thresholds_by_layer() {
        [] => String::new(),
        [only] => format!("`{only}` may differ from layer to layer: `[layers.\"block.*.attn\".{name}]`.\n\n"),
        names => format!(
            "These may differ from layer to layer (`[layers.\"block.*.attn\".{name}]`): `{}`.\n\n",
            names.join("`, `")
        ),
    };
    format!(
        "## How to set it\n\nIn `ampdoctor.toml`:\n\n```toml\n[rules.{name}]\nlevel = \"warning\"  # off, info, warning, error: the severity of what it finds\n\
         {threshold}\n[[allow]]  # a finding that is known\ncode = \"{code}\"\nlayer = \"head\"  # without it, any\nreason = \"why\"\n```\n\n{by_layer}"
    )
    .trim_end()
    .to_string()
        + "\n"
}

/// The index of all pages, in Markdown.
pub fn page_index(rules: &[&RuleInfo]) -> String {
    let mut out = String::from("# Rules\n\n`ampdoctor explain CODE` shows a page on the terminal.\n\n");
    out.push_str("| code | name | severity | summary |\n|---|---|---|---|\n");
    for rule in rules {
        let RuleInfo { code, name, severity, summary, .. } = rule;
        let summary = summary.replace('|', "\\|");
        out.push_str(&format!("| [{code}]({}) | {name} | {} | {summary} |\n", page_file_name(rule), severity.name()));
    }
    out
}

/// The leading `//!` lines of a source file, without the marks and without a first heading: the page has its own.
fn body(source: &str) -> String {
    let lines: Vec<&str> = source
        .lines()
        .map_while(|line| line.strip_prefix("//!"))
        .map(|line| line.strip_prefix(' ').unwrap_or(line).trim_end())
        .collect();
    let text = lines.join("\n");
    let text = text.trim();
    let without_heading = match text.strip_prefix("# ") {
        Some(rest) => rest.split_once('\n').map_or("", |(_, rest)| rest),
        None => text,
    };
    without_heading.trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::Aggregate;
    use crate::rules::{Limits, Severity, Verdict};

    struct MadeUp;

    const RULE: RuleInfo = RuleInfo {
        code: "AMP999",
        name: "made-up",
        severity: Severity::Warning,
        summary: "Nothing | at all.",
        source: "//! # Made up\n//!\n//! ## What it finds\n//! Nothing.\n\nuse std::io; //! not this\n",
    };

    const MOST: Threshold =
        Threshold { rule: "made-up", name: "most", default: 0.5, unit: "share of steps", reason: "a | b" };

    impl Rule for MadeUp {
        fn info(&self) -> &'static RuleInfo {
            &RULE
        }

        fn thresholds(&self) -> &'static [Threshold] {
            &[MOST]
        }

        fn check(&self, _: &Aggregate, _: &Limits) -> Vec<Verdict> {
            Vec::new()
        }
    }

    #[test]
    fn a_page_is_the_text_above_the_code_the_thresholds_and_how_to_set_them() {
        let text = page(&MadeUp);
        let above = "# AMP999 made-up\n\nNothing | at all.\n\nGravest severity: warning.\n\n## What it finds\nNothing.\n\n## Thresholds\n\n";
        assert!(text.starts_with(above), "{text}");
        assert!(text.contains("\n| `most` | 0.5 | share of steps | a \\| b |\n"), "{text}");
        assert!(text.contains("\n[rules.made-up]\nlevel = ") && text.contains("\nmost = 0.5\n"), "{text}");
    }

    #[test]
    fn on_a_terminal_thresholds_are_a_list() {
        let text = render_page(&MadeUp, &Layout { width: 40, colour: false });
        assert!(text.contains("- `most` = 0.5 share of steps: a | b\n"), "{text}");
    }

    #[test]
    fn the_index_links_to_each_page() {
        let row = "| [AMP999](AMP999-made-up.md) | made-up | warning | Nothing \\| at all. |\n";
        assert!(page_index(&[&RULE]).ends_with(row));
    }
}
