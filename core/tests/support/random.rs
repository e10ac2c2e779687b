//! Random numbers from a seed.

use std::time::Duration;

/// Splitmix64.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// Returns the `index`-th stream of a seed, independent of numbers drawn from other streams.
    pub fn stream(seed: u64, index: u64) -> Random {
        let mut random = Random(seed ^ index.wrapping_mul(0xD134_2543_DE82_EF95));
        random.word();
        random
    }

    /// Draws any number.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// Draws a number from 0 up to, but not including, 1.
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Draws a number from 0 up to, but not including, `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(end)) >> 64) as u64
    }

    /// Draws an index into a slice of this length.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Returns true with probability 1 / `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Draws a number from `from` to `to`, both included.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// Returns true with probability `times` / 10 000.
    pub fn chance(&mut self, times: u32) -> bool {
        times > 0 && self.below(10_000) < u64::from(times)
    }

    /// Draws a duration from `from` to `to` milliseconds.
    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.between(from, to))
    }

    /// Draws a number below 2^`bits`, with every bit length equally likely.
    pub fn magnitude(&mut self, bits: u64) -> u64 {
        let width = self.below(bits + 1);
        if width == 0 { 0 } else { self.word() >> (64 - width) }
    }

    /// Draws one of the choices.
    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }
}
