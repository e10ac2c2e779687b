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
/// The longest time between two probes of a partition of which nothing was read. Each is a client of its own, and a
/// transaction that is open behind the last record, perhaps for hours, looks like a hole that is not found.
const MAX_PROBE_INTERVAL: Duration = Duration::from_secs(30);

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
    /// The partitions that were not at their end at the last examination, by number.
    behind: HashMap<u32, Behind>,
}

/// A partition that is not at its end, although all fetched records were read.
#[derive(Clone, Copy)]
struct Behind {
    position: i64,
    /// The time from which on the partition may be probed, if its position has not changed, and the wait after that.
    next: Time,
    wait: Duration,
}

impl EndChecks {
    /// Takes the partitions that are not at their end, with their positions. Returns those to probe: nothing was read
    /// of them since the last examination. They are probed less and less often.
    fn find_idle(&mut self, now: Time, behind: Vec<(u32, SourcePartition, i64)>) -> Vec<(SourcePartition, i64)> {
        let former = std::mem::take(&mut self.behind);
        let mut idle = Vec::new();
        for (number, address, position) in behind {
            let known = former.get(&number).filter(|known| known.position == position);
            let mut entry = *known.unwrap_or(&Behind { position, next: now, wait: PROBE_INTERVAL * 2 });
            if known.is_some() && now >= entry.next {
                idle.push((address, position));
                (entry.next, entry.wait) = (now + entry.wait, (entry.wait * 2).min(MAX_PROBE_INTERVAL));
            }
            self.behind.insert(number, entry);
        }
        idle
    }
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
        let idle = self.end_probe.find_idle(now, behind.collect());
        self.consumer.probe_ends(idle);
    }

    /// Returns the next offset of an assigned partition, if no record of it waits for a decision or for its turn.
    fn position(&self, number: u32, address: SourcePartition, throttle: &Throttle) -> Option<i64> {
        let tracker = throttle.ledger().tracker(number)?;
        let done = tracker.base() == tracker.next() && throttle.ledger().paused(number).is_none();
        (done && !self.has_deferred(address)).then(|| tracker.next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use watermaster_kafka::topics::SourceIndex;

    /// The bug: behind the last record, a transaction that a producer leaves open looked like a hole that was not
    /// found. It was looked for each 2 s, each time by a new client.
    #[test]
    fn partitions_of_which_nothing_is_read_are_probed_less_and_less_often() {
        let mut checks = EndChecks::default();
        let mut probed_at = |second: u64, position| {
            let now = Time::ZERO + Duration::from_secs(second);
            !checks.find_idle(now, vec![(7, (SourceIndex(0), 3), position)]).is_empty()
        };
        let probes: Vec<u64> = (0..120).step_by(2).filter(|second| probed_at(*second, 5)).collect();
        assert_eq!(probes, [2, 6, 14, 30, 60, 90]);
        // A record came.
        assert_eq!([120, 122, 124].map(|second| probed_at(second, 6)), [false, true, false]);
    }
}
