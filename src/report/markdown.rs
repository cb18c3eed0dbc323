//! Markdown on a terminal: what rule pages use of it, no more.

use super::Layout;
use super::layout::UNBROKEN;

/// `markdown` with headings in bold, paragraphs and list items wrapped, code and tables as they are.
pub(super) fn on_terminal(markdown: &str, layout: &Layout) -> String {
    let mut out = String::new();
    let mut block = String::new();
    let mut in_code = false;
    for line in markdown.lines() {
        let fence = line.trim_start().starts_with("```");
        if fence || in_code || !continues(&block, line) {
            flush(&mut block, layout, &mut out);
        }
        match (fence, in_code) {
            (true, _) => in_code = !in_code,
            (false, true) => out.push_str(&format!("    {line}\n")),
            (false, false) if line.trim().is_empty() => blank_line(&mut out),
            (false, false) => join(&mut block, line),
        }
    }
    flush(&mut block, layout, &mut out);
    out
}

/// Whether `line` belongs to the block that is being collected.
fn continues(block: &str, line: &str) -> bool {
    let starts_own = line.starts_with('#') || line.starts_with('|') || item_mark(line).is_some();
    !line.trim().is_empty() && !block.starts_with('#') && !block.starts_with('|') && !starts_own
}

fn join(block: &mut String, line: &str) {
    if block.is_empty() {
        block.push_str(line.trim_end());
    } else {
        block.push(' ');
        block.push_str(line.trim());
    }
}

fn blank_line(out: &mut String) {
    if !out.is_empty() && !out.ends_with("\n\n") {
        out.push('\n');
    }
}

fn flush(block: &mut String, layout: &Layout, out: &mut String) {
    let text = std::mem::take(block);
    if text.is_empty() {
    } else if text.starts_with('#') {
        out.push_str(&layout.bold(&plain(text.trim_start_matches('#').trim())));
        out.push('\n');
    } else if text.starts_with('|') {
        out.push_str(&text);
        out.push('\n');
    } else if let Some(mark) = item_mark(&text) {
        let (first, rest) = text.split_at(mark);
        out.push_str(&wrapped(first, &" ".repeat(first.chars().count()), rest, layout));
    } else {
        out.push_str(&wrapped("", "", &text, layout));
    }
}

/// The text in lines, none of which breaks within a short piece of code.
fn wrapped(first: &str, indent: &str, text: &str, layout: &Layout) -> String {
    let (text, longest) = (plain(text), layout.width / 2);
    let halves = text.split('`').enumerate().map(|(i, part)| match i % 2 {
        1 if part.chars().count() <= longest => part.replace(' ', UNBROKEN),
        _ => part.to_owned(),
    });
    layout.wrap(first, indent, &halves.collect::<Vec<_>>().join("`"))
}

/// The length of a list item's mark with its indentation: `- `, `* `, `12. `.
fn item_mark(line: &str) -> Option<usize> {
    let indent = line.len() - line.trim_start().len();
    let rest = &line[indent..];
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let mark = match digits {
        0 => rest.starts_with("- ") || rest.starts_with("* "),
        n => rest[n..].starts_with(". "),
    };
    mark.then_some(indent + digits + 2)
}

/// The text without the marks of emphasis; code keeps its backticks, which set it apart from words.
fn plain(text: &str) -> String {
    let halves = text.split('`').enumerate().map(|(i, part)| match i % 2 {
        0 => without_stars(&part.replace("**", "")),
        _ => part.to_string(),
    });
    halves.collect::<Vec<_>>().join("`")
}

/// Drops a star at the edge of a word; one between two words or two letters is a product.
fn without_stars(text: &str) -> String {
    let is_word = |c: Option<&char>| c.is_some_and(|c| !c.is_whitespace());
    let is_letter = |c: Option<&char>| c.is_some_and(|c| c.is_alphanumeric());
    let chars: Vec<char> = text.chars().collect();
    let is_mark = |i: usize| {
        let (before, after) = (i.checked_sub(1).and_then(|i| chars.get(i)), chars.get(i + 1));
        chars[i] == '*' && (is_word(before) || is_word(after)) && !(is_letter(before) && is_letter(after))
    };
    (0..chars.len()).filter(|&i| !is_mark(i)).map(|i| chars[i]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_and_items_are_wrapped_and_code_is_not() {
        let page = "# A title\n\nOne two\nthree four.\n- an item that\n  goes on\n2. next\n\n```rust\nlet x = \"long line of code\";\n```\nend\n";
        let expected = "A title\n\nOne two three\nfour.\n- an item that\n  goes on\n2. next\n\n    let x = \"long line of code\";\nend\n";
        assert_eq!(on_terminal(page, &Layout { width: 14, colour: false }), expected);
    }

    #[test]
    fn marks_of_emphasis_are_dropped_and_products_are_kept() {
        let text = "**Error**: *lost* (*not* g*S, 2 * 3, `a * *b`)";
        assert_eq!(plain(text), "Error: lost (not g*S, 2 * 3, `a * *b`)");
    }

    #[test]
    fn a_line_is_not_broken_within_short_code() {
        let layout = Layout { width: 20, colour: false };
        assert_eq!(
            on_terminal("Write `x + 1` here or `y + 1` there.", &layout),
            "Write `x + 1` here\nor `y + 1` there.\n"
        );
        assert_eq!(on_terminal("Add an epsilon: `x + 1e-6`.", &layout), "Add an epsilon:\n`x + 1e-6`.\n");
        assert_eq!(on_terminal("It skipped 10 and 7 % of all.", &layout), "It skipped 10 and\n7 % of all.\n");
    }

    #[test]
    fn tables_stay_as_they_are() {
        let table = "| a | b |\n|---|---|\n| 1 | 2 |\n";
        assert_eq!(on_terminal(table, &Layout { width: 4, colour: false }), table);
    }

    #[test]
    fn headings_are_bold_where_there_is_colour() {
        assert_eq!(on_terminal("## Why", &Layout { width: 40, colour: true }), "\x1b[1mWhy\x1b[0m\n");
    }
}
