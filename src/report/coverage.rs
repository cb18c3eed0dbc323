//! What of the model was seen, and why anything was not.

use super::layout::Layout;
use super::summary::prose;
use super::{Rank, Run};
use crate::aggregate::{Aggregate, Coverage};

/// A line where all was seen; else a line for each thing that was not. Nothing where no backward pass was scanned: the rules say that.
fn lines(aggregate: &Aggregate) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(coverage) = Coverage::of(aggregate) {
        lines.extend(coverage.seen().map(|seen| format!("{SEEN}{seen}")));
        lines.extend(coverage.missing());
    }
    lines.extend(aggregate.blind_spots().map(|spot| format!("blind spot: {spot}")));
    lines
}

/// Where no heading says it.
const SEEN: &str = "seen: ";

/// For the head of a rank in the text report.
pub(super) fn text(rank: &Rank<'_>, layout: &Layout) -> Vec<String> {
    lines(rank.aggregate).iter().map(|line| layout.wrap("  ", "    ", line)).collect()
}

/// A list in Markdown; ranks of which the same was seen are told together. Empty where there is nothing to tell of any.
pub(super) fn markdown(run: &Run<'_>) -> String {
    let mut alike: Vec<(Vec<u32>, Vec<String>)> = Vec::new();
    for rank in &run.ranks {
        let lines = lines(rank.aggregate);
        match alike.iter_mut().find(|(_, known)| *known == lines) {
            Some((ranks, _)) => ranks.push(rank.number()),
            None => alike.push((vec![rank.number()], lines)),
        }
    }
    let name_ranks = alike.len() > 1;
    let items = alike.iter().flat_map(|(ranks, lines)| {
        let who = if name_ranks { format!("{}: ", numbered(ranks)) } else { String::new() };
        lines.iter().map(move |line| format!("- {who}{}\n", prose(line.strip_prefix(SEEN).unwrap_or(line))))
    });
    items.collect()
}

/// `rank 3`, `ranks 0, 1, 2`.
fn numbered(ranks: &[u32]) -> String {
    let numbers: Vec<String> = ranks.iter().map(u32::to_string).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, numbers.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::scenario::{Scenario, normal};
    use crate::observation::{Note, NoteKind, Parameter, Record, RunInfo};
    use crate::rules::Diagnosis;
    use crate::scan::Dtype::F32;

    /// A step of a layer, of which all was seen, or all but its update.
    fn rank(rank: u32, update: bool) -> Diagnosis {
        let mut scenario = Scenario::new();
        scenario.step(|step| {
            let values = normal(64, 1.0, 1);
            step.activation("fc_1", "linear", F32, &values).gradient("fc_1", "linear", F32, &values);
            step.param_grad("fc_1", "weight", F32, &values);
            if update {
                step.update("fc_1", "add_", "weight", &values);
            }
        });
        let shape = vec![8, 8];
        let parameters = vec![Parameter { name: "fc_1.weight".into(), dtype: "f32".into(), shape, trainable: true }];
        let mut diagnosis = Diagnosis::new();
        for record in scenario.records() {
            diagnosis.apply(match record.clone() {
                Record::Run(run) => Record::Run(RunInfo { rank, parameters: parameters.clone(), ..run }),
                other => other,
            });
        }
        let text = "a sparse_tensor was not scanned".into();
        diagnosis.apply(Record::Note(Note { step: 0, kind: NoteKind::BlindSpot, text }));
        diagnosis
    }

    fn told(diagnoses: &[Diagnosis]) -> String {
        markdown(&Run::of(diagnoses.iter().map(Rank::of).collect(), &[]))
    }

    const ALL: &str =
        "gradient and update of 1 of 1 trainable parameters, activation and its gradient of 1 of 1 layers";

    #[test]
    fn in_markdown_what_was_seen_is_a_list_and_only_code_keeps_its_marks() {
        assert_eq!(told(&[rank(0, true)]), format!("- {ALL}\n- blind spot: a sparse\\_tensor was not scanned\n"));
        assert_eq!(told(&[]), "");
    }

    #[test]
    fn ranks_of_which_the_same_was_seen_are_told_together_and_others_by_number() {
        assert_eq!(told(&[rank(0, true), rank(1, true)]), told(&[rank(0, true)]));
        let apart = told(&[rank(0, true), rank(1, false), rank(2, true)]);
        assert!(apart.starts_with(&format!("- ranks 0, 2: {ALL}\n")), "{apart}");
        let seen = "gradient and update of 0 of 1 trainable parameters, ";
        assert!(apart.contains(&format!("\n- rank 1: {seen}")), "{apart}");
        assert!(apart.contains("\n- rank 1: no update was seen of `fc_1.weight`: "), "{apart}");
    }
}
