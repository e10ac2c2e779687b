//! One pass over all topics: the records found in each partition.

use std::collections::BTreeMap;

use rdkafka::message::{BorrowedMessage, Headers, Message};
use serde_json::{Value, json};

use crate::origin::{Fate, HEADER, Origin, content, value_is_whole};
use crate::plan::{Mode, Plan, now_ms};
use crate::{flow::SourcePartition, support::judge, support::murmur::java_partition, support::record::Header};

/// The role of a topic: a source with its number, the target, or the dead-letter topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TopicRole {
    Source(u8),
    Target,
    DeadLetter,
}

/// The judged parts of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub offset: i64,
    /// `None`: the record is not from the generator.
    pub origin: Option<Origin>,
    pub timestamp: i64,
    /// Hash of key, value and headers.
    pub content: u64,
    /// Hash of key, value and headers without the headers that rejected records gain.
    pub stripped: u64,
    /// The value is unchanged.
    pub whole: bool,
    /// The record is in the partition that Java's partitioner picks for its key.
    pub placed: bool,
    /// The reason of a rejected record, if its headers are valid.
    pub reason: Option<Reason>,
}

/// The reason of a rejection: an index into [`REASONS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason(usize);

/// All reasons in `docs/dead-letters.md`.
pub const REASONS: [&str; 10] = [
    "anonymous", "unknown_client", "too_many_clients", "client_limit", "held", "over_allocation", "capacity_in_use",
    "queue_full", "expired", "undeliverable",
];

/// The reasons that only mode reject has: mode shape delays such records.
const ONLY_REJECT: [&str; 4] = ["client_limit", "held", "over_allocation", "capacity_in_use"];

impl Reason {
    /// Returns the reason's name if this mode never rejects for it.
    pub fn wrong_in(self, mode: Mode) -> Option<&'static str> {
        let name = REASONS[self.0];
        (mode == Mode::Shape && ONLY_REJECT.contains(&name)).then_some(name)
    }
}

/// All records found, by topic and partition, in the order of offsets.
pub struct Pass {
    plan: Plan,
    pub found: BTreeMap<(TopicRole, i32), Vec<Found>>,
    pub reasons: BTreeMap<&'static str, u64>,
    /// Times at which outputs were seen since the last report, by source partition, in ms since 1970.
    flow: BTreeMap<SourcePartition, Vec<u64>>,
    /// Times with the highest sequence number of a plain record seen in the target, by source partition and client.
    progress: BTreeMap<(SourcePartition, u16), Vec<(u64, u64)>>,
    counts: [u64; 3],
}

/// Shortest interval between two reported times, in ms.
const MIN_REPORT_GAP_MS: u64 = 50;

impl Pass {
    pub fn new(plan: &Plan) -> Pass {
        Pass {
            plan: plan.clone(),
            found: BTreeMap::new(),
            reasons: BTreeMap::new(),
            flow: BTreeMap::new(),
            progress: BTreeMap::new(),
            counts: [0; 3],
        }
    }

    pub fn records(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns all records of the wanted topics.
    pub fn of(&self, wanted: impl Fn(TopicRole) -> bool) -> impl Iterator<Item = (TopicRole, i32, &Found)> {
        let lists = self.found.iter().filter(move |((place, _), _)| wanted(*place));
        lists.flat_map(|((place, partition), list)| list.iter().map(|found| (*place, *partition, found)))
    }

    /// Returns the counts, and the output times since the last report.
    pub fn report(&mut self) -> Value {
        let flow = std::mem::take(&mut self.flow);
        let flow: BTreeMap<String, Vec<u64>> = flow.into_iter().map(|((t, p), at)| (format!("{t}/{p}"), at)).collect();
        let [sources, target, dead_letter] = self.counts;
        json!({
            "sources": sources, "target": target, "dead_letter": dead_letter, "reasons": self.reasons, "flow": flow,
        })
    }

    fn saw_output(&mut self, place: TopicRole, origin: Origin) {
        let (source, now) = ((origin.topic, origin.partition), now_ms());
        let times = self.flow.entry(source).or_default();
        if times.last().is_none_or(|last| now >= last + MIN_REPORT_GAP_MS) {
            times.push(now);
        }
        if place != TopicRole::Target || origin.fate != Fate::Plain {
            return;
        }
        let progress = self.progress.entry((source, origin.client)).or_default();
        if progress.last().is_none_or(|(_, highest)| origin.sequence > *highest) {
            progress.push((now, origin.sequence));
        }
    }

    /// Returns the time at which the target first had a later plain record of the same client and partition.
    pub fn overtaken(&self, origin: Origin) -> Option<u64> {
        let progress = self.progress.get(&((origin.topic, origin.partition), origin.client))?;
        let later = progress.partition_point(|(_, sequence)| *sequence <= origin.sequence);
        progress.get(later).map(|(seen, _)| *seen)
    }

    fn place(&self, topic: &str) -> Option<TopicRole> {
        if topic == self.plan.target {
            return Some(TopicRole::Target);
        }
        if topic == self.plan.dead_letter {
            return Some(TopicRole::DeadLetter);
        }
        let source = self.plan.sources.iter().position(|source| source.name == topic)?;
        Some(TopicRole::Source(source as u8))
    }

    /// Adds a message of any topic of the plan.
    pub fn take(&mut self, message: &BorrowedMessage<'_>) {
        let Some(place) = self.place(message.topic()) else { return };
        let mut headers: Vec<Header> = Vec::new();
        for header in message.headers().iter().flat_map(|headers| headers.iter()) {
            headers.push((header.key.to_owned(), header.value.map(<[u8]>::to_vec)));
        }
        let origin = headers.iter().find(|(name, _)| name == HEADER);
        let origin = origin.and_then(|(_, value)| Origin::parse(value.as_deref()?));
        let timestamp = message.timestamp().to_millis().unwrap_or(-1);
        let mut reason = None;
        if place == TopicRole::DeadLetter {
            reason = origin.and_then(|origin| self.gained(&headers, origin, timestamp));
        }
        let all = content(message.key(), message.payload(), &headers);
        // The headers of a rejection replace earlier headers of the same names.
        headers.retain(|(name, _)| !judge::THROTTLE_HEADERS.contains(&name.as_str()));
        let partitions = match place {
            TopicRole::Target => Some(crate::plan::TARGET_PARTITIONS),
            TopicRole::DeadLetter => Some(crate::plan::DEAD_LETTER_PARTITIONS),
            TopicRole::Source(_) => None,
        };
        let by_key = message.key().zip(partitions).map(|(key, partitions)| java_partition(key, partitions));
        let found = Found {
            offset: message.offset(),
            origin,
            timestamp,
            content: all,
            stripped: content(message.key(), message.payload(), &headers),
            whole: origin.is_some_and(|origin| value_is_whole(origin.id, message.payload())),
            placed: by_key.is_none_or(|partition| partition == message.partition()),
            reason,
        };
        let kind = match place {
            TopicRole::Source(_) => 0,
            TopicRole::Target => 1,
            TopicRole::DeadLetter => 2,
        };
        self.counts[kind] += 1;
        if let (1.., Some(origin)) = (kind, origin) {
            self.saw_output(place, origin);
        }
        self.found.entry((place, message.partition())).or_default().push(found);
    }

    /// Returns the reason of a rejected record; `None` if its last headers are not those of a rejection.
    fn gained(&mut self, headers: &[Header], origin: Origin, timestamp: i64) -> Option<Reason> {
        let last = |wanted| headers.iter().rev().find(|(name, _)| name == wanted);
        let (_, reason) = last("throttle-reason")?;
        let reason = std::str::from_utf8(reason.as_deref()?).ok()?;
        let names: Vec<&str> = judge::gained_headers(reason, last("throttle-rule").is_some()).collect();
        let gained = &headers[headers.len().checked_sub(names.len())?..];
        let mut values = Vec::new();
        for (expected, (name, value)) in names.into_iter().zip(gained) {
            let value = std::str::from_utf8(value.as_deref()?).ok()?;
            let is_number = judge::QUOTA_HEADERS.contains(&expected);
            if name != expected || is_number && value.parse::<u64>().is_err() {
                return None;
            }
            values.push(value);
        }
        let source = &self.plan.sources[usize::from(origin.topic)].name;
        let [reason, message, service, _, topic, partition, offset, at, time, retry, .., attempt] = values[..] else {
            return None;
        };
        let plain = service == self.plan.service
            && message.starts_with("The record was not processed: ")
            && humantime::parse_rfc3339(time).is_ok()
            && topic == source
            && partition == origin.partition.to_string()
            && offset.parse::<i64>().is_ok()
            && at == timestamp.to_string()
            && retry.parse::<u64>().is_ok()
            && matches!(attempt, "1" | "5");
        if !plain {
            return None;
        }
        let known = REASONS.iter().position(|known| *known == reason)?;
        *self.reasons.entry(REASONS[known]).or_default() += 1;
        Some(Reason(known))
    }
}

impl Found {
    /// Tells whether the record was part of a transaction that the generator aborted.
    pub fn is_aborted(&self) -> bool {
        self.origin.is_some_and(|origin| origin.fate == Fate::Aborted)
    }
}
