//! The state of each offset of a partition, in runs.

use std::collections::BTreeMap;
use std::ops::Range;

use strum::{IntoStaticStr, VariantArray};

/// The state of a dead letter that is not open any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum DoneState {
    /// A job sent it again.
    Redriven,
    /// A job sent it to the parking topic.
    Parked,
    /// `dlq close` marked it: it needs no redrive.
    Closed,
}

/// The offsets of a partition that are done. All others are open.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Runs(
    /// The first offset of each run, with its end and state. Runs neither overlap nor are empty, and two of the same
    /// state do not touch.
    BTreeMap<i64, (i64, DoneState)>,
);

impl Runs {
    /// Returns the state of an offset; `None` if it is open.
    pub fn state(&self, offset: i64) -> Option<DoneState> {
        let (_, (end, state)) = self.0.range(..=offset).next_back()?;
        (offset < *end).then_some(*state)
    }

    /// Returns the first open offset that is not below `offset`.
    pub fn first_open(&self, mut offset: i64) -> i64 {
        while let Some((_, (end, _))) = self.0.range(..=offset).next_back().filter(|(_, (end, _))| offset < *end) {
            offset = *end;
        }
        offset
    }

    /// Returns the runs within `range`, cut at its ends.
    pub fn within(&self, range: Range<i64>) -> impl Iterator<Item = (Range<i64>, DoneState)> + '_ {
        let before = self.0.range(..range.start).next_back();
        let all = before.into_iter().chain(self.0.range(range.start..range.end.max(range.start)));
        let cut = move |(start, (end, state)): (&i64, &(i64, DoneState))| {
            ((*start).max(range.start)..(*end).min(range.end), *state)
        };
        all.map(cut).filter(|(range, _)| !range.is_empty())
    }

    /// Returns the number of offsets within `range` that are done.
    pub fn count(&self, range: Range<i64>) -> u64 {
        self.within(range).map(|(run, _)| (run.end - run.start).unsigned_abs()).sum()
    }

    /// Returns the open offsets within `range`, as ranges.
    pub fn gaps(&self, range: Range<i64>) -> Vec<Range<i64>> {
        let mut gaps = Vec::new();
        let mut start = range.start;
        for (run, _) in self.within(range.clone()) {
            gaps.push(start..run.start);
            start = run.end;
        }
        gaps.push(start..range.end);
        gaps.retain(|gap| !gap.is_empty());
        gaps
    }

    /// Sets the state of all offsets of a range; `None` opens them.
    pub fn set(&mut self, range: Range<i64>, state: Option<DoneState>) {
        let Range { mut start, mut end } = range;
        if start >= end {
            return;
        }
        // Cut the run that begins before the range, then those that begin in it.
        if let Some((&first, &(last, old))) = self.0.range(..start).next_back().filter(|(_, (last, _))| *last > start) {
            self.0.insert(first, (start, old));
            if last > end {
                self.0.insert(end, (last, old));
            }
        }
        while let Some((&first, &(last, old))) = self.0.range(start..end).next() {
            self.0.remove(&first);
            if last > end {
                self.0.insert(end, (last, old));
            }
        }
        let Some(state) = state else { return };
        if let Some((&first, _)) = self.0.range(..start).next_back().filter(|(_, run)| **run == (start, state)) {
            start = first;
        }
        if let Some(&(last, _)) = self.0.get(&end).filter(|(_, old)| *old == state) {
            self.0.remove(&end);
            end = last;
        }
        self.0.insert(start, (end, state));
    }
}

#[cfg(test)]
mod tests;
