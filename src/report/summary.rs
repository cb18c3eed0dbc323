//! The report in Markdown, for the page that a CI job shows of itself and for a comment on a change.

use super::brief::{verdict, within};
use super::evidence::evidence_text;
use super::{Attributed, Layout, Run, coverage};
use crate::rules::Finding;

/// The verdict, a table of the findings, what to do about each, and how much of the model they rest on.
pub(super) fn markdown(run: &Run<'_>) -> String {
    // Markdown breaks its lines itself.
    let unbroken = Layout { width: usize::MAX, colour: false };
    let name = run.ranks.iter().find_map(|rank| Some(rank.aggregate.run.as_ref()?.name.as_str())).unwrap_or("run");
    let mut out = format!("## ampdoctor: {}\n\n{}", escaped(name), verdict(run, &unbroken, "the text report"));
    let findings = run.findings();
    if !findings.is_empty() {
        out.push_str("\n| severity | finding | where | since step |\n|---|---|---|---|\n");
        findings.iter().for_each(|of| out.push_str(&row(of, run.is_distributed())));
        findings.iter().for_each(|of| out.push_str(&section(of.item)));
    }
    let seen = coverage::markdown(run);
    if !seen.is_empty() {
        out.push_str(&format!("\n### What was seen of the model\n\n{seen}"));
    }
    out
}

fn row(of: &Attributed<'_, Finding>, name_rank: bool) -> String {
    let Finding { severity, code, name, onset_step, .. } = of.item;
    let rank = if name_rank { format!(", rank {}", of.rank) } else { String::new() };
    format!("| {} | {code} {name} | {}{rank} | {onset_step} |\n", severity.name(), escaped(&place(of.item)))
}

fn place(finding: &Finding) -> String {
    match within(finding).strip_prefix(" in ") {
        Some(place) => place.to_owned(),
        None => "the run as a whole".into(),
    }
}

fn section(finding: &Finding) -> String {
    let Finding { code, name, explanation, remedy, evidence, consequences, .. } = finding;
    let mut out =
        format!("\n### {code} {name}: {}\n\n{explanation}\n\n**Change:** {}\n", escaped(&place(finding)), remedy.text);
    if let Some(settings) = remedy.settings() {
        out.push_str(&format!("\n**Settings:** `{settings}`\n"));
    }
    if !evidence.is_empty() {
        let evidence: Vec<String> = evidence.iter().map(evidence_text).map(|text| escaped(&text)).collect();
        out.push_str(&format!("\n**Evidence:** {}\n", evidence.join("; ")));
    }
    if !consequences.is_empty() {
        let follow: Vec<String> =
            consequences.iter().map(|of| format!("{} {}", of.code, of.name) + &escaped(&within(of))).collect();
        out.push_str(&format!("\n**Follows from it:** {}\n", follow.join("; ")));
    }
    out
}

/// Text in which nothing is a mark: names of layers and runs hold underscores and may hold anything.
fn escaped(text: &str) -> String {
    text.chars().fold(String::new(), |mut out, c| {
        if matches!(c, '|' | '*' | '_' | '<' | '[' | '`' | '\\') {
            out.push('\\');
        }
        out.push(c);
        out
    })
}

/// A sentence in which only code is marked: what stands between backticks is left as it is.
pub(super) fn prose(text: &str) -> String {
    let parts = text.split('`').enumerate().map(|(i, part)| if i % 2 == 0 { escaped(part) } else { part.to_owned() });
    parts.collect::<Vec<_>>().join("`")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture::Fixture;

    #[test]
    fn findings_stand_in_a_table_and_in_sections() {
        insta::assert_snapshot!(markdown(&Fixture::sick().run()));
    }

    #[test]
    fn names_are_no_marks() {
        assert_eq!(escaped("block_1.*|<b>"), "block\\_1.\\*\\|\\<b>");
    }

    #[test]
    fn a_run_without_findings_is_its_verdict() {
        let text = markdown(&Run::empty());
        assert!(text.starts_with("## ampdoctor: run\n\ncould not tell: ") && !text.contains("What was seen"), "{text}");
    }

    #[test]
    fn only_code_keeps_its_marks_in_a_sentence() {
        assert_eq!(prose("no gradient of `fc_1.weight`: a_b"), "no gradient of `fc_1.weight`: a\\_b");
    }
}
