//! Seeded numbers.

use std::time::Duration;

/// Splitmix64.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The `index`-th stream of a seed: the same numbers whatever else was drawn before.
    pub fn stream(seed: u64, index: u64) -> Random {
        let mut random = Random(seed ^ index.wrapping_mul(0xD134_2543_DE82_EF95));
        random.word();
        random
    }

    /// Any number.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// From 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// From 0 to below `end`; 0 if that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(end)) >> 64) as u64
    }

    /// An index of something of this length.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// True once in so many times.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// `from` to `to`, both included.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// True `times` in ten thousand.
    pub fn strikes(&mut self, times: u32) -> bool {
        times > 0 && self.below(10_000) < u64::from(times)
    }

    /// `from` to `to` milliseconds.
    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.between(from, to))
    }

    /// A number of any magnitude: mostly small ones, below 2^`bits`.
    pub fn magnitude(&mut self, bits: u64) -> u64 {
        let width = self.below(bits + 1);
        if width == 0 { 0 } else { self.word() >> (64 - width) }
    }

    /// One of these.
    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }
}
