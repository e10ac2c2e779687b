//! The sign of life of an engine's thread, read by `/livez`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Set instead of a time once the engine ended on purpose.
const STOPPED: u64 = u64::MAX;

/// When an engine last came round its loop.
///
/// The engine calls [`beat`](Heartbeat::beat) each time round and [`stop`](Heartbeat::stop) as the last thing it does.
/// The limit is the longest that a healthy engine may be silent: the sum of its bounded blocking calls, with room.
#[derive(Debug)]
pub struct Heartbeat {
    start: Instant,
    limit: Duration,
    /// Milliseconds from `start` to the last beat, or [`STOPPED`].
    last: AtomicU64,
}

impl Heartbeat {
    /// A heart that beats now for the first time.
    pub fn new(now: Instant, limit: Duration) -> Heartbeat {
        Heartbeat { start: now, limit, last: AtomicU64::new(0) }
    }

    /// The longest silence that counts as alive.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// How long the engine has been silent; `None` once it has stopped.
    pub fn silence(&self, now: Instant) -> Option<Duration> {
        match self.last.load(Ordering::Relaxed) {
            STOPPED => None,
            last => Some(now.saturating_duration_since(self.start).saturating_sub(Duration::from_millis(last))),
        }
    }

    /// Whether the engine turns, or has ended on purpose: a service that a fatal error stopped is shown by
    /// `service_up` and `/readyz`, and restarting the process is not the cure for the others.
    pub fn is_alive(&self, now: Instant) -> bool {
        self.silence(now).is_none_or(|silence| silence <= self.limit)
    }

    /// The engine came round at `now`. A `now` before the last one does nothing.
    pub fn beat(&self, now: Instant) {
        let millis = u64::try_from(now.saturating_duration_since(self.start).as_millis()).unwrap_or(STOPPED - 1);
        self.last.fetch_max(millis, Ordering::Relaxed);
    }

    /// The engine ends; no beat counts after this.
    pub fn stop(&self) {
        self.last.store(STOPPED, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn is_alive_until_the_limit_has_passed_since_the_last_beat() {
        let start = Instant::now();
        let heart = Heartbeat::new(start, LIMIT);
        assert!(heart.is_alive(start + LIMIT));
        assert!(!heart.is_alive(start + LIMIT + Duration::from_millis(1)));

        heart.beat(start + LIMIT);
        heart.beat(start);
        assert!(heart.is_alive(start + LIMIT * 2));
        assert!(!heart.is_alive(start + LIMIT * 3));
    }

    #[test]
    fn a_stopped_engine_does_not_make_the_process_look_dead() {
        let start = Instant::now();
        let heart = Heartbeat::new(start, LIMIT);
        heart.stop();
        heart.beat(start + LIMIT);
        assert_eq!(heart.silence(start + LIMIT * 9), None);
        assert!(heart.is_alive(start + LIMIT * 9));
    }
}
