//! Bounds the open records of services with `max_open`: those that were admitted, and that the service's own consumer
//! group has not committed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};
use watermaster_core::pace::Offsets;
use watermaster_core::throttle::OpenRoom;
use watermaster_settings::{Kafka, Service};

use super::{CHECK_INTERVAL, target::Target};
use crate::services::{Change, ServiceHandle};

/// The interval between two counts. A service that commits at once gets `max_open` records in each.
const COUNT_INTERVAL: Duration = Duration::from_millis(200);
/// After this time without a count there is no bound.
const LOST_AFTER: Duration = Duration::from_secs(10);
/// While there is no room, the tails are looked at after the offsets stood still for this time.
const STILL_AFTER: Duration = Duration::from_secs(2);

/// The tails of partitions that hold marks of transactions and records of aborted ones only. A consumer that commits
/// the offset after its last record never commits past such a tail.
#[derive(Default)]
struct Tails {
    /// The offsets of the last count, and since when they have stood still; `None` once their tails were looked at.
    last: (Vec<Offsets>, Option<Instant>),
    empty: BTreeMap<i32, Offsets>,
}

impl Tails {
    /// Returns the open records of all partitions.
    fn open(&self, all: &[Offsets]) -> u64 {
        let first_open = |one: &Offsets| match self.empty.get(&one.partition) {
            // A group that was set back does the records before the tail again.
            Some(tail) if tail.committed <= one.committed => one.committed.max(tail.end),
            _ => one.committed,
        };
        all.iter().map(|one| u64::try_from(one.end - first_open(one)).unwrap_or(0)).sum()
    }

    /// Returns whether the tails are to be looked at now: once after the offsets have stood still.
    fn is_due(&mut self, all: &[Offsets], now: Instant) -> bool {
        if self.last.0 != all {
            self.last = (all.to_vec(), Some(now));
        }
        let is_due = self.last.1.is_some_and(|since| now.duration_since(since) >= STILL_AFTER);
        self.last.1.take_if(|_| is_due);
        is_due
    }

    /// Looks for records in the tails of these partitions. A tail with an open transaction stays as it is, because its
    /// records are not stable yet.
    fn look(&mut self, all: &[Offsets], target: &mut Target<'_>) {
        let stable = target.offsets().unwrap_or_default();
        for tail in all.iter().filter(|one| one.committed < one.end && stable.contains(one)) {
            if !target.has_record(*tail) {
                self.empty.insert(tail.partition, *tail);
            }
        }
    }
}

/// Counts the open records, and tells the engine the room, until there is no bound.
pub(super) fn bound(kafka: &Kafka, service: &Service, handle: &ServiceHandle, stop: &AtomicBool) {
    let (mut target, mut tails) = (Target::of_all_records(kafka, service), Tails::default());
    let (mut counted_at, mut is_lost) = (Instant::now(), false);
    let tell = |room| handle.inbox.leave(Change { open_room: Some(room), ..Change::default() });
    let name = &service.name;
    while let Some(max_open) = handle.open.get().max.filter(|_| !stop.load(Ordering::Relaxed) && !handle.is_stopped()) {
        let next = Instant::now() + COUNT_INTERVAL;
        // Admissions that arrive meanwhile count twice, so there is never too much room.
        let admitted = handle.open.get().delivered;
        let offsets = target.offsets();
        let open = offsets.as_ref().map(|all| tails.open(all));
        handle.open.lock().counted = open;
        if let Some(open) = open {
            tell(Some(OpenRoom { admitted, records: max_open.saturating_sub(open) }));
            counted_at = Instant::now();
            if std::mem::take(&mut is_lost) {
                info!(service = name, open, max_open, "the open records are counted again, and bounded");
            }
        } else if !is_lost && counted_at.elapsed() > LOST_AFTER {
            tell(None);
            is_lost = true;
            let seconds = LOST_AFTER.as_secs();
            warn!(service = name, max_open, "no count of the open records for {seconds} s: they are not bounded");
        }
        if let Some(all) = offsets.filter(|all| open >= Some(max_open) && tails.is_due(all, Instant::now())) {
            tails.look(&all, &mut Target::new(kafka, service));
        }
        while Instant::now() < next && !stop.load(Ordering::Relaxed) {
            thread::sleep(CHECK_INTERVAL.min(next.saturating_duration_since(Instant::now())));
        }
    }
    handle.open.lock().counted = None;
    // While the program stops, the engine may go on for a moment, and the bound holds to its end.
    if handle.open.get().max.is_none() {
        tell(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Offsets = Offsets { partition: 0, end: 12, committed: 10 };

    #[test]
    fn a_tail_without_records_takes_no_room_until_the_group_is_set_back() {
        let mut tails = Tails::default();
        assert_eq!(tails.open(&[AT, Offsets { partition: 1, ..AT }]), 4);
        tails.empty.insert(0, AT);
        assert_eq!(tails.open(&[AT, Offsets { partition: 1, ..AT }]), 2);
        assert_eq!(tails.open(&[Offsets { end: 15, ..AT }]), 3, "records came behind the tail");
        assert_eq!(tails.open(&[Offsets { end: 15, committed: 14, ..AT }]), 1, "one of them is open");
        assert_eq!(tails.open(&[Offsets { committed: 4, ..AT }]), 8, "the group was set back");
    }

    #[test]
    fn tails_are_looked_at_once_after_the_offsets_stood_still() {
        let (mut tails, begin) = (Tails::default(), Instant::now());
        let mut is_due = |all: Offsets, after| tails.is_due(&[all], begin + after);
        assert!(!is_due(AT, Duration::ZERO));
        assert!(!is_due(AT, STILL_AFTER / 2));
        assert!(is_due(AT, STILL_AFTER));
        assert!(!is_due(AT, 10 * STILL_AFTER), "they were looked at");
        let moved = Offsets { end: 13, ..AT };
        assert!(!is_due(moved, 10 * STILL_AFTER));
        assert!(is_due(moved, 11 * STILL_AFTER));
    }
}
