//! One pass over all topics: what was found where.

use std::collections::BTreeMap;

use rdkafka::message::{BorrowedMessage, Headers, Message};
use serde_json::{Value, json};

use crate::flow::Place;
use crate::origin::{Fate, HEADER, Origin, content, value_is_whole};
use crate::plan::{Plan, now_ms};
use crate::support::judge::THROTTLE_HEADERS;
use crate::support::murmur::java_partition;
use crate::support::record::Header;

/// A topic: a source's number, the target, or the dead-letter topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Where {
    Source(u8),
    Target,
    DeadLetter,
}

/// A record, as far as it is judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub offset: i64,
    /// `None`: not one of ours.
    pub origin: Option<Origin>,
    pub timestamp: i64,
    /// Key, value and headers.
    pub content: u64,
    /// The same without the headers that rejected records gain.
    pub stripped: u64,
    /// The value is as it was made; the key lies in Java's partition.
    pub whole: bool,
    pub placed: bool,
    /// A rejected record's reason, if its headers are right in themselves.
    pub reason: Option<Reason>,
}

/// Why it was rejected: a number into [`REASONS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason(usize);

/// All that `docs/dead-letters.md` knows.
pub const REASONS: [&str; 9] = [
    "anonymous",
    "unknown_client",
    "too_many_clients",
    "client_limit",
    "over_allocation",
    "capacity_in_use",
    "queue_full",
    "expired",
    "undeliverable",
];

/// Everything that was found, by topic and partition, in the order of offsets.
pub struct Pass {
    plan: Plan,
    pub found: BTreeMap<(Where, i32), Vec<Found>>,
    pub reasons: BTreeMap<&'static str, u64>,
    /// By source partition: when outputs of it were seen since the last news, in ms since 1970.
    flow: BTreeMap<Place, Vec<u64>>,
    /// By source partition and client: the highest sequence of a plain record that was seen in the target by a time.
    progress: BTreeMap<(Place, u16), Vec<(u64, u64)>>,
    counts: [u64; 3],
}

/// Times are told this far apart, in ms.
const GRAIN: u64 = 50;

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

    /// All records of the topics for which `of` says so.
    pub fn of(&self, wanted: impl Fn(Where) -> bool) -> impl Iterator<Item = (Where, i32, &Found)> {
        let lists = self.found.iter().filter(move |((place, _), _)| wanted(*place));
        lists.flat_map(|((place, partition), list)| list.iter().map(|found| (*place, *partition, found)))
    }

    /// What there is to tell, and when outputs were seen since this was last asked.
    pub fn news(&mut self) -> Value {
        let flow = std::mem::take(&mut self.flow);
        let flow: BTreeMap<String, Vec<u64>> = flow.into_iter().map(|((t, p), at)| (format!("{t}/{p}"), at)).collect();
        let [sources, target, dead_letter] = self.counts;
        json!({ "sources": sources, "target": target, "dead_letter": dead_letter, "reasons": self.reasons, "flow": flow })
    }

    fn saw_output(&mut self, place: Where, origin: Origin) {
        let (source, now) = ((origin.topic, origin.partition), now_ms());
        let times = self.flow.entry(source).or_default();
        if times.last().is_none_or(|last| now >= last + GRAIN) {
            times.push(now);
        }
        if place != Where::Target || origin.fate != Fate::Plain {
            return;
        }
        let progress = self.progress.entry((source, origin.client)).or_default();
        if progress.last().is_none_or(|(_, highest)| origin.sequence > *highest) {
            progress.push((now, origin.sequence));
        }
    }

    /// When a plain record was first seen in the target that came after this plain one, from its client and partition.
    pub fn overtaken(&self, origin: Origin) -> Option<u64> {
        let progress = self.progress.get(&((origin.topic, origin.partition), origin.client))?;
        let later = progress.partition_point(|(_, sequence)| *sequence <= origin.sequence);
        progress.get(later).map(|(seen, _)| *seen)
    }

    fn place(&self, topic: &str) -> Option<Where> {
        if topic == self.plan.target {
            return Some(Where::Target);
        }
        if topic == self.plan.dead_letter {
            return Some(Where::DeadLetter);
        }
        let source = self.plan.sources.iter().position(|source| source.name == topic)?;
        Some(Where::Source(source as u8))
    }

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
        if place == Where::DeadLetter {
            reason = origin.and_then(|origin| self.gained(&headers, origin, timestamp));
        }
        let all = content(message.key(), message.payload(), &headers);
        // What a rejected record gains replaces what was called so before.
        headers.retain(|(name, _)| !THROTTLE_HEADERS.contains(&name.as_str()));
        let partitions = match place {
            Where::Target => Some(crate::plan::TARGET_PARTITIONS),
            Where::DeadLetter => Some(crate::plan::DEAD_LETTER_PARTITIONS),
            Where::Source(_) => None,
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
            Where::Source(_) => 0,
            Where::Target => 1,
            Where::DeadLetter => 2,
        };
        self.counts[kind] += 1;
        if let (1.., Some(origin)) = (kind, origin) {
            self.saw_output(place, origin);
        }
        self.found.entry((place, message.partition())).or_default().push(found);
    }

    /// The reason of a rejected record; `None` if its last headers are not what they have to be.
    fn gained(&mut self, headers: &[Header], origin: Origin, timestamp: i64) -> Option<Reason> {
        let gained = &headers[headers.len().checked_sub(THROTTLE_HEADERS.len())?..];
        let mut values = Vec::new();
        for (expected, (name, value)) in THROTTLE_HEADERS.into_iter().zip(gained) {
            let value = std::str::from_utf8(value.as_deref()?).ok()?;
            if name != expected {
                return None;
            }
            values.push(value);
        }
        let source = &self.plan.sources[usize::from(origin.topic)].name;
        let [reason, service, _, topic, partition, offset, at, retry, attempt] = values[..] else { return None };
        let plain = service == self.plan.service
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
    /// Whether it was part of a transaction that was to be aborted.
    pub fn is_aborted(&self) -> bool {
        self.origin.is_some_and(|origin| origin.fate == Fate::Aborted)
    }
}
