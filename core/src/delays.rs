//! Histograms of the time for which records waited.

use std::time::Duration;

/// Upper bounds of the exported buckets, in seconds; above the last one is the overflow.
pub const BOUNDS: [f64; 18] =
    [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0];

/// A histogram over [`BOUNDS`] that keeps each bucket's sum too, so that the exported sum is exact.
#[derive(Debug, Clone)]
pub struct Histogram {
    pub counts: [u64; BOUNDS.len() + 1],
    /// Seconds.
    pub sums: [f64; BOUNDS.len() + 1],
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: [0; BOUNDS.len() + 1], sums: [0.0; BOUNDS.len() + 1] }
    }
}

impl Histogram {
    /// Counts one value.
    pub fn record(&mut self, value: Duration) {
        // Most records do not wait.
        if value.is_zero() {
            self.counts[0] += 1;
            return;
        }
        let seconds = value.as_secs_f64();
        let bucket = BOUNDS.partition_point(|&bound| bound < seconds);
        self.counts[bucket] += 1;
        self.sums[bucket] += seconds;
    }
}

/// Eight buckets an octave from 1 ms up: a quantile is at most 9 % too high.
const PER_OCTAVE: f64 = 8.0;
/// The bound of the first bucket, in milliseconds.
const SHORTEST: f64 = 1.0;
const BUCKETS: usize = 180;

/// One client's delays, for its quantiles.
#[derive(Debug, Clone)]
pub struct DelayHistogram {
    at_once: u64,
    counts: [u32; BUCKETS],
    total: u64,
}

impl Default for DelayHistogram {
    fn default() -> DelayHistogram {
        DelayHistogram { at_once: 0, counts: [0; BUCKETS], total: 0 }
    }
}

impl DelayHistogram {
    /// Counts a record.
    pub fn record(&mut self, delay: Duration) {
        self.total += 1;
        if delay.is_zero() {
            self.at_once += 1;
            return;
        }
        let milliseconds = delay.as_secs_f64() * 1_000.0;
        // Most delays are short, and need no logarithm.
        let octaves = if milliseconds <= SHORTEST { 0.0 } else { milliseconds.log2() };
        let bucket = ((octaves * PER_OCTAVE).ceil() as usize).min(BUCKETS - 1);
        self.counts[bucket] = self.counts[bucket].saturating_add(1);
    }

    /// The smallest bucket bound that at least `q` of the delays do not exceed, in seconds.
    pub fn quantile(&self, q: f64) -> f64 {
        let rank = (self.total as f64 * q).ceil() as u64;
        let mut seen = self.at_once;
        if seen >= rank {
            return 0.0;
        }
        for (bucket, &count) in self.counts.iter().enumerate() {
            seen += u64::from(count);
            if seen >= rank {
                return (bucket as f64 / PER_OCTAVE).exp2() / 1_000.0;
            }
        }
        (BUCKETS as f64 / PER_OCTAVE).exp2() / 1_000.0
    }
}

#[cfg(test)]
mod tests;
