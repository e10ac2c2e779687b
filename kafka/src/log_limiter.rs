//! Limits log lines about events that may occur with every record or every attempt.

use std::time::{Duration, Instant};
use std::{borrow::Cow, collections::HashMap};

/// The shortest time between two lines of one kind. Metrics count every event.
pub const REPEAT_INTERVAL: Duration = Duration::from_secs(10);

/// Remembers the last line of each kind.
#[derive(Debug, Default)]
pub struct LogLimiter(HashMap<Cow<'static, str>, LastLine>);

#[derive(Debug)]
struct LastLine {
    at: Instant,
    suppressed: u64,
}

impl LogLimiter {
    /// Calls `log` unless a line of this kind was logged within [`REPEAT_INTERVAL`].
    ///
    /// `log` gets the number of lines suppressed since the last one, if there are any; it belongs on the line as a
    /// field.
    pub fn warn(&mut self, kind: impl Into<Cow<'static, str>>, now: Instant, log: impl FnOnce(Option<u64>)) {
        let kind = kind.into();
        match self.0.get_mut(&kind) {
            Some(last) if now.saturating_duration_since(last.at) < REPEAT_INTERVAL => last.suppressed += 1,
            last => {
                let suppressed = last.map_or(0, |last| last.suppressed);
                self.0.insert(kind, LastLine { at: now, suppressed: 0 });
                log((suppressed > 0).then_some(suppressed));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn repeats_are_suppressed_and_counted(steps in prop::collection::vec((0..3_usize, 0..4_000_u64), 0..200)) {
            const KINDS: [&str; 3] = ["a", "b", "c"];
            let (mut limiter, mut now) = (LogLimiter::default(), Instant::now());
            let (mut last, mut waiting) = ([None::<Instant>; 3], [0_u64; 3]);
            for (kind, later) in steps {
                now += Duration::from_millis(later);
                let mut logged = None;
                limiter.warn(KINDS[kind], now, |suppressed| logged = Some(suppressed));
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
