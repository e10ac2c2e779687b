//! The error for properties that librdkafka takes one by one and refuses together.

use super::{Config, ConfigError, ConfigErrors, SCHEMA};
use crate::properties;
use crate::reader::{Entry, KeyPath, Origin, Segment};

/// librdkafka makes no client of the properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientRefused {
    /// The problem with librdkafka's text, which may hold a secret.
    pub problem: String,
    /// Describes what is allowed.
    pub allowed: String,
}

impl Config {
    /// Returns the error for a client that librdkafka does not make. Its key is the first property that librdkafka
    /// names, if it is written.
    pub(super) fn client_error(&self, refused: ClientRefused) -> ConfigErrors {
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
