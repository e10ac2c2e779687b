//! One section of a file: its place, its errors, the sections beneath it, and its values.

use std::{fmt::Display, slice};

use serde_json::{Value, json};

use super::error::{ConfigError, Origin};
use super::schema::{Fallback, Key, Kind, SectionSchema, Shape};
use super::tree::{Node, NodeContent, ScalarForm, Table};
use super::{Entry, HIDDEN, Reader, key_path::KeyPath, names::similar, values::FromText};

/// One section of a file, written or not.
#[derive(Clone)]
pub struct Section<'a> {
    reader: &'a Reader,
    /// The keys that are written; `None` if the section is not.
    table: Option<&'a Table>,
    pub path: KeyPath,
    schema: &'static SectionSchema,
    /// The place of the section in the file.
    pub origin: Origin,
    service: Option<&'a str>,
}

impl<'a> Section<'a> {
    pub(super) fn root(reader: &'a Reader, schema: &'static SectionSchema) -> Section<'a> {
        let (table, path, origin) = (Some(&reader.root), KeyPath::default(), reader.origin.clone());
        let root = Section { reader, table, path, schema, origin, service: None };
        root.refuse_unknown_keys(&[]);
        root
    }

    /// Returns a section beneath this one, which is written if `node` is a table.
    fn inner(&self, node: Option<&'a Node>, path: KeyPath, schema: &'static SectionSchema) -> Section<'a> {
        let table = node.and_then(Node::as_table);
        let name = table.filter(|_| schema.shape == Shape::Services).and_then(|table| table.get("name")?.as_text());
        let origin = node.map_or(&self.reader.origin, |node| &node.origin).clone();
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

    fn written(&self, name: &str) -> Option<&'a Node> {
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

    fn refuse_at(&self, key: KeyPath, origin: Origin, problem: impl Display, allowed: impl Display) {
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

    // ## Its values: each function returns `None` for one that is wrong, after noting the error

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
