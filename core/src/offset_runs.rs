//! Completed offsets as runs, and the size of such a set: what [`tracker`](crate::tracker) and
//! [`offset_map`](crate::offset_map) share.

pub(crate) mod shape;

use std::ops::Range;

pub(crate) use shape::SetShape;

/// The most offsets between the committable offset and the end of an offset map; also bounds the bits of a tracker
/// (4 MiB).
pub const MAX_SPAN: u64 = 1 << 24;

/// Completed offsets: runs in ascending order that neither overlap nor touch, none empty, none below 0.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OffsetRuns(Vec<Range<i64>>);

impl OffsetRuns {
    /// An empty set.
    pub const fn new() -> OffsetRuns {
        OffsetRuns(Vec::new())
    }

    /// Adds a run at the end; runs that touch become one. Offsets at or below the end of the last run are left out.
    pub fn push(&mut self, run: Range<i64>) {
        match self.0.last_mut() {
            Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
            _ if run.start.max(0) < run.end => self.0.push(run.start.max(0)..run.end),
            _ => {}
        }
    }

    /// The runs, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Range<i64>> + '_ {
        self.0.iter().cloned()
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether `offset` is in the set.
    pub fn contains(&self, offset: i64) -> bool {
        let next = self.0.partition_point(|run| run.end <= offset);
        self.0.get(next).is_some_and(|run| run.contains(&offset))
    }
}

impl FromIterator<Range<i64>> for OffsetRuns {
    /// Collects runs in ascending order.
    fn from_iter<I: IntoIterator<Item = Range<i64>>>(runs: I) -> OffsetRuns {
        let mut collected = OffsetRuns::new();
        for run in runs {
            collected.push(run);
        }
        collected
    }
}
