//! The properties of a consumer and the name of its group.

use std::time::Duration;

use rdkafka::ClientConfig;
use watermaster_settings::{self as settings, GroupProtocol};

use crate::client;

/// Defaults of a member of a classic group. In other groups the brokers decide these, and librdkafka refuses them.
const CLASSIC_DEFAULTS: &[(&str, &str)] = &[
    // The partitions of a dead instance move after this time; librdkafka's default is 45 s.
    SESSION_TIMEOUT,
    ("heartbeat.interval.ms", "3000"),
];

const MAX_POLL_INTERVAL: &str = "max.poll.interval.ms";
/// The time that a classic group leaves its members for a rebalance; librdkafka's default is five minutes. A
/// coordinator that lost its partition while loading it waits for members that have left for all of this time.
const REBALANCE_TIMEOUT: Duration = Duration::from_secs(60);
const SESSION_TIMEOUT: (&str, &str) = ("session.timeout.ms", "10000");
/// The time beside that of its transaction for which a late round may leave the group alone.
const LATE_ROUND_TIMEOUT: Duration = Duration::from_secs(40);
/// The time in which a client finds a coordinator that has moved.
const COORDINATOR_TIMEOUT: Duration = Duration::from_secs(20);

/// Defaults that the user may change.
const DEFAULT_PROPERTIES: &[(&str, &str)] = &[
    // The pause in fetching once the queue below is full; librdkafka's default is a second.
    ("fetch.queue.backoff.ms", "10"),
    ("fetch.wait.max.ms", "100"),
    // Bounds on records fetched ahead, over all partitions together; one fetch from each broker may exceed them.
    // librdkafka counts the bytes of values, not of keys and headers, so the number of records is bounded, too.
    ("queued.max.messages.kbytes", "16384"),
    ("queued.min.messages", "20000"),
    ("fetch.max.bytes", "16777216"),
];

/// Properties that delivery depends on.
const FORCED_PROPERTIES: &[(&str, &str)] = &[
    // Makes committed offsets wait for pending transactions, too.
    ("isolation.level", "read_committed"),
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    // `assign` decides where a partition starts, never a default.
    ("auto.offset.reset", "error"),
    ("allow.auto.create.topics", "false"),
    // Each end of a partition would be an error.
    ("enable.partition.eof", "false"),
];

pub(crate) fn config(kafka: &settings::Kafka, service: &settings::Service) -> ClientConfig {
    let (defaults, (property, value)) = match kafka.group_protocol {
        GroupProtocol::Classic => {
            ([CLASSIC_DEFAULTS, DEFAULT_PROPERTIES].concat(), ("partition.assignment.strategy", "cooperative-sticky"))
        }
        GroupProtocol::Consumer => (DEFAULT_PROPERTIES.to_vec(), ("group.protocol", "consumer")),
    };
    let mut config = client::config(kafka, &defaults, FORCED_PROPERTIES);
    if kafka.group_protocol == GroupProtocol::Classic {
        config.set(MAX_POLL_INTERVAL, rebalance_timeout(kafka).as_millis().to_string());
    }
    config.set(property, value).set("group.id", group_id(kafka, service));
    config
}

/// Returns the user's value, or the default, which is never shorter than a session: librdkafka refuses that. Nor does a
/// round whose transaction stays open for all of its time end the membership: the group is not served meanwhile.
fn rebalance_timeout(kafka: &settings::Kafka) -> Duration {
    let late_round = client::time(kafka, client::TRANSACTION_TIMEOUT) + LATE_ROUND_TIMEOUT;
    let default = client::time(kafka, SESSION_TIMEOUT).max(REBALANCE_TIMEOUT).max(late_round);
    let default = default.as_millis().to_string();
    client::time(kafka, (MAX_POLL_INTERVAL, &default))
}

/// Returns the longest time, with some to spare, that joining the group takes if its coordinator answers.
pub fn joins_within(kafka: &settings::Kafka) -> Duration {
    let rebalance = match kafka.group_protocol {
        // A new member gets in when all others have given back their partitions.
        GroupProtocol::Classic => rebalance_timeout(kafka),
        // The first heartbeat lets a new member in.
        GroupProtocol::Consumer => Duration::ZERO,
    };
    rebalance + COORDINATOR_TIMEOUT
}

/// Returns the name of a service's consumer group.
pub fn group_id(kafka: &settings::Kafka, service: &settings::Service) -> String {
    format!("{}.{}", kafka.group_id, service.name)
}
