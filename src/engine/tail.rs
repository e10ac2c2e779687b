//! The end of a partition: what holds no record must be committed past all the same, or its lag would never be 0.

use std::collections::HashMap;
use std::time::Duration;

use tracing::debug;
use watermaster_core::units::Time;

use super::Engine;
use watermaster_kafka::consumer::SourcePartition;

/// A partition that does not stand at its end (nor beyond it, where nothing is any more) is looked at this often; if nothing of it was read between two looks, it may have come to its end.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// What was seen of the ends of partitions.
#[derive(Default)]
pub(super) struct Tail {
    looked: Option<Time>,
    /// All that had been fetched was read at some time since the last look. Else what stands may have records waiting.
    pub(super) emptied: bool,
    /// Where the partitions stood at the last look that had nothing waiting and yet another end, by number.
    stood: HashMap<u32, i64>,
}

impl Engine<'_> {
    /// Has idle partitions looked behind, and completes the holes that were found.
    pub(super) fn notice_tails(&mut self, now: Time) {
        for holes in self.link.consumer.holes() {
            let Some(number) = self.link.places.find(holes.partition) else { continue };
            // Somebody else's by now, or more of it was read.
            if self.stands_at(number, holes.partition) != Some(holes.from) {
                continue;
            }
            let topic = &self.job.service.sources[holes.partition.0.index()].topic;
            let (from, to) = (holes.from, holes.to);
            debug!(topic, partition = holes.partition.1, from, to, "no record is left up to its end");
            self.throttle.handle_end(number, holes.to);
            self.link.consumer.passed(holes.partition, holes.to);
        }
        if !self.tail.emptied || self.tail.looked.is_some_and(|at| now.since(at) < LOOK_EVERY) {
            return;
        }
        (self.tail.looked, self.tail.emptied) = (Some(now), false);
        let standing = self.link.places.assigned().filter_map(|(number, address)| {
            let at = self.stands_at(number, address)?;
            let high = self.link.consumer.cached_high(address.0, address.1)?;
            (high != at).then_some((number, address, at))
        });
        let standing: Vec<_> = standing.collect();
        let idle = standing.iter().filter(|(number, _, at)| self.tail.stood.get(number) == Some(at));
        self.link.consumer.probe_ends(idle.map(|(_, address, at)| (*address, *at)).collect());
        self.tail.stood = standing.into_iter().map(|(number, _, at)| (number, at)).collect();
    }

    /// Where an assigned partition stands, if nothing that was read of it waits.
    fn stands_at(&self, number: u32, address: SourcePartition) -> Option<i64> {
        let tracker = self.throttle.tracker(number)?;
        let aside = self.stash.iter().any(|record| (record.source(), record.partition()) == address);
        let stands = tracker.base() == tracker.next() && self.throttle.paused(number).is_none() && !aside;
        stands.then(|| tracker.next())
    }
}
