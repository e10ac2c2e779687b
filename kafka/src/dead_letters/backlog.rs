//! The open dead letters: those that no job has redriven or parked, and that are not closed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use rdkafka::Message as _;
use rdkafka::consumer::BaseConsumer;
use rdkafka::message::BorrowedMessage;
use watermaster_settings::{Kafka, Service};

use super::chunks::{Chunk, Chunks, Tallies, merge};
use super::reader::position_client;
use super::{Job, JobPositions, Ledger, Ranges, Reader, job_positions};
use crate::record::{Headers, NO_TIMESTAMP, RECORD_OVERHEAD};
use crate::{assign::remaining, client::KafkaError, client::LoggingContext, headers::REASON, load::OpenError};

/// The job of a redrive of all dead letters.
pub const DEFAULT_JOB: &str = "default";

/// The longest time for counting, and the bytes after which it ends, in one look.
const COUNT_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_COUNTED_BYTES: usize = 64 << 20;

/// The open dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unread {
    /// Offsets, those of the marks of transactions among them.
    pub offsets: u64,
    /// The earliest time of a partition's first record, in milliseconds since 1970; `None` without a record.
    pub oldest_ms: Option<i64>,
    /// `None` if they are not counted.
    pub counted: Option<Counted>,
}

/// The dead letters of [`Unread`] by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counted {
    pub tallies: Tallies,
    /// Offsets that are not counted yet.
    pub uncounted: u64,
}

/// A client that looks for open dead letters.
pub struct Backlog {
    reader: Reader,
    ledger: Ledger,
    /// Asks for the position of the job `default`.
    position: BaseConsumer<LoggingContext>,
    /// The begin of the open dead letters, by partition.
    fronts: BTreeMap<i32, Front>,
    /// The counted dead letters, by partition.
    chunks: BTreeMap<i32, Chunks>,
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
    /// Makes the client.
    ///
    /// # Errors
    /// No broker answers within `timeout`, or the topic can't be read.
    pub fn open(kafka: &Kafka, service: &Service, timeout: Duration) -> Result<Backlog, OpenError> {
        let group = Job::group(kafka, service, DEFAULT_JOB);
        let reader = Reader::open(kafka, &group, &service.dead_letter, timeout)?;
        let (ledger, position) = (Ledger::new(service, &reader), position_client(kafka, &group)?);
        Ok(Backlog { reader, ledger, position, fronts: BTreeMap::new(), chunks: BTreeMap::new() })
    }

    /// Looks once. The first open record of each partition is read only where that moved. With `counts`, the new dead
    /// letters are read, too, within bounds; without it, earlier counts are forgotten.
    ///
    /// # Errors
    /// A broker does not answer within `timeout`, or refuses.
    pub fn look(&mut self, counts: bool, timeout: Duration) -> Result<Unread, OpenError> {
        let deadline = Instant::now() + timeout;
        for client in [&self.position, &self.reader.consumer] {
            // Errors of connections pile up until they are polled, and a token of OAuth is renewed by a poll.
            while client.poll(Duration::ZERO).is_some() {}
        }
        let topic = self.ledger.letters_id().to_owned();
        self.ledger.load(&mut self.reader, timeout)?;
        if self.ledger.letters_id() != topic {
            self.fronts.clear();
            self.chunks.clear();
        }
        let default = self.reader.committed_by(&self.position, remaining(deadline))?;
        let mut ranges = self.reader.bounds(remaining(deadline))?;
        self.ledger.pass(&default, &ranges);
        self.find_fronts(&mut ranges, deadline)?;
        let open = |(partition, range): (&i32, &Range<i64>)| {
            (range.end - range.start).unsigned_abs() - self.ledger.done(*partition, range.clone())
        };
        let offsets = ranges.iter().map(open).sum();
        let oldest_ms = self.fronts.values().filter_map(|front| front.timestamp_ms).min();
        if !counts {
            self.chunks.clear();
        }
        let counted = counts.then(|| self.count(&ranges, offsets)).transpose()?;
        Ok(Unread { offsets, oldest_ms, counted })
    }

    /// Returns the positions of the service's jobs.
    ///
    /// # Errors
    /// A broker does not answer within `timeout`, or refuses.
    pub fn jobs(
        &self, kafka: &Kafka, service: &Service, timeout: Duration,
    ) -> Result<BTreeMap<String, JobPositions>, KafkaError> {
        job_positions(kafka, service, &self.reader, timeout)
    }

    /// Finds the first open record of each partition, and has its range begin there.
    fn find_fronts(&mut self, ranges: &mut Ranges, deadline: Instant) -> Result<(), OpenError> {
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

    /// Counts the open dead letters in these ranges, which have so many open `offsets`.
    fn count(&mut self, ranges: &Ranges, offsets: u64) -> Result<Counted, OpenError> {
        let deadline = Instant::now() + COUNT_TIMEOUT;
        self.chunks.retain(|partition, _| ranges.contains_key(partition));
        for (partition, range) in ranges {
            self.chunks.entry(*partition).or_default().keep(range, |range| self.ledger.done(*partition, range));
        }
        let mut bytes = 0;
        while Instant::now() < deadline && bytes < MAX_COUNTED_BYTES {
            let gaps: Ranges = ranges
                .iter()
                .filter_map(|(partition, range)| Some((*partition, self.gap(*partition, range)?)))
                .collect();
            if gaps.is_empty() {
                break;
            }
            self.count_gaps(&gaps, deadline, &mut bytes)?;
        }
        // Nothing is fetched between two looks.
        self.reader.start(&Ranges::new())?;
        let mut counted = Counted { uncounted: offsets, ..Counted::default() };
        for (tallies, offsets) in self.chunks.values().map(Chunks::total) {
            merge(&mut counted.tallies, &tallies);
            counted.uncounted = counted.uncounted.saturating_sub(offsets);
        }
        Ok(counted)
    }

    /// Returns the first run of offsets that is not counted and begins with an open one. Those before it count at once.
    fn gap(&mut self, partition: i32, range: &Range<i64>) -> Option<Range<i64>> {
        let chunks = self.chunks.entry(partition).or_default();
        while let Some(gap) = chunks.gap(range) {
            let open = self.ledger.first_open(partition, gap.start).min(gap.end);
            if open == gap.start {
                return Some(gap);
            }
            let mut done = Chunk::starting_at(gap.start);
            done.close(open);
            done.set_done(|range| self.ledger.done(partition, range));
            chunks.add(done);
        }
        None
    }

    /// Counts the open dead letters in one gap of each partition.
    fn count_gaps(&mut self, gaps: &Ranges, deadline: Instant, bytes: &mut usize) -> Result<(), OpenError> {
        let start = |(partition, gap): (&i32, &Range<i64>)| (*partition, Chunk::starting_at(gap.start));
        let mut chunks: BTreeMap<i32, Chunk> = gaps.iter().map(start).collect();
        self.reader.start(gaps)?;
        while !self.reader.is_done() && Instant::now() < deadline && *bytes < MAX_COUNTED_BYTES {
            let read = self.reader.next_with(remaining(deadline), |letter| {
                let (partition, offset) = (letter.partition(), letter.offset());
                let chunk = chunks.get_mut(&partition)?;
                match self.ledger.state(partition, offset) {
                    None => chunk.count(offset, reason(letter), letter.timestamp().to_millis().unwrap_or(NO_TIMESTAMP)),
                    Some(_) => chunk.close(offset + 1),
                }
                Some(letter.payload_len() + letter.key_len() + RECORD_OVERHEAD)
            })?;
            *bytes += read.flatten().unwrap_or(0);
        }
        for (partition, mut chunk) in chunks {
            if !self.reader.is_open(partition) {
                chunk.close(gaps[&partition].end);
            }
            chunk.set_done(|range| self.ledger.done(partition, range));
            self.chunks.entry(partition).or_default().add(chunk);
        }
        Ok(())
    }
}

/// Returns the reason in the headers; the last one counts if there are several.
fn reason<'l>(letter: &'l BorrowedMessage<'_>) -> Option<&'l [u8]> {
    Headers::of(letter).filter(|(name, _)| *name == REASON).last()?.1
}

#[cfg(test)]
mod tests;
