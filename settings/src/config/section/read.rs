//! Reading the values of a section. Each answers with `None` where something is wrong, which has then been noted.

use std::time::Duration;

use figment::value::Value;
use serde_json::json;
use watermaster_core::units::{Ratio, Weight};

use super::Section;
use super::form::{as_json, describe, fits, problem, scalar_text};
use crate::config::effective::Entry;
use crate::config::error::Origin;
use crate::config::kind::{Form, Kind};
use crate::config::layers::{child, element};
use crate::config::schema::{self, Fallback, Key};
use crate::config::values::{self, Why};
use crate::properties::HIDDEN;

/// A scalar as it was written.
struct Scalar {
    text: String,
    /// As a person would recognise it.
    shown: String,
    origin: Origin,
    /// The TOML type; `None` for a default and for a variable, which are texts of any type.
    form: Option<Form>,
}

impl<'a> Section<'a> {
    // ## Values

    /// A key that has a value: written, or by default. `None`: it is wrong, and that has been noted.
    pub fn value<T>(&self, name: &str, parse: impl Fn(&str, Kind) -> Result<T, Why>) -> Option<T> {
        let key = schema::key_of(self.schema, name);
        let fallback = match key.fallback {
            Fallback::Text(text) => Some(text),
            _ => None,
        };
        self.read(key, fallback, parse)
    }

    /// A key whose default follows from other things.
    pub fn derived<T>(
        &self,
        name: &str,
        default: Option<&str>,
        parse: impl Fn(&str, Kind) -> Result<T, Why>,
    ) -> Option<T> {
        let key = schema::key_of(self.schema, name);
        debug_assert!(matches!(key.fallback, Fallback::Derived(_)));
        if default.is_none() && self.dict.is_none_or(|dict| !dict.contains_key(name)) {
            return None;
        }
        self.read(key, default, parse)
    }

    /// A key that may say nothing. The outer `None`: it is wrong.
    pub fn optional<T>(&self, name: &str, parse: impl Fn(&str, Kind) -> Result<T, Why>) -> Option<Option<T>> {
        let key = schema::key_of(self.schema, name);
        if self.dict.is_some_and(|dict| dict.contains_key(name)) {
            return self.read(key, None, parse).map(Some);
        }
        self.show(name, None, Origin::Default);
        Some(None)
    }

    /// A list of texts; the default is a list of one. The outer `None`: something in it is wrong.
    pub fn list<T>(&self, name: &str, parse: impl Fn(&str) -> Result<T, Why>) -> Option<Option<Vec<T>>> {
        let key = schema::key_of(self.schema, name);
        let Some(value) = self.dict.and_then(|dict| dict.get(name)) else {
            let Fallback::Text(text) = key.fallback else {
                self.show(name, None, Origin::Default);
                return Some(None);
            };
            self.show(name, Some(json!([text])), Origin::Default);
            return Some(Some(vec![parse(text).ok()?]));
        };
        let items = match value {
            Value::Array(_, items) if !items.is_empty() => items,
            other => {
                self.refuse(name, format!("is {}", describe(other)), key.kind.allowed());
                return None;
            }
        };
        let path = child(&self.path, name);
        let parsed: Vec<_> =
            items.iter().enumerate().map(|(index, item)| self.item(key, element(&path, index), item, &parse)).collect();
        let parsed: Vec<T> = parsed.into_iter().collect::<Option<_>>()?;
        let texts: Vec<_> = items.iter().filter_map(Value::as_str).collect();
        self.show(name, Some(json!(texts)), self.origin(name));
        Some(Some(parsed))
    }

    fn item<T>(&self, key: &Key, path: String, item: &Value, parse: impl Fn(&str) -> Result<T, Why>) -> Option<T> {
        let wrong = match item.as_str().map(parse) {
            Some(Ok(value)) => return Some(value),
            Some(Err(why)) => problem(&format!("{:?}", item.as_str().unwrap_or_default()), &why),
            None => format!("is {}", describe(item)),
        };
        let origin = self.reader.written.origin(&path, item.tag());
        self.refuse_at(path, origin, wrong, key.kind.allowed());
        None
    }

    fn read<T>(&self, key: &Key, default: Option<&str>, parse: impl Fn(&str, Kind) -> Result<T, Why>) -> Option<T> {
        let scalar = self.scalar(key, default)?;
        if scalar.form.is_some_and(|form| !fits(form, key.kind.form())) {
            self.refuse(key.name, problem(&scalar.shown, ""), key.kind.allowed());
            return None;
        }
        match parse(&scalar.text, key.kind) {
            Ok(value) => {
                self.show(key.name, Some(as_json(key.kind, &scalar.text)), scalar.origin);
                Some(value)
            }
            Err(why) => {
                let wrong = problem(&scalar.shown, &why);
                self.refuse_at(child(&self.path, key.name), scalar.origin, wrong, key.kind.allowed());
                None
            }
        }
    }

    fn scalar(&self, key: &Key, default: Option<&str>) -> Option<Scalar> {
        let path = child(&self.path, key.name);
        let Some(value) = self.dict.and_then(|dict| dict.get(key.name)) else {
            let Some(text) = default else {
                let origin = self.reader.written.section_origin(&self.path);
                self.refuse_at(path, origin, "is missing", key.kind.allowed());
                return None;
            };
            let shown = format!("{text:?}");
            return Some(Scalar { text: text.to_owned(), shown, origin: Origin::Default, form: None });
        };
        let origin = self.reader.written.origin(&path, value.tag());
        let untyped = matches!(origin, Origin::Variable(_));
        let Some((text, form)) = scalar_text(value, self.reader.written.spelling(&path)) else {
            self.refuse(key.name, format!("is {}", describe(value)), key.kind.allowed());
            return None;
        };
        let shown = match form {
            // The address of a broker is never shown together with a user: it may hold a password.
            _ if matches!(key.kind, Kind::Servers) && text.contains('@') => HIDDEN.to_owned(),
            Form::Text => format!("{text:?}"),
            _ => text.clone(),
        };
        Some(Scalar { text, shown, origin, form: (!untyped).then_some(form) })
    }

    // ## librdkafka's own keys

    /// Every key of a section whose keys are not ours, with its text; what is no scalar is refused.
    pub fn free_scalars(&self) -> Vec<(&'a str, String)> {
        let mut found = Vec::new();
        for (name, value) in self.dict.into_iter().flatten() {
            let path = child(&self.path, name);
            match scalar_text(value, self.reader.written.spelling(&path)) {
                Some((text, _)) => found.push((name.as_str(), text)),
                None => self.refuse(name, format!("is {}", describe(value)), "a string, a number or true or false"),
            }
        }
        found
    }

    /// Puts a value on the page that shows the effective configuration; `None`: the key says nothing.
    pub fn show(&self, name: &str, value: Option<serde_json::Value>, origin: Origin) {
        let entry = Entry { section: self.path.clone(), name: name.to_owned(), value, origin };
        self.reader.entries.borrow_mut().push(entry);
    }

    // ## Values of one kind

    /// A whole number in its range.
    pub fn count(&self, name: &str) -> Option<u64> {
        self.value(name, count)
    }

    /// A duration in its range.
    pub fn duration(&self, name: &str) -> Option<Duration> {
        self.value(name, duration)
    }

    /// A ratio.
    pub fn ratio(&self, name: &str) -> Option<Ratio> {
        self.value(name, |text, _| values::ratio(text))
    }

    /// A weight.
    pub fn weight(&self, name: &str) -> Option<Weight> {
        self.value(name, |text, _| values::weight(text))
    }

    /// Yes or no.
    pub fn flag(&self, name: &str) -> Option<bool> {
        self.value(name, |text, _| text.parse().map_err(|_| Why::new()))
    }

    /// The name of a topic.
    pub fn topic(&self, name: &str) -> Option<String> {
        self.value(name, |text, _| values::topic(text))
    }

    /// One of several words.
    pub fn choice<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Option<T> {
        self.value(name, |text, _| pick(text, words))
    }
}

/// The meaning of a word.
pub fn pick<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, Why> {
    words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning).ok_or_else(Why::new)
}

/// A whole number in the range of its kind.
pub fn count(text: &str, kind: Kind) -> Result<u64, Why> {
    match kind {
        Kind::Count(min, max) => values::count(text, min..=max),
        Kind::Size(min, max) => values::size(text, min..=max),
        other => unreachable!("{other:?} is not counted"),
    }
}

/// A duration in the range of its kind.
pub fn duration(text: &str, kind: Kind) -> Result<Duration, Why> {
    match kind {
        Kind::Duration(min, max) => values::duration(text, min..=max),
        other => unreachable!("{other:?} is no duration"),
    }
}
