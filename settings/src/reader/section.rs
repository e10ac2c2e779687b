//! One section of a file: its place, its errors, and the sections beneath it. `read` reads its values.

use std::fmt::Display;

use super::error::{ConfigError, Origin};
use super::schema::{Fallback, SectionSchema, Shape};
use super::tree::{Node, NodeContent, Table};
use super::{Reader, key_path::KeyPath, names::similar};

/// One section of a file, written or not.
#[derive(Clone)]
pub struct Section<'a> {
    pub(super) reader: &'a Reader,
    /// The keys that are written; `None` if the section is not.
    pub(super) table: Option<&'a Table>,
    pub path: KeyPath,
    pub(super) schema: &'static SectionSchema,
    /// The place of the section in the file.
    pub origin: Origin,
    service: Option<&'a str>,
}

impl<'a> Section<'a> {
    pub(super) fn root(reader: &'a Reader, schema: &'static SectionSchema) -> Section<'a> {
        let (table, path, origin) = (Some(&reader.root), KeyPath::default(), reader.file_origin());
        let root = Section { reader, table, path, schema, origin, service: None };
        root.refuse_unknown_keys(&[]);
        root
    }

    /// Returns a section beneath this one, which is written if `node` is a table.
    fn inner(&self, node: Option<&'a Node>, path: KeyPath, schema: &'static SectionSchema) -> Section<'a> {
        let table = node.and_then(Node::as_table);
        let name = table.filter(|_| schema.shape == Shape::Services).and_then(|table| table.get("name")?.as_text());
        let origin = node.map_or_else(|| self.reader.file_origin(), |node| node.origin.clone());
        let inner = Section { reader: self.reader, table, path, schema, origin, service: name.or(self.service) };
        // The keys of a section with variants are known once its variant is.
        if schema.sections.iter().all(|section| section.shape != Shape::Variant) {
            inner.refuse_unknown_keys(&[]);
        }
        inner
    }

    // ## Its place

    /// Returns whether the section is written.
    pub fn is_written(&self) -> bool {
        self.table.is_some()
    }

    /// Returns the origin of the key `name`; of the section, if the key is required and missing.
    pub fn origin(&self, name: &str) -> Origin {
        let has_default = |fallback: Fallback| matches!(fallback, Fallback::Text(_) | Fallback::Derived(_));
        match self.written(name) {
            Some(node) => node.origin.clone(),
            None if self.schema.keys.iter().any(|key| key.name == name && has_default(key.fallback)) => Origin::Default,
            None => self.origin.clone(),
        }
    }

    /// Returns whether the key `name` is written.
    pub fn is_set(&self, name: &str) -> bool {
        self.written(name).is_some()
    }

    /// Returns whether the key `name` is written as a list.
    pub fn is_list(&self, name: &str) -> bool {
        self.written(name).is_some_and(|node| matches!(node.content, NodeContent::List(_)))
    }

    /// Returns whether the key `name` is written as an empty list.
    pub fn is_empty_list(&self, name: &str) -> bool {
        self.written(name).is_some_and(|node| matches!(&node.content, NodeContent::List(items) if items.is_empty()))
    }

    pub(super) fn written(&self, name: &str) -> Option<&'a Node> {
        self.table?.get(name)
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

    /// Notes that the section itself is doubtful.
    pub fn warn_of_itself(&self, problem: impl Display, advice: impl Display) {
        let warning = self.error(self.path.clone(), self.origin.clone(), problem, advice);
        self.reader.warnings.borrow_mut().push(warning);
    }

    pub(super) fn refuse_at(&self, key: KeyPath, origin: Origin, problem: impl Display, allowed: impl Display) {
        // A value without a text to read has its error already. A rule that it breaks is no second one.
        if self.reader.unread.iter().all(|error| error.key != key) {
            self.reader.errors.borrow_mut().push(self.error(key, origin, problem, allowed));
        }
    }

    fn error(&self, key: KeyPath, origin: Origin, problem: impl Display, allowed: impl Display) -> ConfigError {
        let (problem, allowed) = (problem.to_string(), allowed.to_string());
        ConfigError { key, service: self.service.map(str::to_owned), problem, allowed, origin }
    }

    /// Refuses the keys that are neither in the schema nor in `also`, and names the sections where they belong.
    fn refuse_unknown_keys(&self, also: &[&'static str]) {
        let Some(table) = self.table.filter(|_| self.schema.shape != Shape::FreeTable) else { return };
        let known: Vec<_> = also.iter().copied().chain(self.schema.names()).collect();
        for name in table.keys().filter(|name| !known.contains(&name.as_str())) {
            let former = self.reader.schema.former_keys.iter().find(|(former, _)| former == name);
            if let Some((_, why)) = former {
                self.refuse(name, "is a key of former versions", *why);
                continue;
            }
            let hint = self.hint(name, &known);
            self.refuse(name, "is not a key of this section", format!("{}{hint}", known.join(", ")));
        }
    }

    /// Suggests keys in place of an unknown one: a name like it here, its name in other sections, or else one like it
    /// there.
    fn hint(&self, name: &str, known: &[&str]) -> String {
        let keys = self.reader.schema.keys();
        let homes = |name: &str| -> Vec<String> {
            let homes = keys.iter().filter(|(_, key)| key.name == name);
            homes.map(|(section, key)| section.child(key.name).to_string()).collect()
        };
        let near = similar(name, known.iter().copied()).map(str::to_owned);
        let mut meant: Vec<String> = near.into_iter().chain(homes(name)).collect();
        if meant.is_empty() {
            meant = similar(name, keys.iter().map(|(_, key)| key.name)).map(homes).unwrap_or_default();
        }
        if meant.is_empty() { String::new() } else { format!(" (did you mean {}?)", meant.join(" or ")) }
    }

    // ## The sections beneath it

    /// Returns the table `name`.
    pub fn table(&self, name: &str) -> Section<'a> {
        let (path, schema) = (self.path.child(name), self.schema.section(name));
        let node = self.written(name);
        if let Some(other) = node.filter(|node| node.as_table().is_none()) {
            let problem = format!("is {}", other.content.describe());
            self.refuse(name, problem, format!("a table: [{}]", path.header()));
        }
        self.inner(node, path, schema)
    }

    /// Returns the tables of the list `name`, which needs at least one unless it is optional.
    pub fn tables(&self, name: &str) -> Vec<Section<'a>> {
        let (path, schema) = (self.path.child(name), self.schema.section(name));
        match self.written(name).map(|node| &node.content) {
            Some(NodeContent::List(items)) if !items.is_empty() => {
                let table = |(at, item)| self.element(path.element(at), item, schema);
                items.iter().enumerate().filter_map(table).collect()
            }
            None if matches!(schema.shape, Shape::OptionalList | Shape::OptionalNamed) => Vec::new(),
            other => {
                let problem = other.map_or("is missing".to_owned(), |value| format!("is {}", value.describe()));
                self.refuse(name, problem, format!("at least one [[{}]]", path.header()));
                Vec::new()
            }
        }
    }

    /// Returns the tables of the table `name`, each with its key.
    pub fn named_tables(&self, name: &str) -> Vec<(&'a str, Section<'a>)> {
        let (path, schema) = (self.path.child(name), self.schema.section(name));
        match self.written(name).map(|node| &node.content) {
            Some(NodeContent::Table(tables)) => {
                let table = |(key, node): (&'a String, _)| Some((&**key, self.element(path.child(key), node, schema)?));
                tables.iter().filter_map(table).collect()
            }
            Some(other) => {
                let problem = format!("is {}", other.describe());
                self.refuse(name, problem, format!("tables: [{}.NAME]", path.header()));
                Vec::new()
            }
            None => Vec::new(),
        }
    }

    /// Returns an element of a list or a map, which must be a table.
    fn element(&self, path: KeyPath, node: &'a Node, schema: &'static SectionSchema) -> Option<Section<'a>> {
        if node.as_table().is_none() {
            self.refuse_at(path, node.origin.clone(), format!("is {}", node.content.describe()), "a table");
            return None;
        }
        Some(self.inner(Some(node), path, schema))
    }

    /// Returns the section itself with the keys that it has besides if one of its own keys has the value `name`.
    pub fn variant(&self, name: &str) -> Section<'a> {
        let variant = Section { schema: self.schema.section(name), ..self.clone() };
        let own: Vec<_> = self.schema.keys.iter().map(|key| key.name).collect();
        variant.refuse_unknown_keys(&own);
        variant
    }
}
