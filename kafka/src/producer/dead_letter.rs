//! The headers that a rejected record gains.

use watermaster_core::delivery::{Form, Rejected};

use crate::ffi::HeaderList;
use crate::record::{Origin, Record};
use crate::topics::Topics;

const PREFIX: &[u8] = b"throttle-";
const REASON: &[u8] = b"throttle-reason";
const SERVICE: &[u8] = b"throttle-service";
const CLIENT: &[u8] = b"throttle-client";
const TOPIC: &[u8] = b"throttle-topic";
const PARTITION: &[u8] = b"throttle-partition";
const OFFSET: &[u8] = b"throttle-offset";
const TIMESTAMP_MS: &[u8] = b"throttle-timestamp-ms";
const RETRY_AFTER_MS: &[u8] = b"throttle-retry-after-ms";
const ATTEMPT: &[u8] = b"throttle-attempt";
/// Marks a stub.
const STUB: &[u8] = b"throttle-stub";
const ALL: [&[u8]; 10] =
    [REASON, SERVICE, CLIENT, TOPIC, PARTITION, OFFSET, TIMESTAMP_MS, RETRY_AFTER_MS, ATTEMPT, STUB];

/// Returns the record's own headers (a stub keeps none) without earlier `throttle-*`, then those of this rejection.
pub(super) fn headers(
    record: &mut Record<'_>, rejected: &Rejected, form: Form, service: &str, topics: &Topics,
) -> HeaderList {
    // Headers of earlier rejections are replaced, and the last attempt among them is counted on.
    let (mut rejected_before, mut attempt) = (false, 1_u64);
    for (name, value) in record.headers().filter(|(name, _)| name.starts_with(PREFIX)) {
        rejected_before |= ALL.contains(&name);
        if name == ATTEMPT {
            let last: Option<u64> = value.and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
            attempt = last.map_or(1, |last| last.saturating_add(1));
        }
    }
    let stub = form != Form::Whole;
    let mut headers = if stub {
        HeaderList::with_capacity(ALL.len())
    } else if rejected_before {
        record.copy_headers(|name| !ALL.contains(&name))
    } else {
        record.take_headers().unwrap_or_else(|| HeaderList::with_capacity(ALL.len()))
    };
    let Origin { source, partition, offset, timestamp_ms } = record.origin;
    let retry_after_ms = u64::try_from(rejected.retry_after.as_millis()).unwrap_or(u64::MAX);
    let mut number = itoa::Buffer::new();
    let mut add = |name, value: &str| headers.add(name, Some(value.as_bytes()));
    add(REASON, rejected.reason.into_str());
    add(SERVICE, service);
    add(CLIENT, &rejected.client);
    add(TOPIC, topics.name(source));
    add(PARTITION, number.format(partition));
    add(OFFSET, number.format(offset));
    add(TIMESTAMP_MS, number.format(timestamp_ms));
    add(RETRY_AFTER_MS, number.format(retry_after_ms));
    add(ATTEMPT, number.format(attempt));
    if stub {
        add(STUB, "1");
    }
    headers
}
