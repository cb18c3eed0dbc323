//! Line breaks for people: one line per key down to a site, everything inside a site on that line.

use std::io::{Result, Write};

use serde_json::ser::{Formatter, PrettyFormatter};

/// Pretty down to [`ShallowFormatter::DEPTH`] levels, compact below: a histogram of 40 counts does not take 40 lines.
#[derive(Default)]
pub(super) struct ShallowFormatter {
    pretty: PrettyFormatter<'static>,
    depth: usize,
}

impl ShallowFormatter {
    /// The document, `ranks`, a rank, `sites`: what lies inside one of those stands on one line.
    const DEPTH: usize = 4;

    fn enter(&mut self) -> bool {
        self.depth += 1;
        self.depth <= Self::DEPTH
    }

    fn leave(&mut self) -> bool {
        self.depth -= 1;
        self.depth < Self::DEPTH
    }

    fn is_pretty(&self) -> bool {
        self.depth <= Self::DEPTH
    }

    fn separate<W: Write + ?Sized>(writer: &mut W, first: bool) -> Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }
}

impl Formatter for ShallowFormatter {
    fn begin_array<W: Write + ?Sized>(&mut self, writer: &mut W) -> Result<()> {
        if self.enter() { self.pretty.begin_array(writer) } else { writer.write_all(b"[") }
    }

    fn end_array<W: Write + ?Sized>(&mut self, writer: &mut W) -> Result<()> {
        if self.leave() { self.pretty.end_array(writer) } else { writer.write_all(b"]") }
    }

    fn begin_array_value<W: Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> Result<()> {
        if self.is_pretty() { self.pretty.begin_array_value(writer, first) } else { Self::separate(writer, first) }
    }

    fn end_array_value<W: Write + ?Sized>(&mut self, writer: &mut W) -> Result<()> {
        if self.is_pretty() { self.pretty.end_array_value(writer) } else { Ok(()) }
    }

    fn begin_object<W: Write + ?Sized>(&mut self, writer: &mut W) -> Result<()> {
        if self.enter() { self.pretty.begin_object(writer) } else { writer.write_all(b"{") }
    }

    fn end_object<W: Write + ?Sized>(&mut self, writer: &mut W) -> Result<()> {
        if self.leave() { self.pretty.end_object(writer) } else { writer.write_all(b"}") }
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> Result<()> {
        if self.is_pretty() { self.pretty.begin_object_key(writer, first) } else { Self::separate(writer, first) }
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, writer: &mut W) -> Result<()> {
        writer.write_all(b": ")
    }

    fn end_object_value<W: Write + ?Sized>(&mut self, writer: &mut W) -> Result<()> {
        if self.is_pretty() { self.pretty.end_object_value(writer) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    #[test]
    fn what_lies_deep_stands_on_one_line() {
        let value = serde_json::json!({"a": [{"b": [{"c": [1, 2], "d": {}}], "e": []}]});
        let mut bytes = Vec::new();
        let formatter = super::ShallowFormatter::default();
        value.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, formatter)).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let expected = "{\n  \"a\": [\n    {\n      \"b\": [\n        {\"c\": [1, 2], \"d\": {}}\n      ],\n      \"e\": []\n    }\n  ]\n}";
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
