//! The layers of values, merged: the environment lies over the file.
//!
//! figment merges, key by key. It keeps neither the line of a value nor the decimals of a number, so what travels
//! through it in place of each value is the value's number in a list.

use figment::value::{Dict, Map, Tag, Value};
use figment::{Figment, Metadata, Profile, Provider};

use super::error::{ConfigError, Origin};
use super::key_path::Segment;
use super::schema::{Schema, Shape};
use super::tree::{Content, Form, Node, Table};
use super::variables::Environment;

/// Stands for the dot between a section and a key in the name of a variable.
const NESTING: &str = "__";
/// The keys of a table's own number, which no key of a file has: one for each layer, so that both numbers are kept.
const FILE_TABLE: &str = "\0file";
const VARIABLE_TABLE: &str = "\0variable";

/// The values of all layers, by number.
#[derive(Default)]
struct Values(Vec<Node>);

/// One layer: in place of each value its number.
struct Layer(Dict);

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::default()
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        Ok(Profile::default().collect(self.0.clone()))
    }
}

impl Values {
    fn layer(&mut self, table: Table, marker: &str) -> Layer {
        Layer(self.numbers(table, marker))
    }

    fn numbers(&mut self, table: Table, marker: &str) -> Dict {
        table.into_iter().map(|(key, node)| (key, self.number(node, marker))).collect()
    }

    fn number(&mut self, mut node: Node, marker: &str) -> Value {
        let inner = match &mut node.content {
            Content::Table(table) => Some(std::mem::take(table)),
            Content::Scalar(..) | Content::List(_) => None,
        };
        let number = Value::from(self.0.len());
        self.0.push(node);
        match inner {
            Some(inner) => {
                let mut numbers = self.numbers(inner, marker);
                numbers.insert(marker.to_owned(), number);
                Value::Dict(Tag::Default, numbers)
            }
            None => number,
        }
    }

    fn table(&self, merged: Dict) -> Table {
        merged.into_iter().filter_map(|(key, value)| Some((key, self.node(value)?))).collect()
    }

    fn node(&self, value: Value) -> Option<Node> {
        let Value::Dict(_, mut merged) = value else {
            return self.0.get(value.to_u128()? as usize).cloned();
        };
        // A table that the file contains has its line there.
        let (of_file, of_variable) = (merged.remove(FILE_TABLE), merged.remove(VARIABLE_TABLE));
        let mut node = self.node(of_file.or(of_variable)?)?;
        node.content = Content::Table(self.table(merged));
        Some(node)
    }
}

/// Lays the variables of the environment that set a key over the values of `file`. Returns the values, and the errors
/// of variables that can't be laid.
///
/// A variable's value stays a text, so that no guess at its type changes it.
pub fn merge(file: Table, schema: &Schema, environment: &Environment) -> (Table, Vec<ConfigError>) {
    let (mut values, mut errors) = (Values::default(), Vec::new());
    let mut layers = Figment::from(values.layer(file, FILE_TABLE));
    for (name, value) in environment {
        let Some(name) = name.to_str() else { continue };
        let rest = name.strip_prefix(schema.variable_prefix).filter(|rest| rest.contains(NESTING));
        let Some(rest) = rest.map(str::to_ascii_lowercase) else { continue };
        let mut keys: Vec<String> = rest.split(NESTING).map(str::to_owned).collect();
        let origin = Origin::Variable(name.to_owned());
        let wrong = match (name_keys(schema, &mut keys), value.to_str()) {
            (Err(list), _) => {
                ("is a list, and lists can't be set by the environment", format!("[[{list}]] in the file"))
            }
            (Ok(()), None) => ("is not UTF-8", "text in UTF-8".to_owned()),
            (Ok(()), Some(value)) => {
                let value = nested(&keys, Node { origin, content: Content::Scalar(value.to_owned(), Form::Any) });
                layers = layers.merge(values.layer(value, VARIABLE_TABLE));
                continue;
            }
        };
        let (key, problem) = (keys.into_iter().map(Segment::Name).collect(), wrong.0.to_owned());
        errors.push(ConfigError { key, service: None, problem, allowed: wrong.1, origin });
    }
    // Not `extract`, which would take some keys for figment's own.
    let merged = layers.data().expect("each layer is a table").remove(&Profile::Default);
    (values.table(merged.unwrap_or_default()), errors)
}

/// Gives the last key its dots in a free table: names in shells have none, and librdkafka's properties no underscores.
///
/// # Errors
/// The name of a list on the way to the key.
fn name_keys(schema: &Schema, keys: &mut [String]) -> Result<(), &'static str> {
    let Some((last, sections)) = keys.split_last_mut() else { return Ok(()) };
    let mut section = &schema.root;
    for key in sections {
        let Some(inner) = section.sections.iter().find(|inner| inner.name == key) else { break };
        if matches!(inner.shape, Shape::List | Shape::Services) {
            return Err(inner.name);
        }
        section = inner;
    }
    if section.shape == Shape::FreeTable {
        *last = last.replace('_', ".");
    }
    Ok(())
}

/// Returns the table that leads to the value at `keys`.
fn nested(keys: &[String], value: Node) -> Table {
    let Some((key, below)) = keys.split_first() else { return Table::new() };
    let origin = value.origin.clone();
    let node = if below.is_empty() { value } else { Node { origin, content: Content::Table(nested(below, value)) } };
    Table::from([(key.clone(), node)])
}
