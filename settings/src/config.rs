//! The configuration as it is written: defaults < files (TOML), in order < environment.
//!
//! [`Config::load`] reads them and checks everything that needs no broker. It returns the [`Settings`], or every error
//! at once. A key is added in two places: a row in `schema`, and the struct that holds the value ([`read_struct!`]).
//!
//! [`read_struct!`]: crate::read_struct

mod change;
mod cross_checks;
mod effective;
mod groups;
mod kafka;
mod pace;
mod rule;
mod schema;
mod service;
mod values;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

pub use self::change::Changed;
pub use self::effective::{Effective, toml_value};
pub use self::rule::{MAX_DELAYS, of_json as rule_of_json, of_text as rules_of_text, to_json as rule_to_json};
pub use self::schema::{REFUSED_PROPERTIES, RULE_SCHEMA, SCHEMA};
pub use self::values::{moment as instant, ratio, weight};
pub use crate::reader::{
    ConfigError, ConfigErrors, Entry, Fallback, Key, KeyPath, Origin, Segment, ValueError, count, duration,
};

use crate::files::{self, NamedFile};
use crate::model::Settings;
use crate::properties;
use crate::reader::{Reader, Section};

/// The rules of librdkafka for its own properties. The caller passes them in, because only the Kafka crate knows it.
#[derive(Debug, Clone, Copy)]
pub struct PropertyRules {
    /// Returns the version of librdkafka.
    pub version: fn() -> String,
    /// Checks that librdkafka knows a property, given first, and takes a value for it.
    pub check: fn(&str, &str) -> Result<(), PropertyRefused>,
    /// Checks, without a broker, that librdkafka makes clients of all properties together.
    pub clients: fn(&Settings) -> Result<(), ClientRefused>,
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

/// librdkafka makes no client of the properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientRefused {
    /// The problem with librdkafka's text, which may hold a secret.
    pub problem: String,
    /// Describes what is allowed.
    pub allowed: String,
}

/// A configuration without errors.
#[derive(Debug, Clone)]
pub struct Config {
    pub settings: Settings,
    /// The value of each key with its origin, without secrets.
    pub effective: Effective,
    /// The files that the configuration names. A change of one of them takes effect at the next reload.
    pub files: Vec<NamedFile>,
    /// Values that are allowed but doubtful.
    pub warnings: Vec<ConfigError>,
}

impl Config {
    /// Reads the files at `paths`, each over the one before it, and lays the `WATERMASTER_SECTION__KEY` variables of
    /// `environment` over them. A folder stands for its files `*.toml` in the order of their names.
    pub fn load(
        paths: &[impl AsRef<Path>], environment: impl IntoIterator<Item = (OsString, OsString)>, rules: PropertyRules,
    ) -> Result<Config, ConfigErrors> {
        let (mut files, mut errors) = (Vec::new(), Vec::new());
        let unreadable = |path: &Path, error| *ConfigError::of_file(path, None, format!("can't be read: {error}"));
        for path in paths.iter().map(AsRef::as_ref) {
            for path in files_at(path).unwrap_or_else(|error| {
                errors.push(unreadable(path, error));
                Vec::new()
            }) {
                match std::fs::read_to_string(&path) {
                    Ok(text) => files.push((path, text)),
                    Err(error) => errors.push(unreadable(&path, error)),
                }
            }
        }
        if !errors.is_empty() {
            return Err(ConfigErrors::new(SCHEMA.subject, errors));
        }
        Config::of_files(&files, environment, rules)
    }

    /// Reads `text`, which comes from `path`, as [`load`](Config::load) does.
    pub fn parse(
        text: &str, path: &Path, environment: impl IntoIterator<Item = (OsString, OsString)>, rules: PropertyRules,
    ) -> Result<Config, ConfigErrors> {
        Config::of_files(&[(path, text)], environment, rules)
    }

    fn of_files(
        files: &[(impl AsRef<Path>, impl AsRef<str>)], environment: impl IntoIterator<Item = (OsString, OsString)>,
        rules: PropertyRules,
    ) -> Result<Config, ConfigErrors> {
        let reader = Reader::new(&SCHEMA, files, environment)?;
        let settings = settings(&reader.root(), rules);
        let reading = reader.finish(settings)?;
        let files = files::named(&reading.value, &reading.entries);
        let effective = Effective(reading.entries);
        let config = Config { settings: reading.value, effective, files, warnings: reading.warnings };
        (rules.clients)(&config.settings).map_err(|refused| config.client_error(refused))?;
        Ok(config)
    }

    /// Returns the error for a client that librdkafka does not make. Its key is the first property that librdkafka
    /// names, if it is written.
    fn client_error(&self, refused: ClientRefused) -> ConfigErrors {
        let entry = self.property_at_fault(&refused.problem);
        let any = || self.effective.iter().find(|entry| property_of(entry).is_some());
        let all = || KeyPath::default().child("kafka").child("properties");
        let text = refused.problem + &entry.and_then(|entry| self.file_error(entry)).unwrap_or_default();
        let text = properties::redact(&self.settings.kafka.all_properties(), &text);
        let error = ConfigError {
            key: entry.map_or_else(all, |entry| entry.key.clone()),
            service: None,
            problem: format!("does not work: {text}"),
            allowed: refused.allowed,
            origin: entry.or_else(any).map_or(Origin::Default, |entry| entry.origin.clone()),
        };
        ConfigErrors::new(SCHEMA.subject, vec![error])
    }

    fn property_at_fault(&self, text: &str) -> Option<&Entry> {
        let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '.' || letter == '_';
        let mut words = text.split(|letter| !is_of_name(letter)).map(|word| word.trim_end_matches('.'));
        let is_about_sasl = text.contains("SASL") || text.contains("sasl.");
        // A property that is missing is named, too. The mechanism asks for it.
        let asking = ["sasl.mechanism", "sasl.mechanisms", "security.protocol"];
        let asking = || asking.iter().filter(|_| is_about_sasl).find_map(|name| self.property(name));
        words.find_map(|word| self.property(word)).or_else(asking)
    }

    /// Returns why the file that a property names can't be read: OpenSSL's text does not tell.
    fn file_error(&self, entry: &Entry) -> Option<String> {
        let name = property_of(entry).filter(|name| name.ends_with(".location"))?;
        let error = std::fs::metadata(self.settings.kafka.all_properties().get(name)?).err()?;
        Some(format!(" ({error})"))
    }

    /// Returns the entry of a property that is written, or read from a file.
    fn property(&self, name: &str) -> Option<&Entry> {
        self.effective.iter().find(|entry| property_of(entry) == Some(name))
    }
}

/// Returns the property that an entry sets.
fn property_of(entry: &Entry) -> Option<&str> {
    match entry.key.segments() {
        [Segment::Name(kafka), Segment::Name(section), Segment::Name(property)] => {
            (kafka == "kafka" && section.starts_with("properties")).then_some(property)
        }
        _ => None,
    }
}

/// Returns `path`, or the files of the folder there: those that a configuration map or an editor hides are left out.
///
/// # Errors
/// Fails when the folder can't be read, or has no such file.
pub fn files_at(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let files = std::fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    let is_hidden = |path: &Path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    let is_toml = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "toml") && !is_hidden(path);
    let mut files: Vec<_> = files.into_iter().filter(is_toml).collect();
    files.sort();
    if files.is_empty() { Err(std::io::Error::other("the folder has no file *.toml")) } else { Ok(files) }
}

/// Reads everything; `None` after an error was noted.
fn settings(root: &Section<'_>, rules: PropertyRules) -> Option<Settings> {
    let (kafka, admin) = (root.table("kafka"), root.table("admin"));
    let services = root.tables("service");
    cross_checks::check(&kafka, &admin, &services);
    let services: Vec<_> = services.iter().map(|section| service::service(section, &kafka)).collect();
    let start_from_is_written = kafka.is_set("start_from");
    crate::read_struct!(Settings {
        kafka: kafka::kafka(&kafka, rules),
        admin: kafka::admin(&admin),
        log: root.table("log").get("format"),
        services: services.into_iter().collect(),
        start_from_is_written: Some(start_from_is_written),
    })
}

#[cfg(test)]
mod tests;
