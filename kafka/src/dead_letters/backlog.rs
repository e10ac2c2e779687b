//! The open dead letters: those that no job has redriven or parked, and that are not closed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::Message as _;
use rdkafka::message::BorrowedMessage;
use watermaster_settings::{Kafka, Service};

use super::{DoneState, Job, Ledger, Ranges, Reader};
use crate::{ask::AskError, ask::Asker, assign::remaining, record::Headers, record::NO_TIMESTAMP};

/// The job of a redrive of all dead letters.
pub const DEFAULT_JOB: &str = "default";

/// The most bytes of records that are read for the newest dead letters.
const MAX_READ_BYTES: usize = 4 << 20;
/// The most headers of each that are kept, and the most bytes of a name or a value.
const MAX_HEADERS: usize = 64;
const MAX_TEXT_BYTES: usize = 500;

/// The open dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unread {
    /// Offsets, those of the marks of transactions among them.
    pub offsets: u64,
    /// The earliest time of a partition's first record, in milliseconds since 1970; `None` without a record.
    pub oldest_ms: Option<i64>,
}

/// A dead letter without its key and value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetterHead {
    pub partition: i32,
    pub offset: i64,
    /// Milliseconds since 1970, or [`NO_TIMESTAMP`].
    pub timestamp_ms: i64,
    /// The last headers, in order: those of this program stand behind all others.
    pub headers: Vec<HeaderHead>,
    /// `None` if the dead letter was open at the last look.
    pub state: Option<DoneState>,
}

/// The name of a header and its value, as text for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderHead {
    pub name: String,
    /// The begin of a text, or the length of what is none.
    pub value: Option<String>,
    /// The bytes of the value.
    pub bytes: usize,
}

/// The newest dead letters of a topic.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NewestHeads {
    pub heads: Vec<LetterHead>,
    /// All of them were read.
    pub is_complete: bool,
}

impl LetterHead {
    fn new(letter: &BorrowedMessage<'_>, state: Option<DoneState>) -> LetterHead {
        let headers = Headers::of(letter);
        let header = |(name, value): (&[u8], Option<&[u8]>)| HeaderHead {
            name: begin_of(&String::from_utf8_lossy(&name[..name.len().min(MAX_TEXT_BYTES)])),
            value: value.map(|value| match std::str::from_utf8(value) {
                Ok(text) => begin_of(text),
                Err(_) => format!("{} bytes that are no text", value.len()),
            }),
            bytes: value.map_or(0, <[u8]>::len),
        };
        LetterHead {
            partition: letter.partition(),
            offset: letter.offset(),
            timestamp_ms: letter.timestamp().to_millis().unwrap_or(NO_TIMESTAMP),
            headers: headers.skip(headers.count().saturating_sub(MAX_HEADERS)).map(header).collect(),
            state,
        }
    }

    /// Returns the value of the last header of this name.
    pub fn header(&self, name: &[u8]) -> Option<&str> {
        self.headers.iter().rev().find(|header| header.name.as_bytes() == name)?.value.as_deref()
    }
}

/// Returns the begin of a text that is too long to be shown.
fn begin_of(text: &str) -> String {
    match text.char_indices().find(|(at, one)| at + one.len_utf8() > MAX_TEXT_BYTES) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Looks for open dead letters.
pub struct Backlog {
    reader: Reader,
    ledger: Ledger,
    /// The consumer group of the job `default`.
    default_group: String,
    /// The begin of the open dead letters, by partition.
    fronts: BTreeMap<i32, Front>,
}

/// The first open dead letter of a partition.
#[derive(Debug, Clone, Copy, Default)]
struct Front {
    /// No record below it is open.
    offset: i64,
    /// The time of the record at this offset; `None` if it is not read yet.
    timestamp_ms: Option<i64>,
}

impl Backlog {
    /// Looks for open dead letters in this topic. Between two looks the client may ask and read for others.
    pub fn open(
        asker: Arc<Asker>, kafka: &Kafka, service: &Service, topic: &str, timeout: Duration,
    ) -> Result<Backlog, AskError> {
        let default_group = Job::group(kafka, service, DEFAULT_JOB);
        let reader = Reader::of(asker, &default_group, topic, timeout)?;
        let ledger = Ledger::new(service, &reader);
        Ok(Backlog { reader, ledger, default_group, fronts: BTreeMap::new() })
    }

    /// Returns the name of the topic.
    pub fn topic(&self) -> &str {
        self.reader.topic()
    }

    /// Returns the number of partitions that the topic had when the looking began.
    pub fn partition_count(&self) -> i32 {
        self.reader.partition_count()
    }

    /// Returns the offset in the ledger up to which it was read: where a look fails for its time, the next one goes on
    /// there.
    pub fn read_to(&self) -> i64 {
        self.ledger.read_to()
    }

    /// Looks once. The first open record of each partition is read only where that moved.
    pub fn look(&mut self, timeout: Duration) -> Result<Unread, AskError> {
        let deadline = Instant::now() + timeout;
        self.reader.asker.prepare();
        let topic = self.ledger.letters_id().to_owned();
        let loaded = self.ledger.load(&mut self.reader, timeout);
        if self.ledger.letters_id() != topic {
            self.fronts.clear();
        }
        loaded?;
        let default = self.reader.positions(&self.default_group, false, remaining(deadline))?;
        let mut ranges = self.reader.bounds(remaining(deadline))?;
        self.ledger.pass(&default, &ranges);
        self.find_fronts(&mut ranges, deadline)?;
        let open = |(partition, range): (&i32, &Range<i64>)| {
            (range.end - range.start).unsigned_abs() - self.ledger.done(*partition, range.clone())
        };
        let offsets = ranges.iter().map(open).sum();
        let oldest_ms = self.fronts.values().filter_map(|front| front.timestamp_ms).min();
        Ok(Unread { offsets, oldest_ms })
    }

    /// Reads the dead letters at the last `offsets` offsets, which the partitions share, or those that come within
    /// `timeout` and a few megabytes.
    pub fn newest(&mut self, offsets: i64, timeout: Duration) -> Result<NewestHeads, AskError> {
        let deadline = Instant::now() + timeout;
        let mut ranges = self.reader.bounds(timeout)?;
        let each = (offsets / ranges.len().max(1) as i64).max(1);
        ranges.values_mut().for_each(|range| range.start = range.start.max(range.end - each));
        self.reader.start(&ranges)?;
        let (mut newest, mut bytes) = (NewestHeads::default(), 0);
        while !self.reader.is_done() && bytes < MAX_READ_BYTES && Instant::now() < deadline {
            let ledger = &self.ledger;
            let head = self.reader.next_with(remaining(deadline), |letter| {
                let headers = Headers::of(letter).map(|(name, value)| name.len() + value.map_or(0, <[u8]>::len));
                let bytes = letter.payload_len() + letter.key_len() + headers.sum::<usize>();
                (LetterHead::new(letter, ledger.state(letter.partition(), letter.offset())), bytes)
            })?;
            let Some((head, read)) = head else { continue };
            newest.heads.push(head);
            bytes += read;
        }
        newest.is_complete = self.reader.is_done();
        // Nothing is fetched afterwards.
        self.reader.start(&Ranges::new())?;
        Ok(newest)
    }

    /// Finds the first open record of each partition, and has its range begin there.
    fn find_fronts(&mut self, ranges: &mut Ranges, deadline: Instant) -> Result<(), AskError> {
        self.fronts.retain(|partition, _| ranges.contains_key(partition));
        let mut unknown = Ranges::new();
        for (partition, range) in ranges.iter() {
            let front = self.fronts.entry(*partition).or_default();
            // An end that moved back is that of another topic of the same name.
            let from = if front.offset > range.end { 0 } else { front.offset };
            let offset = self.ledger.first_open(*partition, from.max(range.start)).min(range.end);
            if offset != front.offset {
                *front = Front { offset, timestamp_ms: None };
            }
            if front.timestamp_ms.is_none() {
                unknown.insert(*partition, offset..range.end);
            }
        }
        self.reader.start(&unknown)?;
        while !self.reader.is_done() && Instant::now() < deadline {
            let read = self.reader.next_with(remaining(deadline), |letter| {
                (letter.partition(), letter.offset(), letter.timestamp().to_millis().unwrap_or(NO_TIMESTAMP))
            })?;
            let Some((partition, offset, time)) = read else { continue };
            let Some(front) = self.fronts.get_mut(&partition).filter(|front| front.timestamp_ms.is_none()) else {
                continue;
            };
            if self.ledger.state(partition, offset).is_none() {
                *front = Front { offset, timestamp_ms: Some(time) };
                self.reader.close(partition);
            } else {
                front.offset = offset + 1;
            }
        }
        for (partition, range) in ranges.iter_mut() {
            let front = self.fronts.entry(*partition).or_default();
            if front.timestamp_ms.is_none() && !self.reader.is_open(*partition) {
                front.offset = range.end;
            }
            range.start = front.offset;
        }
        // Nothing is fetched between two looks.
        Ok(self.reader.start(&Ranges::new())?)
    }
}

#[cfg(test)]
mod tests;
