//! The promise to the service, as far as the outputs show it.

use std::time::Duration;

use serde::Serialize;
use watermaster_core::policy::{Mode, Policy};

use crate::load::account::Account;

/// The most records of a round.
const MAX_ROUND: u64 = 10_000;
/// The delay that a busy machine adds to a commit interval.
const JITTER: Duration = Duration::from_millis(25);

/// The most records admitted in any window of one cycle.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Window {
    /// Counts the records of this run.
    pub most_admitted: u64,
    /// Counts the records of other producers, too.
    pub most_with_others: u64,
    /// The capacity and a round: the promise is about decisions, and a round may be appended late.
    pub allowed: u64,
    pub by: Clock,
    pub promise: Promise,
}

/// The clock that tells when a record was admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Clock {
    /// The append time of the target.
    AppendTime,
    /// The arrival at the watcher.
    Arrival,
}

/// Whether the promise was kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Promise {
    Kept,
    Broken,
    /// Too many records arrived at once, but a slow watcher sees that, too.
    NotKnown,
    /// `enforce = false` promises nothing.
    NotGiven,
    NotRead,
}

impl Window {
    /// Judges the account of a run.
    pub fn new(account: &Account, policy: &Policy, read: bool) -> Window {
        let own = &account.admitted_at;
        let most_admitted = busiest(policy.cycle, own.iter().copied());
        let most_with_others = busiest(policy.cycle, own.iter().chain(&account.foreign_at).copied());
        let by = if account.by_append_time { Clock::AppendTime } else { Clock::Arrival };
        let allowed = policy.capacity.saturating_add(round(policy));
        let promise = match (read, policy.enforce, most_admitted <= allowed, by) {
            (false, ..) => Promise::NotRead,
            (_, false, ..) => Promise::NotGiven,
            (.., true, _) => Promise::Kept,
            (.., Clock::AppendTime) => Promise::Broken,
            (.., Clock::Arrival) => Promise::NotKnown,
        };
        Window { most_admitted, most_with_others, allowed, by, promise }
    }
}

/// Returns the largest number of times in any window (t − length, t]. Append times are cut to milliseconds, so two of them
/// that are less than `length` apart really were.
pub fn busiest(length: Duration, times: impl Iterator<Item = Duration>) -> u64 {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    let (mut first, mut most) = (0, 0);
    for (last, at) in times.iter().enumerate() {
        while *at - times[first] >= length {
            first += 1;
        }
        most = most.max(last + 1 - first);
    }
    most as u64
}

/// Returns the most records of one round. In shape mode, the leaky bucket lets its depth through at once, and more while it
/// drains until the next commit. In reject mode, all records that the window has room for may be admitted at once.
pub fn round(policy: &Policy) -> u64 {
    let records_in = |time: Duration| {
        let records = u128::from(policy.capacity) * time.as_nanos();
        u64::try_from(records.div_ceil(policy.cycle.as_nanos().max(1))).unwrap_or(u64::MAX)
    };
    let burst = (u128::from(policy.capacity) * u128::from(policy.burst.millionths())).div_ceil(1_000_000);
    let depth = u64::try_from(burst).unwrap_or(u64::MAX).max(records_in(policy.commit_interval * 2)).max(1);
    let most = match policy.mode {
        Mode::Shape => depth.saturating_add(records_in(policy.commit_interval + JITTER)),
        Mode::Reject => policy.capacity,
    };
    most.min(MAX_ROUND)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn most(length: u64, times: &[u64]) -> u64 {
        busiest(Duration::from_millis(length), times.iter().map(|ms| Duration::from_millis(*ms)))
    }

    #[test]
    fn the_window_is_open_at_its_start() {
        assert_eq!((most(10, &[]), most(10, &[0, 9]), most(10, &[0, 10])), (0, 2, 1));
        assert_eq!(most(10, &[0, 5, 10, 14, 15]), 3);
    }

    proptest! {
        #[test]
        fn the_busiest_window_is_found(times in prop::collection::vec(0..200_u64, 0..60), length in 1..50_u64) {
            let counted = (0..250).map(|t| times.iter().filter(|&&at| at <= t && at + length > t).count() as u64);
            prop_assert_eq!(most(length, &times), counted.max().unwrap_or(0));
        }
    }
}
