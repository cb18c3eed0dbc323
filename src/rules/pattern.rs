//! Patterns over the dotted paths of layers.

use std::fmt;

/// A pattern over the dotted path of a layer: `block.*.attn`.
///
/// `*` stands for any characters but a dot, `**` for any at all, `?` for one that is no dot. The empty path, which is the run as a whole, is met by
/// `**` alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// The pattern as it was written.
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Whether the path is one that was meant.
    pub fn matches(&self, layer: &str) -> bool {
        matches(self.0.as_bytes(), layer.as_bytes())
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn matches(pattern: &[u8], path: &[u8]) -> bool {
    match pattern {
        [] => path.is_empty(),
        [b'*', b'*', rest @ ..] => (0..=path.len()).any(|n| matches(rest, &path[n..])),
        [b'*', rest @ ..] => {
            let word = path.iter().take_while(|&&c| c != b'.').count();
            (0..=word).any(|n| matches(rest, &path[n..]) && !(path.is_empty() && rest.is_empty()))
        }
        [b'?', rest @ ..] => path.first().is_some_and(|&c| c != b'.') && matches(rest, &path[1..]),
        [c, rest @ ..] => path.first() == Some(c) && matches(rest, &path[1..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stays_between_two_dots_and_two_stars_do_not() {
        let matching = |pattern: &str, layers: &[&str]| -> Vec<bool> {
            layers.iter().map(|layer| Pattern::new(pattern).matches(layer)).collect()
        };
        assert_eq!(matching("block.*.attn", &["block.0.attn", "block.0.mlp.attn", "block..attn"]), [true, false, true]);
        assert_eq!(matching("block.**", &["block.0", "block.0.mlp.up", "blocks"]), [true, true, false]);
        assert_eq!(matching("fc?", &["fc1", "fc12", "fc", "fc."]), [true, false, false, false]);
        assert_eq!(matching("head", &["head", "head2", ""]), [true, false, false]);
        assert_eq!(matching("*", &["head", "a.b", ""]), [true, false, false]);
        assert_eq!(matching("**", &["head", "a.b", ""]), [true, true, true]);
        assert_eq!(matching("*.up", &["mlp.up", "a.mlp.up"]), [true, false]);
    }
}
