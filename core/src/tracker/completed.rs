//! Completed offsets as bits, which move with the committable offset.

use std::collections::VecDeque;

/// A deque with room for more words than this (32 KiB) is freed once no offset is left.
const KEPT_WORDS: usize = 4096;

/// A set of offsets, a bit for each, from the lowest offset of interest to the highest completed one.
#[derive(Debug, Clone, Default)]
pub(super) struct CompletedBits {
    /// The first word holds the offsets `64 * first_word ..`; no bit outside of the words is set.
    words: VecDeque<u64>,
    first_word: i64,
    /// One past the highest offset; of no meaning when there is none.
    end: i64,
    pub count: u64,
    /// The number of runs that the offsets form.
    pub runs: u64,
}

impl CompletedBits {
    /// One past the highest offset.
    pub fn end(&self) -> Option<i64> {
        (self.count > 0).then_some(self.end)
    }

    pub fn contains(&self, offset: i64) -> bool {
        self.word(offset >> 6) >> (offset & 63) & 1 == 1
    }

    /// Adds `start..end`, of which no offset is in the set and none lies below what was forgotten.
    pub fn insert(&mut self, start: i64, end: i64) {
        if start >= end {
            return;
        }
        self.runs += 1;
        self.runs -= u64::from(self.contains(start - 1)) + u64::from(self.contains(end));
        self.end = self.end().map_or(end, |highest| highest.max(end));
        self.count += end.abs_diff(start);
        let (first, last) = (start >> 6, (end - 1) >> 6);
        let needed = (last - self.first_word + 1) as usize;
        if needed > self.words.len() {
            self.words.resize(needed, 0);
        }
        for word in first..=last {
            let low = if word == first { start & 63 } else { 0 };
            let high = if word == last { (end - 1) & 63 } else { 63 };
            self.words[(word - self.first_word) as usize] |= u64::MAX << low & u64::MAX >> (63 - high);
        }
    }

    /// Removes the lowest run, which starts at `start`. Returns its end.
    pub fn remove_run(&mut self, start: i64) -> i64 {
        let end = self.next_absent(start);
        self.count -= end.abs_diff(start);
        self.runs -= 1;
        self.forget_below(end);
        end
    }

    /// Forgets the offsets below `offset`, of which none is in the set; their words are free for those ahead.
    pub fn forget_below(&mut self, offset: i64) {
        let passed = (offset >> 6) - self.first_word;
        self.first_word = offset >> 6;
        if self.count == 0 {
            self.words.clear();
            self.words.shrink_to(KEPT_WORDS);
        } else {
            self.words.drain(..passed as usize);
            self.words[0] &= u64::MAX << (offset & 63);
        }
    }

    /// The first offset from `from` on that is not in the set.
    pub fn next_absent(&self, from: i64) -> i64 {
        self.next(from, i64::MAX, u64::MAX)
    }

    /// The first offset in `from..limit` that is in the set, or `limit`.
    pub fn next_present(&self, from: i64, limit: i64) -> i64 {
        match self.end() {
            Some(end) if from < end => self.next(from, limit, 0),
            _ => limit,
        }
    }

    /// The first offset in `from..limit` with a bit that differs from those of `skipped`, or `limit`.
    fn next(&self, from: i64, limit: i64, skipped: u64) -> i64 {
        let mut word = from >> 6;
        let mut found = (self.word(word) ^ skipped) & u64::MAX << (from & 63);
        while found == 0 && word < (limit - 1) >> 6 {
            word += 1;
            found = self.word(word) ^ skipped;
        }
        (word << 6).saturating_add(i64::from(found.trailing_zeros())).min(limit)
    }

    fn word(&self, word: i64) -> u64 {
        // A word below the first one wraps to an index beyond all words.
        self.words.get((word - self.first_word) as usize).copied().unwrap_or(0)
    }
}
