//! One section of a file: its place, its errors, and the sections beneath it. `read` reads its values.

use std::fmt::Display;

use figment::value::{Dict, Value};

use super::error::{ConfigError, Origin};
use super::schema::{Fallback, SectionSchema, Shape};
use super::{Reader, form::describe, key_path::KeyPath};

/// One section of a file, written or not.
#[derive(Clone)]
pub struct Section<'a> {
    pub(super) reader: &'a Reader,
    pub(super) dict: Option<&'a Dict>,
    pub(super) path: KeyPath,
    pub(super) schema: &'static SectionSchema,
    service: Option<&'a str>,
}

impl<'a> Section<'a> {
    pub(super) fn root(reader: &'a Reader, schema: &'static SectionSchema) -> Section<'a> {
        let dict = Some(&reader.layers.root);
        let root = Section { reader, dict, path: KeyPath::default(), schema, service: None };
        root.refuse_unknown_keys(&[]);
        root
    }

    /// Returns a section beneath this one.
    fn inner(&self, dict: Option<&'a Dict>, path: KeyPath, schema: &'static SectionSchema) -> Section<'a> {
        let name = (schema.shape == Shape::Services).then(|| dict?.get("name")?.as_str()).flatten();
        let inner = Section { reader: self.reader, dict, path, schema, service: name.or(self.service) };
        // The keys of a section with variants are known once its variant is.
        if schema.sections.iter().all(|section| section.shape != Shape::Variant) {
            inner.refuse_unknown_keys(&[]);
        }
        inner
    }

    // ## Its place

    /// Returns the path of the section.
    pub fn path(&self) -> &KeyPath {
        &self.path
    }

    /// Returns whether the section is written.
    pub fn is_written(&self) -> bool {
        self.dict.is_some()
    }

    /// Returns the place of the section in the file.
    pub fn section_origin(&self) -> Origin {
        self.reader.layers.section_origin(&self.path)
    }

    /// Returns the origin of the key `name`; of the section, if the key is required and missing.
    pub fn origin(&self, name: &str) -> Origin {
        let has_default = |fallback: Fallback| matches!(fallback, Fallback::Text(_) | Fallback::Derived(_));
        match self.written(name) {
            Some(value) => self.reader.layers.origin(&self.path.child(name), value.tag()),
            None if self.schema.keys.iter().any(|key| key.name == name && has_default(key.fallback)) => Origin::Default,
            None => self.section_origin(),
        }
    }

    /// Returns whether the key `name` is written as a list.
    pub fn is_list(&self, name: &str) -> bool {
        matches!(self.written(name), Some(Value::Array(..)))
    }

    pub(super) fn written(&self, name: &str) -> Option<&'a Value> {
        self.dict?.get(name)
    }

    // ## Its errors

    /// Notes an error at `name`.
    pub fn refuse(&self, name: &str, problem: impl Display, allowed: impl Display) {
        self.refuse_at(self.path.child(name), self.origin(name), problem, allowed);
    }

    /// Notes a doubtful value at `name`.
    pub fn warn(&self, name: &str, problem: impl Display, advice: impl Display) {
        let warning = self.error(self.path.child(name), self.origin(name), problem, advice);
        self.reader.warnings.borrow_mut().push(warning);
    }

    pub(super) fn refuse_at(&self, key: KeyPath, origin: Origin, problem: impl Display, allowed: impl Display) {
        self.reader.errors.borrow_mut().push(self.error(key, origin, problem, allowed));
    }

    /// Notes that an element of a list or a map is of the wrong type.
    fn refuse_element(&self, path: KeyPath, value: &Value) {
        let origin = self.reader.layers.origin(&path, value.tag());
        self.refuse_at(path, origin, format!("is {}", describe(value)), "a table");
    }

    fn error(&self, key: KeyPath, origin: Origin, problem: impl Display, allowed: impl Display) -> ConfigError {
        let (problem, allowed) = (problem.to_string(), allowed.to_string());
        ConfigError { key, service: self.service.map(str::to_owned), problem, allowed, origin }
    }

    /// Refuses the keys that are neither in the schema nor in `also`, and names the sections where they belong.
    fn refuse_unknown_keys(&self, also: &[&'static str]) {
        let Some(dict) = self.dict.filter(|_| self.schema.shape != Shape::FreeTable) else { return };
        let known: Vec<_> = also.iter().copied().chain(self.schema.names()).collect();
        for name in dict.keys().filter(|name| !known.contains(&name.as_str())) {
            let keys = self.reader.schema.keys();
            let homes = keys.iter().filter(|(_, key)| key.name == *name);
            let homes: Vec<_> = homes.map(|(section, key)| section.child(key.name).to_string()).collect();
            let hint =
                if homes.is_empty() { String::new() } else { format!(" (did you mean {}?)", homes.join(" or ")) };
            self.refuse(name, "is not a key of this section", format!("{}{hint}", known.join(", ")));
        }
    }

    // ## The sections beneath it

    /// Returns the table `name`.
    pub fn table(&self, name: &str) -> Section<'a> {
        let path = self.path.child(name);
        let dict = match self.written(name) {
            Some(Value::Dict(_, dict)) => Some(dict),
            Some(value) => {
                self.refuse(name, format!("is {}", describe(value)), format!("a table: [{}]", path.header()));
                None
            }
            None => None,
        };
        self.inner(dict, path, self.schema.section(name))
    }

    /// Returns the tables of the list `name`, which needs at least one.
    pub fn tables(&self, name: &str) -> Vec<Section<'a>> {
        let (path, schema) = (self.path.child(name), self.schema.section(name));
        let items = match self.written(name) {
            Some(Value::Array(_, items)) if !items.is_empty() => items.as_slice(),
            other => {
                let problem = other.map_or("is missing".to_owned(), |value| format!("is {}", describe(value)));
                self.refuse(name, problem, format!("at least one [[{}]]", path.header()));
                return Vec::new();
            }
        };
        let table = |(index, item): (usize, &'a Value)| match item {
            Value::Dict(_, dict) => Some(self.inner(Some(dict), path.element(index), schema)),
            other => {
                self.refuse_element(path.element(index), other);
                None
            }
        };
        items.iter().enumerate().filter_map(table).collect()
    }

    /// Returns the tables of the table `name`, each with its key.
    pub fn named_tables(&self, name: &str) -> Vec<(&'a str, Section<'a>)> {
        let (path, schema) = (self.path.child(name), self.schema.section(name));
        let dict = match self.written(name) {
            Some(Value::Dict(_, dict)) => dict,
            Some(value) => {
                self.refuse(name, format!("is {}", describe(value)), format!("tables: [{}.NAME]", path.header()));
                return Vec::new();
            }
            None => return Vec::new(),
        };
        let table = |(key, value): (&'a String, &'a Value)| match value {
            Value::Dict(_, inner) => Some((key.as_str(), self.inner(Some(inner), path.child(key), schema))),
            other => {
                self.refuse_element(path.child(key), other);
                None
            }
        };
        dict.iter().filter_map(table).collect()
    }

    /// Returns the section itself with the keys that it has besides if one of its own keys has the value `name`.
    pub fn variant(&self, name: &str) -> Section<'a> {
        let variant = Section { schema: self.schema.section(name), ..self.clone() };
        let own: Vec<_> = self.schema.keys.iter().map(|key| key.name).collect();
        variant.refuse_unknown_keys(&own);
        variant
    }
}
