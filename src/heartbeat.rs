//! The heartbeat of an engine's thread, read by `/livez`.

use std::time::{Duration, Instant};

use crate::shared::Shared;

/// The time of an engine's last beat.
///
/// The engine calls [`beat`](Heartbeat::beat) in each iteration of its loop and [`stop`](Heartbeat::stop) at its end.
/// The limit is the longest silence of a healthy engine: the sum of its bounded blocking calls, with room.
#[derive(Debug)]
pub struct Heartbeat {
    limit: Duration,
    /// `None` once the engine has ended on purpose.
    last: Shared<Option<Instant>>,
}

impl Heartbeat {
    /// Makes a heartbeat with its first beat now.
    pub fn new(now: Instant, limit: Duration) -> Heartbeat {
        Heartbeat { limit, last: Shared::new(Some(now)) }
    }

    /// Returns the time since the last beat; `None` once the engine has stopped.
    pub fn silence(&self, now: Instant) -> Option<Duration> {
        self.last.get().map(|last| now.saturating_duration_since(last))
    }

    /// Returns whether the engine beats or has ended on purpose. A service that a fatal error stopped shows in
    /// `service_up` and `/readyz`; restarting the process would interrupt the other services.
    pub fn is_alive(&self, now: Instant) -> bool {
        self.silence(now).is_none_or(|silence| silence <= self.limit)
    }

    /// Records a beat at `now`; a time before the last beat does nothing.
    pub fn beat(&self, now: Instant) {
        let mut last = self.last.lock();
        *last = last.map(|last| last.max(now));
    }

    /// Records the end of the engine; later beats do nothing.
    pub fn stop(&self) {
        self.last.set(None);
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
