//! What-if as documents: one chart and the same tables for text and dashboard, and JSON.

mod chart;
mod formats;
mod json;
mod layers;
mod memory;
mod pieces;
mod shares;
mod summary;
mod text;

pub(super) use json::WhatIfSummary;
pub use json::{WHATIF_SCHEMA_VERSION, whatif_json};
pub use pieces::{Canvas, Piece, Row, Tone};
pub(super) use summary::section;
pub use text::{whatif_rows, whatif_text};

/// What of a what-if is shown.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// The exponent of the loss scale at which layers are shown; that in force where it is none.
    pub scale: Option<i32>,
    /// Only layers that match: `*` stands for any text, `?` for one character.
    pub layers: Option<String>,
}

impl Selection {
    /// Whether a layer is shown.
    pub fn shows(&self, layer: &str) -> bool {
        self.layers.as_deref().is_none_or(|pattern| matches(pattern, layer))
    }
}

/// Whether `text` matches a pattern in which `*` stands for any text and `?` for one character.
fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    // Where the last star stood, and what it had taken: enough to go back to.
    let (mut p, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == '?' || c == text[t] => (p, t) = (p + 1, t + 1),
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    (p, t) = (at + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests;
