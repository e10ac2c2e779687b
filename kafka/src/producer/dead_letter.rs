//! The headers that a rejected record gains.

use std::cell::{Ref, RefCell};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use watermaster_core::delivery::{Form, Rejected};
use watermaster_settings::{DeadLetterHeaders, Service};

use crate::ffi::HeaderList;
use crate::headers::{
    ALL, ATTEMPT, CLIENT, CONNECT, CYCLE_MS, LIMIT, MESSAGE, OFFSET, PARTITION, PREFIX, REASON, REJECTED_AT,
    RETRY_AFTER_MS, RULE, SERVICE, SPRING, STUB, TIMESTAMP_MS, TOPIC, USED, beside,
};
use crate::record::{NO_TIMESTAMP, Origin, Record};
use crate::topics::Topics;

/// The most characters of a broker's words in a header.
const MAX_WORDS: usize = 200;

/// Tells the present time as text, which is written once a millisecond.
#[derive(Default)]
pub(super) struct IsoClock(RefCell<(u64, String)>);

impl IsoClock {
    /// Returns the time in UTC as ISO 8601 with milliseconds.
    pub fn now(&self) -> Ref<'_, str> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        if self.0.borrow().0 != now {
            let text = humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(now)).to_string();
            self.0.replace((now, text));
        }
        Ref::map(self.0.borrow(), |(_, text)| text.as_str())
    }
}

/// Returns the record's own headers (a stub keeps none) without earlier `throttle-*`, then those of this rejection.
pub(super) fn headers(
    record: &mut Record<'_>, rejected: &Rejected, form: Form, service: &Service, topics: &Topics, clock: &IsoClock,
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
        let beside = beside(service.dead_letter_headers);
        record.copy_headers(|name| !ALL.contains(&name) && !beside.contains(&name))
    } else {
        record.take_headers().unwrap_or_else(|| HeaderList::with_capacity(ALL.len()))
    };
    add_beside(&mut headers, record.origin, rejected, service, topics);
    let Origin { source, partition, offset, timestamp_ms, .. } = record.origin;
    let retry_after_ms = u64::try_from(rejected.retry_after.as_millis()).unwrap_or(u64::MAX);
    let mut number = itoa::Buffer::new();
    let mut add = |name, value: &str| headers.add(name, Some(value.as_bytes()));
    add(REASON, rejected.reason.into_str());
    let message = rejected.reason.message();
    match &rejected.words {
        None => add(MESSAGE, message),
        Some(words) => add(MESSAGE, &format!("{message}: {}", words.chars().take(MAX_WORDS).collect::<String>())),
    }
    add(SERVICE, &service.name);
    add(CLIENT, &rejected.client);
    add(TOPIC, topics.name(source));
    add(PARTITION, number.format(partition));
    add(OFFSET, number.format(offset));
    add(TIMESTAMP_MS, number.format(timestamp_ms));
    add(REJECTED_AT, &clock.now());
    add(RETRY_AFTER_MS, number.format(retry_after_ms));
    if let Some(quota) = rejected.grounds.quota {
        add(LIMIT, number.format(quota.limit));
        add(USED, number.format(quota.used));
        add(CYCLE_MS, number.format(quota.time.as_nanos().div_ceil(1_000_000)));
    }
    if let Some(rule) = &rejected.grounds.rule {
        add(RULE, rule);
    }
    add(ATTEMPT, number.format(attempt));
    if stub {
        add(STUB, "1");
    }
    headers
}

/// Adds the headers by which consoles of other programs show a dead letter.
fn add_beside(headers: &mut HeaderList, origin: Origin, rejected: &Rejected, service: &Service, topics: &Topics) {
    let Origin { source, partition, offset, timestamp_ms, .. } = origin;
    let mut add = |name, value: &[u8]| headers.add(name, Some(value));
    let (topic, reason) = (topics.name(source).as_bytes(), rejected.reason.into_str());
    match service.dead_letter_headers {
        DeadLetterHeaders::Native => {}
        DeadLetterHeaders::Spring => {
            let [topic_name, partition_name, offset_name, time, time_type, class, message] = SPRING;
            add(topic_name, topic);
            add(partition_name, &partition.to_be_bytes());
            add(offset_name, &offset.to_be_bytes());
            add(time, &timestamp_ms.to_be_bytes());
            add(time_type, if timestamp_ms == NO_TIMESTAMP { b"NoTimestampType" } else { b"CreateTime" });
            add(class, format!("watermaster.{reason}").as_bytes());
            add(message, format!("Watermaster rejected the record: {reason}").as_bytes());
        }
        DeadLetterHeaders::Connect => {
            let [topic_name, partition_name, offset_name, connector, class, message] = CONNECT;
            add(topic_name, topic);
            add(partition_name, partition.to_string().as_bytes());
            add(offset_name, offset.to_string().as_bytes());
            add(connector, service.name.as_bytes());
            add(class, format!("watermaster.{reason}").as_bytes());
            add(message, format!("Watermaster rejected the record: {reason}").as_bytes());
        }
    }
}
