//! A random generator that a seed fixes.

/// SplitMix64: the same sequence on every machine, good enough for arrivals and sizes.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Starts the sequence of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from 0 to `bound` − 1.
    pub fn below(&mut self, bound: u32) -> u32 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u32
    }

    /// Returns a number from 0 to below 1, in steps of 2^-53.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns the gap to the next of independent events that come once in a unit of time on average.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_range_and_their_mean() {
        let mut random = Random::new(5);
        let units: Vec<f64> = (0..10_000).map(|_| random.unit()).collect();
        assert!(units.iter().all(|unit| (0.0..1.0).contains(unit)));
        assert!((units.iter().sum::<f64>() / 10_000.0 - 0.5).abs() < 0.02);
        let gaps: Vec<f64> = (0..10_000).map(|_| random.exponential()).collect();
        assert!(gaps.iter().all(|gap| gap.is_finite() && *gap >= 0.0));
        assert!((gaps.iter().sum::<f64>() / 10_000.0 - 1.0).abs() < 0.05);
        assert!((0..1_000).all(|_| random.below(7) < 7));
    }
}
