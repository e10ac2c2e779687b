//! What consumer, producer and preflight have in common: properties, logs, errors.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::types::RDKafkaConfRes;

use watermaster_settings::config::{PropertyRefused, PropertyRules};
use watermaster_settings::{self as settings, properties};

use crate::seldom::Seldom;

/// Why a client could not be made or used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum KafkaError {
    /// librdkafka refuses a property; the text names it.
    #[error("kafka.properties: {0}")]
    Property(String),
    /// The client can't do what was asked.
    #[error("{0}")]
    Client(String),
}

impl From<rdkafka::error::KafkaError> for KafkaError {
    fn from(error: rdkafka::error::KafkaError) -> Self {
        match error {
            rdkafka::error::KafkaError::ClientConfig(_, why, property, value) => {
                let shown = properties::shown(&property, &value);
                KafkaError::Property(format!("{property} = {shown}: {why}"))
            }
            other => KafkaError::Client(other.to_string()),
        }
    }
}

/// The text of librdkafka before the feature that this build lacks.
const UNSUPPORTED: &str = "not supported in this build: ";

/// The rules of this librdkafka for its own properties.
pub const PROPERTY_RULES: PropertyRules = PropertyRules { version: crate::client_version, check: check_property };

/// Checks that librdkafka knows a property and takes a value for it.
///
/// librdkafka's text about a value may show the value, so it is left out for a hidden property.
fn check_property(property: &str, value: &str) -> Result<(), PropertyRefused> {
    let (code, text) = match ClientConfig::new().set(property, value).create_native_config() {
        Ok(_) => return Ok(()),
        Err(rdkafka::error::KafkaError::ClientConfig(code, text, ..)) => (code, text),
        Err(other) => return Err(PropertyRefused::Refused(other.to_string())),
    };
    if let Some((_, missing)) = text.split_once(UNSUPPORTED) {
        // "OAuth/OIDC depends on libcurl and OpenSSL which were …", "OpenSSL not available at build time".
        let feature =
            [" depends ", " not "].iter().filter_map(|end| missing.split(end).next()).min_by_key(|text| text.len());
        return Err(PropertyRefused::Unsupported { feature: feature.unwrap_or(missing).to_owned() });
    }
    if code != RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN && !properties::is_harmless(property) {
        return Err(PropertyRefused::HiddenValue);
    }
    Err(PropertyRefused::Refused(text))
}

/// What the user may change, of every client.
const COMMON_DEFAULTS: &[(&str, &str)] = &[
    // How soon a broker that is back is found: Java's; librdkafka's is 10 s.
    ("reconnect.backoff.max.ms", "1000"),
];

/// Where properties come from, weakest first: `defaults` (ours, that the user may change), the user's, `owned` (the protocol's).
pub(super) fn config(kafka: &settings::Kafka, defaults: &[(&str, &str)], owned: &[(&str, &str)]) -> ClientConfig {
    let mut config = ClientConfig::new();
    for (property, value) in COMMON_DEFAULTS.iter().chain(defaults) {
        config.set(*property, *value);
    }
    for (property, value) in &kafka.properties {
        config.set(property, value);
    }
    config.set("bootstrap.servers", &kafka.bootstrap_servers);
    if !kafka.properties.contains_key("client.id") {
        config.set("client.id", format!("{}.{}", kafka.group_id, kafka.instance_id));
    }
    for (property, value) in owned {
        config.set(*property, *value);
    }
    let debug = tracing::enabled!(target: "librdkafka", tracing::Level::DEBUG);
    config.set_log_level(if debug { RDKafkaLogLevel::Debug } else { RDKafkaLogLevel::Info });
    config
}

/// A time that librdkafka takes in milliseconds: the user's, or the default that is given with the property's name.
pub(super) fn time(kafka: &settings::Kafka, (property, default): (&str, &str)) -> Duration {
    let millis = kafka.properties.get(property).and_then(|value| value.parse().ok());
    Duration::from_millis(millis.unwrap_or_else(|| default.parse().expect("our own defaults are numbers")))
}

/// It repeats itself with each attempt, some of it ten times a second.
fn warn_seldom(facility: &str, message: &str) {
    static TOLD: LazyLock<Mutex<Seldom>> = LazyLock::new(Mutex::default);
    TOLD.lock().unwrap_or_else(PoisonError::into_inner).tell(kind(facility, message), Instant::now(), |left_out| {
        tracing::warn!(target: "librdkafka", left_out, "{facility}: {message}");
    });
}

/// What a message is about: one thing that one of librdkafka's threads does. Each broker has a thread of its own, whose name a
/// message begins with: `[thrd:127.0.0.1:9092/1]: …`.
fn kind(facility: &str, message: &str) -> String {
    let thread = message.split_once(']').map_or("", |(thread, _)| thread);
    format!("{facility} {thread}")
}

/// Passes librdkafka's log on. It calls every broken connection an error; what really is one reaches us
/// through error events and failed calls, so nothing here is louder than a warning but what it calls critical.
pub(super) fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    match level {
        RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
            tracing::error!(target: "librdkafka", "{facility}: {message}");
        }
        // One set of properties serves consumer and producer; each warns of the other's.
        RDKafkaLogLevel::Warning if facility == "CONFWARN" => {
            tracing::debug!(target: "librdkafka", "{facility}: {message}")
        }
        RDKafkaLogLevel::Error | RDKafkaLogLevel::Warning => warn_seldom(facility, message),
        RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
            tracing::info!(target: "librdkafka", "{facility}: {message}")
        }
        RDKafkaLogLevel::Debug => tracing::debug!(target: "librdkafka", "{facility}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A Kafka that had just started made each producer say GETPID a dozen times within half a second.
    #[test]
    fn a_warning_that_repeats_is_of_one_kind_whatever_it_counts() {
        let failed = |broker: &str, after: u32| {
            format!("[thrd:{broker}]: {broker}: Connect to {broker} failed (after {after}ms)")
        };
        let kind = |facility, broker, after| kind(facility, &failed(broker, after));
        assert_eq!(kind("FAIL", "a:9092/1", 1), kind("FAIL", "a:9092/1", 250));
        assert_ne!(kind("FAIL", "a:9092/1", 1), kind("FAIL", "b:9092/2", 1));
        assert_ne!(kind("FAIL", "a:9092/1", 1), kind("GETPID", "a:9092/1", 1));
    }
}
