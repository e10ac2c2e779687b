//! The errors of a file: each with its key, its origin and what is allowed.

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::key_path::KeyPath;

/// The place that a value came from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The schema: the key is not written.
    Default,
    /// The file, and the line where that is known.
    File { path: PathBuf, line: Option<usize> },
    /// The environment variable with this name.
    Variable(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => write!(f, "default"),
            Origin::File { path, line: Some(line) } => write!(f, "{}:{line}", path.display()),
            Origin::File { path, line: None } => write!(f, "{}", path.display()),
            Origin::Variable(name) => write!(f, "environment variable {name}"),
        }
    }
}

/// One value that is wrong, or doubtful.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigError {
    pub key: KeyPath,
    /// The name of the service that the key belongs to, if it belongs to one.
    pub service: Option<String>,
    /// The problem as a clause after the key: `is 0`, `is missing`. Never shows a secret.
    pub problem: String,
    /// Describes the values that are allowed.
    pub allowed: String,
    pub origin: Origin,
}

impl ConfigError {
    /// Returns an error of the file as a whole, which keeps it from being read.
    pub(crate) fn of_file(path: &Path, line: Option<usize>, problem: String) -> Box<ConfigError> {
        Box::new(ConfigError {
            key: KeyPath::default(),
            service: None,
            problem,
            allowed: "a file of TOML that can be read".to_owned(),
            origin: Origin::File { path: path.to_owned(), line },
        })
    }

    /// Returns the key with the name of its service.
    pub fn title(&self) -> String {
        match &self.service {
            Some(service) => format!("{} (service {service})", self.key),
            None => self.key.to_string(),
        }
    }

    /// Returns the error for programs.
    pub fn to_json(&self) -> serde_json::Value {
        json!({
            "key": self.key.to_string(),
            "service": self.service,
            "problem": self.problem,
            "allowed": self.allowed,
            "origin": self.origin.to_string(),
        })
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {}", self.title(), self.problem)?;
        writeln!(f, "    allowed: {}", self.allowed)?;
        write!(f, "    from:    {}", self.origin)
    }
}

/// Every error of a file, sorted by key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    subject: &'static str,
    errors: Vec<ConfigError>,
}

impl ConfigErrors {
    /// Sorts the errors and drops repetitions. `subject` names the file, such as `configuration`.
    pub fn new(subject: &'static str, mut errors: Vec<ConfigError>) -> ConfigErrors {
        errors.sort();
        errors.dedup();
        ConfigErrors { subject, errors }
    }

    /// Returns each error, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = &ConfigError> {
        self.errors.iter()
    }

    /// Returns the errors for programs.
    pub fn to_json(&self) -> serde_json::Value {
        self.iter().map(ConfigError::to_json).collect()
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.errors.len();
        write!(f, "{}: {count} error{}", self.subject, if count == 1 { "" } else { "s" })?;
        self.errors.iter().try_for_each(|error| write!(f, "\n\n{error}"))
    }
}

impl std::error::Error for ConfigErrors {}
