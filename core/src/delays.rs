//! Histograms of the time for which records waited.

use std::time::Duration;

use crate::units::nanos;

/// Upper bounds of the exported buckets, in seconds; above the last one is the overflow.
pub const BOUNDS: [f64; 18] =
    [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0];

/// Upper bounds of the buckets of one client's delays, in seconds. They are few, since every client has its own.
pub const CLIENT_BOUNDS: [f64; 11] = [0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 90.0, 300.0, 900.0];

/// A histogram over [`BOUNDS`] that keeps each bucket's sum too, so that the exported sum is exact.
#[derive(Debug, Clone, Default)]
pub struct Histogram {
    pub counts: [u64; BOUNDS.len() + 1],
    /// Seconds.
    pub sums: [f64; BOUNDS.len() + 1],
}

impl Histogram {
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

/// A histogram over [`CLIENT_BOUNDS`] of the delays of one client, or of several clients together. Whole numbers add
/// up exactly, in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct ClientDelays {
    pub counts: [u64; CLIENT_BOUNDS.len() + 1],
    /// The sum of the delays, in microseconds.
    pub sum: u64,
    /// The longest delay, in microseconds.
    pub longest: u64,
}

impl ClientDelays {
    pub fn record(&mut self, delay: Duration) {
        let (seconds, micros) = (delay.as_secs_f64(), nanos(delay) / 1_000);
        self.counts[CLIENT_BOUNDS.iter().take_while(|&&bound| bound < seconds).count()] += 1;
        self.sum = self.sum.saturating_add(micros);
        self.longest = self.longest.max(micros);
    }

    pub fn merge(&mut self, other: &ClientDelays) {
        self.counts.iter_mut().zip(other.counts).for_each(|(mine, theirs)| *mine += theirs);
        self.sum = self.sum.saturating_add(other.sum);
        self.longest = self.longest.max(other.longest);
    }

    /// Estimates the delay in seconds that a part `q` of the delays does not exceed; `None` without delays. Within a
    /// bucket the delays are taken to be spread evenly, as Prometheus does.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let rank = q * self.counts.iter().sum::<u64>() as f64;
        let longest = self.longest as f64 / 1e6;
        let (mut below, mut lower) = (0.0, 0.0);
        for (&count, upper) in self.counts.iter().zip(CLIENT_BOUNDS.into_iter().chain([longest])) {
            let count = count as f64;
            if count > 0.0 && below + count >= rank {
                return Some((lower + (upper - lower) * (rank - below) / count).min(longest));
            }
            (below, lower) = (below + count, upper);
        }
        None
    }
}

#[cfg(test)]
mod tests;
