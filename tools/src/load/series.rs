//! Counts over time, in buckets of one width, and delays with their quantiles.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Delays in microseconds. A quantile is exact to three digits.
#[derive(Debug, Clone)]
pub struct Delays {
    histogram: Histogram<u64>,
    /// The largest delay, exactly.
    largest: u64,
}

impl Default for Delays {
    fn default() -> Delays {
        Delays::with_digits(3)
    }
}

impl Delays {
    fn with_digits(digits: u8) -> Delays {
        Delays { histogram: Histogram::new(digits).expect("1 to 5 digits are allowed"), largest: 0 }
    }

    /// Counts a delay.
    pub fn record(&mut self, delay: Duration) {
        let micros = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        // A saturating record would not let the histogram grow.
        self.histogram.record(micros).expect("the histogram resizes itself");
        self.largest = self.largest.max(micros);
    }

    /// Adds all delays of another histogram.
    pub fn add(&mut self, other: &Delays) {
        self.histogram.add(&other.histogram).expect("the histogram resizes itself");
        self.largest = self.largest.max(other.largest);
    }

    /// Returns the number of delays.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the delay in seconds that this part of the delays (0 to 1) does not exceed; 0 if there is none.
    pub fn quantile(&self, quantile: f64) -> f64 {
        if self.histogram.is_empty() {
            return 0.0;
        }
        // The histogram returns the end of a range, which may lie beyond the largest value.
        self.histogram.value_at_quantile(quantile).min(self.largest) as f64 / 1e6
    }
}

/// Records of one client in one bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcomes {
    pub sent: u64,
    pub admitted: u64,
    pub rejected: u64,
}

/// One bucket of time.
#[derive(Debug, Clone)]
pub struct Bucket {
    pub clients: Vec<Outcomes>,
    /// Delays of the records that were admitted.
    pub delays: Delays,
}

/// Counts over time.
#[derive(Debug, Clone)]
pub struct Series {
    pub width: Duration,
    /// Buckets without a gap, from the start of the run.
    pub buckets: Vec<Bucket>,
    clients: usize,
}

/// Widths that people can read off an axis, in milliseconds.
const WIDTHS: [u64; 11] = [250, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 600_000, 3_600_000];
/// The most buckets for the length of the scenario.
const MAX_SCENARIO_BUCKETS: u128 = 120;
/// The most buckets in all: later events count in the last one.
const MAX_BUCKETS: usize = 100_000;

impl Series {
    /// Chooses the width for a scenario of this length.
    pub fn new(clients: usize, length: Duration) -> Series {
        let fits = |width: &&u64| u128::from(**width) * MAX_SCENARIO_BUCKETS >= length.as_millis();
        let width = *WIDTHS.iter().find(fits).unwrap_or(&WIDTHS[WIDTHS.len() - 1]);
        Series { width: Duration::from_millis(width), clients, buckets: Vec::new() }
    }

    /// Returns the bucket of a time since the start.
    pub fn at(&mut self, time: Duration) -> &mut Bucket {
        let index = usize::try_from(time.as_nanos() / self.width.as_nanos()).unwrap_or(usize::MAX).min(MAX_BUCKETS - 1);
        if self.buckets.len() <= index {
            self.buckets.resize(index + 1, self.empty());
        }
        &mut self.buckets[index]
    }

    /// Merges neighbours so that at most `most` buckets remain.
    pub fn coarse(&self, most: usize) -> Series {
        let factor = self.buckets.len().div_ceil(most.max(1)).max(1);
        let buckets = self.buckets.chunks(factor).map(|chunk| {
            let mut sum = self.empty();
            for bucket in chunk {
                sum.delays.add(&bucket.delays);
                for (total, part) in sum.clients.iter_mut().zip(&bucket.clients) {
                    total.sent += part.sent;
                    total.admitted += part.admitted;
                    total.rejected += part.rejected;
                }
            }
            sum
        });
        let width = self.width * u32::try_from(factor).unwrap_or(u32::MAX);
        Series { width, clients: self.clients, buckets: buckets.collect() }
    }

    fn empty(&self) -> Bucket {
        // Two digits are enough for a plot and take much less memory.
        Bucket { clients: vec![Outcomes::default(); self.clients], delays: Delays::with_digits(2) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn quantiles_are_those_of_the_sorted_delays(
            mut micros in prop::collection::vec(0..90_000_000_000_u64, 1..300),
            quantile in 0.0..=1.0_f64,
        ) {
            let mut delays = Delays::default();
            micros.iter().for_each(|delay| delays.record(Duration::from_micros(*delay)));
            micros.sort_unstable();
            let rank = ((quantile * micros.len() as f64).ceil() as usize).clamp(1, micros.len());
            let exact = micros[rank - 1] as f64 / 1e6;
            let found = delays.quantile(quantile);
            prop_assert!((found - exact).abs() <= exact * 1e-3 + 1e-6, "{found} for {exact}");
        }

        #[test]
        fn a_coarser_series_has_the_same_sums(
            events in prop::collection::vec((0..600_000_u64, 0..3_usize), 0..200),
            most in 1..50_usize,
        ) {
            let mut series = Series::new(3, Duration::from_secs(30));
            for (at, client) in &events {
                let at = Duration::from_millis(*at);
                series.at(at).clients[*client].admitted += 1;
                series.at(at).delays.record(at);
            }
            let coarse = series.coarse(most);
            prop_assert!(coarse.buckets.len() <= most);
            let length = |series: &Series| series.width.as_nanos() * series.buckets.len() as u128;
            prop_assert!(length(&coarse) >= length(&series));
            for series in [&coarse, &series] {
                let admitted = series.buckets.iter().flat_map(|bucket| &bucket.clients).map(|client| client.admitted);
                prop_assert_eq!(admitted.sum::<u64>(), events.len() as u64);
                let delays = series.buckets.iter().map(|bucket| bucket.delays.count());
                prop_assert_eq!(delays.sum::<u64>(), events.len() as u64);
            }
        }
    }

    #[test]
    fn without_delays_quantiles_are_0() {
        assert_eq!((Delays::default().quantile(0.5), Delays::default().count()), (0.0, 0));
    }

    #[test]
    fn the_width_of_buckets_follows_the_length_of_the_scenario() {
        let width = |seconds| Series::new(1, Duration::from_secs(seconds)).width.as_millis();
        assert_eq!([5, 30, 60, 120, 600, 1_000_000].map(width), [250, 250, 500, 1_000, 5_000, 3_600_000]);
    }
}
