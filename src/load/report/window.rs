//! The promise to the service, as far as it can be seen from outside.

use std::time::Duration;

use serde::Serialize;
use watermaster_core::policy::{Mode, Policy};

use crate::load::account::Account;
use crate::trial::window::WindowMaximum;

/// A round holds no more records.
const LARGEST_ROUND: u64 = 10_000;
/// What a busy machine adds to a commit interval.
const JITTER: Duration = Duration::from_millis(25);

/// The most that was admitted in any window of one cycle.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Window {
    /// Of our records.
    pub most_admitted: u64,
    /// Together with what others had in the target.
    pub most_with_others: u64,
    /// The capacity and a round: the promise is about decisions, and a round may be appended late.
    pub allowed: u64,
    /// What the times are.
    pub by: By,
    pub promise: Promise,
}

/// Which clock tells when a record was admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// The target's append time.
    AppendTime,
    /// The arrival at our reader.
    Arrival,
}

/// What became of the promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Promise {
    Kept,
    Broken,
    /// Too much arrived at once, but that may be the reader's fault.
    NotKnown,
    /// `enforce = false` promises nothing.
    NotGiven,
    NotRead,
}

impl Window {
    /// From the books.
    pub fn new(account: &Account, policy: &Policy, read: bool) -> Window {
        let own = account.admitted_at();
        let most_admitted = most(policy.cycle, own.iter());
        let most_with_others = most(policy.cycle, own.iter().chain(account.foreign_at()));
        let by = if account.is_by_append_time() { By::AppendTime } else { By::Arrival };
        let allowed = policy.capacity.saturating_add(round(policy));
        let promise = match (read, policy.enforce, most_admitted <= allowed, by) {
            (false, ..) => Promise::NotRead,
            (_, false, ..) => Promise::NotGiven,
            (.., true, _) => Promise::Kept,
            (.., By::AppendTime) => Promise::Broken,
            (.., By::Arrival) => Promise::NotKnown,
        };
        Window { most_admitted, most_with_others, allowed, by, promise }
    }
}

/// The most in any window. Append times are cut to milliseconds: what is less than a cycle apart then really was.
fn most<'a>(cycle: Duration, times: impl Iterator<Item = &'a Duration>) -> u64 {
    let mut times: Vec<Duration> = times.copied().collect();
    times.sort_unstable();
    let mut window = WindowMaximum::new(cycle);
    times.into_iter().for_each(|at| window.record(at));
    window.largest()
}

/// The most records of one round. In shape mode what the leaky bucket lets through between two commits: its depth, and what
/// drains meanwhile. In reject mode all that the window has room for may be admitted at once.
pub fn round(policy: &Policy) -> u64 {
    let worth = |time: Duration| {
        let records = u128::from(policy.capacity) * time.as_nanos();
        u64::try_from(records.div_ceil(policy.cycle.as_nanos().max(1))).unwrap_or(u64::MAX)
    };
    let burst = (u128::from(policy.capacity) * u128::from(policy.burst.millionths())).div_ceil(1_000_000);
    let depth = u64::try_from(burst).unwrap_or(u64::MAX).max(worth(policy.commit_interval * 2)).max(1);
    let most = match policy.mode {
        Mode::Shape => depth.saturating_add(worth(policy.commit_interval + JITTER)),
        Mode::Reject => policy.capacity,
    };
    most.min(LARGEST_ROUND)
}
