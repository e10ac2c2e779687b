//! What was written: the file and the environment, merged, each value with its origin.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use figment::providers::{Format, Toml};
use figment::value::{Dict, Map, Tag, Value};
use figment::{Figment, Metadata, Profile, Provider, Source};
use toml_edit::{ImDocument, Item, TableLike};

use super::error::{ConfigError, Origin};
use super::schema::{FREE_PROPERTIES, FREE_PROPERTIES_FILE};

/// What the names of our variables begin with; only those with [`NESTING`] after it are configuration.
const PREFIX: &str = "WATERMASTER_";
/// Stands for the dot between a section and a key.
const NESTING: &str = "__";

/// The merged layers.
#[derive(Debug)]
pub struct Written {
    path: PathBuf,
    figment: Figment,
    /// The merged tree.
    pub root: Dict,
    places: BTreeMap<String, Place>,
}

/// Where a key stands in the file, and how its value is spelt there.
#[derive(Debug)]
struct Place {
    line: usize,
    spelling: String,
}

impl Written {
    /// Parses the file's `text` and lays the environment over it. What can't be laid is reported in `errors`.
    ///
    /// A text that is no TOML is an error by itself: nothing else can be said of it.
    pub fn new(
        text: &str,
        path: &Path,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        errors: &mut Vec<ConfigError>,
    ) -> Result<Written, Box<ConfigError>> {
        let document = ImDocument::parse(text).map_err(|error| syntax_error(text, path, &error))?;
        let mut places = BTreeMap::new();
        index(text, "", document.as_table(), &mut places);

        let file = Layer::new(Metadata::from("TOML file", path), Toml::string(text).data());
        let mut figment = Figment::from(file);
        for (name, value) in sorted(environment) {
            match variable(&name, value) {
                Ok(layer) => figment = figment.merge(layer),
                Err(error) => errors.push(*error),
            }
        }
        let merged =
            figment.data().map_err(|error| ConfigError::of_file(path, None, format!("can't be read: {error}")))?;
        let root = merged.get(&Profile::Default).cloned().unwrap_or_default();
        Ok(Written { path: path.to_owned(), figment, root, places })
    }

    /// The origin of the value at `key`, whose tag is `tag`.
    pub fn origin(&self, key: &str, tag: Tag) -> Origin {
        match self.figment.get_metadata(tag) {
            Some(Metadata { source: Some(Source::File(path)), .. }) => {
                Origin::File { path: path.clone(), line: self.places.get(key).map(|place| place.line) }
            }
            Some(metadata) => Origin::Variable(metadata.name.to_string()),
            None => self.section_origin(key),
        }
    }

    /// The origin of a section, or of the file when the section is not in it.
    pub fn section_origin(&self, section: &str) -> Origin {
        Origin::File { path: self.path.clone(), line: self.places.get(section).map(|place| place.line) }
    }

    /// How the value at `key` is spelt in the file.
    pub fn spelling(&self, key: &str) -> Option<&str> {
        self.places.get(key).map(|place| place.spelling.as_str())
    }
}

/// The path of `name` in the section at `path`, quoted as TOML would have it.
pub fn child(path: &str, name: &str) -> String {
    let bare = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    let dot = if path.is_empty() { "" } else { "." };
    if bare { format!("{path}{dot}{name}") } else { format!("{path}{dot}{name:?}") }
}

/// The path of a list's element.
pub fn element(path: &str, index: usize) -> String {
    format!("{path}[{index}]")
}

/// Notes where each key of a table stands, and what lies beneath it.
fn index(text: &str, path: &str, table: &dyn TableLike, places: &mut BTreeMap<String, Place>) {
    for (name, item) in table.iter() {
        let path = child(path, name);
        let start = table.key(name).and_then(|key| key.span()).or_else(|| item.span());
        note(text, &path, start, item.span(), places);
        index_item(text, &path, item, places);
    }
}

fn index_item(text: &str, path: &str, item: &Item, places: &mut BTreeMap<String, Place>) {
    if let Some(table) = item.as_table_like() {
        index(text, path, table, places);
    } else if let Some(tables) = item.as_array_of_tables() {
        for (position, table) in tables.iter().enumerate() {
            let path = element(path, position);
            note(text, &path, table.span(), table.span(), places);
            index(text, &path, table, places);
        }
    } else if let Some(array) = item.as_array() {
        for (position, value) in array.iter().enumerate() {
            let path = element(path, position);
            note(text, &path, value.span(), value.span(), places);
            if let Some(table) = value.as_inline_table() {
                index(text, &path, table, places);
            }
        }
    }
}

type Span = std::ops::Range<usize>;

fn note(text: &str, path: &str, start: Option<Span>, value: Option<Span>, places: &mut BTreeMap<String, Place>) {
    let Some(start) = start.or_else(|| value.clone()) else {
        return;
    };
    let spelling = value.and_then(|span| text.get(span)).unwrap_or_default().to_owned();
    places.insert(path.to_owned(), Place { line: line_at(text, start.start), spelling });
}

fn line_at(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|&byte| byte == b'\n').count() + 1
}

/// Line and column, but not the line itself: it may hold a password.
fn syntax_error(text: &str, path: &Path, error: &toml_edit::TomlError) -> Box<ConfigError> {
    let start = error.span().map_or(0, |span| span.start.min(text.len()));
    let line = line_at(text, start);
    let before = text.as_bytes()[..start].iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    let column = text.get(before..start).map_or(1, |part| part.chars().count() + 1);
    let message = error.message().trim().replace('\n', "; ");
    let problem = format!("is no TOML, line {line}, column {column}: {message}");
    ConfigError::of_file(path, Some(line), problem)
}

/// One layer of figment's: the tree of one source, so that each value's tag leads to its origin.
struct Layer {
    metadata: Metadata,
    data: figment::error::Result<Map<Profile, Dict>>,
}

impl Layer {
    fn new(metadata: Metadata, data: figment::error::Result<Map<Profile, Dict>>) -> Layer {
        Layer { metadata, data }
    }
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        self.metadata.clone()
    }

    fn data(&self) -> figment::error::Result<Map<Profile, Dict>> {
        self.data.clone()
    }
}

/// The variables that are configuration, by name.
fn sorted(environment: impl IntoIterator<Item = (OsString, OsString)>) -> BTreeMap<String, OsString> {
    environment
        .into_iter()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, _)| name.strip_prefix(PREFIX).is_some_and(|rest| rest.contains(NESTING)))
        .collect()
}

/// One variable as a layer. Its value stays a text, so that no guess at its type changes it.
fn variable(name: &str, value: OsString) -> Result<Layer, Box<ConfigError>> {
    let rest = name.strip_prefix(PREFIX).unwrap_or(name).to_ascii_lowercase();
    let mut keys: Vec<String> = rest.split(NESTING).map(str::to_owned).collect();
    let refuse = |problem: &str, allowed: &str| {
        Box::new(ConfigError {
            key: keys.join("."),
            service: None,
            problem: problem.to_owned(),
            allowed: allowed.to_owned(),
            origin: Origin::Variable(name.to_owned()),
        })
    };
    if keys.first().is_some_and(|key| key == "service") {
        return Err(refuse("is a list, and lists can't be set by the environment", "[[service]] in the file"));
    }
    let Ok(value) = value.into_string() else {
        return Err(refuse("is not UTF-8", "text in UTF-8"));
    };
    // Shells have no dots in names, librdkafka's properties no underscores.
    if keys.len() == 3 && [FREE_PROPERTIES, FREE_PROPERTIES_FILE].contains(&keys[..2].join(".").as_str()) {
        keys[2] = keys[2].replace('_', ".");
    }
    let leaf = Value::from(value);
    let tree = keys.into_iter().rev().fold(leaf, |value, key| Value::from(Map::from([(key, value)])));
    let dict = tree.into_dict().unwrap_or_default();
    Ok(Layer::new(Metadata::named(name.to_owned()), Ok(Map::from([(Profile::Default, dict)]))))
}
