//! Lines of text in tones, which a terminal paints and a file does not.

use super::super::Layout;

/// How a piece of text is meant; nothing is said by it alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// Text.
    #[default]
    Plain,
    /// A heading.
    Bold,
    /// Text that stays in the background.
    Dim,
    /// As it should be.
    Good,
    /// To look at.
    Warn,
    /// Broken.
    Bad,
}

/// Text in one tone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The text; no line break.
    pub text: String,
    /// Its tone.
    pub tone: Tone,
}

/// One line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row(pub Vec<Piece>);

impl Row {
    /// A line of text in one tone.
    pub fn of(text: impl Into<String>, tone: Tone) -> Self {
        Self(vec![Piece { text: text.into(), tone }])
    }

    /// Adds text; to the last piece where that has the same tone.
    pub fn push(&mut self, text: &str, tone: Tone) {
        match self.0.last_mut().filter(|last| last.tone == tone) {
            Some(last) => last.text.push_str(text),
            None => self.0.push(Piece { text: text.to_owned(), tone }),
        }
    }

    /// The line with more text.
    pub fn with(mut self, text: &str, tone: Tone) -> Self {
        self.push(text, tone);
        self
    }

    /// The line as text, without blanks at its end.
    pub(super) fn text(&self, layout: &Layout) -> String {
        let mut pieces = self.0.clone();
        while let Some(last) = pieces.last_mut() {
            last.text.truncate(last.text.trim_end().len());
            if !last.text.is_empty() {
                break;
            }
            pieces.pop();
        }
        pieces.iter().map(|piece| layout.toned(piece)).collect()
    }
}

/// On what lines are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Canvas {
    /// Columns.
    pub width: usize,
    /// Whether characters outside ASCII are used.
    pub unicode: bool,
}

impl Canvas {
    /// `unicode` where it can be shown, else `ascii`.
    pub(super) fn pick<'a>(&self, unicode: &'a str, ascii: &'a str) -> &'a str {
        if self.unicode { unicode } else { ascii }
    }

    /// A share as a block that is filled from below; nothing for none, and what is not nothing is seen.
    pub(super) fn block(&self, share: f64) -> &'static str {
        const UNICODE: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
        const ASCII: [&str; 8] = [".", ".", ":", ":", "+", "+", "#", "#"];
        if share <= 0.0 {
            return " ";
        }
        let at = ((share * 8.0).ceil() as usize).clamp(1, 8) - 1;
        if self.unicode { UNICODE[at] } else { ASCII[at] }
    }

    /// Text broken into lines, each in this tone and after this indent.
    pub(super) fn wrapped(&self, indent: &str, text: &str, tone: Tone) -> Vec<Row> {
        let broken = Layout { width: self.width, colour: false }.wrap(indent, indent, text);
        broken.lines().map(|line| Row::of(line, tone)).collect()
    }
}

/// The end of `text` where it is too long for `width`, for the end of a path tells more; else filled up with blanks.
pub(super) fn fitted(text: &str, width: usize, canvas: &Canvas) -> String {
    let length = text.chars().count();
    if length <= width {
        return format!("{text:width$}");
    }
    let end: String = text.chars().skip(length + 1 - width).collect();
    format!("{}{end}", canvas.pick("…", "~"))
}

/// A layer as people are told of it.
pub(super) fn layer_name(layer: &str) -> &str {
    if layer.is_empty() { "(root)" } else { layer }
}
