//! The configuration as it is written: defaults < file (TOML) < environment.
//!
//! [`Config::load`] reads both, checks everything that can be checked without a broker, and answers with the
//! [`Settings`] or with every error at once. `schema` is the table of keys; a key that is not in it is an error.
//!
//! figment merges the layers and remembers where each value came from. The values are then read one by one rather
//! than through serde, which would stop at the first error.

mod change;
mod effective;
mod error;
mod kafka;
mod kind;
mod layers;
mod rules;
mod schema;
mod section;
mod service;
mod values;

use std::ffi::OsString;
use std::path::Path;

pub use self::change::RELOADED;
pub use self::effective::{Effective, Entry};
pub use self::error::{ConfigError, ConfigErrors, Origin};
pub use self::schema::{Fallback, KEYS, Key, REFUSED_PROPERTIES};
pub use self::values::{count, duration, ratio, weight};

use self::layers::Written;
use self::section::{Findings, Reader, Section};
use self::service::{Draft, Shared};
use crate::model::Settings;

/// The rules of librdkafka for its own properties. The caller passes them in, because only the Kafka crate knows it.
#[derive(Debug, Clone, Copy)]
pub struct PropertyRules {
    /// Returns the version of librdkafka.
    pub version: fn() -> String,
    /// Checks that librdkafka knows a property, given first, and takes a value for it.
    pub check: fn(&str, &str) -> Result<(), PropertyRefused>,
}

/// librdkafka refuses a property or its value, in its own words, without the value of a property that is hidden.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PropertyRefused(pub String);

/// A configuration without errors.
#[derive(Debug, Clone)]
pub struct Config {
    /// What it means.
    pub settings: Settings,
    /// What it says, each value with its origin, without secrets.
    pub effective: Effective,
    /// What is allowed but doubtful.
    pub warnings: Vec<ConfigError>,
}

impl Config {
    /// Reads the file at `path` and lays `environment` over it: its `WATERMASTER_SECTION__KEY` variables.
    pub fn load(
        path: &Path,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        rules: PropertyRules,
    ) -> Result<Config, ConfigErrors> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::of_file(path, None, format!("can't be read: {error}")))?;
        Config::parse(&text, path, environment, rules)
    }

    /// As [`Config::load`], of a text that comes from `path`.
    pub fn parse(
        text: &str,
        path: &Path,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        rules: PropertyRules,
    ) -> Result<Config, ConfigErrors> {
        let mut errors = Vec::new();
        let written = Written::new(text, path, environment, &mut errors)?;
        let reader = Reader::new(written, rules, errors);
        let settings = settings(&reader.root());
        let Findings { errors, mut warnings, entries } = reader.finish();
        match settings {
            Some(settings) if errors.is_empty() => {
                warnings.sort();
                Ok(Config { settings, effective: Effective::new(entries), warnings })
            }
            _ => Err(ConfigErrors::new(errors)),
        }
    }
}

/// Reads everything; `None`: something is wrong, and has been noted.
fn settings(root: &Section<'_>) -> Option<Settings> {
    let kafka_section = root.table("kafka");
    let kafka = kafka::kafka(&kafka_section);
    let admin = kafka::admin(&root.table("admin"));
    let log = kafka::log(&root.table("log"));
    let shared = Shared {
        group_id: kafka.group_id.as_deref(),
        commit_interval: kafka.commit_interval,
        map_budget: kafka.map_budget,
    };
    let drafts = services(root, shared);
    rules::check(&kafka_section, shared.commit_interval, &drafts);
    let services = drafts.into_iter().map(|draft| draft.service).collect::<Option<_>>()?;
    Some(Settings { kafka: kafka.kafka?, admin: admin?, log: log?, services })
}

fn services<'a>(root: &Section<'a>, shared: Shared<'_>) -> Vec<Draft<'a>> {
    let named = |dict: &figment::value::Dict| dict.get("name")?.as_str().map(str::to_owned);
    let sections = root.tables("service", named);
    sections.into_iter().map(|section| service::service(section, shared)).collect()
}
