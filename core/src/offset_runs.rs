//! Completed offsets as runs, and the size of such a set: what [`tracker`](crate::tracker) and
//! [`offset_map`](crate::offset_map) share.

use std::ops::Range;

/// The most offsets between the committable offset and the end of an offset map; also bounds the bits of a tracker
/// (4 MiB).
pub const MAX_SPAN: u64 = 1 << 24;

/// Completed offsets: runs in ascending order that neither overlap nor touch, none empty, none below 0.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OffsetRuns(Vec<Range<i64>>);

impl OffsetRuns {
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

    pub fn iter(&self) -> impl Iterator<Item = Range<i64>> + '_ {
        self.0.iter().cloned()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains(&self, offset: i64) -> bool {
        let next = self.0.partition_point(|run| run.end <= offset);
        self.0.get(next).is_some_and(|run| run.contains(&offset))
    }
}

impl FromIterator<Range<i64>> for OffsetRuns {
    /// Collects runs in ascending order.
    fn from_iter<I: IntoIterator<Item = Range<i64>>>(runs: I) -> OffsetRuns {
        let mut collected = OffsetRuns::new();
        runs.into_iter().for_each(|run| collected.push(run));
        collected
    }
}

/// Bits before the set itself, at most: its kind, its count, two Rice parameters.
pub(crate) const HEADER_BITS: u64 = 2 + NUMBER_WIDTH_BITS as u64 + 25 + 2 * PARAMETER_BITS as u64;
/// Bits of the width of a number.
pub(crate) const NUMBER_WIDTH_BITS: u32 = 6;
/// Bits of a Rice parameter of the set; the sums are at most 2²⁴, so it is at most 24.
pub(crate) const PARAMETER_BITS: u32 = 5;

/// The counts of a set, known in O(1). A set begins with an offset that waits and ends with one that is completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SetShape {
    /// Runs of waiting offsets, each followed by a run of completed ones.
    pub pairs: u64,
    pub waiting: u64,
    pub completed: u64,
}

/// The ways to write a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunKind {
    /// The lengths of the runs, less one: waiting, completed, waiting, … With parameters 0 and 0 that is a bit for each
    /// offset, so the best parameters never take more.
    Runs { waiting: u32, completed: u32 },
    /// For each waiting offset, the completed ones between it and the next.
    AfterWaiting { parameter: u32 },
    /// For each completed offset, the waiting ones since the last.
    BeforeCompleted { parameter: u32 },
}

impl SetShape {
    /// The cheapest kind and the most bits that the set can take in it, without its header.
    pub(crate) fn cheapest(self) -> (RunKind, u64) {
        let SetShape { pairs, waiting, completed } = self;
        let (long_waiting, waiting_bits) = rice(pairs, waiting - pairs);
        let (long_completed, completed_bits) = rice(pairs, completed - pairs);
        let (after, after_bits) = rice(waiting, completed);
        let (before, before_bits) = rice(completed, waiting);
        let runs = RunKind::Runs { waiting: long_waiting, completed: long_completed };
        let mut best = (runs, waiting_bits + completed_bits);
        if after_bits < best.1 {
            best = (RunKind::AfterWaiting { parameter: after }, after_bits);
        }
        if before_bits < best.1 {
            best = (RunKind::BeforeCompleted { parameter: before }, before_bits);
        }
        best
    }

    /// The most bits that any set of this shape takes, header included; `u64::MAX` if it reaches beyond [`MAX_SPAN`].
    ///
    /// Each kind costs no more when a prefix of the set goes away (no count grows, nor does what the counts leave
    /// over), so completing the base never makes this larger.
    pub fn bits_bound(self) -> u64 {
        if self.waiting + self.completed > MAX_SPAN {
            return u64::MAX;
        }
        HEADER_BITS + self.cheapest().1
    }
}

/// The best Rice parameter for `count` values that add up to `sum`, and the most bits that they can take with it.
///
/// A value v takes `(v >> k) + 1 + k` bits, so all take at most `(sum >> k) + count (k + 1)`. From k to k + 1 that
/// grows by `count − ⌈(sum >> k) / 2⌉`, which only rises with k: the first k at which it is not negative is the best
/// of all.
pub(crate) fn rice(count: u64, sum: u64) -> (u32, u64) {
    let limit = 2 * count;
    if sum <= limit {
        return (0, sum + count);
    }
    if count == 0 {
        return (0, u64::MAX); // never so: a sum needs values
    }
    let rough = sum.ilog2() - limit.ilog2();
    let parameter = if sum >> rough <= limit { rough } else { rough + 1 };
    (parameter, (sum >> parameter) + count * u64::from(parameter + 1))
}
