//! The completed offsets of a partition.
//!
//! The log is read in order, records complete in any order, and the committable offset is the first one that is not
//! completed. Offsets that the log skips (compaction, transaction markers) are *holes*. A hole counts as the record
//! before it: completed if that record is, or once it completes. So reading alone never makes the set larger in a
//! commit; only [`complete`](Tracker::complete) does, and its owner asks
//! [`bits_bound_after`](Tracker::bits_bound_after) before.

mod completed;

use std::{collections::BTreeMap, iter, ops::Range};

use crate::offset_runs::{MAX_SPAN, OffsetRuns, SetShape};
use completed::CompletedBits;

/// The state of a record when it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Read for the first time, not completed: a decision is needed.
    New,
    /// Recorded as completed.
    Completed,
    /// Read before, not completed yet.
    Again,
}

/// The completed offsets of one partition.
///
/// Each call takes O(1), amortised, unless it says otherwise. The tracker takes a bit for each offset between the
/// committable one and the highest completed, and an entry for each waiting record that a hole follows.
#[derive(Debug, Clone)]
pub struct Tracker {
    /// The first offset that is not completed. Its record waits, or it was not read yet.
    base: i64,
    /// The next offset that the log may give.
    next: i64,
    /// The completed offsets beyond `base`, up to the highest completed record.
    completed: CompletedBits,
    /// Runs of holes beyond `base` that are not in `completed`, the end of each by its start. They follow a waiting
    /// record; or the highest completed one, and are completed but need not be written down; or a run in the middle,
    /// and stay there because to fill a gap that a map left could make the map larger.
    holes: BTreeMap<i64, i64>,
}

impl Tracker {
    /// A tracker that has read and completed no offset from `base` on.
    pub fn new(base: i64) -> Tracker {
        // Kafka's offsets are never negative.
        let base = base.max(0);
        Tracker { base, next: base, completed: CompletedBits::default(), holes: BTreeMap::new() }
    }

    /// A tracker that has read nothing, with the completed offsets of the map beside the committed offset `base`.
    /// Offsets more than [`MAX_SPAN`] beyond `base`, which no map contains, are left out.
    pub fn restore(base: i64, completed: &OffsetRuns) -> Tracker {
        let mut tracker = Tracker::new(base);
        let (start, end) = (tracker.base, tracker.base.saturating_add_unsigned(MAX_SPAN));
        tracker.completed.forget_below(start);
        for run in completed.iter() {
            tracker.completed.insert(run.start.max(start), run.end.min(end));
        }
        tracker.advance(start);
        tracker
    }

    /// The tracker as it was before these offsets, all of which are completed. Takes a step for each offset and run.
    pub fn without(&self, offsets: &[i64]) -> Tracker {
        let mut offsets = offsets.to_vec();
        offsets.sort_unstable();
        let base = offsets.first().map_or(self.base, |first| self.base.min(*first));
        let mut gaps = offsets.into_iter().peekable();
        let mut completed = OffsetRuns::new();
        for run in iter::once(base..self.base).chain(self.runs()) {
            let mut start = run.start;
            while let Some(gap) = gaps.next_if(|gap| *gap < run.end) {
                completed.push(start..gap);
                start = gap + 1;
            }
            completed.push(start..run.end);
        }
        Tracker::restore(base, &completed)
    }

    /// The committable offset: the first one that is not completed.
    pub fn base(&self) -> i64 {
        self.base
    }

    /// The next offset to read: one past the highest that was observed, at first the base that it started from.
    pub fn next(&self) -> i64 {
        self.next
    }

    /// Returns whether an offset is completed; all below the base are, a hole is when the record before it is.
    #[inline]
    pub fn is_completed(&self, offset: i64) -> bool {
        offset < self.base || self.completed.count > 0 && self.is_completed_beyond_base(offset)
    }

    #[inline(never)]
    fn is_completed_beyond_base(&self, offset: i64) -> bool {
        let end = self.end();
        if offset < end { self.completed.contains(offset) } else { offset < self.end_of_holes(end) }
    }

    /// One past the highest completed record, less the base; 0 if nothing beyond the base is completed.
    pub fn span(&self) -> u64 {
        self.end().abs_diff(self.base)
    }

    /// The runs of completed offsets beyond the base, ascending. Takes a step for each, and for each 64 offsets.
    pub fn runs(&self) -> impl Iterator<Item = Range<i64>> + '_ {
        let (mut from, end) = (self.base, self.end());
        iter::from_fn(move || {
            let start = self.completed.next_present(from, end);
            from = self.completed.next_absent(start);
            (start < end).then_some(start..from)
        })
    }

    /// The counts of the set, which tell its size.
    pub(crate) fn shape(&self) -> SetShape {
        let CompletedBits { count, runs, .. } = self.completed;
        SetShape { pairs: runs, waiting: self.span() - count, completed: count }
    }

    /// The most bits that the completed set takes in a map now, without
    /// [`overhead_bits`](crate::offset_map::overhead_bits). Observing never makes it larger, nor does completing the
    /// record at the base.
    pub fn bits_bound(&self) -> u64 {
        self.shape().bits_bound()
    }

    /// [`bits_bound`](Self::bits_bound) as it would be once `offset` were completed too, or more if that is the base;
    /// `u64::MAX` if it lies [`MAX_SPAN`] or more beyond the base.
    #[inline(never)]
    pub fn bits_bound_after(&self, offset: i64) -> u64 {
        if offset == self.base || self.is_completed(offset) {
            return self.bits_bound();
        }
        if offset.abs_diff(self.base) >= MAX_SPAN {
            return u64::MAX;
        }
        let SetShape { pairs, waiting, completed } = self.shape();
        let end = self.end();
        let shape = if offset < end {
            // The record and the holes after it fill a gap, or a part of one.
            let stop = self.end_of_holes(offset + 1);
            let (before, after) = (self.completed.contains(offset - 1), self.completed.contains(stop));
            let count = stop.abs_diff(offset);
            SetShape {
                pairs: pairs + 1 - u64::from(before) - u64::from(after),
                waiting: waiting.saturating_sub(count),
                completed: completed + count,
            }
        } else {
            // The holes after the end are written down as well.
            let holes_end = self.end_of_holes(end);
            let touches = end > self.base && offset == holes_end;
            let completed = completed + holes_end.abs_diff(end) + 1;
            let waiting = offset.abs_diff(self.base) + 1 - completed;
            SetShape { pairs: pairs + u64::from(!touches), waiting, completed }
        };
        shape.bits_bound()
    }

    /// Notes that a record with this offset was read. Offsets from [`next`](Self::next) to it are holes.
    #[inline]
    pub fn observe(&mut self, offset: i64) -> Seen {
        // Nearly always: the next one, and nothing beyond the base is completed.
        if offset == self.next && offset >= self.base && self.completed.count == 0 {
            self.next = offset + 1;
            return Seen::New;
        }
        self.observe_any(offset)
    }

    #[inline(never)]
    fn observe_any(&mut self, offset: i64) -> Seen {
        let again = offset < self.next;
        if !again {
            self.observe_end(offset);
            self.next = offset.saturating_add(1);
        }
        match (self.is_completed(offset), again) {
            (true, _) => Seen::Completed,
            (false, true) => Seen::Again,
            (false, false) => Seen::New,
        }
    }

    /// Notes that the log was read up to this offset, exclusive: offsets from [`next`](Self::next) to it are holes.
    pub fn observe_end(&mut self, end: i64) {
        let from = self.next.max(self.base);
        self.next = self.next.max(end);
        if from >= end {
            return;
        }
        if from == self.base {
            self.advance(end);
        } else {
            self.add_holes(from, end);
        }
    }

    /// Adds the offsets of `from..to` that no map recorded.
    fn add_holes(&mut self, mut from: i64, to: i64) {
        while from < to {
            let start = self.completed.next_absent(from);
            from = self.completed.next_present(start, to);
            match self.holes.last_entry() {
                // The log skipped the offsets before as well.
                Some(mut last) if *last.get() == start => *last.get_mut() = from,
                _ if start < from => drop(self.holes.insert(start, from)),
                _ => {}
            }
        }
    }

    /// Completes a record that was observed. Completing it again makes no difference.
    ///
    /// A record [`MAX_SPAN`] or more beyond the base cannot complete (`bits_bound_after` refuses it): it stays pending.
    #[inline]
    pub fn complete(&mut self, offset: i64) {
        debug_assert!(offset < self.next, "{offset} was not observed, {} is next", self.next);
        if offset == self.base && self.completed.count == 0 && self.holes.is_empty() {
            self.base += 1;
        } else if offset == self.base {
            self.advance(offset + 1);
        } else if !self.is_completed(offset) && offset.abs_diff(self.base) < MAX_SPAN {
            self.complete_beyond_base(offset);
        }
    }

    #[inline(never)]
    fn complete_beyond_base(&mut self, offset: i64) {
        self.completed.forget_below(self.base);
        let end = self.end();
        if offset < end {
            let holes_end = self.take_holes(offset + 1);
            self.completed.insert(offset, holes_end);
        } else {
            let holes_end = self.take_holes(end);
            self.completed.insert(end, holes_end);
            self.completed.insert(offset, offset + 1);
        }
    }

    /// Moves the base to `to`, and on over what is completed there.
    fn advance(&mut self, mut to: i64) {
        loop {
            self.base = self.completed.next_present(self.base, to);
            if self.completed.contains(self.base) {
                self.base = self.completed.remove_run(self.base);
            }
            to = self.take_holes(to.max(self.base));
            if to == self.base {
                return;
            }
        }
    }

    /// Removes the holes that start at `start`. Returns their end, or `start` if there are none.
    fn take_holes(&mut self, start: i64) -> i64 {
        self.holes.remove(&start).unwrap_or(start)
    }

    fn end_of_holes(&self, start: i64) -> i64 {
        self.holes.get(&start).copied().unwrap_or(start)
    }

    /// One past the highest completed record, or the base if nothing beyond it is completed.
    pub(crate) fn end(&self) -> i64 {
        self.completed.end().unwrap_or(self.base)
    }
}
