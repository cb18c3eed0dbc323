//! The report in Markdown, for the page that a CI job shows of itself and for a comment on a change.

use super::brief::{verdict, within};
use super::evidence::evidence_text;
use super::{Attributed, Layout, Run};
use crate::rules::Finding;

/// The verdict, a table of the findings, and what to do about each.
pub(super) fn markdown(run: &Run<'_>) -> String {
    // Markdown breaks its lines itself.
    let unbroken = Layout { width: usize::MAX, colour: false };
    let name = run.ranks.iter().find_map(|rank| Some(rank.aggregate.run.as_ref()?.name.as_str())).unwrap_or("run");
    let mut out = format!("## ampdoctor: {}\n\n{}", escaped(name), verdict(run, &unbroken, "the text report"));
    let findings = run.findings();
    if findings.is_empty() {
        return out;
    }
    out.push_str("\n| severity | finding | where | since step |\n|---|---|---|---|\n");
    findings.iter().for_each(|of| out.push_str(&row(of, run.is_distributed())));
    findings.iter().for_each(|of| out.push_str(&section(of.item)));
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
        assert!(markdown(&Run::empty()).starts_with("## ampdoctor: run\n\ncould not tell: "));
    }
}
