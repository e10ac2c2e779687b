//! The line of each key in the file, and its value as it was written: figment knows neither.

use std::{collections::BTreeMap, ops::Range, path::Path};

use toml_edit::{ImDocument, Item, TableLike, TomlError, Value};

use super::{error::ConfigError, key_path::KeyPath};

/// The place of a key.
#[derive(Debug)]
pub struct Place {
    pub line: usize,
    /// The text of the value.
    pub spelling: String,
}

/// The places of all keys and sections of a file.
pub type Places = BTreeMap<KeyPath, Place>;

/// Finds the place of each key in `text`, which comes from the file at `path`.
pub fn find(text: &str, path: &Path) -> Result<Places, Box<ConfigError>> {
    let document = ImDocument::parse(text).map_err(|error| syntax_error(text, path, &error))?;
    let mut index = Index { text, places: BTreeMap::new() };
    index.table(&KeyPath::default(), document.as_table());
    Ok(index.places)
}

struct Index<'a> {
    text: &'a str,
    places: Places,
}

impl Index<'_> {
    fn table(&mut self, path: &KeyPath, table: &dyn TableLike) {
        for (name, item) in table.iter() {
            let path = path.child(name);
            self.note(&path, table.key(name).and_then(|key| key.span()), item.span());
            self.item(&path, item);
        }
    }

    fn item(&mut self, path: &KeyPath, item: &Item) {
        if let Some(table) = item.as_table_like() {
            self.table(path, table);
        }
        for (position, table) in item.as_array_of_tables().into_iter().flatten().enumerate() {
            let path = path.element(position);
            self.note(&path, None, table.span());
            self.table(&path, table);
        }
        for (position, value) in item.as_array().into_iter().flatten().enumerate() {
            let path = path.element(position);
            self.note(&path, None, value.span());
            if let Value::InlineTable(table) = value {
                self.table(&path, table);
            }
        }
    }

    fn note(&mut self, path: &KeyPath, key: Option<Range<usize>>, value: Option<Range<usize>>) {
        let Some(start) = key.or_else(|| value.clone()) else { return };
        let spelling = value.and_then(|span| self.text.get(span)).unwrap_or_default().to_owned();
        self.places.insert(path.clone(), Place { line: line_at(self.text, start.start), spelling });
    }
}

fn line_at(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|&byte| byte == b'\n').count() + 1
}

/// Tells line and column, but does not show the line: it may hold a password.
fn syntax_error(text: &str, path: &Path, error: &TomlError) -> Box<ConfigError> {
    let start = error.span().map_or(0, |span| span.start.min(text.len()));
    let line = line_at(text, start);
    let before = text.as_bytes()[..start].iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    let column = text.get(before..start).map_or(1, |part| part.chars().count() + 1);
    let message = error.message().trim().replace('\n', "; ");
    let problem = format!("is no TOML, line {line}, column {column}: {message}");
    ConfigError::of_file(path, Some(line), problem)
}
