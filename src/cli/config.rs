//! `ampdoctor.toml`: what its user decided about the rules.

use std::borrow::Cow;
use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, bail};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::args::ConfigFileArgs;
use super::exit::Exit;
use super::terminal::Terminal;
use crate::report::{Layout, nearest, settings_text};
use crate::rules::{self, Allow, Level, Limit, Pattern, Policy, Rule, RuleInfo, Severity, Threshold};

/// The file that is read where none is named.
const FILE: &str = "ampdoctor.toml";
const LEVELS: [(&str, Option<Severity>); 4] = [
    ("off", None),
    ("info", Some(Severity::Info)),
    ("warning", Some(Severity::Warning)),
    ("error", Some(Severity::Error)),
];

/// All that is wrong with a file, a line each with its place.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
struct ConfigError(Vec<String>);

/// `ampdoctor config`: reads the file alone, and says what it sets.
pub(super) fn config(args: &ConfigFileArgs, terminal: &Terminal) -> anyhow::Result<Exit> {
    // Without a file there is nothing to read, where a check would go without.
    if args.file.is_none() && !Path::new(FILE).exists() {
        bail!("there is no {FILE} here: write one, or name another; `ampdoctor explain CODE` shows what it may say");
    }
    let policy = policy(Some(args.file.as_deref().unwrap_or(Path::new(FILE))))?;
    terminal.print(&told(&policy, &terminal.layout))?;
    Ok(Exit::Success)
}

/// What a file sets, a line each, and that nothing in it is wrong.
fn told(policy: &Policy, layout: &Layout) -> String {
    let settings = settings_text(policy);
    let file = policy.file.as_deref().unwrap_or(FILE);
    let mut out = match settings.len() {
        0 => format!("{file} is read without a mistake, and sets nothing\n"),
        n => format!("{file} is read without a mistake; {n} setting{}\n", if n == 1 { "" } else { "s" }),
    };
    settings.iter().for_each(|setting| out.push_str(&layout.wrap("  ", "    ", setting)));
    out
}

/// What the file says that is named, else `ampdoctor.toml` in the current directory, else nothing.
///
/// # Errors
/// Where the named file cannot be read, and where a name or a value in it is not known.
pub(super) fn policy(named: Option<&Path>) -> anyhow::Result<Policy> {
    let path = named.unwrap_or(Path::new(FILE));
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound && named.is_none() => return Ok(Policy::default()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(error).with_context(|| {
                format!(
                    "there is no such configuration; leave --config out to go without one; `ampdoctor explain CODE` shows what it may say: {}",
                    path.display()
                )
            });
        }
        Err(error) => {
            return Err(error).with_context(|| format!("the configuration cannot be read: {}", path.display()));
        }
    };
    Ok(parse(&text, &path.display().to_string())?)
}

fn parse(text: &str, file: &str) -> Result<Policy, ConfigError> {
    let at = |Mistake { message, span }: Mistake| {
        let line = text.bytes().take(span.start).filter(|&byte| byte == b'\n').count() + 1;
        format!("{message}: {file}:{line}")
    };
    let document = DeTable::parse(text).map_err(|error| {
        let message = format!("this is no TOML: {}", error.message());
        ConfigError(vec![at(Mistake { message, span: error.span().unwrap_or(0..0) })])
    })?;
    let mut reader =
        Reader { policy: Policy { file: Some(file.to_owned()), ..Policy::default() }, mistakes: Vec::new() };
    reader.document(document.get_ref());
    match reader.mistakes.is_empty() {
        true => Ok(reader.policy),
        false => Err(ConfigError(reader.mistakes.into_iter().map(at).collect())),
    }
}

/// What is wrong, and the bytes it stands in.
struct Mistake {
    message: String,
    span: Range<usize>,
}

type Read<T = ()> = Result<T, Mistake>;

/// What was read so far, and all that was wrong with it: somebody who mends a file wants to do so once.
struct Reader {
    policy: Policy,
    mistakes: Vec<Mistake>,
}

impl Reader {
    fn note(&mut self, read: Read) {
        self.mistakes.extend(read.err());
    }

    fn document(&mut self, document: &DeTable<'_>) {
        for (key, value) in in_order(document) {
            let read = match key.get_ref().as_ref() {
                "rules" => self.rules(value, None),
                "layers" => self.layers(value),
                "allow" => self.allowances(value),
                _ => Err(unknown(key, "there is nothing called", &["rules", "layers", "allow"])),
            };
            self.note(read);
        }
    }

    fn layers(&mut self, value: &Spanned<DeValue<'_>>) -> Read {
        for (pattern, rules) in in_order(table(value)?) {
            let read = self.rules(rules, Some(&Pattern::new(pattern.get_ref())));
            self.note(read);
        }
        Ok(())
    }

    fn allowances(&mut self, value: &Spanned<DeValue<'_>>) -> Read {
        for allowed in array(value)? {
            let read = allow(allowed).map(|allow| self.policy.allow.push(allow));
            self.note(read);
        }
        Ok(())
    }

    /// The settings of some rules, in the whole run or in some layers.
    fn rules(&mut self, value: &Spanned<DeValue<'_>>, layers: Option<&Pattern>) -> Read {
        let mut named: Vec<(&str, &str)> = Vec::new();
        for (key, settings) in in_order(table(value)?) {
            let read = rule(key.get_ref(), key.span()).and_then(|rule| {
                let RuleInfo { code, name, .. } = *rule.info();
                if let Some((_, before)) = named.iter().find(|(known, _)| *known == code) {
                    let message = format!(
                        "`{before}` and `{}` are one rule, {code} {name}: put its settings into one table",
                        key.get_ref()
                    );
                    return Err(Mistake { message, span: key.span() });
                }
                named.push((code, key.get_ref()));
                refuse_layers(rule.info(), layers, key.span())?;
                self.settings(rule, settings, layers)
            });
            self.note(read);
        }
        Ok(())
    }

    fn settings(&mut self, rule: &'static dyn Rule, settings: &Spanned<DeValue<'_>>, layers: Option<&Pattern>) -> Read {
        for (name, value) in in_order(table(settings)?) {
            let read = match name.get_ref().as_ref() {
                "level" => self.level(rule.info(), value, layers),
                _ => self.threshold(rule, name, value, layers),
            };
            self.note(read);
        }
        Ok(())
    }

    fn level(&mut self, rule: &RuleInfo, value: &Spanned<DeValue<'_>>, layers: Option<&Pattern>) -> Read {
        let RuleInfo { code, name, .. } = *rule;
        self.policy.levels.push(Level { code, name, layers: layers.cloned(), severity: level(value)? });
        Ok(())
    }

    fn threshold(
        &mut self,
        rule: &'static dyn Rule,
        name: &Spanned<Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
        layers: Option<&Pattern>,
    ) -> Read {
        let threshold = threshold(rule, name, layers.is_some())?;
        let value = number(value, &threshold)?;
        self.policy.limits.set(Limit { threshold, layers: layers.cloned(), value });
        Ok(())
    }
}

/// A rule that is about the run has nothing to set for some layers: it would be read and do nothing.
fn refuse_layers(rule: &RuleInfo, layers: Option<&Pattern>, span: Range<usize>) -> Read {
    let Some(pattern) = layers.filter(|pattern| !rules::names_layers(rule.code) && !pattern.matches("")) else {
        return Ok(());
    };
    let RuleInfo { code, name, .. } = rule;
    let message = format!(
        "rule {code} {name} judges the run as a whole and names no layer, so nothing can be set for `{pattern}`; \
         say it under `[rules.{name}]`"
    );
    Err(Mistake { message, span })
}

fn rule(name: &str, span: Range<usize>) -> Read<&'static dyn Rule> {
    rules::find(name).ok_or_else(|| {
        let names = rules::all().iter().flat_map(|rule| [rule.info().code, rule.info().name]);
        Mistake {
            message: format!("there is no rule `{name}`. {}`ampdoctor rules` lists them", meant(name, names)),
            span,
        }
    })
}

fn threshold(rule: &'static dyn Rule, name: &Spanned<Cow<'_, str>>, by_layer: bool) -> Read<Threshold> {
    let all = rule.thresholds();
    let RuleInfo { code, name: of, .. } = rule.info();
    let Some(known) = all.iter().find(|threshold| threshold.name == name.get_ref().as_ref()) else {
        let names: Vec<&str> = all.iter().map(|threshold| threshold.name).chain(["level"]).collect();
        return Err(unknown(name, &format!("rule {code} {of} has no threshold"), &names));
    };
    if by_layer && !rule.thresholds_by_layer().contains(&known.name) {
        let message = format!(
            "`{}` of rule {code} {of} is judged over the whole run and cannot be set for some layers",
            known.name
        );
        return Err(Mistake { message, span: name.span() });
    }
    Ok(*known)
}

fn allow(value: &Spanned<DeValue<'_>>) -> Read<Allow> {
    let (mut of, mut layers, mut reason) = (None, None, None);
    for (key, value) in in_order(table(value)?) {
        match key.get_ref().as_ref() {
            "code" => of = Some(rule(string(value)?, value.span())?.info()),
            "layer" => layers = Some((Pattern::new(string(value)?), value.span())),
            "reason" => reason = Some(string(value)?.trim()).filter(|reason| !reason.is_empty()),
            _ => return Err(unknown(key, "an acceptance has no", &["code", "layer", "reason"])),
        }
    }
    let missing = |what: &str| Mistake { message: format!("an acceptance needs a {what}"), span: value.span() };
    let reason = reason.ok_or_else(|| missing("`reason`: it is repeated in every report"))?;
    let rule = of.ok_or_else(|| missing("`code`: of the rule whose finding is accepted"))?;
    if !rules::makes_findings(rule.code) {
        let RuleInfo { code, name, .. } = rule;
        let message = format!(
            "rule {code} {name} makes no finding that could be accepted, only a doubt; `level = \"off\"` under `[rules.{name}]` takes it away"
        );
        return Err(Mistake { message, span: value.span() });
    }
    if let Some((pattern, span)) = &layers
        && !rules::names_layers(rule.code)
        && !pattern.matches("")
    {
        let RuleInfo { code, name, .. } = rule;
        let message = format!(
            "rule {code} {name} judges the run as a whole and names no layer: leave out `layer = \"{pattern}\"`"
        );
        return Err(Mistake { message, span: span.clone() });
    }
    Ok(Allow { code: rule.code, layers: layers.map(|(pattern, _)| pattern), reason: reason.into() })
}

fn level(value: &Spanned<DeValue<'_>>) -> Read<Option<Severity>> {
    let typed = string(value)?;
    LEVELS.iter().find(|(name, _)| *name == typed).map(|(_, severity)| *severity).ok_or_else(|| {
        let names = LEVELS.map(|(name, _)| name);
        let message =
            format!("there is no level `{typed}`. {}The levels are {}", meant(typed, names), names.join(", "));
        Mistake { message, span: value.span() }
    })
}

fn number(value: &Spanned<DeValue<'_>>, threshold: &Threshold) -> Read<f64> {
    let parsed = match value.get_ref() {
        DeValue::Integer(n) => i64::from_str_radix(n.as_str(), n.radix()).ok().map(|n| n as f64),
        DeValue::Float(x) => x.as_str().parse().ok(),
        _ => None,
    };
    let number =
        parsed.ok_or_else(|| Mistake { message: format!("`{}` is a number", threshold.name), span: value.span() })?;
    let wrong =
        |why| Mistake { message: format!("`{}` cannot be {number}: {why}", threshold.name), span: value.span() };
    threshold.refuses(number).map_or(Ok(number), |why| Err(wrong(why)))
}

fn table<'a, 'i>(value: &'a Spanned<DeValue<'i>>) -> Read<&'a DeTable<'i>> {
    value.get_ref().as_table().ok_or_else(|| is_no(value, "table"))
}

fn array<'a, 'i>(value: &'a Spanned<DeValue<'i>>) -> Read<&'a [Spanned<DeValue<'i>>]> {
    value.get_ref().as_array().map(|array| &array[..]).ok_or_else(|| is_no(value, "list of tables, `[[allow]]`"))
}

fn string<'a>(value: &'a Spanned<DeValue<'_>>) -> Read<&'a str> {
    value.get_ref().as_str().ok_or_else(|| is_no(value, "text in quotes"))
}

fn is_no(value: &Spanned<DeValue<'_>>, wanted: &str) -> Mistake {
    Mistake { message: format!("here a {wanted} is wanted, not a {}", value.get_ref().type_str()), span: value.span() }
}

fn unknown(key: &Spanned<Cow<'_, str>>, what: &str, known: &[&str]) -> Mistake {
    let typed = key.get_ref();
    let message = format!("{what} `{typed}`. {}It knows {}", meant(typed, known.iter().copied()), known.join(", "));
    Mistake { message, span: key.span() }
}

fn meant<'a>(typed: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    nearest(typed, names).map_or(String::new(), |name| format!("Did you mean `{name}`? "))
}

/// The entries of a table in the order of the file.
fn in_order<'a, 'i>(table: &'a DeTable<'i>) -> Vec<(&'a Spanned<Cow<'i, str>>, &'a Spanned<DeValue<'i>>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

#[cfg(test)]
mod tests;
