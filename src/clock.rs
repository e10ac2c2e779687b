//! The wall clock, and a monotonic clock that starts at its time.

use std::time::{Duration, Instant, SystemTime};

use watermaster_core::units::Time;

/// Returns the wall clock's time since the Unix epoch; zero if the clock is set before the epoch.
pub fn since_epoch() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Returns the wall clock's milliseconds since the Unix epoch.
pub fn wall_ms() -> i64 {
    i64::try_from(since_epoch().as_millis()).unwrap_or(i64::MAX)
}

/// A monotonic clock that starts at the wall clock's time, which may be wrong then.
#[derive(Debug)]
pub struct Clock {
    start: Instant,
    anchor: Time,
}

impl Clock {
    /// Starts a clock.
    pub fn start() -> Clock {
        Clock { start: Instant::now(), anchor: Time::ZERO + since_epoch() }
    }

    /// Returns the time.
    pub fn now(&self) -> Time {
        self.anchor + self.start.elapsed()
    }
}
