//! The configuration as it is written: defaults < file (TOML) < environment.
//!
//! [`Config::load`] reads both and checks everything that needs no broker. It returns the [`Settings`], or every error
//! at once. A key is added in two places: a row in `schema`, and the struct that holds the value ([`read_struct!`]).
//!
//! [`read_struct!`]: crate::read_struct

mod change;
mod effective;
mod kafka;
mod rules;
mod schema;
mod service;
mod values;

use std::{ffi::OsString, path::Path};

pub use self::effective::Effective;
pub use self::schema::{REFUSED_PROPERTIES, SCHEMA};
pub use self::values::{ratio, weight};
pub use crate::reader::{
    ConfigError, ConfigErrors, Entry, Fallback, Key, KeyPath, Origin, ValueError, count, duration,
};

use crate::model::Settings;
use crate::reader::{Reader, Section};

/// The rules of librdkafka for its own properties. The caller passes them in, because only the Kafka crate knows it.
#[derive(Debug, Clone, Copy)]
pub struct PropertyRules {
    /// Returns the version of librdkafka.
    pub version: fn() -> String,
    /// Checks that librdkafka knows a property, given first, and takes a value for it.
    pub check: fn(&str, &str) -> Result<(), PropertyRefused>,
}

/// The reason why librdkafka refuses a property.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PropertyRefused {
    /// This build of librdkafka lacks the feature that the property needs.
    #[error("this build of librdkafka has no {feature} support")]
    Unsupported { feature: String },
    /// The value is refused, and must not be shown.
    #[error("the value does not fit")]
    HiddenValue,
    /// The text of librdkafka, which may hold the value.
    #[error("{0}")]
    Refused(String),
}

/// A configuration without errors.
#[derive(Debug, Clone)]
pub struct Config {
    pub settings: Settings,
    /// The value of each key with its origin, without secrets.
    pub effective: Effective,
    /// Values that are allowed but doubtful.
    pub warnings: Vec<ConfigError>,
}

impl Config {
    /// Reads the file at `path` and lays the `WATERMASTER_SECTION__KEY` variables of `environment` over it.
    pub fn load(
        path: &Path, environment: impl IntoIterator<Item = (OsString, OsString)>, rules: PropertyRules,
    ) -> Result<Config, ConfigErrors> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            let error = ConfigError::of_file(path, None, format!("can't be read: {error}"));
            ConfigErrors::new(SCHEMA.subject, vec![*error])
        })?;
        Config::parse(&text, path, environment, rules)
    }

    /// Reads `text`, which comes from `path`, as [`load`](Config::load) does.
    pub fn parse(
        text: &str, path: &Path, environment: impl IntoIterator<Item = (OsString, OsString)>, rules: PropertyRules,
    ) -> Result<Config, ConfigErrors> {
        let reader = Reader::new(&SCHEMA, text, path, environment)?;
        let settings = settings(&reader.root(), rules);
        let reading = reader.finish(settings)?;
        Ok(Config { settings: reading.value, effective: Effective(reading.entries), warnings: reading.warnings })
    }
}

/// Reads everything; `None` after an error was noted.
fn settings(root: &Section<'_>, rules: PropertyRules) -> Option<Settings> {
    let kafka = root.table("kafka");
    let services = root.tables("service");
    rules::check(&kafka, &services);
    let services: Vec<_> = services.iter().map(|section| service::service(section, &kafka)).collect();
    crate::read_struct!(Settings {
        kafka: kafka::kafka(&kafka, rules),
        admin: kafka::admin(&root.table("admin")),
        log: root.table("log").get("format"),
        services: services.into_iter().collect(),
    })
}

#[cfg(test)]
mod tests;
