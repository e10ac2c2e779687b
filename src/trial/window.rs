//! The most that happened in any window, exactly.

use std::collections::VecDeque;
use std::time::Duration;

/// The largest number of moments in any window (t − length, t].
///
/// It keeps the moments of one window only. Moments must come in order; one that is before the last counts as the last.
#[derive(Debug, Clone)]
pub struct WindowMaximum {
    length: Duration,
    recent: VecDeque<Duration>,
    largest: usize,
    total: u64,
}

impl WindowMaximum {
    /// Nothing has happened yet.
    pub fn new(length: Duration) -> WindowMaximum {
        WindowMaximum { length, recent: VecDeque::new(), largest: 0, total: 0 }
    }

    /// The most in any window so far.
    pub fn largest(&self) -> u64 {
        self.largest as u64
    }

    /// All moments so far.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Something happened.
    pub fn record(&mut self, at: Duration) {
        let at = self.recent.back().map_or(at, |last| at.max(*last));
        self.recent.push_back(at);
        while self.recent.front().is_some_and(|first| at - *first >= self.length) {
            self.recent.pop_front();
        }
        self.largest = self.largest.max(self.recent.len());
        self.total += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn largest(length: u64, moments: &[u64]) -> u64 {
        let mut window = WindowMaximum::new(Duration::from_millis(length));
        moments.iter().for_each(|at| window.record(Duration::from_millis(*at)));
        assert_eq!(window.total(), moments.len() as u64);
        window.largest()
    }

    #[test]
    fn the_window_is_open_at_its_start() {
        assert_eq!(largest(10, &[]), 0);
        assert_eq!(largest(10, &[0, 9]), 2);
        assert_eq!(largest(10, &[0, 10]), 1);
        assert_eq!(largest(10, &[0, 5, 10, 14, 15]), 3);
    }

    proptest! {
        #[test]
        fn it_is_what_counting_every_window_finds(
            mut moments in prop::collection::vec(0..200_u64, 0..60),
            length in 1..50_u64,
        ) {
            moments.sort_unstable();
            let counted = (0..250).map(|t| moments.iter().filter(|&&at| at <= t && at + length > t).count() as u64);
            prop_assert_eq!(largest(length, &moments), counted.max().unwrap_or(0));
        }
    }
}
