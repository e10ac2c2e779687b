//! The rate at which a redrive sends.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

/// The part of a second's records that may be sent at once, after the pause for a commit: 3 %.
const BURST_DIVISOR: u32 = 33;
/// The time for which brokers may still end a transaction after its commit was confirmed. A record that is sent in this
/// time waits for 20 ms more in librdkafka, so that some pauses would be longer than others.
const SETTLE_TIME: Duration = Duration::from_millis(25);

pub(super) struct Pace {
    limiter: DefaultDirectRateLimiter,
    clock: DefaultClock,
    rate: NonZeroU32,
}

impl Pace {
    /// Makes a pace of this many records a second.
    pub fn new(rate: NonZeroU32) -> Pace {
        let burst = NonZeroU32::new(rate.get() / BURST_DIVISOR).unwrap_or(NonZeroU32::MIN);
        let limiter = RateLimiter::direct(Quota::per_second(rate).allow_burst(burst));
        // Without this, the first second would have the burst in addition.
        let _ = limiter.check_n(burst);
        Pace { limiter, clock: DefaultClock::default(), rate }
    }

    /// Returns the number of records of one transaction, at most `most`: those of a second, or of an equal part of it.
    ///
    /// Each commit interrupts the sending for some 30 ms. So every span of a second contains the same number of
    /// interruptions, and the same number of records.
    pub fn transaction(&self, most: usize) -> usize {
        let second = usize::try_from(self.rate.get()).unwrap_or(usize::MAX);
        second.div_ceil(second.div_ceil(most))
    }

    /// Waits after a commit.
    pub fn settle(&self) {
        std::thread::sleep(SETTLE_TIME);
    }

    /// Waits until another record may be sent.
    pub fn wait(&self) {
        while let Err(early) = self.limiter.check() {
            std::thread::sleep(early.wait_time_from(self.clock.now()));
        }
    }
}
