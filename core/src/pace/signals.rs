//! The signals of all partitions of the target.

use std::collections::BTreeMap;

use super::partition::{LastCommit, TargetPartition};
use super::{Offsets, median};
use crate::units::Time;

/// The partitions, and the lateness of the service over most of them.
#[derive(Debug, Default)]
pub(super) struct Signals {
    partitions: BTreeMap<i32, TargetPartition>,
    /// The age of the oldest open record beyond the usual one, over most partitions, in nanoseconds.
    pub(super) late: u64,
    /// The service commits nothing although records are open.
    pub(super) stalled: bool,
}

impl Signals {
    /// Returns whether offsets of any partition are known.
    pub(super) fn know_any(&self) -> bool {
        !self.partitions.is_empty()
    }

    /// Takes the offsets of a poll. Returns whether a partition came, went or was set back: its offsets tell nothing
    /// about the service.
    pub(super) fn note_offsets(&mut self, now: Time, offsets: &[Offsets]) -> bool {
        let before = self.partitions.len();
        self.partitions.retain(|number, _| offsets.iter().any(|one| one.partition == *number));
        let mut is_new = self.partitions.len() != before;
        for one in offsets {
            let known = self.partitions.get_mut(&one.partition);
            let went_on = known.is_some_and(|partition| partition.handle_offsets(now, one.end, one.committed));
            if !went_on {
                self.partitions.insert(one.partition, TargetPartition::new(now, one.end, one.committed));
                is_new = true;
            }
        }
        is_new
    }

    /// Measures the lateness. Returns whether at least half of the partitions that are written have open records.
    pub(super) fn measure(&mut self, now: Time) -> bool {
        let written = self.partitions.values().filter(|partition| partition.was_written(now)).count();
        let signals: Vec<_> = self.partitions.values().filter_map(|partition| partition.signal(now)).collect();
        let (open, quiet) = (signals.len(), signals.iter().filter(|signal| signal.is_quiet).count());
        let idle = written.saturating_sub(open);
        let mut lates: Vec<u64> =
            signals.iter().map(|signal| signal.late).chain(std::iter::repeat_n(0, idle)).collect();
        (self.late, self.stalled) = (median(&mut lates), 2 * quiet > open);
        2 * open >= written.max(1)
    }

    pub(super) fn commits(&self) -> Vec<LastCommit> {
        self.partitions.values().map(|partition| partition.commit).collect()
    }

    /// Returns the largest value of any partition: of the usual time between two commits, or of the age that a commit
    /// usually leaves open.
    pub(super) fn longest(&self, of: fn(&TargetPartition) -> u64) -> u64 {
        self.partitions.values().map(of).max().unwrap_or(0)
    }

    pub(super) fn open_offsets(&self) -> u64 {
        self.partitions.values().map(TargetPartition::open_offsets).sum()
    }

    pub(super) fn stuck_partitions(&self, now: Time) -> usize {
        self.partitions.values().filter(|partition| partition.is_stuck(now)).count()
    }

    pub(super) fn doubtful_tails(&self, now: Time) -> impl Iterator<Item = Offsets> {
        self.partitions.iter().filter_map(move |(&number, partition)| partition.doubtful_tail(now, number))
    }

    pub(super) fn close_until(&mut self, tail: Offsets) {
        if let Some(partition) = self.partitions.get_mut(&tail.partition) {
            partition.close_until(tail.end);
        }
    }
}
