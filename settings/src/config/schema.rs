//! The table of keys. What may be written, what it means when nobody writes it, and what people are told.

use std::time::Duration;

use watermaster_core::units::MAX_CAPACITY;

use self::Fallback::{Derived, Required, Text, Unset};
use super::kind::Kind::{self, Choice, Count, Flag, Ratio, Size, Weight};

/// One key that a configuration may hold.
#[derive(Debug)]
pub struct Key {
    /// The section that it stands in, such as `service.shape`; list positions and client names left out.
    pub section: &'static str,
    /// Its name there.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// What it is when nobody writes it.
    pub fallback: Fallback,
}

/// What a key is when nobody writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// It has to be written.
    Required,
    /// It then says nothing.
    Unset,
    /// This text.
    Text(&'static str),
    /// What other things say; the text describes it.
    Derived(&'static str),
}

/// librdkafka's properties that the protocol owns, by every name that they go by, or that have a key of their own.
pub const REFUSED_PROPERTIES: &[(&str, &str)] = &[
    ("group.id", "kafka.group_id names it"),
    ("group.instance.id", "membership is dynamic"),
    ("transactional.id", "kafka.instance_id is part of it"),
    ("enable.idempotence", "the delivery guarantee needs it on"),
    ("acks", "the delivery guarantee needs \"all\""),
    ("request.required.acks", "the delivery guarantee needs \"all\""),
    ("isolation.level", "only committed records are read"),
    ("enable.auto.commit", "offsets are committed in rounds"),
    ("auto.commit.enable", "offsets are committed in rounds"),
    ("enable.auto.offset.store", "offsets are committed in rounds"),
    ("auto.offset.reset", "kafka.start_from and kafka.on_data_loss say it"),
    ("partition.assignment.strategy", "it is cooperative-sticky, or the brokers' with group_protocol = \"consumer\""),
    ("group.protocol", "kafka.group_protocol names it"),
    ("group.protocol.type", "librdkafka knows one only"),
    ("partitioner", "records keep the partition that Java's partitioner gives them"),
    ("delivery.report.only.error", "a round waits for each delivery"),
    ("bootstrap.servers", "kafka.bootstrap_servers names them"),
    ("metadata.broker.list", "kafka.bootstrap_servers names them"),
];

/// librdkafka's properties that are the brokers' with `group_protocol = "consumer"`, and what sets them there.
pub const BROKER_SIDE_PROPERTIES: &[(&str, &str)] = &[
    ("session.timeout.ms", "group.consumer.session.timeout.ms"),
    ("heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms"),
];

/// Sections, in the order in which people are shown them.
pub const SECTIONS: &[&str] = &[
    "",
    "kafka",
    FREE_PROPERTIES,
    FREE_PROPERTIES_FILE,
    "admin",
    "log",
    "service",
    "service.shape",
    "service.source",
    "service.client",
    "service.client.limit",
];

/// The section whose keys are librdkafka's.
pub const FREE_PROPERTIES: &str = "kafka.properties";
/// The section whose keys are librdkafka's and whose values are paths.
pub const FREE_PROPERTIES_FILE: &str = "kafka.properties_file";

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn key(section: &'static str, name: &'static str, kind: Kind, fallback: Fallback) -> Key {
    Key { section, name, kind, fallback }
}

/// Every key, by section, in the order in which people are shown them.
pub const KEYS: &[Key] = &[
    key("kafka", "bootstrap_servers", Kind::Servers, Text("localhost:9092")),
    key("kafka", "group_id", Kind::GroupId, Text("watermaster")),
    key("kafka", "instance_id", Kind::InstanceId, Derived("the host's name")),
    key("kafka", "delivery", Choice(&["at_least_once", "exactly_once"]), Text("exactly_once")),
    key("kafka", "group_protocol", Choice(&["classic", "consumer"]), Text("classic")),
    key("kafka", "commit_interval", Kind::Duration(millis(1), millis(10_000)), Text("100ms")),
    key("kafka", "start_from", Choice(&["earliest", "latest"]), Text("earliest")),
    key("kafka", "on_foreign_offset", Choice(&["stop", "replay"]), Text("stop")),
    key("kafka", "on_data_loss", Choice(&["stop", "continue"]), Text("stop")),
    key("kafka", "map_budget", Kind::MapBudget, Text("4096 chars")),
    key("admin", "listen", Kind::Listen, Text("127.0.0.1:9464")),
    key("admin", "token_file", Kind::TokenFile, Unset),
    key("admin", "metrics_clients", Count(0, 100_000), Text("200")),
    key("log", "format", Choice(&["auto", "text", "json"]), Text("auto")),
    key("service", "name", Kind::ServiceName, Required),
    key("service", "target", Kind::Topic, Required),
    key("service", "dead_letter", Kind::Topic, Required),
    key("service", "capacity", Count(1, MAX_CAPACITY), Required),
    key("service", "cycle", Kind::Duration(millis(100), DAY), Text("10s")),
    key("service", "reservation", Ratio, Text("0.1")),
    key("service", "lending", Choice(&["proportional", "max_min"]), Text("proportional")),
    key("service", "mode", Choice(&["shape", "reject"]), Text("shape")),
    key("service", "enforce", Flag, Text("true")),
    key("service", "window", Choice(&["sliding", "fixed"]), Text("sliding")),
    key("service", "catch_up", Choice(&["delay", "reject"]), Text("delay")),
    key("service", "scope", Choice(&["instance"]), Text("instance")),
    key("service", "control_topic", Kind::Topic, Derived("<group_id>.<service>.control")),
    key("service", "on_undeliverable", Choice(&["stop", "discard"]), Text("stop")),
    key("service", "client_from", Kind::ClientFromList, Text("header:client-id")),
    key("service", "max_clients", Count(1, 1_000_000), Text("1000")),
    key("service", "unlisted_weight", Weight, Text("1.0")),
    key(
        "service",
        "client_idle_timeout",
        Kind::Duration(SECOND, IDLE_MAX),
        Derived("the larger of 10m and two cycles"),
    ),
    key("service.shape", "queue_capacity", Count(1, 1_000_000_000), Text("10000")),
    key("service.shape", "queue_bytes", Size(1 << 10, 1 << 40), Text("256MiB")),
    key("service.shape", "max_delay", Kind::Duration(millis(1), WAIT_MAX), Text("60s")),
    key("service.shape", "overflow", Choice(&["dead_letter", "pause"]), Text("dead_letter")),
    key("service.shape", "burst", Ratio, Text("0.01")),
    key("service.source", "topic", Kind::Topic, Required),
    key("service.source", "client", Kind::Client, Unset),
    key("service.source", "allowed_clients", Kind::ClientList, Unset),
    key("service.client", "weight", Weight, Text("1.0")),
    key("service.client.limit", "rate", Count(1, u32::MAX as u64), Required),
    key("service.client.limit", "per", Kind::Duration(millis(1), DAY), Text("1s")),
    key("service.client.limit", "burst", Count(1, u32::MAX as u64), Derived("the same as rate")),
];

/// Long enough for two of the longest cycles.
const IDLE_MAX: Duration = Duration::from_secs(30 * 86_400);
/// A record that waits for longer than Kafka's usual retention is lost at its source.
const WAIT_MAX: Duration = Duration::from_secs(7 * 86_400);

/// The row of a key that the program reads.
pub fn key_of(section: &str, name: &str) -> &'static Key {
    KEYS.iter()
        .find(|key| key.section == section && key.name == name)
        .unwrap_or_else(|| panic!("{section}.{name} is in the table of keys"))
}

/// Whether a key is in the table with a value that nobody has to write.
pub fn has_default(section: &str, name: &str) -> bool {
    let key = KEYS.iter().find(|key| key.section == section && key.name == name);
    key.is_some_and(|key| matches!(key.fallback, Text(_) | Derived(_)))
}

/// The keys and sections that may stand directly in a section.
pub fn children(section: &str) -> Vec<&'static str> {
    let keys = KEYS.iter().filter(|key| key.section == section).map(|key| key.name);
    let sections = SECTIONS.iter().filter(|path| !path.is_empty()).filter_map(|path| match path.rsplit_once('.') {
        Some((parent, name)) => (parent == section).then_some(name),
        None => section.is_empty().then_some(*path),
    });
    keys.chain(sections).collect()
}

/// Where else a name that does not belong here would be at home.
pub fn homes_of(name: &str) -> Vec<String> {
    KEYS.iter().filter(|key| key.name == name).map(|key| format!("{}.{}", key.section, key.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_unique_and_their_sections_exist() {
        for (index, key) in KEYS.iter().enumerate() {
            assert!(SECTIONS.contains(&key.section), "{key:?}");
            let twin = KEYS[..index].iter().any(|other| other.section == key.section && other.name == key.name);
            assert!(!twin, "{key:?}");
        }
    }

    #[test]
    fn children_are_keys_and_sections() {
        assert_eq!(children(""), ["kafka", "admin", "log", "service"]);
        assert_eq!(children("service.client"), ["weight", "limit"]);
    }
}
