//! The dead letters that no redrive has passed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::Message as _;
use rdkafka::consumer::BaseConsumer;
use rdkafka::message::BorrowedMessage;
use watermaster_settings::{Kafka, Service};

use super::chunks::{Chunk, Chunks, Tallies, merge};
use super::reader::position_client;
use super::{Job, JobPositions, Ranges, Reader, job_positions};
use crate::record::{Headers, NO_TIMESTAMP, RECORD_OVERHEAD};
use crate::{assign::remaining, client::KafkaError, client::LoggingContext, headers::REASON, load::OpenError};

/// The job of a redrive of all dead letters.
pub const DEFAULT_JOB: &str = "default";

/// The longest time for counting, and the bytes after which it ends, in one look.
const COUNT_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_COUNTED_BYTES: usize = 64 << 20;

/// The dead letters behind the position of the job `default`.
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

/// A client that looks for dead letters that are not redriven.
pub struct Backlog {
    reader: Reader,
    /// Asks for the position of the job.
    position: BaseConsumer<LoggingContext>,
    /// The positions and the oldest record at the last look.
    last: Option<(BTreeMap<i32, i64>, Option<i64>)>,
    /// The counted dead letters, by partition.
    chunks: BTreeMap<i32, Chunks>,
}

impl Backlog {
    /// Makes the client.
    ///
    /// # Errors
    /// No broker answers within `timeout`, or the topic can't be read.
    pub fn open(kafka: &Kafka, service: &Service, timeout: Duration) -> Result<Backlog, OpenError> {
        let group = Job::group(kafka, service, DEFAULT_JOB);
        let reader = Reader::open(kafka, &group, &service.dead_letter, timeout)?;
        let position = position_client(kafka, &group)?;
        Ok(Backlog { reader, position, last: None, chunks: BTreeMap::new() })
    }

    /// Looks once. The first record of each partition is read only where the job has moved, or retention has removed
    /// it. With `counts`, the new dead letters are read, too, within bounds; without it, earlier counts are forgotten.
    ///
    /// # Errors
    /// A broker does not answer within `timeout`, or refuses.
    pub fn look(&mut self, counts: bool, timeout: Duration) -> Result<Unread, OpenError> {
        let deadline = Instant::now() + timeout;
        for client in [&self.position, &self.reader.consumer] {
            // Errors of connections pile up until they are polled, and a token of OAuth is renewed by a poll.
            while client.poll(Duration::ZERO).is_some() {}
        }
        let committed = self.reader.committed_by(&self.position, timeout)?;
        let mut ranges = self.reader.bounds(remaining(deadline))?;
        for (partition, range) in &mut ranges {
            range.start = range.start.max(committed.get(partition).map_or(0, |(offset, _)| *offset)).min(range.end);
        }
        let offsets = ranges.values().map(|range| (range.end - range.start).unsigned_abs()).sum();
        let starts = ranges.iter().map(|(partition, range)| (*partition, range.start)).collect();
        let oldest_ms = match &self.last {
            Some((known, Some(oldest))) if *known == starts => Some(*oldest),
            _ => self.oldest(&ranges, deadline)?,
        };
        self.last = Some((starts, oldest_ms));
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

    /// Reads the first record of each partition.
    fn oldest(&mut self, ranges: &Ranges, deadline: Instant) -> Result<Option<i64>, OpenError> {
        let mut oldest: Option<i64> = None;
        self.reader.start(ranges)?;
        while !self.reader.is_done() && Instant::now() < deadline {
            if let Some(letter) = self.reader.next(remaining(deadline))? {
                self.reader.close(letter.partition);
                oldest = Some(oldest.map_or(letter.timestamp_ms, |oldest| oldest.min(letter.timestamp_ms)));
            }
        }
        // Nothing is fetched between two looks.
        self.reader.start(&Ranges::new())?;
        Ok(oldest)
    }

    /// Counts the dead letters in these ranges, which have so many `offsets`.
    fn count(&mut self, ranges: &Ranges, offsets: u64) -> Result<Counted, OpenError> {
        let deadline = Instant::now() + COUNT_TIMEOUT;
        self.chunks.retain(|partition, _| ranges.contains_key(partition));
        for (partition, range) in ranges {
            self.chunks.entry(*partition).or_default().keep(range);
        }
        let mut bytes = 0;
        while Instant::now() < deadline && bytes < MAX_COUNTED_BYTES {
            let gaps =
                ranges.iter().filter_map(|(partition, range)| Some((*partition, self.chunks[partition].gap(range)?)));
            let gaps: Ranges = gaps.collect();
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

    /// Counts the dead letters in one gap of each partition.
    fn count_gaps(&mut self, gaps: &Ranges, deadline: Instant, bytes: &mut usize) -> Result<(), OpenError> {
        let start = |(partition, gap): (&i32, &std::ops::Range<i64>)| (*partition, Chunk::starting_at(gap.start));
        let mut chunks: BTreeMap<i32, Chunk> = gaps.iter().map(start).collect();
        self.reader.start(gaps)?;
        while !self.reader.is_done() && Instant::now() < deadline && *bytes < MAX_COUNTED_BYTES {
            let read = self.reader.next_with(remaining(deadline), |letter| {
                let chunk = chunks.get_mut(&letter.partition())?;
                chunk.count(letter.offset(), reason(letter), letter.timestamp().to_millis().unwrap_or(NO_TIMESTAMP));
                Some(letter.payload_len() + letter.key_len() + RECORD_OVERHEAD)
            })?;
            *bytes += read.flatten().unwrap_or(0);
        }
        for (partition, mut chunk) in chunks {
            if !self.reader.is_open(partition) {
                chunk.close(gaps[&partition].end);
            }
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
