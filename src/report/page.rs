//! A rule's page: the text that stands at the top of the rule's file, under a heading.

use super::Layout;
use super::markdown::on_terminal;
use crate::rules::RuleInfo;

/// The file name of a rule's page under `docs/rules`: `AMP201-gradient-underflow.md`.
pub fn page_file_name(rule: &RuleInfo) -> String {
    format!("{}-{}.md", rule.code, rule.name)
}

/// A rule's page in Markdown: code, name, severity and summary, then the rule's own text.
pub fn page(rule: &RuleInfo) -> String {
    let RuleInfo { code, name, severity, summary, .. } = rule;
    let severity = severity.name();
    format!("# {code} {name}\n\n{summary}\n\nGravest severity: {severity}.\n\n{}\n", body(rule.source))
}

/// A rule's page for a terminal.
pub fn render_page(rule: &RuleInfo, layout: &Layout) -> String {
    on_terminal(&page(rule), layout)
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
    use crate::rules::Severity;

    const RULE: RuleInfo = RuleInfo {
        code: "AMP999",
        name: "made-up",
        severity: Severity::Warning,
        summary: "Nothing | at all.",
        source: "//! # Made up\n//!\n//! ## What it finds\n//! Nothing.\n\nuse std::io; //! not this\n",
    };

    #[test]
    fn a_page_is_the_text_above_the_code() {
        let expected =
            "# AMP999 made-up\n\nNothing | at all.\n\nGravest severity: warning.\n\n## What it finds\nNothing.\n";
        assert_eq!(page(&RULE), expected);
    }

    #[test]
    fn the_index_links_to_each_page() {
        let row = "| [AMP999](AMP999-made-up.md) | made-up | warning | Nothing \\| at all. |\n";
        assert!(page_index(&[&RULE]).ends_with(row));
    }
}
