//! What to change in this run: a sentence for people, and the settings that it names, for programs.

use std::fmt;

use super::Value;
use super::text::INPUT;

/// One setting of a remedy.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The setting's name, in snake case: `init_scale`, `growth_interval`, `lr`.
    pub name: &'static str,
    /// What to set it to.
    pub value: Value,
}

impl fmt::Display for Setting {
    /// As it is typed: `init_scale = 16777216`, the number in full.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name;
        match &self.value {
            Value::Number(x) => write!(f, "{name} = {x}"),
            Value::Count(n) => write!(f, "{name} = {n}"),
            Value::Text(text) => write!(f, "{name} = {text}"),
        }
    }
}

/// What to change in this run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Remedy {
    /// For people: one or two sentences, with the value to use.
    pub text: String,
    /// The settings that the text names, in its order; empty where the code has to change, or where no value can be told.
    pub set: Vec<Setting>,
}

impl Remedy {
    /// This remedy, with one setting more.
    pub fn set(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.set.push(Setting { name, value: value.into() });
        self
    }

    /// The settings as they are typed: `init_scale = 8192, growth_interval = 2000`; `None` where there are none.
    pub fn settings(&self) -> Option<String> {
        let settings: Vec<String> = self.set.iter().map(Setting::to_string).collect();
        (!settings.is_empty()).then(|| settings.join(", "))
    }

    /// The same settings, told in other words.
    pub(super) fn reworded(self, words: impl FnOnce(String) -> String) -> Self {
        Self { text: words(self.text), set: self.set }
    }

    /// This remedy, with the layer to keep in FP32; none for the root and for what comes before the first layer.
    pub(super) fn in_fp32(self, layer: &str) -> Self {
        if layer.is_empty() || layer == INPUT { self } else { self.set("fp32_layers", layer) }
    }
}

impl From<String> for Remedy {
    fn from(text: String) -> Self {
        Self { text, set: Vec::new() }
    }
}

impl From<&str> for Remedy {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_stand_in_the_order_in_which_they_were_named() {
        let remedy = Remedy::from("Use a dynamic scale.").set("init_scale", 8192.0).set("growth_interval", 2000);
        let names: Vec<&str> = remedy.set.iter().map(|s| s.name).collect();
        assert_eq!(names, ["init_scale", "growth_interval"]);
        assert_eq!(remedy.set[1].value, Value::Count(2000));
        assert_eq!(remedy.settings().as_deref(), Some("init_scale = 8192, growth_interval = 2000"));
    }

    #[test]
    fn settings_are_written_as_they_are_typed() {
        let remedy = Remedy::from("").set("init_scale", 16777216.0).set("lr", 2e-5).set("scaler", "dynamic");
        assert_eq!(remedy.settings().as_deref(), Some("init_scale = 16777216, lr = 0.00002, scaler = dynamic"));
        assert_eq!(Remedy::from("Look at the data.").settings(), None);
    }
}
