//! Reading the values of a section. Each function returns `None` for a value that is wrong, after noting the error.

use std::fmt::Display;

use figment::value::Value;
use serde_json::json;

use super::form::{Form, as_json, describe, fits, scalar_text};
use super::schema::{Fallback, Key, Kind};
use super::{Entry, HIDDEN, error::Origin, key_path::KeyPath, section::Section, values::FromText};

/// Builds a struct from keys: reads each field that is listed behind a section as the key of its name, then evaluates
/// the other fields. Every field is read before a wrong one makes the struct `None`, so that each error is noted.
#[macro_export]
macro_rules! read_struct {
    ($type:ident { $([$section:expr => $($key:ident),+ $(,)?])* $($field:ident: $value:expr),* $(,)? }) => {{
        $($(let $key: Option<_> = $section.get(stringify!($key));)+)*
        $(let $field: Option<_> = $value;)*
        (|| Some($type { $($($key: $key?,)+)* $($field: $field?,)* }))()
    }};
}

/// A scalar as it was written.
struct Scalar {
    text: String,
    /// The text for errors.
    shown: String,
    origin: Origin,
    /// The form in the file; `None` for a default and for a variable, which are texts of any form.
    form: Option<Form>,
}

impl<'a> Section<'a> {
    /// Reads a key as a type that defines how its text is parsed.
    pub fn get<T: FromText>(&self, name: &str) -> Option<T> {
        let kind = self.schema.key(name).kind;
        self.text(name, |text| T::from_text(text, kind))
    }

    /// Reads a key with `parse`.
    pub fn text<T, E: Display>(&self, name: &str, parse: impl Fn(&str) -> Result<T, E>) -> Option<T> {
        let key = self.schema.key(name);
        let default = if let Fallback::Text(text) = key.fallback { Some(text) } else { None };
        self.read(key, default, parse)
    }

    /// Reads a key with a default that follows from other keys, as [`get`](Section::get) does.
    pub fn derived<T: FromText>(&self, name: &str, default: Option<impl Display>) -> Option<T> {
        let kind = self.schema.key(name).kind;
        self.derived_text(name, default, |text| T::from_text(text, kind))
    }

    /// Reads a key with a default that follows from other keys; `None` if one of those keys is wrong.
    pub fn derived_text<T, E: Display>(
        &self, name: &str, default: Option<impl Display>, parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        if default.is_none() && self.written(name).is_none() {
            return None;
        }
        self.read(self.schema.key(name), default.map(|default| default.to_string()).as_deref(), parse)
    }

    /// Reads an optional key. The outer `None` says that it is wrong.
    pub fn optional<T, E: Display>(&self, name: &str, parse: impl Fn(&str) -> Result<T, E>) -> Option<Option<T>> {
        if self.written(name).is_some() {
            return self.read(self.schema.key(name), None, parse).map(Some);
        }
        self.show(name, None, Origin::Default);
        Some(None)
    }

    /// Reads a list. The default is one text. The outer `None` says that an element is wrong.
    pub fn list<T, E: Display>(&self, name: &str, parse: impl Fn(&str) -> Result<T, E>) -> Option<Option<Vec<T>>> {
        let Key { kind, fallback, .. } = *self.schema.key(name);
        let items = match (self.written(name), kind) {
            (None, _) => {
                let Fallback::Text(text) = fallback else {
                    self.show(name, None, Origin::Default);
                    return Some(None);
                };
                self.show(name, Some(json!([as_json(text, kind)])), Origin::Default);
                return Some(Some(vec![parse(text).ok()?]));
            }
            (Some(Value::Array(_, items)), _) if !items.is_empty() => items.as_slice(),
            (Some(number @ Value::Num(..)), Kind::Integers(_)) => std::slice::from_ref(number),
            (Some(other), _) => {
                self.refuse(name, format!("is {}", describe(other)), kind.allowed());
                return None;
            }
        };
        let path = self.path.child(name);
        let parsed: Vec<_> =
            items.iter().enumerate().map(|(at, item)| self.element(path.element(at), item, kind, &parse)).collect();
        let (texts, values): (Vec<_>, Vec<T>) = parsed.into_iter().collect::<Option<Vec<_>>>()?.into_iter().unzip();
        self.show(name, Some(texts.into_iter().collect()), self.origin(name));
        Some(Some(values))
    }

    /// Reads an element of a list; returns it with what is shown of it.
    fn element<T, E: Display>(
        &self, path: KeyPath, item: &Value, kind: Kind, parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<(serde_json::Value, T)> {
        let problem = match scalar_text(item, None).filter(|(text, form)| fits(*form, kind, text)) {
            Some((text, _)) => match parse(&text) {
                Ok(value) => return Some((as_json(&text, kind), value)),
                Err(error) => problem(&as_json(&text, kind).to_string(), &error.to_string()),
            },
            None => format!("is {}", describe(item)),
        };
        let origin = self.reader.layers.origin(&path, item.tag());
        self.refuse_at(path, origin, problem, kind.allowed());
        None
    }

    fn read<T, E: Display>(&self, key: &Key, default: Option<&str>, parse: impl Fn(&str) -> Result<T, E>) -> Option<T> {
        let scalar = self.scalar(key, default)?;
        let is_of_form = scalar.form.is_none_or(|form| fits(form, key.kind, &scalar.text));
        let wrong = match is_of_form.then(|| parse(&scalar.text)) {
            Some(Ok(value)) => {
                self.show(key.name, Some(as_json(&scalar.text, key.kind)), scalar.origin);
                return Some(value);
            }
            Some(Err(error)) => error.to_string(),
            None => String::new(),
        };
        self.refuse_at(self.path.child(key.name), scalar.origin, problem(&scalar.shown, &wrong), key.kind.allowed());
        None
    }

    fn scalar(&self, key: &Key, default: Option<&str>) -> Option<Scalar> {
        let path = self.path.child(key.name);
        let Some(value) = self.written(key.name) else {
            let Some(text) = default else {
                self.refuse_at(path, self.section_origin(), "is missing", key.kind.allowed());
                return None;
            };
            let shown = format!("{text:?}");
            return Some(Scalar { text: text.to_owned(), shown, origin: Origin::Default, form: None });
        };
        let origin = self.reader.layers.origin(&path, value.tag());
        let Some((text, form)) = scalar_text(value, self.reader.layers.spelling(&path)) else {
            self.refuse(key.name, format!("is {}", describe(value)), key.kind.allowed());
            return None;
        };
        let shown = match form {
            _ if matches!(key.kind, Kind::Addresses(_)) && text.contains('@') => HIDDEN.to_owned(),
            Form::Text => format!("{text:?}"),
            _ => text.clone(),
        };
        let is_typed = !matches!(origin, Origin::Variable(_));
        Some(Scalar { text, shown, origin, form: is_typed.then_some(form) })
    }

    /// Returns every key of a free table with its text. A list or a table is refused.
    pub fn free_scalars(&self) -> Vec<(&'a str, String)> {
        let scalar = |(name, value): (&'a String, &Value)| {
            let text = scalar_text(value, self.reader.layers.spelling(&self.path.child(name)));
            if text.is_none() {
                self.refuse(name, format!("is {}", describe(value)), "a string, a number or true or false");
            }
            Some((name.as_str(), text?.0))
        };
        self.dict.into_iter().flatten().filter_map(scalar).collect()
    }

    /// Notes the value of a key for the effective configuration.
    pub fn show(&self, name: &str, value: Option<serde_json::Value>, origin: Origin) {
        let key = self.path.child(name);
        self.reader.entries.borrow_mut().insert(key.clone(), Entry { key, value, origin });
    }
}

/// Returns the problem of a value as errors tell it: the value, and the reason unless that is empty.
fn problem(shown: &str, reason: &str) -> String {
    if reason.is_empty() { format!("is {shown}") } else { format!("is {shown}: {reason}") }
}
