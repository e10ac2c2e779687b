//! Bits by offset, in a ring of words that moves with the lowest offset of interest.

const WORD: u64 = u64::BITS as u64;
/// Words that a ring starts with once it holds anything: 64 bytes.
const FIRST_WORDS: usize = 8;
/// A ring larger than this (32 KiB) is freed once no bit is set.
const KEPT_WORDS: usize = 4096;

/// Bits by offset, unset at first. Bits below [`forget_below`](BitRing::forget_below) have no meaning.
#[derive(Debug, Clone, Default)]
pub(super) struct BitRing {
    /// Empty, or a power of two of words; the word of offsets `64 w ..` is at `w` modulo the length.
    words: Vec<u64>,
    /// The lowest word that is kept, in offsets / 64.
    first: u64,
}

impl BitRing {
    /// Returns whether the bit of `offset` is set.
    pub fn get(&self, offset: u64) -> bool {
        self.word(offset / WORD) >> (offset % WORD) & 1 == 1
    }

    /// Sets the bits of `from..to`, all at or beyond what was forgotten.
    pub fn set(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let (first, last) = (from / WORD, (to - 1) / WORD);
        self.reserve(last);
        for word in first..=last {
            let low = if word == first { from % WORD } else { 0 };
            let high = if word == last { (to - 1) % WORD } else { WORD - 1 };
            let slot = self.slot(word);
            self.words[slot] |= u64::MAX << low & u64::MAX >> (WORD - 1 - high);
        }
    }

    /// The first unset bit in `from..limit`, or `limit`.
    pub fn next_unset(&self, from: u64, limit: u64) -> u64 {
        self.next(from, limit, u64::MAX)
    }

    /// The first set bit in `from..limit`, or `limit`.
    pub fn next_set(&self, from: u64, limit: u64) -> u64 {
        self.next(from, limit, 0)
    }

    /// Forgets the bits below `offset`; their words are free for those ahead.
    pub fn forget_below(&mut self, offset: u64) {
        let first = offset / WORD;
        if first <= self.first {
            return;
        }
        let passed = (first - self.first).min(self.words.len() as u64);
        for word in self.first..self.first + passed {
            let slot = self.slot(word);
            self.words[slot] = 0;
        }
        self.first = first;
    }

    /// Forgets all bits, none of which is set at or beyond `offset`, and frees a large ring.
    pub fn rest_at(&mut self, offset: u64) {
        if self.words.len() > KEPT_WORDS {
            self.words = Vec::new();
        }
        self.forget_below(offset);
    }

    /// The first bit in `from..limit` that differs from those of `skipped`.
    fn next(&self, from: u64, limit: u64, skipped: u64) -> u64 {
        if from >= limit {
            return limit;
        }
        let mut word = from / WORD;
        let mut found = (self.word(word) ^ skipped) & u64::MAX << (from % WORD);
        while found == 0 {
            word += 1;
            if word > (limit - 1) / WORD {
                return limit;
            }
            found = self.word(word) ^ skipped;
        }
        (word * WORD + u64::from(found.trailing_zeros())).min(limit)
    }

    fn word(&self, word: u64) -> u64 {
        if word.wrapping_sub(self.first) < self.words.len() as u64 { self.words[self.slot(word)] } else { 0 }
    }

    /// The length is a power of two, so that truncating `word` first changes nothing.
    fn slot(&self, word: u64) -> usize {
        word as usize & (self.words.len() - 1)
    }

    /// Makes room up to and including `last`, in doublings.
    fn reserve(&mut self, last: u64) {
        let needed = (last - self.first + 1) as usize;
        if needed <= self.words.len() {
            return;
        }
        let length = needed.next_power_of_two().max(FIRST_WORDS);
        let mut grown = vec![0; length];
        for word in self.first..self.first + self.words.len() as u64 {
            grown[word as usize & (length - 1)] = self.words[self.slot(word)];
        }
        self.words = grown;
    }
}
