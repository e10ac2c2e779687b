//! Properties, errors and logging that all clients have in common.

use std::io;
use std::sync::LazyLock;
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::client::{Client, ClientContext};
use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode};
use rdkafka::producer::{DeliveryResult, ProducerContext};
use rdkafka::statistics::Statistics;
use watermaster_settings::{self as settings, properties};

use crate::{consumer_error::Reported, log_limiter::LogLimiter, oauth};

/// An error of making or using a client.
#[derive(Debug, thiserror::Error)]
pub enum KafkaError {
    #[error("kafka.properties: {property} = {shown}: {reason}")]
    Property { property: String, shown: String, reason: String },
    #[error("librdkafka refuses the topic name {name:?}")]
    TopicName { name: String },
    #[error("thread {name} does not start: {source}")]
    Thread { name: &'static str, source: io::Error },
    /// librdkafka knows no group.
    #[error("the consumer has no group")]
    NoGroup,
    #[error("the embedded broker cannot create a topic: {0}")]
    EmbeddedTopic(#[source] ClientError),
    #[error(transparent)]
    Client(ClientError),
}

impl From<ClientError> for KafkaError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::ClientConfig(_, reason, property, value) => {
                let shown = properties::shown(&property, &value).to_owned();
                KafkaError::Property { property, shown, reason }
            }
            other => KafkaError::Client(other),
        }
    }
}

/// Returns the version of librdkafka.
pub fn client_version() -> String {
    rdkafka::util::get_rdkafka_version().1
}

/// The librdkafka in this process is not the one that this program was compiled for.
#[derive(Debug, thiserror::Error)]
#[error(
    "this process runs librdkafka {found}, but the program reads librdkafka's memory as version {needed} lays it out: \
     build it without the feature dynamic-linking of rdkafka-sys, or link librdkafka {needed}"
)]
pub struct WrongLibrary {
    found: String,
    needed: String,
}

/// Checks that librdkafka has the version for which this program was compiled. A shared library may have another one.
/// To be called before any client is made.
pub fn check_library() -> Result<(), WrongLibrary> {
    is_library(rdkafka::util::get_rdkafka_version().0)
}

fn is_library(found: i32) -> Result<(), WrongLibrary> {
    let shown = |version: i32| format!("{}.{}.{}", version >> 24, version >> 16 & 0xff, version >> 8 & 0xff);
    let needed = rdkafka::bindings::RD_KAFKA_VERSION;
    if found == needed { Ok(()) } else { Err(WrongLibrary { found: shown(found), needed: shown(needed) }) }
}

/// Returns the features that librdkafka was built with, separated by commas.
pub fn client_features() -> String {
    let config = ClientConfig::new().create_native_config();
    let features = config.and_then(|config| config.get("builtin.features")).unwrap_or_default();
    // A build with CMake always names GSSAPI.
    let is_there = |feature: &&str| *feature != "sasl_gssapi" || cfg!(feature = "gssapi");
    features.split(',').filter(is_there).collect::<Vec<_>>().join(",")
}

/// Defaults of every client, which the user may change.
const COMMON_DEFAULTS: &[(&str, &str)] = &[
    // Finds a broker that is back within a second, as the Java client does; librdkafka's default is 10 s.
    ("reconnect.backoff.max.ms", "1000"),
];

/// The default of a producer with transactions. librdkafka derives `message.timeout.ms` and `socket.timeout.ms` from
/// it.
pub(super) const TRANSACTION_TIMEOUT: (&str, &str) = ("transaction.timeout.ms", "10000");

/// Merges properties, weakest first: `defaults`, the user's, `forced`.
pub(super) fn config(kafka: &settings::Kafka, defaults: &[(&str, &str)], forced: &[(&str, &str)]) -> ClientConfig {
    let mut config = ClientConfig::new();
    for (property, value) in COMMON_DEFAULTS.iter().chain(defaults) {
        config.set(*property, *value);
    }
    for (property, value) in kafka.all_properties() {
        config.set(property, value);
    }
    config.set("bootstrap.servers", &kafka.bootstrap_servers);
    if config.get("client.id").is_none() {
        config.set("client.id", format!("{}.{}", kafka.group_id, kafka.instance_id));
    }
    for (property, value) in forced {
        config.set(*property, *value);
    }
    let debug = tracing::enabled!(target: "librdkafka", tracing::Level::DEBUG);
    config.set_log_level(if debug { RDKafkaLogLevel::Debug } else { RDKafkaLogLevel::Info });
    config
}

/// Returns the properties of a reader that assigns partitions to itself: it may name a group, which it never joins.
/// `reset` says what happens at an offset that does not exist. The end of a partition comes as an event.
pub(super) fn reader_config(
    kafka: &settings::Kafka, group: &str, reset: &str, defaults: &[(&str, &str)],
) -> ClientConfig {
    let defaults = [&[("fetch.wait.max.ms", "100"), ("fetch.queue.backoff.ms", "10")], defaults].concat();
    let forced = [
        ("group.id", group),
        ("enable.auto.commit", "false"),
        ("enable.auto.offset.store", "false"),
        ("isolation.level", "read_committed"),
        ("auto.offset.reset", reset),
        ("allow.auto.create.topics", "false"),
        ("enable.partition.eof", "true"),
    ];
    config(kafka, &defaults, &forced)
}

/// Makes a consumer, a producer or an admin client that has its first token, if it needs one that this program makes.
/// `client_of` returns the client inside of it.
pub(super) fn create<C: ClientContext, T: FromClientConfigAndContext<C>>(
    config: &ClientConfig, context: C, client_of: impl FnOnce(&T) -> &Client<C>,
) -> Result<T, ClientError> {
    #[expect(clippy::disallowed_methods, reason = "here the client gets its token")]
    let made: T = config.create_with_context(context)?;
    oauth::give_first_token(client_of(&made), config);
    Ok(made)
}

/// Makes a consumer that joins no group.
pub(super) fn consumer(config: &ClientConfig) -> Result<BaseConsumer<LoggingContext>, KafkaError> {
    Ok(create(config, LoggingContext::default(), BaseConsumer::client)?)
}

/// Keeps librdkafka's lines out of the log, except for those of debugging: the caller shows the errors that it gets.
/// The property counts until the client is made, when its first attempt to connect has begun already.
pub(super) fn silence(config: &mut ClientConfig) {
    if !matches!(config.log_level, RDKafkaLogLevel::Debug) {
        config.set_log_level(RDKafkaLogLevel::Critical).set("log_level", "2");
    }
}

/// Returns a property that is a time in milliseconds: the user's value, or the default given with the property's name.
pub(super) fn time(kafka: &settings::Kafka, (property, default): (&str, &str)) -> Duration {
    let millis = kafka.properties.get(property).and_then(|value| value.parse().ok());
    Duration::from_millis(millis.unwrap_or_else(|| default.parse().expect("the defaults in this crate are numbers")))
}

/// Logs a warning that librdkafka may repeat with each attempt, up to ten times a second.
fn warn_limited(facility: &str, message: &str) {
    static LIMITER: LazyLock<Mutex<LogLimiter>> = LazyLock::new(Mutex::default);
    LIMITER.lock().warn(kind(facility, message), |suppressed| {
        tracing::warn!(target: "librdkafka", suppressed, "{facility}: {message}");
    });
}

/// Returns the kind of a message: its facility and thread. Each broker has a thread of its own, and a message begins
/// with the thread's name: `[thrd:127.0.0.1:9092/1]: …`.
fn kind(facility: &str, message: &str) -> String {
    let thread = message.split_once(']').map_or("", |(thread, _)| thread);
    format!("{facility} {thread}")
}

/// Passes librdkafka's log on.
///
/// librdkafka logs every broken connection as an error. Real errors also arrive as error events and failed calls, so
/// all lines below critical are warnings at most.
pub(super) fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    match level {
        // The next call fails for this, and its caller knows whether that is an error: instances that begin a group at
        // the same moment fence one another.
        _ if message.contains("fenced by a newer instance") => {
            tracing::debug!(target: "librdkafka", "{facility}: {message}");
        }
        RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
            tracing::error!(target: "librdkafka", "{facility}: {message}");
        }
        // One set of properties serves consumer and producer, and each warns of the other's.
        RDKafkaLogLevel::Warning if facility == "CONFWARN" => {
            tracing::debug!(target: "librdkafka", "{facility}: {message}")
        }
        RDKafkaLogLevel::Error | RDKafkaLogLevel::Warning => warn_limited(facility, message),
        RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
            tracing::info!(target: "librdkafka", "{facility}: {message}")
        }
        RDKafkaLogLevel::Debug => tracing::debug!(target: "librdkafka", "{facility}: {message}"),
    }
}

/// The context of clients that return all their errors from calls: it logs, and keeps the last error and the last
/// statistics.
#[derive(Default)]
pub struct LoggingContext {
    last_error: Mutex<Option<Reported>>,
    statistics: Mutex<Option<Statistics>>,
}

impl LoggingContext {
    /// Returns the last refusal of a connection or, if there is none, the last error.
    pub(super) fn last_error(&self) -> Option<Reported> {
        self.last_error.lock().clone()
    }

    pub(super) fn take_statistics(&self) -> Option<Statistics> {
        self.statistics.lock().take()
    }
}

impl ClientContext for LoggingContext {
    crate::oauth::makes_tokens!();

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    fn error(&self, error: ClientError, reason: &str) {
        tracing::debug!("client: {error}: {reason}");
        let Some(code) = error.rdkafka_error_code() else { return };
        let (error, mut last) = (Reported { code, reason: reason.to_owned() }, self.last_error.lock());
        // That all brokers are down follows an error with the reason.
        if code != RDKafkaErrorCode::AllBrokersDown
            && (error.refusal().is_some() || last.as_ref().is_none_or(|last| last.refusal().is_none()))
        {
            *last = Some(error);
        }
    }

    fn stats(&self, statistics: Statistics) {
        *self.statistics.lock() = Some(statistics);
    }
}

impl ConsumerContext for LoggingContext {}

impl ProducerContext for LoggingContext {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_librdkafka_of_another_version_is_refused() {
        check_library().unwrap();
        let text = is_library(0x020a_00ff).unwrap_err().to_string();
        assert!(text.starts_with("this process runs librdkafka 2.10.0, but"), "{text}");
        assert!(text.ends_with("or link librdkafka 2.12.1"), "{text}");
    }

    /// The bug: with Kafka just started, each producer logged GETPID a dozen times within half a second.
    #[test]
    fn a_kind_does_not_depend_on_the_numbers_in_a_message() {
        let failed = |broker: &str, after: u32| {
            format!("[thrd:{broker}]: {broker}: Connect to {broker} failed (after {after}ms)")
        };
        let kind = |facility, broker, after| kind(facility, &failed(broker, after));
        assert_eq!(kind("FAIL", "a:9092/1", 1), kind("FAIL", "a:9092/1", 250));
        assert_ne!(kind("FAIL", "a:9092/1", 1), kind("FAIL", "b:9092/2", 1));
        assert_ne!(kind("FAIL", "a:9092/1", 1), kind("GETPID", "a:9092/1", 1));
    }
}
