//! The wall clock, and monotonic clocks that start at its time.

use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};
use watermaster_core::{group::Clocks, units::Time};

/// Returns the wall clock's time since the Unix epoch; zero if the clock is set before the epoch.
pub fn since_epoch() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Returns the wall clock's milliseconds since the Unix epoch.
pub fn wall_ms() -> i64 {
    i64::try_from(since_epoch().as_millis()).unwrap_or(i64::MAX)
}

/// Returns the processor time that this process has used.
pub fn process_time() -> Duration {
    reading(ClockId::ProcessCPUTime)
}

/// Returns the processor time that this thread has used.
pub fn thread_time() -> Duration {
    reading(ClockId::ThreadCPUTime)
}

fn reading(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Monotonic clocks that start at the wall clock's time, which may be wrong then.
///
/// There are two, since no single one is right: one counts the time for which the machine was suspended, but is slewed
/// when the wall clock is corrected, by up to 8 %; the other one is never slewed, but stands still during a suspension.
#[derive(Debug)]
pub struct Clock {
    start: [Duration; 2],
    anchor: Time,
}

impl Clock {
    /// Starts a clock.
    pub fn start() -> Clock {
        Clock { start: readings(), anchor: Time::ZERO + since_epoch() }
    }

    /// Returns the time by the clock on which less time passed.
    pub fn now(&self) -> Time {
        self.clocks().slow
    }

    /// Returns the time by both clocks.
    pub fn clocks(&self) -> Clocks {
        let [one, other] = readings();
        let (one, other) = (one.saturating_sub(self.start[0]), other.saturating_sub(self.start[1]));
        Clocks { slow: self.anchor + one.min(other), fast: self.anchor + one.max(other) }
    }
}

/// Reads the slewed clock and the one that is not.
#[cfg(target_os = "linux")]
fn readings() -> [Duration; 2] {
    [ClockId::Boottime, ClockId::MonotonicRaw].map(reading)
}

/// Other systems have one clock.
#[cfg(not(target_os = "linux"))]
fn readings() -> [Duration; 2] {
    use std::{sync::LazyLock, time::Instant};
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    [START.elapsed(); 2]
}
