//! Reading the values of a section. Each function returns `None` for a value that is wrong, after noting the error.

use std::{fmt::Display, slice};

use serde_json::{Value, json};

use super::schema::{Fallback, Key, Kind};
use super::tree::{Node, NodeContent, ScalarForm};
use super::{Entry, HIDDEN, error::Origin, key_path::KeyPath, section::Section, values::FromText};

/// Builds a struct from keys: reads each field that is listed behind a section as the key of its name, then evaluates
/// the other fields; one without a value is that of the variable with its name. Every field is read before a wrong one
/// makes the struct `None`, so that each error is noted.
#[macro_export]
macro_rules! read_struct {
    ($type:ident { $([$section:expr => $($key:ident),+ $(,)?])* $($field:ident $(: $value:expr)?),* $(,)? }) => {{
        $($(let $key: Option<_> = $section.get(stringify!($key));)+)*
        $($(let $field: Option<_> = $value;)?)*
        (|| Some($type { $($($key: $key?,)+)* $($field: $field?,)* }))()
    }};
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

    /// Reads an optional key as a type that defines how its text is parsed. The outer `None` says that it is wrong.
    pub fn optional_value<T: FromText>(&self, name: &str) -> Option<Option<T>> {
        let kind = self.schema.key(name).kind;
        self.optional(name, |text| T::from_text(text, kind))
    }

    /// Reads an optional key. The outer `None` says that it is wrong.
    pub fn optional<T, E: Display>(&self, name: &str, parse: impl Fn(&str) -> Result<T, E>) -> Option<Option<T>> {
        if self.written(name).is_some() {
            return self.read(self.schema.key(name), None, parse).map(Some);
        }
        self.show(name, None, Origin::Default);
        Some(None)
    }

    /// Reads a list. The default is one text or several with commas between. The outer `None` says that an element is
    /// wrong.
    pub fn list<T, E: Display>(&self, name: &str, parse: impl Fn(&str) -> Result<T, E>) -> Option<Option<Vec<T>>> {
        let Key { kind, fallback, .. } = *self.schema.key(name);
        let default: Vec<Node>;
        let items = match (self.written(name), fallback) {
            (None, Fallback::Text(text)) => {
                default = text.split(", ").map(default_node).collect();
                &default
            }
            (None, _) => {
                self.show(name, None, Origin::Default);
                return Some(None);
            }
            (Some(Node { content: NodeContent::List(items), .. }), _) if !items.is_empty() => items,
            (Some(number @ Node { content: NodeContent::Scalar(..), .. }), _) if matches!(kind, Kind::Integers(_)) => {
                slice::from_ref(number)
            }
            (Some(other), _) => {
                self.refuse(name, format!("is {}", other.content.describe()), kind.allowed());
                return None;
            }
        };
        let path = self.path.child(name);
        let parsed: Vec<_> =
            items.iter().enumerate().map(|(at, item)| self.scalar(path.element(at), item, kind, &parse)).collect();
        let (values, shown): (Vec<T>, Vec<_>) = parsed.into_iter().collect::<Option<Vec<_>>>()?.into_iter().unzip();
        self.show(name, Some(shown.into()), self.origin(name));
        Some(Some(values))
    }

    fn read<T, E: Display>(&self, key: &Key, default: Option<&str>, parse: impl Fn(&str) -> Result<T, E>) -> Option<T> {
        let path = self.path.child(key.name);
        let Some(node) = self.written(key.name).cloned().or_else(|| default.map(default_node)) else {
            self.refuse_at(path, self.origin.clone(), "is missing", key.kind.allowed());
            return None;
        };
        let (value, shown) = self.scalar(path, &node, key.kind, parse)?;
        self.show(key.name, Some(shown), node.origin);
        Some(value)
    }

    /// Reads the scalar at `path`; returns it with its text for the effective configuration.
    fn scalar<T, E: Display>(
        &self, path: KeyPath, node: &Node, kind: Kind, parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<(T, Value)> {
        let problem = match &node.content {
            NodeContent::Scalar(text, form) if form.fits(kind, text) => {
                match parse(text).map_err(|why| why.to_string()) {
                    Ok(value) => return Some((value, as_json(text, kind))),
                    Err(why) if why.is_empty() => format!("is {}", quoted(text, *form, kind)),
                    Err(why) => format!("is {}: {why}", quoted(text, *form, kind)),
                }
            }
            NodeContent::Scalar(text, form) => format!("is {}", quoted(text, *form, kind)),
            other => format!("is {}", other.describe()),
        };
        let mut allowed = kind.allowed();
        if let NodeContent::Scalar(text, ScalarForm::Text) = &node.content
            && !ScalarForm::Text.fits(kind, text)
            && parse(text).is_ok()
        {
            allowed.push_str(", without quotes");
        }
        self.refuse_at(path, node.origin.clone(), problem, allowed);
        None
    }

    /// Returns every key of a free table with its text. A list or a table is refused.
    pub fn free_scalars(&self) -> Vec<(&'a str, &'a str)> {
        let scalar = |(name, node): (&'a String, &'a Node)| match &node.content {
            NodeContent::Scalar(text, _) => Some((name.as_str(), text.as_str())),
            other => {
                let problem = format!("is {}", other.describe());
                self.refuse(name, problem, "a string, a number or true or false");
                None
            }
        };
        self.table.into_iter().flatten().filter_map(scalar).collect()
    }

    /// Notes the value of a key for the effective configuration.
    pub fn show(&self, name: &str, value: Option<Value>, origin: Origin) {
        let (key, row) = (self.path.child(name), self.schema.keys.iter().find(|key| key.name == name));
        let (reloads, is_file) = row.map_or((false, false), |row| (row.reloads, matches!(row.kind, Kind::File(_))));
        self.reader.entries.borrow_mut().insert(key.clone(), Entry { key, value, origin, reloads, is_file });
    }
}

fn default_node(text: &str) -> Node {
    Node { origin: Origin::Default, content: NodeContent::Scalar(text.to_owned(), ScalarForm::Any) }
}

/// Returns a scalar as errors show it.
fn quoted(text: &str, form: ScalarForm, kind: Kind) -> String {
    match form {
        _ if matches!(kind, Kind::Addresses(_)) && text.contains('@') => HIDDEN.to_owned(),
        _ if matches!(kind, Kind::Secret(_)) => HIDDEN.to_owned(),
        ScalarForm::Text | ScalarForm::Any => format!("{text:?}"),
        _ => text.to_owned(),
    }
}

/// Returns a scalar, or an element of a list, as the effective configuration shows it.
pub fn as_json(text: &str, kind: Kind) -> Value {
    let number = text.replace('_', "");
    let shown = match kind {
        Kind::Secret(_) => Some(json!(HIDDEN)),
        Kind::Flag => Some(json!(text == "true")),
        Kind::Count(..) | Kind::Size(..) | Kind::Integers(_) => number.parse::<u64>().ok().map(Value::from),
        Kind::Whole(..) => number.parse::<i64>().ok().map(Value::from),
        Kind::Decimal(_) | Kind::DecimalOrPercent(_) => number.parse::<f64>().ok().map(Value::from),
        _ => None,
    };
    shown.unwrap_or_else(|| json!(text))
}
