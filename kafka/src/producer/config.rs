//! The properties of a producer.

use std::time::Duration;

use rdkafka::ClientConfig;
use watermaster_settings::{self as settings, Delivery};

use crate::client::{self, TRANSACTION_TIMEOUT};

/// The most bytes of a batch by librdkafka's default.
pub const DEFAULT_BATCH_BYTES: u64 = 1_000_000;

/// Defaults that the user may change.
const DEFAULT_PROPERTIES: &[(&str, &str)] = &[
    // A round waits for its last batch: with 1 ms, 9 % more records a second were forwarded than with 5 ms, in the same
    // processor time.
    ("linger.ms", "1"),
    ("compression.type", "lz4"),
    // The broker decides about the size: it sees the compressed size, librdkafka does not.
    ("message.max.bytes", "1000000000"),
    // The wait after CONCURRENT_TRANSACTIONS or for a new leader; librdkafka's default is 100 ms.
    ("retry.backoff.ms", "10"),
    ("retry.backoff.max.ms", "50"),
];

/// The default without transactions: no timeout. librdkafka retries in order and without duplicates, while a record
/// that timed out and is sent again may arrive twice and behind its successors. A drain has a timeout of its own.
///
/// With transactions, librdkafka derives the timeout from the transaction's.
const MESSAGE_TIMEOUT: (&str, &str) = ("message.timeout.ms", "0");

const MAX_SEAT_TRANSACTION_TIMEOUT: Duration = Duration::from_secs(10);

/// Properties that delivery depends on.
const FORCED_PROPERTIES: &[(&str, &str)] = &[
    ("acks", "all"),
    ("enable.idempotence", "true"),
    // The Java client's.
    ("partitioner", "murmur2_random"),
    // The others are looked at without a report.
    ("delivery.report.only.error", "true"),
];

/// Returns the properties of a service's producer.
pub(crate) fn config(kafka: &settings::Kafka, service: &settings::Service, batch_bytes: u64) -> ClientConfig {
    let id = (kafka.delivery == Delivery::ExactlyOnce).then(|| transactional_id(kafka, service));
    with_transactions(kafka, id.as_deref(), batch_bytes)
}

/// Returns the properties of a producer that always sends in transactions, for a job or for a seat.
pub(crate) fn transactional_config(kafka: &settings::Kafka, transactional_id: &str) -> ClientConfig {
    with_transactions(kafka, Some(transactional_id), DEFAULT_BATCH_BYTES)
}

fn with_transactions(kafka: &settings::Kafka, transactional_id: Option<&str>, batch_bytes: u64) -> ClientConfig {
    let batch = batch_bytes.to_string();
    let mut defaults = DEFAULT_PROPERTIES.to_vec();
    defaults.push(("batch.size", &batch));
    let mut forced = FORCED_PROPERTIES.to_vec();
    if let Some(id) = transactional_id {
        defaults.push(TRANSACTION_TIMEOUT);
        // A broken connection taints a producer, and only the log reports it.
        forced.extend([("transactional.id", id), ("log.connection.close", "true")]);
    } else {
        defaults.push(MESSAGE_TIMEOUT);
    }
    client::config(kafka, &defaults, &forced)
}

/// Returns the beginning of the transactional ids of a service's seats.
pub fn seat_id_prefix(kafka: &settings::Kafka, service: &settings::Service) -> String {
    format!("{}.{}.seat.", kafka.group_id, service.name)
}

/// Returns the `transactional.id` of a service's producer.
pub fn transactional_id(kafka: &settings::Kafka, service: &settings::Service) -> String {
    format!("{}.{}.{}", kafka.group_id, service.name, kafka.instance_id)
}

/// Returns the time after which the coordinator aborts a transaction.
pub fn transaction_timeout(kafka: &settings::Kafka) -> Duration {
    client::time(kafka, TRANSACTION_TIMEOUT)
}

/// Returns the time after which the coordinator aborts a transaction of a seat. Those of the data may last longer: an
/// open transaction of a producer that is gone holds up the readers of the control log for this time.
pub(crate) fn seat_transaction_timeout(kafka: &settings::Kafka) -> Duration {
    transaction_timeout(kafka).min(MAX_SEAT_TRANSACTION_TIMEOUT)
}
