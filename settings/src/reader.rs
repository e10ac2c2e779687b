//! Reads TOML files, with variables of the environment laid over them, by a table of their keys.
//!
//! A [`Schema`] names the keys of a file with their kinds and defaults. A [`Reader`] merges the layers, and a
//! [`Section`] reads values from them. A wrong value is noted with its key, its origin and what is allowed, and reading
//! continues, so that one run reports every error. Reading a key twice notes its error once.
//!
//! The module knows no key of any file. Its users are the configuration (`config`) and load scenarios.
//!
//! [`layers`] merges, [`names`] finds the key of a variable, and [`tree`] holds the result: each value as it was
//! written, with its line or its variable. [`variables`] then replaces `${VAR}` in the file's texts.
//! Values are read one by one rather than through serde, which would stop at the first error and round decimals.

mod error;
mod json_schema;
mod key_path;
mod layers;
mod names;
mod schema;
mod section;
mod tree;
mod values;
mod variables;

use std::{cell::RefCell, collections::BTreeMap, ffi::OsString, path::Path};

use serde_json::{Map, Value};

pub use self::error::{ConfigError, ConfigErrors, Origin};
pub use self::key_path::{KeyPath, Segment};
pub use self::names::similar;
pub use self::schema::{Fallback, Key, Kind, Schema, SectionSchema, Shape, key, reloaded_key, section};
pub use self::section::Section;
pub(crate) use self::values::because;
pub use self::values::{Choice, FromText, ValueError, count, decimal, duration};

/// The text that stands in place of a value that must not be shown.
pub const HIDDEN: &str = "(redacted)";

/// One key with the value that takes effect.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub key: KeyPath,
    /// The value; `None` for a key that is optional and was not written.
    pub value: Option<Value>,
    pub origin: Origin,
    /// `true` if a running program takes over a new value.
    pub reloads: bool,
    /// `true` if the value is the path of a file that the program reads.
    pub is_file: bool,
}

/// The layers of a file or several, and the findings of reading them.
pub struct Reader {
    schema: &'static Schema,
    /// The first file, which is the origin of a section that is not written.
    origin: Origin,
    root: tree::Table,
    /// The errors of values that have no text to read.
    unread: Vec<ConfigError>,
    errors: RefCell<Vec<ConfigError>>,
    warnings: RefCell<Vec<ConfigError>>,
    entries: RefCell<BTreeMap<KeyPath, Entry>>,
}

/// A file that was read without errors.
#[derive(Debug)]
pub struct Reading<T> {
    pub value: T,
    /// Every key with its value, in the order of the schema.
    pub entries: Vec<Entry>,
    /// Values that are allowed but doubtful, sorted by key.
    pub warnings: Vec<ConfigError>,
}

impl Reader {
    /// Parses files, given by path and text, lays each over the one before it, and `environment` over all of them.
    ///
    /// # Errors
    /// Fails when a text is not TOML. Nothing more can be said then.
    pub fn new(
        schema: &'static Schema, files: &[(impl AsRef<Path>, impl AsRef<str>)],
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Reader, ConfigErrors> {
        let (mut tables, mut errors) = (Vec::new(), Vec::new());
        for (path, text) in files {
            match tree::parse(text.as_ref(), path.as_ref()) {
                Ok(table) => tables.push(table),
                Err(error) => errors.push(*error),
            }
        }
        if !errors.is_empty() {
            return Err(ConfigErrors::new(schema.subject, errors));
        }
        let environment = environment.into_iter().collect();
        let (mut root, mut unread) = layers::merge(tables, schema, &environment);
        if !schema.variable_prefix.is_empty() {
            unread.extend(variables::expand_table(&mut root, &KeyPath::default(), &environment));
        }
        let path = files.first().map_or(Path::new(""), |(path, _)| path.as_ref());
        Ok(Reader { unread, ..Reader::of_table(schema, root, path) })
    }

    /// Takes the values of an object of JSON, which came from `path`.
    pub fn of_json(schema: &'static Schema, object: &Map<String, Value>, path: &Path) -> Reader {
        Reader::of_table(schema, tree::of_json(object, path), path)
    }

    /// Takes each table of the list `list` of the `[[service]]` with this name, with the variables of `environment`.
    /// Nothing else in the file matters, if it is TOML.
    pub fn of_service(
        schema: &'static Schema, (path, text): (&Path, &str), service: &str, list: &str,
        environment: &variables::Environment,
    ) -> Result<Vec<Reader>, ConfigErrors> {
        let root = tree::parse(text, path).map_err(|error| ConfigErrors::new(schema.subject, vec![*error]))?;
        let tables = |table: &tree::Table, name: &str| match table.get(name).map(|node| &node.content) {
            Some(tree::NodeContent::List(items)) => items.iter().filter_map(|item| item.as_table().cloned()).collect(),
            _ => Vec::new(),
        };
        let named = |one: &tree::Table| one.get("name").and_then(|name| name.as_text()) == Some(service);
        let found = tables(&root, "service").into_iter().filter(named);
        let reader = |mut table: tree::Table| {
            let unread = variables::expand_table(&mut table, &KeyPath::default(), environment);
            Reader { unread, ..Reader::of_table(schema, table, path) }
        };
        Ok(found.flat_map(|one| tables(&one, list)).map(reader).collect())
    }

    fn of_table(schema: &'static Schema, root: tree::Table, path: &Path) -> Reader {
        Reader {
            schema,
            origin: Origin::File { path: path.to_owned(), line: None },
            root,
            unread: Vec::new(),
            errors: RefCell::default(),
            warnings: RefCell::default(),
            entries: RefCell::default(),
        }
    }

    /// Returns the whole file as a section.
    pub fn root(&self) -> Section<'_> {
        Section::root(self, &self.schema.root)
    }

    /// Returns `value`, which was read from the sections, with the findings.
    ///
    /// # Errors
    /// Every error that was noted. `value` is `None` only if there is one.
    pub fn finish<T>(self, value: Option<T>) -> Result<Reading<T>, ConfigErrors> {
        let mut errors = self.unread;
        errors.extend(self.errors.into_inner());
        let Some(value) = value.filter(|_| errors.is_empty()) else {
            return Err(ConfigErrors::new(self.schema.subject, errors));
        };
        let mut entries: Vec<Entry> = self.entries.into_inner().into_values().collect();
        entries.sort_by_cached_key(|entry| self.schema.rank(&entry.key));
        let mut warnings = self.warnings.into_inner();
        warnings.sort();
        warnings.dedup();
        Ok(Reading { value, entries, warnings })
    }
}

#[cfg(test)]
mod tests;
