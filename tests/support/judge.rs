//! The oracle: compares the records of the source topics with those of the target and dead-letter topics, one by one.

use std::{collections::HashMap, sync::Arc};

use super::murmur::java_partition;
use super::record::{Header, Identity, Record};

/// The headers that a rejected record may gain, in order, last.
pub const THROTTLE_HEADERS: [&str; 15] = [
    "throttle-reason", "throttle-message", "throttle-service", "throttle-client", "throttle-topic",
    "throttle-partition", "throttle-offset", "throttle-timestamp-ms", "throttle-rejected-at",
    "throttle-retry-after-ms", "throttle-limit", "throttle-used", "throttle-cycle-ms", "throttle-rule",
    "throttle-attempt",
];

/// The headers with the numbers of a quota.
pub const QUOTA_HEADERS: [&str; 3] = ["throttle-limit", "throttle-used", "throttle-cycle-ms"];

/// Returns the headers that a record gains if it is rejected for this reason, in order.
pub fn gained_headers(reason: &str, names_rule: bool) -> impl Iterator<Item = &'static str> {
    let has_quota = matches!(reason, "client_limit" | "over_allocation" | "capacity_in_use");
    THROTTLE_HEADERS.into_iter().filter(move |name| match *name {
        "throttle-rule" => names_rule,
        name => has_quota || !QUOTA_HEADERS.contains(&name),
    })
}

/// The expectations of a test.
pub struct Judge<'a> {
    pub identity: Identity,
    pub service: &'a str,
    /// Returns a source record's client; `None` if the record is anonymous.
    pub client_of: &'a dyn Fn(&Record) -> Option<String>,
    /// The reasons for which a record with a client may be rejected.
    pub reasons: &'a [&'a str],
    /// Anonymous records are admitted too, because the service is in shadow mode.
    pub admits_all: bool,
    pub target_partitions: i32,
    pub dead_letter_partitions: i32,
    /// The target and the dead-letter topic keep the producer's timestamps.
    pub keeps_timestamps: bool,
    /// The number of records that may be delivered more than once.
    pub repeats_allowed: u64,
}

/// The findings of the oracle.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Distinct records in the target.
    pub admitted: u64,
    /// Distinct records in the dead-letter topic.
    pub rejected: u64,
    /// Repeated records.
    pub repeated: u64,
    /// Rejections by reason.
    pub reasons: HashMap<String, u64>,
    /// Descriptions of all problems.
    pub wrong: Vec<String>,
}

impl Verdict {
    /// Panics if there are problems.
    pub fn assert_right(&self) -> &Verdict {
        let shown: Vec<&str> = self.wrong.iter().take(20).map(String::as_str).collect();
        assert!(shown.is_empty(), "{} problems, such as:\n{}", self.wrong.len(), shown.join("\n"));
        self
    }
}

impl Judge<'_> {
    /// Compares the source topics with the target and the dead-letter topic.
    pub fn judge(&self, source: &[Record], target: &[Record], dead_letter: &[Record]) -> Verdict {
        let mut verdict = Verdict::default();
        let mut places: HashMap<u64, (&Record, u32)> = HashMap::with_capacity(source.len());
        for record in source {
            let number = self.identity.of(record).expect("the source holds only records of this test");
            assert!(places.insert(number, (record, 0)).is_none(), "the source holds record {number} twice");
        }
        let mut order = Order::default();
        for record in target {
            if let Some(source) = self.find(&mut places, &mut verdict, record) {
                verdict.admitted += 1;
                self.check_admitted(&mut verdict, source, record);
                order.check(&mut verdict, source, record, (self.client_of)(source));
            }
        }
        for record in dead_letter {
            if let Some(source) = self.find(&mut places, &mut verdict, record) {
                verdict.rejected += 1;
                self.check_rejected(&mut verdict, source, record);
            }
        }
        for (record, _) in places.values().filter(|(_, found)| *found == 0) {
            verdict.wrong.push(format!("lost: {}", place(record)));
        }
        if verdict.repeated > self.repeats_allowed {
            let (repeated, allowed) = (verdict.repeated, self.repeats_allowed);
            verdict.wrong.push(format!("repeated: {repeated} records were delivered more than once, {allowed} may be"));
        }
        verdict
    }

    /// Returns the source of a record that is seen for the first time.
    fn find<'s>(
        &self, places: &mut HashMap<u64, (&'s Record, u32)>, verdict: &mut Verdict, record: &Record,
    ) -> Option<&'s Record> {
        let Some((source, found)) = self.identity.of(record).and_then(|number| places.get_mut(&number)) else {
            verdict.wrong.push(format!("not in a source: {}", place(record)));
            return None;
        };
        *found += 1;
        if *found > 1 {
            verdict.repeated += 1;
            if self.repeats_allowed == 0 {
                verdict.wrong.push(format!("repeated: {} as {}", place(source), place(record)));
            }
        }
        (*found == 1).then_some(*source)
    }

    fn check_admitted(&self, verdict: &mut Verdict, source: &Record, record: &Record) {
        self.check_same(verdict, source, record, self.target_partitions);
        if source.headers != record.headers {
            verdict.wrong.push(format!("headers altered: {} is {:?}", place(source), record.headers));
        }
        if !self.admits_all && (self.client_of)(source).is_none() {
            verdict.wrong.push(format!("anonymous, but admitted: {}", place(source)));
        }
    }

    fn check_rejected(&self, verdict: &mut Verdict, source: &Record, record: &Record) {
        self.check_same(verdict, source, record, self.dead_letter_partitions);
        let kept: Vec<&Header> = source.headers.iter().filter(|(name, _)| !is_throttle(name)).collect();
        let reason = record.header("throttle-reason").unwrap_or_default().to_owned();
        let names: Vec<&str> = gained_headers(&reason, record.header("throttle-rule").is_some()).collect();
        let split = record.headers.len().saturating_sub(names.len());
        let (before, gained) = record.headers.split_at(split);
        if before.iter().collect::<Vec<_>>() != kept {
            verdict.wrong.push(format!("headers altered: {} is {:?}", place(source), record.headers));
        }
        for (position, &name) in names.iter().enumerate() {
            let found = gained.get(position).filter(|(found, _)| found == name);
            let value = found.and_then(|(_, value)| std::str::from_utf8(value.as_deref()?).ok());
            if !value.is_some_and(|value| self.header_is_right(name, value, source, &reason)) {
                let found = gained.get(position);
                verdict.wrong.push(format!("{name} of {} is {found:?} (reason {reason:?})", place(source)));
            }
        }
        *verdict.reasons.entry(reason).or_default() += 1;
    }

    fn header_is_right(&self, name: &str, value: &str, source: &Record, reason: &str) -> bool {
        let client = (self.client_of)(source);
        match name {
            "throttle-reason" if client.is_none() => value == "anonymous",
            "throttle-reason" => self.reasons.contains(&value),
            "throttle-service" => value == self.service,
            "throttle-client" => value == client.as_deref().unwrap_or_default(),
            "throttle-topic" => value == &*source.topic,
            "throttle-partition" => value == source.partition.to_string(),
            "throttle-offset" => value == source.offset.to_string(),
            "throttle-timestamp-ms" => value.parse::<i64>().is_ok_and(|at| at >= source.timestamp),
            "throttle-message" => value.starts_with("The record was not processed: "),
            "throttle-rejected-at" => value.len() == 24 && humantime::parse_rfc3339(value).is_ok(),
            "throttle-retry-after-ms" if reason == "anonymous" => value == "0",
            "throttle-retry-after-ms" => value.parse::<u64>().is_ok(),
            "throttle-limit" | "throttle-used" => value.parse::<u64>().is_ok(),
            "throttle-cycle-ms" => value.parse::<u64>().is_ok_and(|time| time > 0),
            "throttle-rule" => !value.is_empty() && matches!(reason, "client_limit" | "held" | "expired"),
            "throttle-attempt" => value == next_attempt(source).to_string(),
            _ => false,
        }
    }

    fn check_same(&self, verdict: &mut Verdict, source: &Record, record: &Record, partitions: i32) {
        if source.key != record.key {
            verdict.wrong.push(format!("key altered: {} is {:?}", place(source), record.key));
        }
        if source.value != record.value {
            verdict.wrong.push(format!("value altered: {}", place(source)));
        }
        if self.keeps_timestamps && source.timestamp != record.timestamp {
            verdict.wrong.push(format!("timestamp altered: {} is {}", place(source), record.timestamp));
        }
        let expected = source.key.as_deref().map(|key| java_partition(key, partitions));
        if expected.is_some_and(|expected| expected != record.partition) {
            verdict.wrong.push(format!("not in Java's partition {expected:?}: {}", place(record)));
        }
    }
}

/// The newest source offset of each (target partition, source topic and partition, client).
#[derive(Default)]
struct Order(HashMap<(i32, Arc<str>, i32, Option<String>), i64>);

impl Order {
    /// `target` must be handed over partition by partition, in order of offset.
    fn check(&mut self, verdict: &mut Verdict, source: &Record, record: &Record, client: Option<String>) {
        let lane = (record.partition, Arc::clone(&source.topic), source.partition, client);
        let newest = self.0.entry(lane).or_insert(-1);
        if source.offset <= *newest {
            verdict.wrong.push(format!("out of order: {} follows offset {newest}", place(source)));
        }
        *newest = source.offset.max(*newest);
    }
}

fn next_attempt(source: &Record) -> u64 {
    let incoming = source.header("throttle-attempt").and_then(|attempt| attempt.parse::<u64>().ok());
    incoming.unwrap_or(0) + 1
}

fn is_throttle(name: &str) -> bool {
    name.starts_with("throttle-")
}

fn place(record: &Record) -> String {
    format!("{}[{}]@{}", record.topic, record.partition, record.offset)
}
