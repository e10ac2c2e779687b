//! The headers that a rejected record gains.

use std::io::Write as _;

use watermaster_core::{delivery::Form, reason::Reason};

use crate::ffi::HeaderList;
use crate::record::{Headers, NO_TIMESTAMP, Output};

/// The verdict on a rejected record.
#[derive(Debug, Clone, Copy)]
pub struct DeadLetter<'a> {
    pub reason: Reason,
    /// The client's name; empty for anonymous.
    pub client: &'a str,
    /// The time until a retry may succeed; 0 if it never does.
    pub retry_after_ms: u64,
    /// The part of the record that is sent.
    pub form: Form,
}

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
pub(super) fn headers(output: &mut Output<'_>, letter: &DeadLetter<'_>, service: &str, source: &str) -> HeaderList {
    let earlier = EarlierRejection::of(output.contents().headers);
    let stub = letter.form != Form::Whole;
    let mut headers = if stub {
        HeaderList::with_capacity(ALL.len())
    } else if earlier.any {
        output.copy_headers(|name| !ALL.contains(&name))
    } else {
        output.take_headers().unwrap_or_else(|| HeaderList::with_capacity(ALL.len()))
    };
    let attempt = earlier.attempt.map_or(1, |attempt| attempt.saturating_add(1));
    let [partition, offset] = [i64::from(output.partition()), output.offset()].map(Number::new);
    let timestamp_ms = Number::new(output.timestamp_ms().unwrap_or(NO_TIMESTAMP));
    let [retry_after_ms, attempt] = [letter.retry_after_ms, attempt].map(Number::new);
    let values: [(&[u8], &[u8]); 9] = [
        (REASON, letter.reason.into_str().as_bytes()),
        (SERVICE, service.as_bytes()),
        (CLIENT, letter.client.as_bytes()),
        (TOPIC, source.as_bytes()),
        (PARTITION, partition.text()),
        (OFFSET, offset.text()),
        (TIMESTAMP_MS, timestamp_ms.text()),
        (RETRY_AFTER_MS, retry_after_ms.text()),
        (ATTEMPT, attempt.text()),
    ];
    for (name, value) in values {
        headers.add(name, Some(value));
    }
    if stub {
        headers.add(STUB, Some(b"1"));
    }
    headers
}

/// Headers of earlier rejections that a record still carries.
struct EarlierRejection {
    /// True if there are headers to replace.
    any: bool,
    /// The last attempt, if it is a number.
    attempt: Option<u64>,
}

impl EarlierRejection {
    fn of(headers: Headers<'_>) -> EarlierRejection {
        let mut earlier = EarlierRejection { any: false, attempt: None };
        for (name, value) in headers.iter().filter(|(name, _)| name.starts_with(PREFIX)) {
            earlier.any |= ALL.contains(&name);
            if name == ATTEMPT {
                earlier.attempt = value.and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
            }
        }
        earlier
    }
}

/// A number in decimal, without an allocation.
struct Number {
    digits: [u8; 20],
    length: usize,
}

impl Number {
    fn new(number: impl std::fmt::Display) -> Number {
        let mut digits = [0; 20];
        let mut rest = &mut digits[..];
        write!(rest, "{number}").expect("no integer of 64 bits takes more than 20 characters");
        let length = 20 - rest.len();
        Number { digits, length }
    }

    fn text(&self) -> &[u8] {
        &self.digits[..self.length]
    }
}
