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

#[cfg(test)]
mod tests;
