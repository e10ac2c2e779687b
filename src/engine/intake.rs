//! The way of records from the consumer to the core: deferred records, pause and resume, the ends of partitions.
//!
//! Offsets without records at the end of a partition must be committed as well, or the lag would never become 0.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tracing::{debug, error, warn};
use watermaster_core::{throttle::Throttle, units::Time};

use super::suspended::{ANSWER_INTERVAL, Suspended};
use super::{IDLE_INTERVAL, Job, link::Link, report::Reporter};
use watermaster_kafka::consumer::{Consumer, Event, SourcePartition};
use watermaster_kafka::record::Record;
use watermaster_schemas::cache::SchemaCache;

/// The interval at which partitions that are not at their end are examined. A partition of which nothing was read
/// between two examinations may have no record left.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);

/// The reading side of an engine.
pub(super) struct Intake<'c> {
    pub(super) consumer: &'c Consumer,
    pub(super) schemas: &'c mut SchemaCache,
    /// Records that were polled while a round was under way.
    deferred: VecDeque<Record<'c>>,
    pub(super) suspended: Suspended<'c>,
    /// All partitions are paused because records had to be deferred.
    pub(super) reading_paused: bool,
    pub(super) end_probe: EndChecks,
}

#[derive(Default)]
pub(super) struct EndChecks {
    examined: Option<Time>,
    /// All fetched records were read at some time since the last examination; otherwise records may be waiting.
    pub(super) caught_up: bool,
    /// The positions of the partitions that were not at their end at the last examination, by number.
    positions: HashMap<u32, i64>,
}

impl<'c> Intake<'c> {
    pub(super) fn new(consumer: &'c Consumer, schemas: &'c mut SchemaCache) -> Intake<'c> {
        Intake {
            consumer,
            schemas,
            deferred: VecDeque::new(),
            suspended: Suspended::default(),
            reading_paused: false,
            end_probe: EndChecks::default(),
        }
    }

    /// Returns the first deferred record, or else waits for the consumer's next event.
    pub(super) fn next(&mut self, timeout: Duration) -> Event<'c> {
        match self.deferred.pop_front() {
            Some(record) => Event::Record(record),
            None => self.consumer.poll(timeout),
        }
    }

    /// Puts records of a partition in front of those that were deferred, which came later.
    pub(super) fn decide_next(&mut self, records: VecDeque<Record<'c>>) {
        records.into_iter().rev().for_each(|record| self.deferred.push_front(record));
    }

    /// Returns the longest time for which nothing has to be looked at.
    pub(super) fn idle_interval(&self) -> Duration {
        if self.suspended.is_empty() { IDLE_INTERVAL } else { ANSWER_INTERVAL }
    }

    /// Keeps a record until the round is committed. Returns whether it is the first one, after which reading must
    /// pause.
    pub(super) fn defer(&mut self, record: Record<'c>) -> bool {
        self.deferred.push_back(record);
        !std::mem::replace(&mut self.reading_paused, true)
    }

    /// Returns whether records of the partition wait for a decision.
    pub(super) fn has_deferred(&self, partition: SourcePartition) -> bool {
        self.suspended.contains(partition) || self.deferred.iter().any(|record| record.origin.address() == partition)
    }

    /// Drops the records of a revoked partition that were not decided.
    pub(super) fn forget(&mut self, partition: SourcePartition) {
        self.deferred.retain(|record| record.origin.address() != partition);
        self.suspended.forget(partition);
    }

    /// Pauses partitions. If that fails, they are read on, which is harmless: records are kept within the same bounds.
    pub(super) fn pause(&self, partitions: &[SourcePartition], job: &Job, reporter: &mut Reporter) {
        if let Err(error) = self.consumer.pause(partitions) {
            let warn = |suppressed| warn!(service = job.service.name, suppressed, "pausing failed: {error}");
            reporter.log_limiter.warn("pausing", warn);
        }
    }

    /// Reads partitions again, except those that wait for a schema.
    pub(super) fn resume(&self, partitions: &[SourcePartition], job: &Job, reporter: &mut Reporter) {
        let open: Vec<_> =
            partitions.iter().filter(|partition| !self.suspended.contains(**partition)).copied().collect();
        if let Err(error) = self.consumer.resume(&open) {
            let warn = |suppressed| error!(service = job.service.name, suppressed, "resuming failed: {error}");
            reporter.log_limiter.warn("resuming", warn);
        }
    }

    /// Completes the trailing holes that were found, and has idle partitions examined.
    pub(super) fn probe_ends(&mut self, now: Time, throttle: &mut Throttle, link: &Link<'_>) {
        for holes in self.consumer.holes() {
            let Some(number) = link.partitions.find(holes.partition) else { continue };
            // The partition may be revoked by now, or more of it was read.
            if self.position(number, holes.partition, throttle) != Some(holes.from) {
                continue;
            }
            let ((topic, partition), from, to) = (link.name(number), holes.from, holes.to);
            debug!(topic, partition, from, to, "no record is left up to its end");
            throttle.handle_end(number, holes.to);
            self.consumer.passed(holes.partition, holes.to);
        }
        let probe = &mut self.end_probe;
        if !probe.caught_up || probe.examined.is_some_and(|at| now.since(at) < PROBE_INTERVAL) {
            return;
        }
        (probe.examined, probe.caught_up) = (Some(now), false);
        let behind = link.partitions.assigned().filter_map(|(number, address)| {
            let at = self.position(number, address, throttle)?;
            let high = self.consumer.cached_high(address.0, address.1)?;
            (high != at).then_some((number, address, at))
        });
        let behind: Vec<_> = behind.collect();
        let idle = behind.iter().filter(|(number, _, at)| self.end_probe.positions.get(number) == Some(at));
        self.consumer.probe_ends(idle.map(|(_, address, at)| (*address, *at)).collect());
        self.end_probe.positions = behind.into_iter().map(|(number, _, at)| (number, at)).collect();
    }

    /// Returns the next offset of an assigned partition, if no record of it waits for a decision or for its turn.
    fn position(&self, number: u32, address: SourcePartition, throttle: &Throttle) -> Option<i64> {
        let tracker = throttle.ledger().tracker(number)?;
        let done = tracker.base() == tracker.next() && throttle.ledger().paused(number).is_none();
        (done && !self.has_deferred(address)).then(|| tracker.next())
    }
}
