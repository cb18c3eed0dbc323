//! Names that come back at every step, kept once.

use std::collections::HashMap;

/// A name, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct NameId(pub(super) u32);

/// The table of names. One that is known allocates nothing.
#[derive(Default)]
pub(super) struct Names {
    names: Vec<String>,
    by_name: HashMap<String, NameId>,
}

impl Names {
    /// The number of a name; the same name always has the same number.
    pub fn intern(&mut self, name: &str) -> NameId {
        if let Some(known) = self.find(name) {
            return known;
        }
        let id = NameId(self.names.len() as u32);
        self.names.push(name.to_owned());
        self.by_name.insert(name.to_owned(), id);
        id
    }

    /// The number of a name that is known.
    pub fn find(&self, name: &str) -> Option<NameId> {
        self.by_name.get(name).copied()
    }

    /// The name of a number; empty for one that was never given out.
    pub fn get(&self, id: NameId) -> &str {
        self.names.get(id.0 as usize).map_or("", String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_number() {
        let mut names = Names::default();
        let (relu, linear) = (names.intern("relu"), names.intern("linear"));
        assert_eq!((names.intern("relu"), names.find("linear"), names.find("tanh")), (relu, Some(linear), None));
        assert_eq!((names.get(relu), names.get(linear), names.get(NameId(7))), ("relu", "linear", ""));
    }
}
