//! Counts of the open dead letters of one partition by reason.
//!
//! The counts are kept in chunks of offsets. A chunk in which dead letters are done since it was counted is counted
//! again.

use std::ops::Range;

use watermaster_core::reason::Reason;

/// The most chunks of a partition, which take 24 KB. Beyond, the two smallest neighbours become one.
const MAX_CHUNKS: usize = 128;
/// The number of offsets up to which a chunk takes its successor in.
const SMALL_CHUNK: i64 = 10_000;

/// The labels of all reasons. The last one is for dead letters without a reason of Watermaster: other programs wrote
/// them.
pub const REASON_LABELS: [&str; Reason::NAMES.len() + 1] = {
    let mut labels = ["_other"; Reason::NAMES.len() + 1];
    let mut at = 0;
    while at < Reason::NAMES.len() {
        labels[at] = Reason::NAMES[at];
        at += 1;
    }
    labels
};

/// The dead letters with one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    pub records: u64,
    /// Milliseconds since 1970; `None` without a record that has a time.
    pub oldest_ms: Option<i64>,
}

/// A tally for each of [`REASON_LABELS`].
pub type Tallies = [Tally; REASON_LABELS.len()];

impl Tally {
    fn add(&mut self, other: Tally) {
        self.records += other.records;
        self.oldest_ms = self.oldest_ms.into_iter().chain(other.oldest_ms).min();
    }
}

/// Adds `tallies` to `sum`.
pub(super) fn merge(sum: &mut Tallies, tallies: &Tallies) {
    sum.iter_mut().zip(tallies).for_each(|(sum, tally)| sum.add(*tally));
}

/// The tallies of a run of offsets.
#[derive(Debug, Clone)]
pub(super) struct Chunk {
    start: i64,
    end: i64,
    /// The number of its offsets that are done, and so not counted.
    done: u64,
    tallies: Tallies,
}

impl Chunk {
    /// Makes a chunk that ends where it starts.
    pub fn starting_at(start: i64) -> Chunk {
        Chunk { start, end: start, done: 0, tallies: Tallies::default() }
    }

    /// Counts the record at `offset`, before which there is no other one.
    pub fn count(&mut self, offset: i64, reason: Option<&[u8]>, timestamp_ms: i64) {
        let at = REASON_LABELS.iter().position(|label| reason == Some(label.as_bytes()));
        let oldest_ms = (timestamp_ms >= 0).then_some(timestamp_ms);
        self.tallies[at.unwrap_or(REASON_LABELS.len() - 1)].add(Tally { records: 1, oldest_ms });
        self.end = offset + 1;
    }

    /// Extends the chunk to `end`, before which no further record is open.
    pub fn close(&mut self, end: i64) {
        self.end = end;
    }

    /// Takes the number of its offsets that are done; `done` returns that of a range.
    pub fn set_done(&mut self, done: impl Fn(Range<i64>) -> u64) {
        self.done = done(self.start..self.end);
    }

    fn len(&self) -> i64 {
        self.end - self.start
    }
}

/// The counted dead letters of one partition: chunks in order, which do not overlap.
#[derive(Debug, Default)]
pub(super) struct Chunks(Vec<Chunk>);

impl Chunks {
    /// Drops the chunks that begin before `range`, in which the open dead letters are, and those in which more are done
    /// now; `done` returns the number of those in a range. An end that moved back is that of another topic of the same
    /// name, so all chunks go.
    pub fn keep(&mut self, range: &Range<i64>, done: impl Fn(Range<i64>) -> u64) {
        let is_other = self.0.last().is_some_and(|last| last.end > range.end);
        let is_kept = |chunk: &Chunk| chunk.start >= range.start && chunk.done == done(chunk.start..chunk.end);
        self.0.retain(|chunk| !is_other && is_kept(chunk));
    }

    /// Returns the first run of offsets that is not counted.
    pub fn gap(&self, range: &Range<i64>) -> Option<Range<i64>> {
        let mut start = range.start;
        for chunk in &self.0 {
            if chunk.start > start {
                return Some(start..chunk.start);
            }
            start = chunk.end;
        }
        (start < range.end).then_some(start..range.end)
    }

    /// Adds a chunk that lies in a gap; an empty one changes nothing.
    pub fn add(&mut self, chunk: Chunk) {
        if chunk.len() == 0 {
            return;
        }
        let at = self.0.partition_point(|other| other.start < chunk.start);
        self.0.insert(at, chunk);
        if at > 0 && self.length_of_two(at - 1).is_some_and(|length| length <= SMALL_CHUNK) {
            self.join(at - 1);
        }
        while self.0.len() > MAX_CHUNKS {
            let pairs = (0..self.0.len() - 1).filter_map(|at| Some((self.length_of_two(at)?, at)));
            let Some((_, at)) = pairs.min() else { return };
            self.join(at);
        }
    }

    /// Returns the length of a chunk and its successor together; `None` if there is a gap between them.
    fn length_of_two(&self, at: usize) -> Option<i64> {
        let (one, next) = (&self.0[at], &self.0[at + 1]);
        (one.end == next.start).then(|| one.len() + next.len())
    }

    /// Makes one chunk of a chunk and its successor.
    fn join(&mut self, at: usize) {
        let next = self.0.remove(at + 1);
        self.0[at].end = next.end;
        self.0[at].done += next.done;
        merge(&mut self.0[at].tallies, &next.tallies);
    }

    /// Returns the tallies of all chunks, and the number of their offsets that are open.
    pub fn total(&self) -> (Tallies, u64) {
        let mut sum = Tallies::default();
        self.0.iter().for_each(|chunk| merge(&mut sum, &chunk.tallies));
        (sum, self.0.iter().map(|chunk| chunk.len().unsigned_abs() - chunk.done).sum())
    }
}

#[cfg(test)]
mod tests;
