//! The rate at which a redrive sends.

use std::cell::Cell;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

/// The part of a transaction's time that is left for its commit. The brokers end a transaction after they have
/// confirmed the commit; a record that is sent before that waits for 20 ms in librdkafka.
const COMMIT_TIME: Duration = Duration::from_millis(50);
/// The records that may be sent at once after a delay: those of 10 ms.
const BURST_DIVISOR: u32 = 100;

/// Spreads records so that every span of a second has the same number of them: transactions begin at equal distances,
/// and so every second has equally many pauses for commits.
pub(super) struct Pace {
    limiter: DefaultDirectRateLimiter,
    clock: DefaultClock,
    rate: f64,
    /// The number of records of a transaction.
    records: usize,
    next_begin: Cell<Instant>,
}

impl Pace {
    /// Makes a pace of this many records a second, with at most `most` records in a transaction.
    pub fn new(rate: NonZeroU32, most: usize) -> Pace {
        let second = usize::try_from(rate.get()).unwrap_or(usize::MAX);
        let records = second.div_ceil(second.div_ceil(most));
        let time = Duration::from_secs_f64(records as f64 / f64::from(rate.get()));
        let sending = time.saturating_sub(COMMIT_TIME).max(time / 2);
        // Above a thousand million a second, the time of a record is rounded to nothing.
        let each = sending.div_f64(records as f64).max(Duration::from_nanos(1));
        let quota = Quota::with_period(each).expect("the time of a record is not 0");
        let burst = NonZeroU32::new(rate.get() / BURST_DIVISOR).unwrap_or(NonZeroU32::MIN);
        let limiter = RateLimiter::direct(quota.allow_burst(burst));
        let next_begin = Cell::new(Instant::now());
        Pace { limiter, clock: DefaultClock::default(), rate: rate.get().into(), records, next_begin }
    }

    /// Returns the number of records of one transaction: those of a second, or of an equal part of it.
    pub fn transaction(&self) -> usize {
        self.records
    }

    /// Waits until a transaction with so many records may begin. One that begins late delays the later ones, too: no
    /// second makes up for the one before.
    pub fn begin(&self, records: usize) {
        let begin = self.next_begin.get().max(Instant::now());
        std::thread::sleep(begin.saturating_duration_since(Instant::now()));
        self.next_begin.set(begin + Duration::from_secs_f64(records as f64 / self.rate));
    }

    /// Waits until another record may be sent.
    pub fn wait(&self) {
        while let Err(early) = self.limiter.check() {
            std::thread::sleep(early.wait_time_from(self.clock.now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_rate_has_a_pace() {
        for rate in [1, 7, 2_000, 2_001, 1_000_000_001, u32::MAX] {
            let pace = Pace::new(NonZeroU32::new(rate).unwrap(), 2_000);
            assert!((1..=2_000).contains(&pace.transaction()), "{rate}");
        }
    }
}
