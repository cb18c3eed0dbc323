//! Layer paths, interned, and how data flow finds one for an operator without parameters.

use super::names::{NameId, Names};

/// A layer path, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LayerId(u32);

/// What no parameter has touched.
pub(super) const INPUT: LayerId = LayerId(0);

/// The table of layer paths; `input` is always number 0.
pub(super) struct Layers(Names);

impl Default for Layers {
    fn default() -> Self {
        let mut layers = Self(Names::default());
        layers.intern(ampdoctor::observation::INPUT);
        layers
    }
}

impl Layers {
    /// The number of a path.
    pub(super) fn intern(&mut self, name: &str) -> LayerId {
        LayerId(self.0.intern(name).0)
    }

    /// The path of a number.
    pub(super) fn name(&self, id: LayerId) -> &str {
        self.0.get(NameId(id.0))
    }

    /// The layer of something computed from both: the longer path where one contains the other's start and goes no further
    /// apart, else their common prefix. What comes from the input alone has no say.
    pub(super) fn join(&mut self, a: LayerId, b: LayerId) -> LayerId {
        if a == b || b == INPUT {
            return a;
        }
        if a == INPUT {
            return b;
        }
        let common = common_prefix(self.name(a), self.name(b));
        if let Some(known) = self.0.find(common) {
            return LayerId(known.0);
        }
        let common = common.to_owned();
        self.intern(&common)
    }
}

/// The longest common run of whole path elements.
fn common_prefix<'a>(a: &'a str, b: &str) -> &'a str {
    let mut end = 0;
    let mut at = 0;
    for (x, y) in a.split('.').zip(b.split('.')) {
        if x != y {
            break;
        }
        at += x.len();
        end = at;
        at += 1;
    }
    &a[..end]
}

/// The layer and the tensor's own name of a dotted parameter path.
pub(super) fn split_path(path: &str) -> (&str, &str) {
    path.rsplit_once('.').unwrap_or(("", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_made_of_whole_elements() {
        assert_eq!(common_prefix("block.1.fc", "block.10.fc"), "block");
        assert_eq!(common_prefix("block.1.fc", "block.1.norm"), "block.1");
        assert_eq!(common_prefix("block.1", "block.1"), "block.1");
        assert_eq!(common_prefix("fc1", "fc2"), "");
    }

    #[test]
    fn the_input_has_no_say_in_a_layer() {
        let mut layers = Layers::default();
        let fc = layers.intern("fc");
        assert_eq!(layers.join(fc, INPUT), fc);
        assert_eq!(layers.join(INPUT, fc), fc);
        assert_eq!(layers.join(INPUT, INPUT), INPUT);
    }

    #[test]
    fn a_path_splits_at_its_last_dot() {
        assert_eq!(split_path("block.3.fc.weight"), ("block.3.fc", "weight"));
        assert_eq!(split_path("w"), ("", "w"));
    }
}
