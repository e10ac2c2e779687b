//! The paces at which a member admitted lately.

use std::{collections::VecDeque, time::Duration};

use crate::units::Time;

/// The current pace, and those of the last cycle.
#[derive(Debug, Default)]
pub(super) struct Paces {
    current: u64,
    /// Former paces, with the time until which each was used.
    former: VecDeque<(Time, u64)>,
}

impl Paces {
    pub(super) fn set(&mut self, now: Time, pace: u64, window: Duration) {
        if pace != self.current {
            self.former.push_back((now, self.current));
            self.current = pace;
        }
        while self.former.front().is_some_and(|&(until, _)| until + window < now) {
            self.former.pop_front();
        }
    }

    pub(super) fn largest(&self) -> u64 {
        self.former.iter().map(|&(_, pace)| pace).fold(self.current, u64::max)
    }
}
