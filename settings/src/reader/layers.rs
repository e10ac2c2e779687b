//! The layers of values, merged: each file lies over the one before it, and the environment over all files.
//!
//! figment merges, key by key. It keeps neither the line of a value nor the decimals of a number, so what travels
//! through it in place of each value is the value's number in a list. It replaces lists as a whole, so a list of tables
//! with names travels as a table, in which one name has the same key in every layer.

use std::collections::BTreeMap;

use figment::value::{Dict, Tag, Value};
use figment::{Figment, Profile, Provider as _, providers::Serialized};

use super::error::{ConfigError, Origin};
use super::key_path::Segment;
use super::names::VariableNames;
use super::schema::{Schema, SectionSchema, Shape};
use super::tree::{Node, NodeContent, ScalarForm, Table};
use super::variables::Environment;

/// The key of the number of a table or list that a file has, which no key of a file is.
const OWN_NUMBER: &str = "\0own";

/// The values of all layers, by number.
#[derive(Default)]
struct Values {
    nodes: Vec<Node>,
    /// The names of the tables in each list with names, by the list's path, in all files. The position of a name gives
    /// the table's key.
    named: BTreeMap<String, Vec<Option<String>>>,
}

impl Values {
    /// Returns a list as a table. A table of the list that an earlier file names has the key that it has there.
    fn named_list(&mut self, mut list: Node, section: &SectionSchema, path: &str) -> Value {
        let NodeContent::List(tables) = &mut list.content else { return self.number(list, None, path) };
        let tables = std::mem::take(tables);
        let earlier = self.named.entry(path.to_owned()).or_default().len();
        let mut merged = Dict::new();
        for table in tables {
            let name = table.as_table().and_then(|table| table.get("name")?.as_text()).map(str::to_owned);
            let known = self.named.entry(path.to_owned()).or_default();
            // Of two tables with one name in one file, the second must stay, so that it can be refused.
            let is_known =
                |&place: &usize| name.is_some() && known[place] == name && !merged.contains_key(&place_key(place));
            let place = (0..earlier).find(is_known).unwrap_or_else(|| {
                known.push(name);
                known.len() - 1
            });
            let key = place_key(place);
            let value = self.number(table, Some(section), &format!("{path}.{key}"));
            merged.insert(key, value);
        }
        merged.insert(OWN_NUMBER.to_owned(), self.number(list, None, path));
        Value::Dict(Tag::Default, merged)
    }

    /// Returns a table with numbers in place of its values. Lists with names are those of the table's schema.
    fn numbers(&mut self, table: Table, schema: Option<&SectionSchema>, path: &str) -> Dict {
        let value = |(key, node): (String, Node)| {
            let section = schema.and_then(|schema| schema.sections.iter().find(|section| section.name == key));
            let path = format!("{path}.{key}");
            let value = match section {
                Some(section) if matches!(section.shape, Shape::Services | Shape::OptionalNamed) => {
                    self.named_list(node, section, &path)
                }
                section => self.number(node, section, &path),
            };
            (key, value)
        };
        table.into_iter().map(value).collect()
    }

    fn number(&mut self, mut node: Node, schema: Option<&SectionSchema>, path: &str) -> Value {
        let inner = if let NodeContent::Table(table) = &mut node.content { Some(std::mem::take(table)) } else { None };
        let number = Value::from(self.nodes.len());
        self.nodes.push(node);
        let Some(inner) = inner else { return number };
        let mut numbers = self.numbers(inner, schema, path);
        numbers.insert(OWN_NUMBER.to_owned(), number);
        Value::Dict(Tag::Default, numbers)
    }

    /// Returns the values that result from merging layers.
    fn merged(&self, layers: &Figment) -> Table {
        // Not `extract`, which would take some keys for figment's own.
        let merged = layers.data().expect("each layer is a table").remove(&Profile::Default);
        self.table(merged.unwrap_or_default())
    }

    fn table(&self, merged: Dict) -> Table {
        merged.into_iter().filter_map(|(key, value)| Some((key, self.node(value)?))).collect()
    }

    fn node(&self, value: Value) -> Option<Node> {
        let Value::Dict(_, mut merged) = value else {
            return self.nodes.get(value.to_u128()? as usize).cloned();
        };
        let own = merged.remove(OWN_NUMBER).and_then(|own| self.node(own));
        let table = self.table(merged);
        match own {
            Some(list) if matches!(list.content, NodeContent::List(_)) && table.keys().all(|key| is_place_key(key)) => {
                Some(Node { content: NodeContent::List(table.into_values().collect()), ..list })
            }
            Some(node) if node.as_table().is_some() => Some(Node { content: NodeContent::Table(table), ..node }),
            // Only variables set its keys, or an earlier file has a table in place of the list.
            _ => {
                let origin = table.values().next_back()?.origin.clone();
                Some(Node { origin, content: NodeContent::Table(table) })
            }
        }
    }
}

/// Returns the key of the table at this place in a list: keys sort as the places do.
fn place_key(place: usize) -> String {
    format!("{place:08}")
}

fn is_place_key(key: &str) -> bool {
    key.len() == 8 && key.bytes().all(|byte| byte.is_ascii_digit())
}

/// Lays each of `files` over the one before it, and the variables of the environment that set a key over all of them.
/// Returns the values, and the errors of variables that can't be laid.
///
/// A variable's value stays a text, so that no guess at its type changes it.
pub fn merge(files: Vec<Table>, schema: &'static Schema, environment: &Environment) -> (Table, Vec<ConfigError>) {
    let (mut values, mut errors) = (Values::default(), Vec::new());
    let layers = files.into_iter().map(|file| values.numbers(file, Some(&schema.root), ""));
    let mut layers = layers.map(Serialized::defaults).fold(Figment::new(), Figment::merge);
    let names = VariableNames::new(schema, &values.merged(&layers));
    for (name, value) in environment {
        let Some((name, key)) = name.to_str().and_then(|name| Some((name, names.key(name)?))) else { continue };
        let origin = Origin::Variable(name.to_owned());
        match (key, value.to_str()) {
            (Ok(key), Some(text)) => {
                let value = Node { origin, content: NodeContent::Scalar(text.to_owned(), ScalarForm::Any) };
                let number = values.number(value, None, "");
                let layer = key.segments().iter().rev().fold(number, |inner, segment| {
                    Value::Dict(Tag::Default, Dict::from([(layer_key(segment), inner)]))
                });
                layers = layers.merge(Serialized::defaults(layer));
            }
            (Ok(key), None) => {
                let (problem, allowed) = ("is not UTF-8".to_owned(), "text in UTF-8".to_owned());
                errors.push(ConfigError { key, service: None, problem, allowed, origin });
            }
            (Err(error), _) => errors.push(*error),
        }
    }
    (values.merged(&layers), errors)
}

/// Returns the key of a step in the layers.
fn layer_key(segment: &Segment) -> String {
    match segment {
        Segment::Name(name) => name.clone(),
        Segment::Index(place) => place_key(*place),
    }
}
