//! A client's own absolute limit: governor on a clock that its owner sets.

use std::{cell::Cell, ops::Add, rc::Rc, time::Duration};

use governor::clock::{Clock, Reference};
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter, middleware::NoOpMiddleware, nanos::Nanos};

use crate::policy::Limit;
use crate::units::{Time, nanos};

/// A token bucket that never reads a clock of its own.
#[derive(Debug)]
pub struct OwnLimit {
    clock: HandedClock,
    limiter: RateLimiter<NotKeyed, InMemoryState, HandedClock, NoOpMiddleware<Moment>>,
    /// One token's time, and that of all others in a full bucket.
    period: u64,
    depth: u64,
    burst: u64,
    /// The time at which the bucket will be full again: governor does not show its own without taking a token.
    full_at: Cell<u64>,
}

impl OwnLimit {
    /// A full bucket at `now`.
    pub fn new(limit: &Limit, now: Time) -> OwnLimit {
        let clock = HandedClock(Rc::new(Cell::new(Moment(now.as_nanos()))));
        let period = limit.per / limit.rate.get();
        let quota = Quota::with_period(period)
            .or(Quota::with_period(Duration::from_nanos(1)))
            .expect("a nanosecond is not zero")
            .allow_burst(limit.burst);
        let (period, burst) = (nanos(period).max(1), u64::from(limit.burst.get()));
        OwnLimit {
            limiter: RateLimiter::direct_with_clock(quota, clock.clone()),
            clock,
            period,
            depth: period.saturating_mul(burst - 1),
            burst,
            full_at: Cell::new(now.as_nanos()),
        }
    }

    /// Takes a token.
    ///
    /// # Errors
    /// There is none; the error is the time at which there will be one.
    pub fn take(&self, now: Time) -> Result<(), Time> {
        self.clock.0.set(Moment(now.as_nanos()));
        self.limiter.check().map_err(|until| Time::from_nanos(until.earliest_possible().0))?;
        self.full_at.set(self.full_at.get().max(now.as_nanos()).saturating_add(self.period));
        Ok(())
    }

    /// The time from which on a token is there; takes nothing.
    pub fn open_at(&self) -> Time {
        Time::from_nanos(self.full_at.get().saturating_sub(self.depth))
    }

    /// The most records that go in any window (t − `time`, t]: a full bucket, and the tokens added meanwhile.
    pub fn most_in(&self, time: Duration) -> u64 {
        self.burst.saturating_add(nanos(time) / self.period)
    }
}

#[derive(Debug, Clone)]
struct HandedClock(Rc<Cell<Moment>>);

impl Clock for HandedClock {
    type Instant = Moment;

    fn now(&self) -> Moment {
        self.0.get()
    }
}

/// [`Time`] in governor's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Moment(u64);

impl Add<Nanos> for Moment {
    type Output = Moment;

    fn add(self, other: Nanos) -> Moment {
        Moment(self.0.saturating_add(other.as_u64()))
    }
}

impl Reference for Moment {
    fn duration_since(&self, earlier: Moment) -> Nanos {
        self.0.saturating_sub(earlier.0).into()
    }

    fn saturating_sub(&self, duration: Nanos) -> Moment {
        Moment(self.0.checked_sub(duration.as_u64()).unwrap_or(self.0))
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A client that takes every token at once gets `most_in` tokens in a window, or one less: the window is open
        /// at its start.
        #[test]
        fn a_greedy_client_gets_the_maximum_in_a_window(
            rate in 1..200_u32,
            per_ms in 1..2_000_u64,
            burst in 1..50_u32,
            window_ms in 1..3_000_u64,
        ) {
            let (rate, burst) = (NonZeroU32::new(rate).unwrap(), NonZeroU32::new(burst).unwrap());
            let start = Time::ZERO + Duration::from_secs(1_000);
            let limit = OwnLimit::new(&Limit { rate, per: Duration::from_millis(per_ms), burst }, start);
            let window = Duration::from_millis(window_ms);
            let (mut now, mut taken) = (start, 0_u64);
            while now < start + window && taken < 5_000 {
                match limit.take(now) {
                    Ok(()) => taken += 1,
                    Err(until) => now = until,
                }
            }
            if taken < 5_000 {
                let most = limit.most_in(window);
                prop_assert!(taken <= most && taken + 1 >= most, "{taken} of {most}");
            }
        }
    }
}
