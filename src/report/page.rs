//! A rule's page: the text that stands at the top of the rule's file, under a heading.

use super::Layout;
use super::markdown::on_terminal;
use super::number::readable;
use super::words::words_of;
use crate::rules::{Rule, RuleInfo, Severity, Threshold, makes_findings, names_layers};

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
    let severity = gravity(*severity);
    // Rust of the user's loop, which this crate cannot compile.
    let text = in_reading_order(&body(source)).replace("```rust,ignore", "```rust");
    let numbers = match rule.thresholds() {
        [] => String::new(),
        all => format!("## Thresholds\n\n{}\n", thresholds(all)),
    };
    let words = match words_of(&format!("{summary}\n{text}\n{numbers}")) {
        none if none.is_empty() => none,
        words => format!("## Words\n\n{words}\n"),
    };
    let setting = how_to_set(rule);
    format!("# {code} {name}\n\n{summary}\n\n{severity}\n\n{text}\n\n{numbers}{words}{setting}")
}

/// What a finding of this severity means to whoever waits for a verdict.
fn gravity(gravest: Severity) -> &'static str {
    match gravest {
        Severity::Error => "Severity: error at its gravest, which fails `ampdoctor check`.",
        Severity::Warning => "Severity: warning at its gravest, which fails `ampdoctor check`.",
        Severity::Info => "Severity: info, which fails nothing.",
    }
}

/// The sections that a page begins with: who looks for help wants to know what to do before how it was decided.
const READ_FIRST: [&str; 3] = ["What it finds", "Why it matters", "What to do"];

/// The text with the sections in the order in which they are read; those not named keep theirs.
fn in_reading_order(text: &str) -> String {
    let mut sections: Vec<String> = Vec::new();
    for line in text.lines() {
        match sections.last_mut() {
            Some(section) if !line.starts_with("## ") => *section += &format!("{line}\n"),
            _ => sections.push(format!("{line}\n")),
        }
    }
    let place = |section: &String| {
        let heading = section.lines().next().and_then(|line| line.strip_prefix("## "));
        READ_FIRST.iter().position(|first| heading == Some(first)).unwrap_or(READ_FIRST.len())
    };
    sections.sort_by_key(place);
    let sections: Vec<&str> = sections.iter().map(|section| section.trim_end()).collect();
    sections.join("\n\n")
}

fn thresholds_table(thresholds: &[Threshold]) -> String {
    let row = |t: &Threshold| {
        let reason = t.reason.replace('|', "\\|");
        format!("| `{}` | {} | {} | {reason} |\n", t.name, readable(t.default), t.unit)
    };
    format!("| name | default | in | why |\n|---|---|---|---|\n{}", thresholds.iter().map(row).collect::<String>())
}

fn thresholds_list(thresholds: &[Threshold]) -> String {
    thresholds
        .iter()
        .map(|t| format!("- `{}` = {} ({}): {}\n", t.name, readable(t.default), t.unit, t.reason))
        .collect()
}

/// The lines of `ampdoctor.toml` that silence this rule or change it.
fn how_to_set(rule: &dyn Rule) -> String {
    let RuleInfo { code, name, .. } = rule.info();
    let threshold = rule.thresholds().first().map_or(String::new(), |t| {
        let line = format!("{} = {:?}", t.name, t.default);
        format!("{line:16}  # a threshold; this is its default\n")
    });
    let by_layer = match rule.thresholds_by_layer() {
        [] => String::new(),
        [only] => format!("For some layers only, `{only}` stands under `[layers.\"block.*.attn\".{name}]`.\n"),
        names => format!(
            "For some layers only, these stand under `[layers.\"block.*.attn\".{name}]`: `{}`.\n",
            names.join("`, `")
        ),
    };
    let allow = how_to_accept(code);
    let text = format!(
        "## How to silence or tune it\n\nIn `ampdoctor.toml`, in the directory in which `ampdoctor` is started. {allow}To change the rule:\n\n\
         ```toml\n[rules.{name}]\nlevel = \"off\"     # or \"info\" (fails no check), \"warning\", \"error\"\n{threshold}```\n\n{by_layer}"
    );
    text.trim_end().to_string() + "\n"
}

/// The block that accepts a finding of this rule; nothing for a rule that only doubts.
fn how_to_accept(code: &str) -> String {
    if !makes_findings(code) {
        return String::new();
    }
    let layer = match names_layers(code) {
        true => "layer = \"head\"    # as the finding names it; without this line, any\n",
        false => "",
    };
    format!(
        "To accept a finding that you know, so that it fails no check:\n\n```toml\n[[allow]]\ncode = \"{code}\"\n{layer}\
         reason = \"...\"    # why it is no fault here; each report repeats it\n```\n\n"
    )
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
    use crate::rules::{Limits, Verdict};

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
        let above = "# AMP999 made-up\n\nNothing | at all.\n\nSeverity: warning at its gravest, which fails `ampdoctor check`.\n\n## What it finds\nNothing.\n\n## Thresholds\n\n";
        assert!(text.starts_with(above), "{text}");
        assert!(text.contains("\n| `most` | 0.5 | share of steps | a \\| b |\n"), "{text}");
        assert!(text.contains("\n[rules.made-up]\nlevel = ") && text.contains("\nmost = 0.5  "), "{text}");
    }

    #[test]
    fn what_to_do_stands_before_how_it_is_decided() {
        let text =
            "## What it finds\na\n\n## How it decides\nb\n\n* c\n\n## What to do\nd\n\n## When it stays silent\ne";
        let read =
            "## What it finds\na\n\n## What to do\nd\n\n## How it decides\nb\n\n* c\n\n## When it stays silent\ne";
        assert_eq!(in_reading_order(text), read);
        assert_eq!(in_reading_order("no heading\n"), "no heading");
    }

    #[test]
    fn on_a_terminal_thresholds_are_a_list() {
        let text = render_page(&MadeUp, &Layout { width: 40, colour: false });
        assert!(text.contains("- `most` = 0.5 (share of steps): a | b\n"), "{text}");
    }

    #[test]
    fn the_index_links_to_each_page() {
        let row = "| [AMP999](AMP999-made-up.md) | made-up | warning | Nothing \\| at all. |\n";
        assert!(page_index(&[&RULE]).ends_with(row));
    }
}
