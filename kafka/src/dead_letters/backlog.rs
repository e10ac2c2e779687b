//! The dead letters that no redrive has passed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use watermaster_settings::{Kafka, Service};

use super::{Job, Ranges, Reader};
use crate::{assign::remaining, load::OpenError};

/// The job of a redrive of all dead letters.
pub const DEFAULT_JOB: &str = "default";

/// The dead letters behind the position of the job `default`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unread {
    /// Offsets, those of the marks of transactions among them.
    pub offsets: u64,
    /// The earliest time of a partition's first record, in milliseconds since 1970; `None` without a record.
    pub oldest_ms: Option<i64>,
}

/// A client that looks for dead letters that are not redriven.
pub struct Backlog {
    reader: Reader,
    /// The positions and the oldest record at the last look.
    last: Option<(BTreeMap<i32, i64>, Option<i64>)>,
}

impl Backlog {
    /// Makes the client.
    ///
    /// # Errors
    /// No broker answers within `timeout`, or the topic can't be read.
    pub fn open(kafka: &Kafka, service: &Service, timeout: Duration) -> Result<Backlog, OpenError> {
        let group = Job::group(kafka, service, DEFAULT_JOB);
        Ok(Backlog { reader: Reader::open(kafka, &group, &service.dead_letter, timeout)?, last: None })
    }

    /// Looks once. Records are read only where the job has moved, or retention has removed the first one.
    ///
    /// # Errors
    /// A broker does not answer within `timeout`, or refuses.
    pub fn look(&mut self, timeout: Duration) -> Result<Unread, OpenError> {
        let deadline = Instant::now() + timeout;
        let committed = self.reader.committed(timeout)?;
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
        Ok(Unread { offsets, oldest_ms })
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
}
