//! The end of a partition: offsets without records at its end must be committed as well, or the lag would never become
//! 0.

use std::{collections::HashMap, time::Duration};

use tracing::debug;
use watermaster_core::{throttle::Throttle, units::Time};

use super::{intake::Intake, link::Link};
use watermaster_kafka::consumer::SourcePartition;

/// The interval at which partitions that are not at their end are examined. A partition of which nothing was read
/// between two examinations may have no record left.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);

/// The observations about the ends of partitions.
#[derive(Default)]
pub(super) struct EndProbe {
    examined: Option<Time>,
    /// All fetched records were read at some time since the last examination; otherwise records may be waiting.
    pub(super) caught_up: bool,
    /// The positions of the partitions that were not at their end at the last examination, by number.
    positions: HashMap<u32, i64>,
}

impl Intake<'_> {
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
        let tracker = throttle.tracker(number)?;
        let done = tracker.base() == tracker.next() && throttle.paused(number).is_none();
        (done && !self.has_deferred(address)).then(|| tracker.next())
    }
}
