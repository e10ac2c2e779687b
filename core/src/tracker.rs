//! The completed offsets of a partition.
//!
//! The log is read in order, records complete in any order, and the committable offset is the first one that is not
//! completed. Offsets that the log skips (compaction, transaction markers) are *holes*. A hole counts as the record
//! before it: completed if that record is, or once it completes. So reading alone never makes the set larger in a
//! commit; only [`complete`](Tracker::complete) does, and its owner asks
//! [`bits_bound_after`](Tracker::bits_bound_after) before.

mod holes;
mod ring;

use std::ops::Range;

use crate::offset_runs::{MAX_SPAN, OffsetRuns, SetShape};
use holes::Holes;
use ring::BitRing;

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
/// Everything below is O(1), amortised, unless it says otherwise. It takes a bit for each offset between the
/// committable one and the highest completed, and an entry for each waiting record that a hole follows.
#[derive(Debug, Clone)]
pub struct Tracker {
    /// The first offset that is not completed. Its record waits, or it was not read yet.
    base: u64,
    /// The next offset that the log may give.
    next: u64,
    /// One past the highest completed record; of no meaning when nothing beyond `base` is completed.
    end: u64,
    /// The number of completed offsets in `base..end`.
    completed: u64,
    /// The number of runs that the completed offsets form.
    runs: u64,
    /// Holes from `end` on, which are as completed as the record before them but need not be written down.
    trailing: u64,
    /// Records that were observed and are not completed.
    pending: u64,
    /// The completed offsets of `base..end`; nothing is set beyond.
    bits: BitRing,
    /// Holes that do not count as completed yet.
    holes: Holes,
}

impl Tracker {
    /// A tracker that has read and completed no offset from `base` on.
    pub fn new(base: i64) -> Tracker {
        let base = index(base);
        Tracker {
            base,
            next: base,
            end: base,
            completed: 0,
            runs: 0,
            trailing: 0,
            pending: 0,
            bits: BitRing::default(),
            holes: Holes::default(),
        }
    }

    /// A tracker that has read nothing, with the completed offsets of the map beside the committed offset `base`.
    /// Offsets more than [`MAX_SPAN`] beyond `base`, which no map contains, are left out.
    pub fn restore(base: i64, completed: &OffsetRuns) -> Tracker {
        let mut tracker = Tracker::new(base);
        let from = tracker.base;
        for run in completed.iter() {
            let run = index(run.start).max(from)..index(run.end).min(from + MAX_SPAN);
            if run.start < run.end {
                tracker.append(run);
            }
        }
        tracker.advance(from);
        tracker
    }

    /// The tracker as it was before these offsets, all of which are completed. Takes a step for each offset and run.
    pub fn without(&self, offsets: &[i64]) -> Tracker {
        let mut offsets: Vec<i64> = offsets.to_vec();
        offsets.sort_unstable();
        let Some(&first) = offsets.first() else { return self.clone() };
        let base = first.min(self.base());
        let below = (base < self.base()).then(|| base..self.base());
        let mut completed = OffsetRuns::new();
        let mut gaps = offsets.into_iter().peekable();
        for run in below.into_iter().chain(self.runs()) {
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
        offset_of(self.base)
    }

    /// The next offset to read: one past the highest that was observed, at first the base that it started from.
    pub fn next(&self) -> i64 {
        offset_of(self.next)
    }

    /// Returns whether an offset is completed; all below the base are, a hole is when the record before it is.
    pub fn is_completed(&self, offset: i64) -> bool {
        self.is_done(index(offset))
    }

    /// One past the highest completed record, less the base; 0 if nothing beyond the base is completed.
    pub fn span(&self) -> u64 {
        if self.completed == 0 { 0 } else { self.end - self.base }
    }

    /// Records that were observed and are not completed.
    pub fn pending(&self) -> u64 {
        self.pending
    }

    /// The first record that was observed and is not completed.
    pub fn first_pending(&self) -> Option<i64> {
        (self.base < self.next).then(|| self.base())
    }

    /// Every record that was observed and is not completed, ascending. Takes a step for each, and for each 64
    /// completed ones.
    pub fn iter_pending(&self) -> impl Iterator<Item = i64> + '_ {
        let mut from = self.base;
        std::iter::from_fn(move || {
            let offset = self.next_waiting(from);
            from = offset + 1;
            (offset < self.next).then(|| offset_of(offset))
        })
    }

    /// The runs of completed offsets beyond the base, ascending. Takes a step for each, and for each 64 offsets.
    pub fn runs(&self) -> impl Iterator<Item = Range<i64>> + '_ {
        let mut from = self.base;
        let end = self.base + self.span();
        std::iter::from_fn(move || {
            let start = self.bits.next_set(from, end);
            from = self.bits.next_unset(start, end);
            (start < end).then(|| offset_of(start)..offset_of(from))
        })
    }

    /// The most bits that the completed set takes in a map now, without
    /// [`overhead_bits`](crate::offset_map::overhead_bits). Observing never makes it larger, nor does completing the
    /// record at the base.
    pub fn bits_bound(&self) -> u64 {
        self.shape().bits_bound()
    }

    /// [`bits_bound`](Self::bits_bound) as it would be once `offset` were completed too, or more if that is the base;
    /// `u64::MAX` if it lies [`MAX_SPAN`] or more beyond the base.
    pub fn bits_bound_after(&self, offset: i64) -> u64 {
        let offset = index(offset);
        if offset == self.base || self.is_done(offset) {
            return self.bits_bound();
        }
        if offset - self.base >= MAX_SPAN {
            return u64::MAX;
        }
        let shape = if offset < self.tail() { self.shape_within(offset) } else { self.shape_beyond(offset) };
        shape.bits_bound()
    }

    /// Notes that a record with this offset was read. Offsets from [`next`](Self::next) to it are holes.
    #[inline]
    pub fn observe(&mut self, offset: i64) -> Seen {
        let offset = index(offset);
        // Nearly always: the next one, and nothing beyond the base is completed.
        if offset == self.next && offset >= self.base && self.completed == 0 {
            self.next = offset + 1;
            self.pending += 1;
            return Seen::New;
        }
        self.observe_any(offset)
    }

    #[inline(never)]
    fn observe_any(&mut self, offset: u64) -> Seen {
        if offset < self.next {
            return if self.is_done(offset) { Seen::Completed } else { Seen::Again };
        }
        self.skip(offset);
        self.next = offset + 1;
        if self.is_done(offset) {
            return Seen::Completed;
        }
        self.pending += 1;
        Seen::New
    }

    /// Notes that the log was read up to this offset, exclusive: offsets from [`next`](Self::next) to it are holes.
    pub fn observe_end(&mut self, offset: i64) {
        self.skip(index(offset));
    }

    /// Completes a record that was observed. Completing it again makes no difference.
    ///
    /// A record [`MAX_SPAN`] or more beyond the base cannot complete (`bits_bound_after` refuses it): it stays pending.
    #[inline]
    pub fn complete(&mut self, offset: i64) {
        let Ok(offset) = u64::try_from(offset) else {
            return;
        };
        debug_assert!(offset < self.next, "{offset} was not observed, {} is next", self.next);
        if offset == self.base && self.completed == 0 && self.holes.is_empty() {
            self.base += 1;
            self.pending = self.pending.saturating_sub(1);
        } else {
            self.complete_any(offset);
        }
    }

    #[inline(never)]
    fn complete_any(&mut self, offset: u64) {
        if !self.is_done(offset) && offset - self.base < MAX_SPAN {
            self.pending = self.pending.saturating_sub(1);
            self.complete_waiting(offset);
        }
    }

    /// The counts of the set, which tell its size.
    pub(crate) fn shape(&self) -> SetShape {
        SetShape { pairs: self.runs, waiting: self.span() - self.completed, completed: self.completed }
    }

    fn complete_waiting(&mut self, offset: u64) {
        let holes = self.holes.take(offset);
        if offset == self.base {
            self.advance(offset + 1 + holes);
        } else if offset < self.tail() {
            self.fill(offset..(offset + 1 + holes).min(self.base + MAX_SPAN));
        } else {
            if self.trailing > 0 {
                self.append(self.end..self.end + self.trailing);
            }
            self.append(offset..offset + 1);
            self.trailing = holes;
        }
    }

    fn is_done(&self, offset: u64) -> bool {
        offset < self.base
            || self.completed > 0 && offset < self.tail() && (offset >= self.end || self.bits.get(offset))
    }

    /// One past the highest completed offset, trailing holes included.
    fn tail(&self) -> u64 {
        if self.completed == 0 { self.base } else { self.end + self.trailing }
    }

    /// Records that `run` is completed, which lies at or beyond the end and has no trailing holes before it.
    fn append(&mut self, run: Range<u64>) {
        if self.completed == 0 {
            self.bits.forget_below(self.base);
        }
        let touches = self.completed > 0 && run.start == self.end;
        self.runs += u64::from(!touches);
        self.completed += run.end - run.start;
        self.end = run.end;
        self.bits.set(run.start, run.end);
    }

    /// Records that `range`, which begins below the end, is completed. In most cases all of it waited.
    fn fill(&mut self, range: Range<u64>) {
        let mut from = range.start;
        while from < range.end.min(self.end) {
            let start = self.bits.next_unset(from, range.end);
            let stop = self.bits.next_set(start, range.end);
            if start == stop {
                return;
            }
            let before = start > self.base && self.bits.get(start - 1);
            let after = self.bits.get(stop);
            self.runs = self.runs + 1 - u64::from(before) - u64::from(after);
            self.completed += stop - start;
            self.trailing = self.trailing.saturating_sub(stop.saturating_sub(self.end));
            self.end = self.end.max(stop);
            self.bits.set(start, stop);
            from = stop;
        }
    }

    /// Moves the base to `to`, and on over what is completed there.
    fn advance(&mut self, to: u64) {
        let mut to = to;
        loop {
            self.pass(to);
            let holes = self.holes.take(self.base.saturating_sub(1));
            if holes == 0 {
                break;
            }
            to = self.base + holes;
        }
        if self.completed == 0 {
            self.bits.rest_at(self.base);
        } else {
            self.bits.forget_below(self.base);
        }
    }

    /// Moves the base to `to` or beyond, over recorded runs to the end of the last one that it meets.
    fn pass(&mut self, to: u64) {
        loop {
            if self.completed > 0 && self.bits.get(self.base) {
                self.pass_run();
            } else if self.base >= to {
                return;
            } else if self.completed > 0 {
                self.base = self.bits.next_set(self.base, to.min(self.end));
            } else {
                self.base = to;
            }
        }
    }

    /// The base is at the start of a run: moves it to that run's end.
    fn pass_run(&mut self) {
        let stop = self.bits.next_unset(self.base, self.end);
        self.completed -= stop - self.base;
        self.runs -= 1;
        self.base = stop;
        if self.completed == 0 {
            self.base += std::mem::take(&mut self.trailing);
        }
    }

    /// The log skips from `next` to `to`.
    fn skip(&mut self, to: u64) {
        let from = self.next.max(self.base);
        self.next = self.next.max(to);
        if from >= to {
            return;
        }
        if from == self.base {
            self.advance(to);
            return;
        }
        let within = to.min(self.base + self.span());
        self.hold_within(from, within);
        let from = from.max(within);
        if from < to && self.completed > 0 && from <= self.tail() {
            self.trailing = self.trailing.max(to - self.end);
        } else if from < to {
            self.holes.add(from, to);
        }
    }

    /// The log skips what a map did not record: it stays so, for filling it could make the map larger.
    fn hold_within(&mut self, from: u64, to: u64) {
        let mut from = from;
        while from < to {
            let start = self.bits.next_unset(from, to);
            from = self.bits.next_set(start, to);
            if start < from {
                self.holes.add(start, from);
            }
        }
    }

    /// The shape once `offset`, which waits below the end, were completed.
    fn shape_within(&self, offset: u64) -> SetShape {
        let SetShape { pairs, waiting, completed } = self.shape();
        let count = 1 + self.holes.after(offset);
        let before = self.bits.get(offset - 1);
        let after = self.bits.get(offset + count);
        SetShape {
            pairs: pairs + 1 - u64::from(before) - u64::from(after),
            waiting: waiting.saturating_sub(count),
            completed: completed + count,
        }
    }

    /// The shape once `offset`, beyond all that is completed, were completed.
    fn shape_beyond(&self, offset: u64) -> SetShape {
        let touches = self.completed > 0 && offset == self.tail();
        let completed = self.completed + self.trailing + 1;
        SetShape { pairs: self.runs + u64::from(!touches), waiting: offset + 1 - self.base - completed, completed }
    }

    /// The first offset at or beyond `from` that is neither completed nor a hole.
    fn next_waiting(&self, from: u64) -> u64 {
        let mut offset = from;
        loop {
            let end = self.base + self.span();
            if offset < end {
                offset = self.bits.next_unset(offset, end);
            }
            if self.completed > 0 && offset >= end {
                offset = offset.max(self.tail());
            }
            let holes = self.holes.after(offset.saturating_sub(1));
            if holes == 0 || offset <= self.base {
                return offset;
            }
            offset += holes;
        }
    }
}

/// Kafka's offsets are never negative.
fn index(offset: i64) -> u64 {
    u64::try_from(offset).unwrap_or(0)
}

fn offset_of(index: u64) -> i64 {
    i64::try_from(index).unwrap_or(i64::MAX)
}
