//! Completed offsets as runs.

use std::ops::Range;

/// Completed offsets: runs in ascending order that neither overlap nor touch, none empty, none below 0.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OffsetRuns(Vec<Range<i64>>);

impl OffsetRuns {
    /// No offsets.
    pub const fn new() -> OffsetRuns {
        OffsetRuns(Vec::new())
    }

    /// Adds a run at the end; runs that touch become one. What is not beyond the last run already is left out.
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

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `offset` is one of them.
    pub fn contains(&self, offset: i64) -> bool {
        let next = self.0.partition_point(|run| run.end <= offset);
        self.0.get(next).is_some_and(|run| run.contains(&offset))
    }
}

impl FromIterator<Range<i64>> for OffsetRuns {
    /// From runs in ascending order.
    fn from_iter<I: IntoIterator<Item = Range<i64>>>(runs: I) -> OffsetRuns {
        let mut collected = OffsetRuns::new();
        for run in runs {
            collected.push(run);
        }
        collected
    }
}
