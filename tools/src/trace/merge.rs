//! Merges the partitions of the sources by time, and keeps of each record its client, as the service finds it, its
//! size, and whether it was sent before.
//!
//! The time of a record is the largest timestamp of its partition so far, because records are delivered in the order of
//! the log. So a record is known to be the next one as soon as each partition has shown its first, or its end.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use watermaster_kafka::record::{NO_TIMESTAMP, Origin, Record};
use watermaster_kafka::source_log::{LogEvent, SourceLog};
use watermaster_kafka::{headers, redrive};
use watermaster_settings::client_id::{HeaderLookup, NamedSender, NoSchemas, sender_of};
use watermaster_settings::{Service, Source};

use super::unwritable;
use crate::cli::{Exit, Failure};
use crate::progress::OffsetProgress;
use crate::signals::Interrupts;
use crate::trace_file::{ANONYMOUS, OVERSIZED, TraceRecord, TraceWriter};

/// The longest wait for a record before other conditions are checked.
const EVENT_TIMEOUT: Duration = Duration::from_millis(100);
/// The time without a record of a partition, and without its end, after which the command gives up.
const NO_PROGRESS_TIMEOUT: Duration = Duration::from_secs(30);
/// The number of records between two looks at signals and progress.
const LOOK_RECORDS: u64 = 4_096;
/// A record that is older than one before it by more than this was late.
const LATE_MS: u64 = 1_000;

/// The partitions of a log, by the time of their next record.
pub struct Merge<'l, W: Write> {
    log: &'l SourceLog,
    service: &'l Service,
    writer: TraceWriter<W>,
    /// Time and partition of each partition's next record.
    next: BinaryHeap<Reverse<(u64, usize)>>,
    positions: Vec<Position>,
    progress: OffsetProgress,
}

/// The state of a partition.
#[derive(Debug, Clone, Copy)]
struct Position {
    /// The largest timestamp so far.
    at_ms: u64,
    /// The offset after the last record; `None` before the first one.
    offset: Option<i64>,
    /// The next record.
    record: TraceRecord,
}

impl<'l, W: Write> Merge<'l, W> {
    /// Begins at a time: no record counts as earlier.
    pub fn new(log: &'l SourceLog, service: &'l Service, from_ms: i64, writer: TraceWriter<W>) -> Merge<'l, W> {
        let at_ms = u64::try_from(from_ms).unwrap_or(0);
        let position = Position { at_ms, offset: None, record: TraceRecord::default() };
        let offsets = log.partitions().iter().map(|log| u64::try_from(log.end - log.start).unwrap_or(0)).sum();
        Merge {
            log,
            service,
            writer,
            next: BinaryHeap::new(),
            positions: vec![position; log.partitions().len()],
            progress: OffsetProgress::new("read", offsets),
        }
    }

    /// Writes all records in order of time. An interrupt ends the trace early.
    pub fn write(mut self, interrupts: &Interrupts, path: &Path) -> Result<TraceWriter<W>, Failure> {
        let mut interrupted = false;
        for index in 0..self.positions.len() {
            interrupted |= !self.fetch(index, interrupts)?;
        }
        let (mut written, mut latest) = (0_u64, 0);
        while let Some(Reverse((at_ms, index))) = self.next.pop().filter(|_| !interrupted) {
            debug_assert!(at_ms >= latest, "the next record of each partition is known");
            latest = at_ms;
            self.writer.push(self.positions[index].record).map_err(|error| unwritable(path, &error))?;
            written += 1;
            if written.is_multiple_of(LOOK_RECORDS) {
                let done = self.log.partitions().iter().map(|log| log.done()).sum();
                self.progress.set(done, &format!("{written} records"));
                interrupted = interrupts.try_recv().is_ok();
            }
            interrupted |= !self.fetch(index, interrupts)?;
        }
        self.progress.finish();
        if interrupted {
            eprintln!("interrupted: the trace ends here");
        }
        Ok(self.writer)
    }

    /// Waits for the next record of a partition, or its end. Returns false if an interrupt came first.
    fn fetch(&mut self, index: usize, interrupts: &Interrupts) -> Result<bool, Failure> {
        let mut began = None;
        loop {
            let next = self.log.next(index, EVENT_TIMEOUT);
            match next.map_err(Failure::stopped)? {
                LogEvent::End => return Ok(true),
                LogEvent::Record(record) => {
                    let origin = record.origin;
                    let source = &self.service.sources[origin.source.index()];
                    let record = sample(record, self.service, source, &mut self.writer);
                    self.place(index, origin, record);
                    return Ok(true);
                }
                LogEvent::Idle => {}
            }
            if interrupts.try_recv().is_ok() {
                return Ok(false);
            }
            let waited = began.get_or_insert_with(Instant::now).elapsed();
            if waited > NO_PROGRESS_TIMEOUT {
                let log = &self.log.partitions()[index];
                let why = self.log.last_error().unwrap_or_else(|| "no record and no error came".to_owned());
                let (topic, partition, waited) = (&log.topic, log.number, waited.as_secs());
                let problem = format!("{topic}/{partition}: no answer from the brokers for {waited} s: {why}");
                return Err(Failure::error(Exit::Unreachable, problem));
            }
        }
    }

    /// Gives a record its time, and notes what is odd about it.
    fn place(&mut self, index: usize, origin: Origin, record: TraceRecord) {
        let Origin { offset, timestamp_ms, append_time, .. } = origin;
        let (position, facts) = (&mut self.positions[index], self.writer.partition(index as u32));
        if timestamp_ms != NO_TIMESTAMP {
            let at_ms = u64::try_from(timestamp_ms).unwrap_or(0);
            facts.late += u64::from(position.offset.is_some() && at_ms + LATE_MS < position.at_ms);
            position.at_ms = position.at_ms.max(at_ms);
        }
        match position.offset {
            None => facts.first_offset = offset,
            Some(expected) => facts.gaps += u64::try_from(offset - expected).unwrap_or(0),
        }
        facts.append_time = append_time;
        position.offset = Some(offset + 1);
        position.record = TraceRecord { at_ms: position.at_ms, partition: index as u32, ..record };
        self.next.push(Reverse((position.at_ms, index)));
    }
}

/// Returns the facts of a record, whose client gets a number in the trace. Its time and partition are not set.
pub fn sample<W: Write>(
    record: Record<'_>, service: &Service, source: &Source, writer: &mut TraceWriter<W>,
) -> TraceRecord {
    let size = |cost: usize| u32::try_from(cost).unwrap_or(u32::MAX);
    let Some(contents) = record.contents() else {
        return TraceRecord { client: OVERSIZED, bytes: size(record.into_stub().cost()), ..TraceRecord::default() };
    };
    let client = if redrive::is_redriven(&contents, record.origin, service, source) {
        writer.client(&service.redrive_client)
    } else {
        match sender_of(service, &contents, source, &NoSchemas) {
            NamedSender::Client(name) | NamedSender::NotAllowed(name) => writer.client(&name),
            // The service that a simulation is about tells whether the group counts as one client.
            NamedSender::InGroup { group, client } => writer.client(&format!("{group}/{client}")),
            NamedSender::Anonymous(_) | NamedSender::Unknown(_) => ANONYMOUS,
        }
    };
    // The number of the attempt that was rejected, from 1: a record that has it was sent again.
    let attempt = contents.headers.lookup(headers::ATTEMPT);
    let retried = matches!(attempt, HeaderLookup::Once(Some(attempt)) if is_positive(attempt));
    TraceRecord { client, bytes: size(contents.cost()), retried, ..TraceRecord::default() }
}

fn is_positive(text: &[u8]) -> bool {
    std::str::from_utf8(text).ok().and_then(|text| text.parse::<u64>().ok()).is_some_and(|number| number > 0)
}
