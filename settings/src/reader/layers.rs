//! The layers of a file, merged by figment: the file, and the environment over it, each value with its origin.

use std::path::{Path, PathBuf};
use std::{collections::BTreeMap, ffi::OsString};

use figment::providers::{Format, Toml};
use figment::value::{Dict, Map, Tag, Value};
use figment::{Figment, Metadata, Profile, Provider, Source};

use super::error::{ConfigError, Origin};
use super::key_path::{KeyPath, Segment};
use super::places::{self, Places};
use super::schema::{Schema, Shape};

/// Stands for the dot between a section and a key in the name of a variable.
const NESTING: &str = "__";

/// The merged layers.
#[derive(Debug)]
pub struct Layers {
    path: PathBuf,
    figment: Figment,
    /// The merged tree.
    pub root: Dict,
    places: Places,
}

impl Layers {
    /// Parses the file's `text` and lays the environment over it. Variables that can't be laid are noted in `errors`.
    ///
    /// # Errors
    /// Fails when the text is not TOML.
    pub fn new(
        schema: &Schema, text: &str, path: &Path, environment: impl IntoIterator<Item = (OsString, OsString)>,
        errors: &mut Vec<ConfigError>,
    ) -> Result<Layers, Box<ConfigError>> {
        let places = places::find(text, path)?;
        let file = Layer { metadata: Metadata::from("TOML file", path), data: Toml::string(text).data() };
        let mut figment = Figment::from(file);
        for (name, value) in relevant(environment, schema.variable_prefix) {
            match variable(schema, &name, value) {
                Ok(layer) => figment = figment.merge(layer),
                Err(error) => errors.push(*error),
            }
        }
        let merged =
            figment.data().map_err(|error| ConfigError::of_file(path, None, format!("can't be read: {error}")))?;
        let root = merged.get(&Profile::Default).cloned().unwrap_or_default();
        Ok(Layers { path: path.to_owned(), figment, root, places })
    }

    /// Returns the origin of the value at `key`, which has the tag `tag`.
    pub fn origin(&self, key: &KeyPath, tag: Tag) -> Origin {
        match self.figment.get_metadata(tag) {
            Some(Metadata { source: Some(Source::File(_)), .. }) | None => self.section_origin(key),
            Some(metadata) => Origin::Variable(metadata.name.to_string()),
        }
    }

    /// Returns the origin of a section: its header in the file, or the file where it has none.
    pub fn section_origin(&self, section: &KeyPath) -> Origin {
        Origin::File { path: self.path.clone(), line: self.places.get(section).map(|place| place.line) }
    }

    /// Returns the value at `key` as the file spells it.
    pub fn spelling(&self, key: &KeyPath) -> Option<&str> {
        self.places.get(key).map(|place| place.spelling.as_str())
    }
}

/// The tree of one source, as a layer for figment: each value's tag leads to the source.
struct Layer {
    metadata: Metadata,
    data: figment::error::Result<Map<Profile, Dict>>,
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        self.metadata.clone()
    }

    fn data(&self) -> figment::error::Result<Map<Profile, Dict>> {
        self.data.clone()
    }
}

/// Returns the variables that set a key, by name.
fn relevant(environment: impl IntoIterator<Item = (OsString, OsString)>, prefix: &str) -> BTreeMap<String, OsString> {
    environment
        .into_iter()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, _)| name.strip_prefix(prefix).is_some_and(|rest| rest.contains(NESTING)))
        .collect()
}

/// Returns one variable as a layer. Its value stays a text, so that no guess at its type changes it.
fn variable(schema: &Schema, name: &str, value: OsString) -> Result<Layer, Box<ConfigError>> {
    let rest = name.strip_prefix(schema.variable_prefix).unwrap_or(name).to_ascii_lowercase();
    let mut keys: Vec<String> = rest.split(NESTING).map(str::to_owned).collect();
    let refuse = |problem: &str, allowed: String| {
        Box::new(ConfigError {
            key: keys.iter().cloned().map(Segment::Name).collect(),
            service: None,
            problem: problem.to_owned(),
            allowed,
            origin: Origin::Variable(name.to_owned()),
        })
    };
    let mut section = &schema.root;
    for key in &keys[..keys.len() - 1] {
        let Some(inner) = section.sections.iter().find(|inner| inner.name == key) else { break };
        if matches!(inner.shape, Shape::List | Shape::Services) {
            let problem = "is a list, and lists can't be set by the environment";
            return Err(refuse(problem, format!("[[{key}]] in the file")));
        }
        section = inner;
    }
    let Ok(value) = value.into_string() else {
        return Err(refuse("is not UTF-8", "text in UTF-8".to_owned()));
    };
    // Names in shells have no dots, and librdkafka's properties no underscores.
    if section.shape == Shape::FreeTable
        && let Some(property) = keys.last_mut()
    {
        *property = property.replace('_', ".");
    }
    let leaf = Value::from(value);
    let tree = keys.into_iter().rev().fold(leaf, |value, key| Value::from(Map::from([(key, value)])));
    let data = Map::from([(Profile::Default, tree.into_dict().unwrap_or_default())]);
    Ok(Layer { metadata: Metadata::named(name.to_owned()), data: Ok(data) })
}
