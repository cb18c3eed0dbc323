//! How a text is laid out: its width, its colours, its line breaks.

use super::whatif::{Piece, Tone};
use crate::rules::Severity;

/// Width and colours of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Columns; lines are broken between words before they get longer.
    pub width: usize,
    /// Whether ANSI colours are written.
    pub colour: bool,
}

impl Default for Layout {
    /// No colours, [`Layout::PLAIN_WIDTH`] columns: for files.
    fn default() -> Self {
        Self { width: Self::PLAIN_WIDTH, colour: false }
    }
}

impl Layout {
    /// Columns where nobody says how many there are.
    pub const PLAIN_WIDTH: usize = 80;
    /// Text wider than this is hard to read, however wide the terminal.
    pub const MAX_WIDTH: usize = 110;
    /// Below this, wrapping does more harm than a line that is too long.
    pub const MIN_WIDTH: usize = 40;

    /// A layout for a terminal of `columns`, held within [`Layout::MIN_WIDTH`] and [`Layout::MAX_WIDTH`].
    pub fn terminal(columns: usize, colour: bool) -> Self {
        Self { width: columns.clamp(Self::MIN_WIDTH, Self::MAX_WIDTH), colour }
    }

    /// `text` in bold.
    pub fn bold(&self, text: &str) -> String {
        self.painted("1", text)
    }

    /// `text` in a fainter colour.
    pub fn dim(&self, text: &str) -> String {
        self.painted("2", text)
    }

    /// `text` in green: all is well.
    pub fn good(&self, text: &str) -> String {
        self.painted("1;32", text)
    }

    /// `text` in the colour of a severity.
    pub fn severity(&self, severity: Severity, text: &str) -> String {
        let code = match severity {
            Severity::Error => "1;31",
            Severity::Warning => "1;33",
            Severity::Info => "1;36",
        };
        self.painted(code, text)
    }

    /// A piece in the colour of its tone.
    pub(super) fn toned(&self, piece: &Piece) -> String {
        match piece.tone {
            Tone::Plain => piece.text.clone(),
            Tone::Bold => self.bold(&piece.text),
            Tone::Dim => self.dim(&piece.text),
            Tone::Good => self.painted("32", &piece.text),
            Tone::Warn => self.painted("33", &piece.text),
            Tone::Bad => self.painted("1;31", &piece.text),
        }
    }

    fn painted(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }

    /// The parts one after another, with lines broken between them; within one only where it is longer than a line.
    pub(super) fn wrap_parts(&self, first: &str, indent: &str, parts: &[String], between: &str) -> String {
        let room = self.width.saturating_sub(indent.chars().count() + between.trim_end().chars().count());
        let whole = |part: &String| match part.chars().count() <= room {
            true => part.replace(' ', UNBROKEN),
            false => part.clone(),
        };
        let text = parts.iter().map(whole).collect::<Vec<_>>().join(between);
        self.wrap(first, indent, &text)
    }

    /// Breaks `text` into lines that begin with `indent` (the first with `first`); `first` and `indent` should be equally wide.
    ///
    /// Line breaks in `text` are kept. A word that is longer than a line stands alone on one. Widths are counted in characters.
    pub fn wrap(&self, first: &str, indent: &str, text: &str) -> String {
        let room = self.width.saturating_sub(indent.chars().count()).max(1);
        // A number and its percent sign stay together.
        let text = text.replace(" %", &format!("{UNBROKEN}%"));
        let mut out = String::new();
        for line in text.trim_end().split('\n').flat_map(|line| broken(line, room)) {
            out.push_str(if out.is_empty() { first } else { indent });
            out.push_str(&line);
            out.truncate(out.trim_end_matches(' ').len());
            out.push('\n');
        }
        out.replace(UNBROKEN, " ")
    }
}

/// Stands for a space at which no line is broken: a control character, which no text holds.
pub(super) const UNBROKEN: &str = "\u{1}";

fn broken(line: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in line.split_whitespace() {
        let width = word.chars().count();
        if used > 0 && used + 1 + width > room {
            lines.push(String::new());
            used = 0;
        }
        if let Some(last) = lines.last_mut() {
            if used > 0 {
                last.push(' ');
                used += 1;
            }
            last.push_str(word);
            used += width;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words_and_indented() {
        let layout = Layout { width: 14, colour: false };
        assert_eq!(layout.wrap("Fix ", "    ", "raise init_scale now"), "Fix raise\n    init_scale\n    now\n");
    }

    #[test]
    fn a_word_longer_than_the_line_is_kept_whole() {
        let layout = Layout { width: 8, colour: false };
        assert_eq!(layout.wrap("", "", "a block.3.attention b"), "a\nblock.3.attention\nb\n");
    }

    #[test]
    fn line_breaks_of_the_text_are_kept() {
        assert_eq!(Layout::default().wrap("- ", "  ", "one\n\ntwo"), "- one\n\n  two\n");
    }

    #[test]
    fn without_colour_no_escape_is_written() {
        assert_eq!(Layout::default().severity(Severity::Error, "error"), "error");
        assert_eq!(Layout::terminal(80, true).severity(Severity::Error, "x"), "\x1b[1;31mx\x1b[0m");
    }
}
