//! What happened over time, in buckets of one width, and delays with their quantiles.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Delays in microseconds. A quantile is right to three digits.
#[derive(Debug, Clone)]
pub struct Delays {
    histogram: Histogram<u64>,
    /// The largest, exactly.
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

    /// Counts one.
    pub fn record(&mut self, delay: Duration) {
        let micros = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        // Saturating would not let it grow.
        self.histogram.record(micros).expect("it grows as far as it must");
        self.largest = self.largest.max(micros);
    }

    /// Counts all of another's.
    pub fn add(&mut self, other: &Delays) {
        self.histogram.add(&other.histogram).expect("it grows as far as it must");
        self.largest = self.largest.max(other.largest);
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// What at least so many of them (0 to 1) do not exceed, in seconds; 0 where there is none.
    pub fn quantile(&self, quantile: f64) -> f64 {
        if self.histogram.is_empty() {
            return 0.0;
        }
        // The histogram answers with the end of a range, which may lie beyond everything it was told.
        self.histogram.value_at_quantile(quantile).min(self.largest) as f64 / 1e6
    }
}

/// What happened in one bucket of time.
#[derive(Debug, Clone)]
pub struct Bucket {
    /// By client: sent, admitted, rejected.
    pub counts: Vec<[u64; 3]>,
    /// Of what was admitted.
    pub delays: Delays,
}

/// What is counted over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    Sent,
    Admitted,
    Rejected,
}

/// What happened over time.
#[derive(Debug, Clone)]
pub struct Series {
    width: Duration,
    clients: usize,
    buckets: Vec<Bucket>,
}

/// The widths that people can read off an axis, in milliseconds.
const WIDTHS: [u64; 11] = [250, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 600_000, 3_600_000];
/// So many buckets of the scenario's own length at most.
const FINEST: u128 = 120;
/// No more than so many in all: what comes later counts in the last.
const MOST: usize = 100_000;

impl Series {
    /// Of so many clients, wide enough for a scenario of this length.
    pub fn new(clients: usize, length: Duration) -> Series {
        let fits = |width: &&u64| u128::from(**width) * FINEST >= length.as_millis();
        let width = *WIDTHS.iter().find(fits).unwrap_or(&WIDTHS[WIDTHS.len() - 1]);
        Series { width: Duration::from_millis(width), clients, buckets: Vec::new() }
    }

    /// The length of a bucket.
    pub fn width(&self) -> Duration {
        self.width
    }

    /// From the start on.
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// One more, so long after the start.
    pub fn count(&mut self, at: Duration, client: usize, what: What) {
        self.bucket(at).counts[client][what as usize] += 1;
    }

    /// One more that was admitted, with its delay.
    pub fn count_admitted(&mut self, at: Duration, client: usize, delay: Duration) {
        let bucket = self.bucket(at);
        bucket.counts[client][What::Admitted as usize] += 1;
        bucket.delays.record(delay);
    }

    /// The same in at most so many buckets (1 or more), each several times as wide.
    pub fn coarse(&self, most: usize) -> Series {
        let factor = self.buckets.len().div_ceil(most.max(1)).max(1);
        let buckets = self.buckets.chunks(factor).map(|chunk| {
            let mut sum = self.empty();
            for bucket in chunk {
                sum.delays.add(&bucket.delays);
                for (mine, theirs) in sum.counts.iter_mut().flatten().zip(bucket.counts.iter().flatten()) {
                    *mine += theirs;
                }
            }
            sum
        });
        let width = self.width * u32::try_from(factor).unwrap_or(u32::MAX);
        Series { width, clients: self.clients, buckets: buckets.collect() }
    }

    fn bucket(&mut self, at: Duration) -> &mut Bucket {
        let index = usize::try_from(at.as_nanos() / self.width.as_nanos()).unwrap_or(usize::MAX).min(MOST - 1);
        while self.buckets.len() <= index {
            let empty = self.empty();
            self.buckets.push(empty);
        }
        &mut self.buckets[index]
    }

    fn empty(&self) -> Bucket {
        // Two digits are enough for a plot, and much smaller.
        Bucket { counts: vec![[0; 3]; self.clients], delays: Delays::with_digits(2) }
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
        fn coarser_is_the_same_in_sum(
            events in prop::collection::vec((0..600_000_u64, 0..3_usize, 0..2_usize), 0..200),
            most in 1..50_usize,
        ) {
            let mut series = Series::new(3, Duration::from_secs(30));
            for (at, client, what) in &events {
                let at = Duration::from_millis(*at);
                match what {
                    0 => series.count(at, *client, What::Sent),
                    _ => series.count_admitted(at, *client, at),
                }
            }
            let coarse = series.coarse(most);
            prop_assert!(coarse.buckets().len() <= most);
            prop_assert!(coarse.width().as_nanos() * coarse.buckets().len() as u128 >= series.width().as_nanos() * series.buckets().len() as u128);
            let sum = |series: &Series| series.buckets().iter().flat_map(|bucket| bucket.counts.iter().flatten()).sum::<u64>();
            prop_assert_eq!((sum(&coarse), sum(&series)), (events.len() as u64, events.len() as u64));
            let delays = |series: &Series| series.buckets().iter().map(|bucket| bucket.delays.count()).sum::<u64>();
            prop_assert_eq!(delays(&coarse), delays(&series));
        }
    }

    #[test]
    fn nothing_has_no_delay() {
        assert_eq!((Delays::default().quantile(0.5), Delays::default().count()), (0.0, 0));
    }

    #[test]
    fn buckets_are_as_wide_as_the_story_is_long() {
        let width = |seconds| Series::new(1, Duration::from_secs(seconds)).width().as_millis();
        assert_eq!([5, 30, 60, 120, 600, 1_000_000].map(width), [250, 250, 500, 1_000, 5_000, 3_600_000]);
    }
}
