//! Limits log lines about events that may occur with every record or every attempt.

use std::{borrow::Cow, collections::HashMap, time::Duration};

use governor::clock::{Clock, MonotonicClock};
use governor::{Quota, RateLimiter, middleware::NoOpMiddleware, state::keyed::HashMapStateStore};

/// The shortest time between two lines of one kind. Metrics count every event.
pub const REPEAT_INTERVAL: Duration = Duration::from_secs(10);

type Kind = Cow<'static, str>;

/// Lets one line of each kind pass in [`REPEAT_INTERVAL`].
pub struct LogLimiter<C: Clock = MonotonicClock> {
    limiter: RateLimiter<Kind, HashMapStateStore<Kind>, C, NoOpMiddleware<C::Instant>>,
    suppressed: HashMap<Kind, u64>,
}

impl Default for LogLimiter {
    fn default() -> LogLimiter {
        LogLimiter::with_clock(MonotonicClock)
    }
}

impl<C: Clock> LogLimiter<C> {
    fn with_clock(clock: C) -> LogLimiter<C> {
        let quota = Quota::with_period(REPEAT_INTERVAL).expect("the interval is not zero");
        LogLimiter { limiter: RateLimiter::new(quota, HashMapStateStore::default(), clock), suppressed: HashMap::new() }
    }

    /// Calls `log` unless a line of this kind was logged within [`REPEAT_INTERVAL`].
    ///
    /// `log` gets the number of lines suppressed since the last one, if there are any; it belongs on the line as a
    /// field.
    pub fn warn(&mut self, kind: impl Into<Kind>, log: impl FnOnce(Option<u64>)) {
        let kind = kind.into();
        match self.limiter.check_key(&kind) {
            Ok(()) => log(self.suppressed.remove(&kind)),
            Err(_) => *self.suppressed.entry(kind).or_default() += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn repeats_are_suppressed_and_counted(steps in prop::collection::vec((0..3_usize, 0..4_000_u64), 0..200)) {
            const KINDS: [&str; 3] = ["a", "b", "c"];
            let clock = FakeRelativeClock::default();
            let mut limiter = LogLimiter::with_clock(clock.clone());
            let mut now = Duration::ZERO;
            let (mut last, mut waiting) = ([None::<Duration>; 3], [0_u64; 3]);
            for (kind, later) in steps {
                let later = Duration::from_millis(later);
                clock.advance(later);
                now += later;
                let mut logged = None;
                limiter.warn(KINDS[kind], |suppressed| logged = Some(suppressed));
                let due = last[kind].is_none_or(|at| now - at >= REPEAT_INTERVAL);
                prop_assert_eq!(logged, due.then_some((waiting[kind] > 0).then_some(waiting[kind])));
                if due {
                    (last[kind], waiting[kind]) = (Some(now), 0);
                } else {
                    waiting[kind] += 1;
                }
            }
        }
    }
}
