//! The way of records from the consumer to the core: deferred records, pause and resume.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tracing::{error, warn};

use super::{Job, end_probe::EndProbe, report::Reporter};
use watermaster_kafka::consumer::{Consumer, Event, SourcePartition};
use watermaster_kafka::record::Record;

/// The reading side of an engine.
pub(super) struct Intake<'c> {
    pub(super) consumer: &'c Consumer,
    /// Records that were polled while a round was under way.
    deferred: VecDeque<Record<'c>>,
    /// All partitions are paused because records had to be deferred.
    pub(super) reading_paused: bool,
    pub(super) end_probe: EndProbe,
}

impl<'c> Intake<'c> {
    pub(super) fn new(consumer: &'c Consumer) -> Intake<'c> {
        Intake { consumer, deferred: VecDeque::new(), reading_paused: false, end_probe: EndProbe::default() }
    }

    /// Returns the first deferred record, or else waits for the consumer's next event.
    pub(super) fn next(&mut self, timeout: Duration) -> Event<'c> {
        match self.deferred.pop_front() {
            Some(record) => Event::Record(record),
            None => self.consumer.poll(timeout),
        }
    }

    /// Keeps a record until the round is committed. Returns whether it is the first one, after which reading must
    /// pause.
    pub(super) fn defer(&mut self, record: Record<'c>) -> bool {
        self.deferred.push_back(record);
        !std::mem::replace(&mut self.reading_paused, true)
    }

    pub(super) fn has_deferred(&self, partition: SourcePartition) -> bool {
        self.deferred.iter().any(|record| (record.source(), record.partition()) == partition)
    }

    /// Drops the deferred records of a revoked partition.
    pub(super) fn forget(&mut self, partition: SourcePartition) {
        self.deferred.retain(|record| (record.source(), record.partition()) != partition);
    }

    /// Pauses partitions. If that fails, they are read on, which is harmless: records are kept within the same bounds.
    pub(super) fn pause(&self, partitions: &[SourcePartition], job: &Job, reporter: &mut Reporter) {
        if let Err(error) = self.consumer.pause(partitions) {
            let warn = |suppressed| warn!(service = job.service.name, suppressed, "pausing failed: {error}");
            reporter.log_limiter.warn("pausing", Instant::now(), warn);
        }
    }

    pub(super) fn resume(&self, partitions: &[SourcePartition], job: &Job, reporter: &mut Reporter) {
        if let Err(error) = self.consumer.resume(partitions) {
            let warn = |suppressed| error!(service = job.service.name, suppressed, "resuming failed: {error}");
            reporter.log_limiter.warn("resuming", Instant::now(), warn);
        }
    }
}
