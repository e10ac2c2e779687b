//! The origin of a dead letter, from the headers of the program that wrote it.
//!
//! Other programs' headers: Kafka Connect `DeadLetterQueueReporter`, Kafka Streams `ExceptionHandlerUtils` (KIP-1034),
//! share groups `ShareGroupDLQStateManager` (KIP-1191), all as text; Spring `DeadLetterPublishingRecoverer`, with
//! numbers as big-endian integers. Of a repeated header, the last one counts: a record may have died before.

use strum::IntoStaticStr;
use watermaster_kafka::dead_letters::{Header, Letter};
use watermaster_kafka::headers;

/// The program that wrote a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Writer {
    Watermaster,
    Spring,
    Connect,
    Streams,
    ShareGroup,
}

/// The origin of a dead letter, and the reason for which it is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    pub writer: Writer,
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    /// The record's time in its topic, where the headers state it.
    pub timestamp_ms: Option<i64>,
    /// A [`Reason`](watermaster_core::reason::Reason), or the class or text of another program's error.
    pub reason: String,
    /// The client's id; empty if there is none.
    pub client: String,
    /// The number of rejections so far.
    pub attempt: u64,
    /// The record itself is missing; its origin tells where it was.
    pub is_stub: bool,
}

/// The names of other programs' headers: their prefix, and what follows it for topic, partition, offset and reason.
const FOREIGN: [(Writer, &str, [&str; 4]); 4] = [
    (Writer::Spring, "kafka_dlt-", ["original-topic", "original-partition", "original-offset", "exception-fqcn"]),
    (Writer::Connect, "__connect.errors.", ["topic", "partition", "offset", "exception.class.name"]),
    (Writer::Streams, "__streams.errors.", ["topic", "partition", "offset", "exception"]),
    (Writer::ShareGroup, "__dlq.errors.", ["topic", "partition", "offset", "message"]),
];

impl Origin {
    /// Reads the headers of a dead letter; `None` if they name no origin.
    pub fn of(letter: &Letter) -> Option<Origin> {
        own(&letter.headers).or_else(|| FOREIGN.iter().find_map(|program| foreign(&letter.headers, *program)))
    }

    /// Returns the headers that the record had before it died. `beside` are the names of the headers that Watermaster
    /// wrote beside its own, in order.
    pub fn first_headers(&self, letter: &Letter, beside: &[&[u8]]) -> Vec<Header> {
        match FOREIGN.iter().find(|(writer, ..)| *writer == self.writer) {
            Some((_, prefix, _)) => {
                let kept = |name: &[u8]| !name.starts_with(prefix.as_bytes()) && !headers::ALL.contains(&name);
                letter.headers.iter().filter(|(name, _)| kept(name)).cloned().collect()
            }
            None => {
                let first = letter.headers.iter().position(|(name, _)| name == headers::REASON);
                let first = first.unwrap_or(letter.headers.len());
                let (before, after) = letter.headers.split_at(first);
                let end = before.len().saturating_sub(beside.len());
                let is_beside = before[end..].iter().map(|(name, _)| &name[..]).eq(beside.iter().copied());
                let before = if is_beside { &before[..end] } else { before };
                before.iter().chain(after).filter(|(name, _)| !headers::ALL.contains(&&name[..])).cloned().collect()
            }
        }
    }
}

fn own(all: &[Header]) -> Option<Origin> {
    let timestamp_ms = number(all, headers::TIMESTAMP_MS)?;
    Some(Origin {
        writer: Writer::Watermaster,
        topic: text(all, headers::TOPIC)?,
        partition: i32::try_from(number(all, headers::PARTITION)?).ok()?,
        offset: number(all, headers::OFFSET)?,
        timestamp_ms: Some(timestamp_ms),
        reason: text(all, headers::REASON)?,
        client: text(all, headers::CLIENT).unwrap_or_default(),
        attempt: attempt(all).unwrap_or(1),
        is_stub: last(all, headers::STUB).is_some(),
    })
}

fn foreign(all: &[Header], (writer, prefix, names): (Writer, &str, [&str; 4])) -> Option<Origin> {
    // Most headers are of no program or of another one: only the first name is joined for those.
    let [topic, partition, offset, reason] = names;
    let full = |name| [prefix, name].concat().into_bytes();
    let number = |name: &[u8]| match writer {
        Writer::Spring => integer(last(all, name)?.as_deref()?),
        _ => number(all, name),
    };
    Some(Origin {
        writer,
        topic: text(all, &full(topic))?,
        partition: i32::try_from(number(&full(partition))?).ok()?,
        offset: number(&full(offset))?,
        timestamp_ms: None,
        reason: text(all, &full(reason)).unwrap_or_default(),
        client: String::new(),
        // No other program counts, so each redrive does.
        attempt: attempt(all).unwrap_or(0).saturating_add(1),
        // A share group copies no headers, and key and value only if told to.
        is_stub: writer == Writer::ShareGroup,
    })
}

/// Reads a big-endian integer of four or eight bytes.
pub(super) fn integer(bytes: &[u8]) -> Option<i64> {
    let four = || Some(i64::from(i32::from_be_bytes(bytes.try_into().ok()?)));
    bytes.try_into().ok().map(i64::from_be_bytes).or_else(four)
}

fn attempt(all: &[Header]) -> Option<u64> {
    u64::try_from(number(all, headers::ATTEMPT)?).ok()
}

fn number(all: &[Header], name: &[u8]) -> Option<i64> {
    text(all, name)?.parse().ok()
}

fn text(all: &[Header], name: &[u8]) -> Option<String> {
    String::from_utf8(last(all, name)?.clone()?).ok()
}

fn last<'h>(all: &'h [Header], name: &[u8]) -> Option<&'h Option<Vec<u8>>> {
    all.iter().rev().find(|(other, _)| other == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests;
