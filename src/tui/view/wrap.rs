//! Text broken into lines.

use ratatui::style::Style;
use ratatui::text::{Line, Span};

/// Breaks `text` into lines of at most `width` characters, between words; a word that is longer is broken. Newlines are kept.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = Vec::new();
    for paragraph in text.split('\n') {
        let mut line = String::new();
        let mut used = 0;
        for word in paragraph.split_whitespace() {
            for piece in pieces(word, width) {
                let length = piece.chars().count();
                if used > 0 && used + 1 + length > width {
                    lines.push(std::mem::take(&mut line));
                    used = 0;
                }
                if used > 0 {
                    line.push(' ');
                    used += 1;
                }
                line.push_str(&piece);
                used += length;
            }
        }
        lines.push(line);
    }
    lines
}

fn pieces(word: &str, width: usize) -> Vec<String> {
    let chars: Vec<char> = word.chars().collect();
    chars.chunks(width).map(|chunk| chunk.iter().collect()).collect()
}

/// Wraps `text` behind a label: the first line begins with it, the others are indented by its width.
pub fn labelled(label: &str, style: Style, text: &str, width: usize) -> Vec<Line<'static>> {
    let indent = label.chars().count();
    let wrapped = wrap(text, width.saturating_sub(indent));
    let lead = |i: usize| if i == 0 { Span::styled(label.to_owned(), style) } else { Span::raw(" ".repeat(indent)) };
    wrapped.into_iter().enumerate().map(|(i, text)| Line::from(vec![lead(i), Span::raw(text)])).collect()
}

/// The last `width` characters of a path behind an ellipsis, where it is longer: the end of a layer's name tells more than its start.
pub fn keep_end(text: &str, width: usize, ellipsis: &str) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let keep = width.saturating_sub(ellipsis.chars().count());
    let tail: String = text.chars().skip(length - keep).collect();
    ellipsis.chars().take(width).chain(tail.chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_longer_than_asked() {
        let text = "raise init_scale from 2^7 to 2^13: a_word_that_is_far_too_long_for_one_line of it";
        for width in 1..40 {
            let lines = wrap(text, width);
            assert!(lines.iter().all(|l| l.chars().count() <= width), "{width}: {lines:?}");
            let letters = |s: &str| s.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            assert_eq!(letters(&lines.concat()), letters(text));
        }
    }

    #[test]
    fn the_end_of_a_path_is_kept() {
        assert_eq!(keep_end("encoder.block.3.attn.qk", 10, "…"), "…3.attn.qk");
        assert_eq!(keep_end("fc", 10, "…"), "fc");
        assert_eq!(keep_end("encoder", 0, "…"), "");
    }
}
