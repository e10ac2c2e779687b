//! Counts over time, in buckets of one width, and delays with their quantiles.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

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

/// The records of one client in each bucket.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClientSeries {
    pub name: String,
    pub sent: Vec<u64>,
    pub admitted: Vec<u64>,
    pub rejected: Vec<u64>,
}

impl ClientSeries {
    fn columns(&mut self) -> [&mut Vec<u64>; 3] {
        [&mut self.sent, &mut self.admitted, &mut self.rejected]
    }
}

/// Counts over time, in buckets without a gap from the start of the run.
#[derive(Debug, Default)]
pub struct Series {
    pub width: Duration,
    pub clients: Vec<ClientSeries>,
    /// Delays of the records that were admitted, in each bucket.
    pub delays: Vec<Delays>,
}

/// The width of the buckets at first.
const MIN_WIDTH: Duration = Duration::from_millis(250);
/// The most buckets, each a point of a plot and a row of its table; instead of one more, the width doubles.
const MAX_BUCKETS: u32 = 120;

impl Series {
    /// Starts without a bucket.
    pub fn new<'n>(clients: impl Iterator<Item = &'n str>) -> Series {
        let empty = |name: &str| {
            let (sent, admitted, rejected) = (Vec::new(), Vec::new(), Vec::new());
            ClientSeries { name: name.to_owned(), sent, admitted, rejected }
        };
        Series { width: MIN_WIDTH, clients: clients.map(empty).collect(), delays: Vec::new() }
    }

    /// Returns the index of the bucket of a time since the start.
    pub fn bucket(&mut self, time: Duration) -> usize {
        while time >= self.width * MAX_BUCKETS {
            self.double_width();
        }
        let index = (time.as_nanos() / self.width.as_nanos()) as usize;
        if index >= self.delays.len() {
            // Two digits are enough for a plot and take much less memory.
            self.delays.resize(index + 1, Delays::with_digits(2));
            self.clients.iter_mut().flat_map(ClientSeries::columns).for_each(|column| column.resize(index + 1, 0));
        }
        index
    }

    fn double_width(&mut self) {
        self.width *= 2;
        for column in self.clients.iter_mut().flat_map(ClientSeries::columns) {
            *column = column.chunks(2).map(|pair| pair.iter().sum()).collect();
        }
        let merged = |pair: &[Delays]| {
            let mut sum = pair[0].clone();
            pair[1..].iter().for_each(|delays| sum.add(delays));
            sum
        };
        self.delays = self.delays.chunks(2).map(merged).collect();
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
        fn wider_buckets_have_the_same_sums(events in prop::collection::vec((0..600_000_u64, 0..3_usize), 0..200)) {
            let mut series = Series::new(["a", "b", "c"].into_iter());
            for (at, client) in &events {
                let at = Duration::from_millis(*at);
                let bucket = series.bucket(at);
                prop_assert!(at < series.width * (bucket as u32 + 1) && at >= series.width * bucket as u32);
                series.clients[*client].admitted[bucket] += 1;
                series.delays[bucket].record(at);
            }
            prop_assert!(series.delays.len() <= MAX_BUCKETS as usize);
            prop_assert!(series.clients.iter().all(|client| client.rejected.len() == series.delays.len()));
            let admitted = series.clients.iter().flat_map(|client| &client.admitted).sum::<u64>();
            prop_assert_eq!(admitted, events.len() as u64);
            prop_assert_eq!(series.delays.iter().map(Delays::count).sum::<u64>(), events.len() as u64);
        }
    }

    #[test]
    fn without_delays_quantiles_are_0() {
        assert_eq!((Delays::default().quantile(0.5), Delays::default().count()), (0.0, 0));
    }

    #[test]
    fn the_width_of_buckets_follows_the_length_of_the_run() {
        let width = |seconds| {
            let mut series = Series::new(std::iter::empty());
            series.bucket(Duration::from_secs(seconds));
            series.width.as_millis()
        };
        assert_eq!([5, 29, 30, 60, 600].map(width), [250, 250, 500, 1_000, 8_000]);
        assert!(width(u64::MAX / 1_000_000) > 0);
    }
}
