//! One section of the configuration: each key is read once, what is wrong is noted, and nothing stops at it.

mod form;
mod read;

use std::cell::RefCell;
use std::fmt::Display;

use figment::value::{Dict, Value};

use self::form::describe;
use super::PropertyRules;
use super::effective::Entry;
use super::error::{ConfigError, Origin};
use super::layers::{Written, child, element};
use super::schema;

pub use self::read::{count, duration};

/// The layers, and what has been found while reading them.
pub struct Reader {
    written: Written,
    rules: PropertyRules,
    errors: RefCell<Vec<ConfigError>>,
    warnings: RefCell<Vec<ConfigError>>,
    entries: RefCell<Vec<Entry>>,
}

/// What was found.
pub struct Findings {
    pub errors: Vec<ConfigError>,
    pub warnings: Vec<ConfigError>,
    pub entries: Vec<Entry>,
}

impl Reader {
    /// Reads `written`; `errors` are what was found before.
    pub fn new(written: Written, rules: PropertyRules, errors: Vec<ConfigError>) -> Reader {
        Reader {
            written,
            rules,
            errors: RefCell::new(errors),
            warnings: RefCell::default(),
            entries: RefCell::default(),
        }
    }

    /// The whole configuration as a section.
    pub fn root(&self) -> Section<'_> {
        Section::new(self, Some(&self.written.root), String::new(), "", None)
    }

    /// Everything that was found.
    pub fn finish(self) -> Findings {
        Findings {
            errors: self.errors.into_inner(),
            warnings: self.warnings.into_inner(),
            entries: self.entries.into_inner(),
        }
    }
}

/// One section of the configuration, whether or not it was written.
pub struct Section<'a> {
    reader: &'a Reader,
    dict: Option<&'a Dict>,
    path: String,
    schema: &'static str,
    service: Option<String>,
}

impl<'a> Section<'a> {
    fn new(
        reader: &'a Reader,
        dict: Option<&'a Dict>,
        path: String,
        schema: &'static str,
        service: Option<String>,
    ) -> Section<'a> {
        let section = Section { reader, dict, path, schema, service };
        section.refuse_unknown_keys();
        section
    }

    // ## Where it is

    /// Its path, such as `service[0].shape`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether anybody wrote it.
    pub fn is_written(&self) -> bool {
        self.dict.is_some()
    }

    /// Where `name` was written; the section itself where it was not required to be.
    pub fn origin(&self, name: &str) -> Origin {
        let key = child(&self.path, name);
        match self.dict.and_then(|dict| dict.get(name)) {
            Some(value) => self.reader.written.origin(&key, value.tag()),
            None if schema::has_default(self.schema, name) => Origin::Default,
            None => self.reader.written.section_origin(&self.path),
        }
    }

    /// The rules for librdkafka's own properties.
    pub fn property_rules(&self) -> PropertyRules {
        self.reader.rules
    }

    // ## What is wrong

    /// Notes an error at `name`.
    pub fn refuse(&self, name: &str, problem: impl Display, allowed: impl Display) {
        self.refuse_at(child(&self.path, name), self.origin(name), problem, allowed);
    }

    /// Notes something doubtful at `name`.
    pub fn warn(&self, name: &str, problem: impl Display, advice: impl Display) {
        let warning = self.error(child(&self.path, name), self.origin(name), problem, advice);
        self.reader.warnings.borrow_mut().push(warning);
    }

    fn refuse_at(&self, key: String, origin: Origin, problem: impl Display, allowed: impl Display) {
        self.reader.errors.borrow_mut().push(self.error(key, origin, problem, allowed));
    }

    fn error(&self, key: String, origin: Origin, problem: impl Display, allowed: impl Display) -> ConfigError {
        let (problem, allowed) = (problem.to_string(), allowed.to_string());
        ConfigError { key, service: self.service.clone(), problem, allowed, origin }
    }

    fn refuse_unknown_keys(&self) {
        let free = [schema::FREE_PROPERTIES, schema::FREE_PROPERTIES_FILE].contains(&self.schema);
        let Some(dict) = self.dict.filter(|_| !free) else {
            return;
        };
        let known = schema::children(self.schema);
        for name in dict.keys().filter(|name| !known.contains(&name.as_str())) {
            let homes = schema::homes_of(name);
            let hint =
                if homes.is_empty() { String::new() } else { format!(" (did you mean {}?)", homes.join(" or ")) };
            self.refuse(name, "is not a key of this section", format!("{}{hint}", known.join(", ")));
        }
    }

    // ## Sections beneath it

    /// The table `name`.
    pub fn table(&self, name: &str) -> Section<'a> {
        let dict = match self.dict.and_then(|dict| dict.get(name)) {
            Some(Value::Dict(_, dict)) => Some(dict),
            Some(value) => {
                self.refuse(name, format!("is {}", describe(value)), format!("a table: [{name}]"));
                None
            }
            None => None,
        };
        Section::new(self.reader, dict, child(&self.path, name), self.schema_of(name), self.service.clone())
    }

    /// The tables of the list `name`, of which there must be one. `service_name` says what errors beneath each should
    /// call its service.
    pub fn tables(&self, name: &str, service_name: impl Fn(&Dict) -> Option<String>) -> Vec<Section<'a>> {
        let path = child(&self.path, name);
        let header = match self.schema {
            "" => format!("[[{name}]]"),
            schema => format!("[[{schema}.{name}]]"),
        };
        let items = match self.dict.and_then(|dict| dict.get(name)) {
            Some(Value::Array(_, items)) if !items.is_empty() => items.as_slice(),
            other => {
                let problem = other.map_or("is missing".to_owned(), |value| format!("is {}", describe(value)));
                self.refuse(name, problem, format!("at least one {header}"));
                return Vec::new();
            }
        };
        let mut sections = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let path = element(&path, index);
            match item {
                Value::Dict(_, dict) => {
                    let service = service_name(dict).or_else(|| self.service.clone());
                    sections.push(Section::new(self.reader, Some(dict), path, self.schema_of(name), service));
                }
                other => {
                    let origin = self.reader.written.origin(&path, other.tag());
                    self.refuse_at(path, origin, format!("is {}", describe(other)), "a table");
                }
            }
        }
        sections
    }

    /// The tables of the table `name`, each with its key.
    pub fn named_tables(&self, name: &str) -> Vec<(&'a str, Section<'a>)> {
        let dict = match self.dict.and_then(|dict| dict.get(name)) {
            Some(Value::Dict(_, dict)) => dict,
            Some(value) => {
                self.refuse(name, format!("is {}", describe(value)), format!("tables: [{}.{name}.NAME]", self.schema));
                return Vec::new();
            }
            None => return Vec::new(),
        };
        let parent = child(&self.path, name);
        let mut sections = Vec::new();
        for (key, value) in dict {
            let path = child(&parent, key);
            match value {
                Value::Dict(_, inner) => {
                    let schema = self.schema_of(name);
                    sections.push((
                        key.as_str(),
                        Section::new(self.reader, Some(inner), path, schema, self.service.clone()),
                    ));
                }
                other => {
                    let origin = self.reader.written.origin(&path, other.tag());
                    self.refuse_at(path, origin, format!("is {}", describe(other)), "a table");
                }
            }
        }
        sections
    }

    fn schema_of(&self, name: &str) -> &'static str {
        let path = if self.schema.is_empty() { name.to_owned() } else { format!("{}.{name}", self.schema) };
        schema::SECTIONS.iter().find(|section| **section == path).expect("the table of keys names the section")
    }
}
