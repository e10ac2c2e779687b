//! The rate at which a redrive sends.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

/// The part of a second's records that may be sent at once, after the pause for a commit: 1.6 %.
const BURST_DIVISOR: u32 = 64;

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
        Pace { limiter, clock: DefaultClock::default(), rate }
    }

    /// Returns the number of records that take this long.
    pub fn records_in(&self, time: Duration) -> usize {
        usize::try_from(u128::from(self.rate.get()) * time.as_millis() / 1_000).unwrap_or(usize::MAX)
    }

    /// Waits until another record may be sent.
    pub fn wait(&self) {
        while let Err(early) = self.limiter.check() {
            std::thread::sleep(early.wait_time_from(self.clock.now()));
        }
    }
}
