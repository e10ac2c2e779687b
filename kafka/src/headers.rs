//! The names of the headers that Watermaster writes to dead letters, and of those that other programs write.

use watermaster_settings::DeadLetterHeaders;

pub const REASON: &[u8] = b"throttle-reason";
/// A sentence about the reason, for people.
pub const MESSAGE: &[u8] = b"throttle-message";
pub const SERVICE: &[u8] = b"throttle-service";
pub const CLIENT: &[u8] = b"throttle-client";
pub const TOPIC: &[u8] = b"throttle-topic";
pub const PARTITION: &[u8] = b"throttle-partition";
pub const OFFSET: &[u8] = b"throttle-offset";
pub const TIMESTAMP_MS: &[u8] = b"throttle-timestamp-ms";
/// The time of the rejection as ISO 8601.
pub const REJECTED_AT: &[u8] = b"throttle-rejected-at";
pub const RETRY_AFTER_MS: &[u8] = b"throttle-retry-after-ms";
/// The number of records that the client may send in the time [`CYCLE_MS`], if it has used them up.
pub const LIMIT: &[u8] = b"throttle-limit";
/// The number of records that count against the limit.
pub const USED: &[u8] = b"throttle-used";
pub const CYCLE_MS: &[u8] = b"throttle-cycle-ms";
/// The name of the rule with the limit, hold or longest delay that was the reason.
pub const RULE: &[u8] = b"throttle-rule";
pub const ATTEMPT: &[u8] = b"throttle-attempt";
/// Marks a stub.
pub const STUB: &[u8] = b"throttle-stub";
/// Says that `dlq redrive` sent the record again: see [`redrive`](crate::redrive).
pub const REDRIVE: &[u8] = b"throttle-redrive";
/// Says why a dead letter was parked.
pub const PARKED: &[u8] = b"throttle-parked";

/// The beginning of all names above.
pub const PREFIX: &[u8] = b"throttle-";
/// All names above.
pub const ALL: [&[u8]; 18] = [
    REASON, MESSAGE, SERVICE, CLIENT, TOPIC, PARTITION, OFFSET, TIMESTAMP_MS, REJECTED_AT, RETRY_AFTER_MS, LIMIT, USED,
    CYCLE_MS, RULE, ATTEMPT, STUB, REDRIVE, PARKED,
];

/// Returns the names of the headers that stand before those of Watermaster in a dead letter, in order.
pub fn beside(format: DeadLetterHeaders) -> &'static [&'static [u8]] {
    match format {
        DeadLetterHeaders::Native => &[],
        DeadLetterHeaders::Spring => &SPRING,
        DeadLetterHeaders::Connect => &CONNECT,
    }
}

/// The headers of Spring's `DeadLetterPublishingRecoverer` that have a meaning here.
pub(crate) const SPRING: [&[u8]; 7] = [
    b"kafka_dlt-original-topic", b"kafka_dlt-original-partition", b"kafka_dlt-original-offset",
    b"kafka_dlt-original-timestamp", b"kafka_dlt-original-timestamp-type", b"kafka_dlt-exception-fqcn",
    b"kafka_dlt-exception-message",
];

/// The headers of Connect's `DeadLetterQueueReporter` that have a meaning here.
pub(crate) const CONNECT: [&[u8]; 6] = [
    b"__connect.errors.topic", b"__connect.errors.partition", b"__connect.errors.offset",
    b"__connect.errors.connector.name", b"__connect.errors.exception.class.name",
    b"__connect.errors.exception.message",
];
