//! The values of a file, each with its origin.

use std::{collections::BTreeMap, ops::Range, path::Path};

use serde_json::{Map, Value as Json};
use toml_edit::{Document, Item, TableLike, TomlError, Value};

use super::error::{ConfigError, Origin};
use super::schema::Kind;

/// A value and the place that it came from.
#[derive(Debug, Clone)]
pub struct Node {
    pub origin: Origin,
    pub content: NodeContent,
}

/// The values of a table by key.
pub type Table = BTreeMap<String, Node>;

/// A value as it was written.
#[derive(Debug, Clone)]
pub enum NodeContent {
    /// The text of a scalar. A number keeps its decimals.
    Scalar(String, ScalarForm),
    List(Vec<Node>),
    Table(Table),
}

/// The form of a scalar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScalarForm {
    Flag,
    Integer,
    Decimal,
    Time,
    Text,
    /// The text of a default or of a variable, which stands for any form.
    Any,
}

impl ScalarForm {
    /// Returns whether a key of a kind takes a scalar (or an element of a list) of this form.
    pub fn fits(self, kind: Kind, text: &str) -> bool {
        match kind {
            _ if self == ScalarForm::Any => true,
            Kind::Flag => self == ScalarForm::Flag,
            Kind::Count(..) | Kind::Whole(..) | Kind::Integers(_) => self == ScalarForm::Integer,
            Kind::Moment(_) => matches!(self, ScalarForm::Time | ScalarForm::Text),
            Kind::Decimal(_) => matches!(self, ScalarForm::Decimal | ScalarForm::Integer),
            Kind::DecimalOrPercent(_) if text.ends_with('%') => self == ScalarForm::Text,
            Kind::DecimalOrPercent(_) => matches!(self, ScalarForm::Decimal | ScalarForm::Integer),
            Kind::Size(..) => matches!(self, ScalarForm::Text | ScalarForm::Integer),
            _ => self == ScalarForm::Text,
        }
    }
}

impl Node {
    pub fn as_table(&self) -> Option<&Table> {
        if let NodeContent::Table(table) = &self.content { Some(table) } else { None }
    }

    pub fn as_text(&self) -> Option<&str> {
        if let NodeContent::Scalar(text, ScalarForm::Text | ScalarForm::Any) = &self.content {
            Some(text)
        } else {
            None
        }
    }
}

impl NodeContent {
    /// Describes a value without showing it.
    pub fn describe(&self) -> &'static str {
        match self {
            NodeContent::Scalar(_, ScalarForm::Flag) => "true or false",
            NodeContent::Scalar(_, ScalarForm::Integer | ScalarForm::Decimal) => "a number",
            NodeContent::Scalar(_, ScalarForm::Time) => "a time",
            NodeContent::Scalar(_, ScalarForm::Text | ScalarForm::Any) => "a string",
            NodeContent::List(items) if items.is_empty() => "an empty list",
            NodeContent::List(_) => "a list",
            NodeContent::Table(_) => "a table",
        }
    }
}

/// Parses the `text` of the file at `path`, which should be TOML.
pub fn parse(text: &str, path: &Path) -> Result<Table, Box<ConfigError>> {
    let document = Document::parse(text).map_err(|error| syntax_error(text, path, &error))?;
    Ok(File { text, path, line_ends: line_ends(text) }.table(document.as_table()))
}

/// Returns the values of an object of JSON, which came from `path`.
pub fn of_json(object: &Map<String, Json>, path: &Path) -> Table {
    fn content(value: &Json, origin: &Origin) -> NodeContent {
        let node = |value: &Json| Node { origin: origin.clone(), content: content(value, origin) };
        match value {
            Json::Null => NodeContent::Scalar("null".to_owned(), ScalarForm::Any),
            Json::Bool(flag) => NodeContent::Scalar(flag.to_string(), ScalarForm::Flag),
            Json::Number(number) if number.is_f64() => NodeContent::Scalar(number.to_string(), ScalarForm::Decimal),
            Json::Number(number) => NodeContent::Scalar(number.to_string(), ScalarForm::Integer),
            Json::String(text) => NodeContent::Scalar(text.clone(), ScalarForm::Text),
            Json::Array(items) => NodeContent::List(items.iter().map(node).collect()),
            Json::Object(object) => {
                NodeContent::Table(object.iter().map(|(key, value)| (key.clone(), node(value))).collect())
            }
        }
    }
    let origin = Origin::File { path: path.to_owned(), line: None };
    let node = |value| Node { origin: origin.clone(), content: content(value, &origin) };
    object.iter().map(|(key, value)| (key.clone(), node(value))).collect()
}

/// The file that values are taken from.
struct File<'a> {
    text: &'a str,
    path: &'a Path,
    line_ends: Vec<usize>,
}

impl File<'_> {
    fn table(&self, table: &dyn TableLike) -> Table {
        let node = |(name, item): (&str, &Item)| {
            let key = table.key(name).and_then(|key| key.span());
            (name.to_owned(), self.node(key.or_else(|| item.span()), self.item(item)))
        };
        table.iter().map(node).collect()
    }

    fn item(&self, item: &Item) -> NodeContent {
        match item {
            Item::None => NodeContent::Table(Table::new()),
            Item::Value(value) => self.value(value),
            Item::Table(table) => NodeContent::Table(self.table(table)),
            Item::ArrayOfTables(tables) => NodeContent::List(
                tables.iter().map(|one| self.node(one.span(), NodeContent::Table(self.table(one)))).collect(),
            ),
        }
    }

    fn value(&self, value: &Value) -> NodeContent {
        match value {
            Value::String(text) => NodeContent::Scalar(text.value().clone(), ScalarForm::Text),
            Value::Integer(integer) => NodeContent::Scalar(integer.value().to_string(), ScalarForm::Integer),
            Value::Float(float) => NodeContent::Scalar(self.decimal(value, *float.value()), ScalarForm::Decimal),
            Value::Boolean(flag) => NodeContent::Scalar(flag.value().to_string(), ScalarForm::Flag),
            Value::Datetime(time) => NodeContent::Scalar(time.value().to_string(), ScalarForm::Time),
            Value::Array(items) => {
                NodeContent::List(items.iter().map(|item| self.node(item.span(), self.value(item))).collect())
            }
            Value::InlineTable(table) => NodeContent::Table(self.table(table)),
        }
    }

    /// Returns a float as it was written; one with an exponent gets the shortest text that is exact.
    fn decimal(&self, value: &Value, float: f64) -> String {
        let written = value.span().and_then(|span| self.text.get(span)).unwrap_or_default();
        let is_plain = written.bytes().all(|byte| byte.is_ascii_digit() || b"+-._".contains(&byte));
        if is_plain { written.replace('_', "") } else { float.to_string() }
    }

    fn node(&self, span: Option<Range<usize>>, content: NodeContent) -> Node {
        let line = span.map(|span| line_at(&self.line_ends, span.start));
        Node { origin: Origin::File { path: self.path.to_owned(), line }, content }
    }
}

/// Returns the offset of each line break, in order.
fn line_ends(text: &str) -> Vec<usize> {
    text.match_indices('\n').map(|(at, _)| at).collect()
}

fn line_at(line_ends: &[usize], offset: usize) -> usize {
    line_ends.partition_point(|&end| end < offset) + 1
}

/// Tells line and column, but does not show the line: it may hold a password.
fn syntax_error(text: &str, path: &Path, error: &TomlError) -> Box<ConfigError> {
    let start = error.span().map_or(0, |span| span.start.min(text.len()));
    let line = line_at(&line_ends(text), start);
    let before = text.as_bytes()[..start].iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    let column = text.get(before..start).map_or(1, |part| part.chars().count() + 1);
    let message = error.message().trim().replace('\n', "; ");
    let problem = format!("is no TOML, line {line}, column {column}: {message}");
    ConfigError::of_file(path, Some(line), problem)
}
