//! The signals of the partitions of the target: how late the commits of each are, and of most of them.

use std::collections::{BTreeMap, VecDeque};

use super::{Offsets, SECOND, median};
use crate::units::Time;

/// The most entries of a ledger.
const MAX_ENTRIES: usize = 1_024;
/// The gaps between commits that a partition remembers.
const MAX_GAPS: usize = 9;
/// The delays that a partition remembers, and for how long.
const MAX_DELAYS: usize = 128;
const DELAYS_AGE: u64 = 600 * SECOND;
/// The gap of a partition without commits so far.
const FIRST_GAP: u64 = 5 * SECOND;
/// A partition with open records that saw no commit for this long is stuck.
const STUCK_AFTER: u64 = 60 * SECOND;

/// The partitions, and the lateness of the service over most of them.
#[derive(Debug, Default)]
pub(super) struct Signals {
    pub(super) partitions: BTreeMap<i32, TargetPartition>,
    /// The age of the oldest open record beyond the usual one, over most partitions, in nanoseconds.
    pub(super) late: u64,
    /// The service commits nothing although records are open.
    pub(super) stalled: bool,
}

impl Signals {
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

    /// Returns the largest value of any partition: of the usual time between two commits, or of the age that a commit
    /// usually leaves open.
    pub(super) fn longest(&self, of: fn(&TargetPartition) -> u64) -> u64 {
        self.partitions.values().map(of).max().unwrap_or(0)
    }
}

/// A partition of the target, as the polls saw it.
#[derive(Debug, Default)]
pub(super) struct TargetPartition {
    /// The ends that the partition reached beyond the committed offset, each with the poll that saw it first.
    ledger: VecDeque<(Time, i64)>,
    end: i64,
    /// The last commit, or the offsets at the first poll.
    pub(super) commit: LastCommit,
    written_at: Option<Time>,
    /// The times from an open record, or the commit before, to a commit.
    gaps: VecDeque<u64>,
    /// The usual time between two commits.
    pub(super) gap: u64,
    /// The ages of the oldest record that each commit left open.
    delays: VecDeque<(Time, u64)>,
    delay: u64,
    /// The age that a commit usually leaves open: workers out of order and batches always leave an old record.
    usual: u64,
    /// The arrival of the oldest open record at the last poll.
    open_since: Option<Time>,
}

/// The last commit of the service's group in a partition.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LastCommit {
    /// The poll that saw the commit.
    pub(super) at: Time,
    pub(super) offset: i64,
    /// The arrival of the oldest record that the commit left open, or the time of the commit if it left none.
    pub(super) passed_until: Time,
}

/// A partition with open records at one moment.
pub(super) struct Signal {
    /// The age of its oldest open record beyond the usual one, in nanoseconds.
    pub(super) late: u64,
    /// There was no commit for much longer than usual.
    pub(super) is_quiet: bool,
}

impl TargetPartition {
    pub(super) fn new(now: Time, end: i64, committed: i64) -> TargetPartition {
        let mut partition = TargetPartition {
            end: committed,
            commit: LastCommit { at: now, offset: committed, passed_until: now },
            gap: FIRST_GAP,
            ..TargetPartition::default()
        };
        partition.handle_offsets(now, end, committed);
        partition
    }

    /// Takes the offsets of a poll. Returns whether they go on from the last ones: a committed offset that went back
    /// was reset.
    pub(super) fn handle_offsets(&mut self, now: Time, end: i64, committed: i64) -> bool {
        if committed < self.commit.offset {
            return false;
        }
        if end > self.end {
            self.ledger.push_back((now, end));
            (self.end, self.written_at) = (end, Some(now));
        }
        self.close_until(committed);
        if self.ledger.len() > MAX_ENTRIES {
            let mut number = 0;
            self.ledger.retain(|_| {
                number += 1;
                number % 2 == 1
            });
        }
        let oldest = self.ledger.front().map(|&(arrival, _)| arrival);
        if committed > self.commit.offset {
            self.note_commit(now, committed, oldest);
        }
        self.open_since = oldest;
        true
    }

    fn note_commit(&mut self, now: Time, committed: i64, oldest: Option<Time>) {
        if let Some(open_since) = self.open_since {
            self.gaps.push_back(now.nanos_since(self.commit.at.max(open_since)));
            if self.gaps.len() > MAX_GAPS {
                self.gaps.pop_front();
            }
            self.gap = median(self.gaps.make_contiguous().to_vec().as_mut_slice());
        }
        self.commit = LastCommit { at: now, offset: committed, passed_until: oldest.unwrap_or(now) };
        self.delay = oldest.map_or(0, |arrival| now.nanos_since(arrival));
        self.delays.push_back((now, self.delay));
        let is_old = |&(at, _): &(Time, u64)| now.nanos_since(at) > DELAYS_AGE;
        while self.delays.len() > MAX_DELAYS || self.delays.front().is_some_and(is_old) {
            self.delays.pop_front();
        }
        let mut sorted: Vec<u64> = self.delays.iter().map(|&(_, delay)| delay).collect();
        sorted.sort_unstable();
        self.usual = sorted[sorted.len() / 4];
    }

    /// Notes that no record is open below an offset.
    pub(super) fn close_until(&mut self, offset: i64) {
        while self.ledger.front().is_some_and(|&(_, end)| end <= offset) {
            self.ledger.pop_front();
        }
    }

    /// The age that a commit usually leaves open, at most a gap.
    pub(super) fn usual(&self) -> u64 {
        self.usual.min(self.gap)
    }

    /// Returns whether a record came in the last ten minutes.
    pub(super) fn was_written(&self, now: Time) -> bool {
        self.written_at.is_some_and(|at| now.nanos_since(at) <= DELAYS_AGE)
    }

    /// The signal of a partition with open records that was written to lately.
    pub(super) fn signal(&self, now: Time) -> Option<Signal> {
        let oldest = self.ledger.front().map(|&(arrival, _)| arrival).filter(|_| self.was_written(now))?;
        let (gap, usual) = (self.gap, self.usual());
        let is_fresh = now.nanos_since(self.commit.at) <= gap + gap / 2 + SECOND;
        let delay = if is_fresh { self.delay } else { 0 };
        let overdue = now.nanos_since(oldest).saturating_sub(gap + gap / 5 + SECOND / 2);
        Some(Signal {
            late: delay.max(overdue).saturating_sub(usual),
            is_quiet: self.silence(now, oldest) > 2 * gap + gap / 2 + 2 * SECOND,
        })
    }

    fn silence(&self, now: Time, oldest: Time) -> u64 {
        now.nanos_since(self.commit.at.max(oldest))
    }

    /// Returns whether a record has been open for long without a commit.
    pub(super) fn is_stuck(&self, now: Time) -> bool {
        self.ledger.front().is_some_and(|&(oldest, _)| self.silence(now, oldest) >= STUCK_AFTER)
    }

    /// The offsets of which no record is committed, markers included.
    pub(super) fn open_offsets(&self) -> u64 {
        if self.ledger.is_empty() { 0 } else { u64::try_from(self.end - self.commit.offset).unwrap_or(0) }
    }

    /// The open offsets, if the end has not moved for one and a half gaps.
    pub(super) fn doubtful_tail(&self, now: Time, partition: i32) -> Option<Offsets> {
        let still = self.written_at.map_or(0, |at| now.nanos_since(at)) > self.gap + self.gap / 2;
        let tail = Offsets { partition, end: self.end, committed: self.commit.offset };
        (still && !self.ledger.is_empty()).then_some(tail)
    }
}
