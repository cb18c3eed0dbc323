//! Memory by dtype, and what another would save.

use super::pieces::{Canvas, Row, Tone};
use crate::report::number::bytes;
use crate::rules::whatif::{DtypeBytes, Memory, OptimizerState};

/// Bytes of one kind of tensor now and in formats of 4, 2 and 1 bytes.
pub(super) struct Saving {
    /// What is held.
    pub name: &'static str,
    /// Bytes now.
    pub now: u64,
    /// Bytes if all numbers with a fraction took 4, 2 or 1 bytes.
    pub at_width: [u64; 3],
    /// How well it is known.
    pub note: String,
}

/// The widths that are compared, in bytes, with their names.
pub(super) const WIDTHS: [(u64, &str); 3] = [(4, "FP32"), (2, "FP16, BF16"), (1, "FP8")];

/// The kinds of tensors of which something is known.
pub(super) fn savings(memory: &Memory) -> Vec<Saving> {
    let mut rows = Vec::new();
    let mut add = |name, of: &[DtypeBytes], note: String| {
        if !of.is_empty() {
            rows.push(saving(name, of, note));
        }
    };
    add("parameters, buffers", &memory.parameters, by_dtype(&memory.parameters));
    add("gradients", &memory.trained, "estimate: one of its dtype for each trained parameter".into());
    add("activations", &memory.activations, format!("at most; {}", by_dtype(&memory.activations)));
    rows
}

fn saving(name: &'static str, of: &[DtypeBytes], note: String) -> Saving {
    let at =
        |width: u64| of.iter().map(|d| if d.is_float() { d.elements.saturating_mul(width) } else { d.bytes }).sum();
    Saving { name, now: of.iter().map(|d| d.bytes).sum(), at_width: WIDTHS.map(|(width, _)| at(width)), note }
}

fn by_dtype(of: &[DtypeBytes]) -> String {
    let total: u64 = of.iter().map(|d| d.bytes).sum();
    let part = |d: &DtypeBytes| match of.len() {
        1 => d.dtype.clone(),
        _ => format!("{:.0} % {}", 100.0 * d.bytes as f64 / total.max(1) as f64, d.dtype),
    };
    of.iter().map(part).collect::<Vec<_>>().join(", ")
}

/// The table.
pub(super) fn table(memory: &Memory, canvas: &Canvas) -> Vec<Row> {
    let savings = savings(memory);
    if savings.is_empty() {
        return Vec::new();
    }
    let mut rows = vec![Row::of("Memory of one rank", Tone::Bold)];
    let names: String = WIDTHS.iter().map(|(_, name)| format!("{name:>12}")).collect();
    rows.push(Row::of(format!("{:20}{:>11}{names}", "", "now"), Tone::Dim));
    for Saving { name, now, at_width, note } in savings {
        let row = Row::of(format!("{name:20}{:>11}", bytes(now)), Tone::Plain);
        rows.push(at_width.iter().fold(row, |row, &other| {
            let tone = if other < now { Tone::Good } else { Tone::Plain };
            row.with(&format!("{:>12}", bytes(other)), tone)
        }));
        rows.extend(canvas.wrapped("  ", &note, Tone::Dim));
    }
    if let Some(held) = memory.optimizer_bytes() {
        rows.push(Row::of(format!("{:20}{:>11}", "optimizer", bytes(held)), Tone::Plain));
        rows.extend(canvas.wrapped("  ", &optimizer_note(memory), Tone::Dim));
    }
    rows
}

/// How what the optimizer keeps is known.
pub(super) fn optimizer_note(memory: &Memory) -> String {
    let state = match memory.optimizer {
        OptimizerState::Two => "estimate: two FP32 numbers a trained parameter, as Adam keeps them",
        OptimizerState::AtMostOne => {
            "at most: one FP32 number a trained parameter, the momentum of SGD where it has one"
        }
        OptimizerState::Unknown => "not known: no update was seen",
    };
    match memory.masters_elements {
        0 => format!("{state}; 16-bit weights with FP32 copies would add the copies to this"),
        _ => format!("{state}; and the FP32 copies of the 16-bit weights"),
    }
}
