//! The variables of the environment that set keys: `WATERMASTER_SECTION__KEY`.

use std::collections::BTreeMap;

use super::error::{ConfigError, Origin};
use super::key_path::{KeyPath, Segment};
use super::schema::{Schema, SectionSchema, Shape};
use super::tree::{Node, NodeContent, Table};

/// Stands for the dot between a section and a key.
const NESTING: &str = "__";

/// Every variable that sets a key, each without the prefix, and the keys that it may mean.
pub struct VariableNames {
    schema: &'static Schema,
    keys: BTreeMap<String, Vec<KeyPath>>,
    /// The tables with keys that are not in the schema.
    free: Vec<(String, KeyPath)>,
}

impl VariableNames {
    /// Lists the variables of a schema. Services and tables with names of the user's choice must be in `file`.
    pub fn new(schema: &'static Schema, file: &Table) -> VariableNames {
        let mut names = VariableNames { schema, keys: BTreeMap::new(), free: Vec::new() };
        names.add(&schema.root, Some(file), "", &KeyPath::default());
        names
    }

    fn add(&mut self, section: &SectionSchema, table: Option<&Table>, prefix: &str, path: &KeyPath) {
        for key in section.keys {
            let name = format!("{prefix}{}", key.name.to_ascii_uppercase());
            self.keys.entry(name).or_default().push(path.child(key.name));
        }
        for inner in section.sections {
            let (path, content) = (path.child(inner.name), table.and_then(|table| table.get(inner.name)));
            let content = content.map(|node| &node.content);
            let prefix = format!("{prefix}{}{NESTING}", inner.name.to_ascii_uppercase());
            match (inner.shape, content) {
                (Shape::Table, Some(NodeContent::Table(table))) => self.add(inner, Some(table), &prefix, &path),
                (Shape::Table, _) => self.add(inner, None, &prefix, &path),
                (Shape::FreeTable, _) => self.free.push((prefix, path)),
                (Shape::Services, Some(NodeContent::List(services))) => {
                    for (at, table) in services.iter().map(Node::as_table).enumerate() {
                        let Some(name) = table.and_then(|table| table.get("name")?.as_text()) else { continue };
                        let prefix = format!("{prefix}{}{NESTING}", in_capitals(name));
                        self.add(inner, table, &prefix, &path.element(at));
                    }
                }
                (Shape::Map, Some(NodeContent::Table(tables))) => {
                    for (name, node) in tables {
                        let prefix = format!("{prefix}{}{NESTING}", in_capitals(name));
                        self.add(inner, node.as_table(), &prefix, &path.child(name));
                    }
                }
                (_, _) => {}
            }
        }
    }

    /// Returns the key that a variable sets; `None` if the variable serves another purpose.
    ///
    /// # Errors
    /// Fails when a variable with the prefix sets no key, or might set several.
    pub fn key(&self, variable: &str) -> Option<Result<KeyPath, Box<ConfigError>>> {
        let prefix = self.schema.variable_prefix;
        let name = variable.strip_prefix(prefix).filter(|_| !prefix.is_empty())?;
        let is_other = self.schema.other_variables.iter().any(|other| name.starts_with(other));
        if !name.contains(NESTING) && (is_other || is_service_link(name)) {
            return None;
        }
        let name = name.to_ascii_uppercase();
        Some(match self.keys.get(&name).map(Vec::as_slice) {
            Some([key]) => Ok(key.clone()),
            Some(keys) => {
                let keys: Vec<_> = keys.iter().map(ToString::to_string).collect();
                let allowed = format!("one of {} in the file", keys.join(", "));
                Err(misnamed(variable, &name, "means more than one key", allowed))
            }
            None => self.free_key(&name).ok_or_else(|| self.unknown(variable, &name)),
        })
    }

    /// Returns a key of a free table: names in shells have no dots, and librdkafka's properties no underscores.
    fn free_key(&self, name: &str) -> Option<KeyPath> {
        let in_table = |(prefix, table): &(String, KeyPath)| {
            let key = name.strip_prefix(prefix).filter(|key| !key.is_empty())?;
            Some(table.child(&key.to_ascii_lowercase().replace('_', ".")))
        };
        self.free.iter().find_map(in_table)
    }

    fn unknown(&self, variable: &str, name: &str) -> Box<ConfigError> {
        let prefix = self.schema.variable_prefix;
        let hint = similar(name, self.keys.keys().map(String::as_str));
        let hint = hint.map(|hint| format!(" (did you mean {prefix}{hint}?)")).unwrap_or_default();
        let allowed = format!(
            "{prefix}SECTION{NESTING}KEY, or {prefix}SERVICE{NESTING}NAME{NESTING}KEY for a service of the file; \
             other lists can't be set by the environment{hint}"
        );
        misnamed(variable, name, "is not a key that a variable sets", allowed)
    }
}

fn misnamed(variable: &str, name: &str, problem: &str, allowed: String) -> Box<ConfigError> {
    let key = name.to_ascii_lowercase().split(NESTING).map(|word| Segment::Name(word.to_owned())).collect();
    let (problem, origin) = (problem.to_owned(), Origin::Variable(variable.to_owned()));
    Box::new(ConfigError { key, service: None, problem, allowed, origin })
}

/// Returns whether Kubernetes may have set a variable: it gives a pod some for each Service, and the Service of this
/// program may have the program's name.
fn is_service_link(name: &str) -> bool {
    let is_address = ["_TCP", "_UDP", "_SCTP"].iter().any(|protocol| name.contains(protocol));
    name.ends_with("SERVICE_HOST")
        || name.contains("SERVICE_PORT")
        || name == "PORT"
        || name.ends_with("_PORT")
        || (name.contains("PORT_") && is_address)
}

/// Returns a name of the user's choice as variables spell it.
fn in_capitals(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}

/// Returns the name that is most like a word, if one is like it.
pub fn similar<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    /// Takes a letter too few, or two that have changed places, in a word of five.
    const MIN_LIKENESS: f64 = 0.85;
    let likeness = |name: &'a str| (strsim::jaro_winkler(word, name), name);
    let likely = names.map(likeness).filter(|(likeness, _)| *likeness >= MIN_LIKENESS);
    likely.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, name)| name)
}
