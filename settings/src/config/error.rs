//! What is wrong with a configuration, said so that it can be put right.

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::json;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Nobody wrote it.
    Default,
    /// The configuration file, and the line where that is known.
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

/// One thing that is wrong, or doubtful.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigError {
    /// The key's path, such as `service[0].shape.queue_capacity`.
    pub key: String,
    /// The name of the service that the key belongs to, where it has one.
    pub service: Option<String>,
    /// What is wrong: `is 0`, `is missing`. Never shows a secret.
    pub problem: String,
    /// What would be right.
    pub allowed: String,
    /// Where the value came from.
    pub origin: Origin,
}

impl ConfigError {
    /// An error of the file as a whole: nothing else can be said of it.
    pub(super) fn of_file(path: &Path, line: Option<usize>, problem: String) -> Box<ConfigError> {
        Box::new(ConfigError {
            key: "(file)".to_owned(),
            service: None,
            problem,
            allowed: "a file of TOML 1.0 that can be read".to_owned(),
            origin: Origin::File { path: path.to_owned(), line },
        })
    }

    /// The key as a person knows it: with the service's name.
    pub fn title(&self) -> String {
        match &self.service {
            Some(service) => format!("{} (service {service})", self.key),
            None => self.key.clone(),
        }
    }

    /// For programs.
    pub fn to_json(&self) -> serde_json::Value {
        json!({
            "key": self.key,
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

/// Everything that is wrong with a configuration, sorted by key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(Vec<ConfigError>);

impl ConfigErrors {
    /// Sorts what was found and drops repetitions.
    pub(super) fn new(mut errors: Vec<ConfigError>) -> ConfigErrors {
        errors.sort();
        errors.dedup();
        ConfigErrors(errors)
    }

    /// Each error, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = &ConfigError> {
        self.0.iter()
    }

    /// For programs.
    pub fn to_json(&self) -> serde_json::Value {
        self.iter().map(ConfigError::to_json).collect()
    }
}

impl From<Box<ConfigError>> for ConfigErrors {
    fn from(error: Box<ConfigError>) -> ConfigErrors {
        ConfigErrors(vec![*error])
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        write!(f, "configuration: {count} error{}", if count == 1 { "" } else { "s" })?;
        for error in &self.0 {
            write!(f, "\n\n{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
