//! The promise to the service, by the times at which the brokers appended what was admitted.
//!
//! Each instance admits at most its capacity in any window of one cycle; see `tests/support/promise.rs` for why a reader
//! may find one round more. Here every instance may have one such round, and one more that was begun again after a fault.

use super::judge::Verdict;
use super::pass::{Pass, Where};
use crate::plan::{Mode, Plan};

/// On a busy machine a phase of decisions may last so much longer, in ms.
const JITTER: u64 = 50;

/// `instances`: since when (ms) how many may have admitted.
pub fn check(plan: &Plan, last: &Pass, instances: &[(u64, u64)], verdict: &mut Verdict) {
    // In reject mode a round may hold as much as the whole capacity: there only decision times tell.
    if !plan.append_time || plan.mode == Mode::Reject {
        return;
    }
    let mut times: Vec<i64> = last.of(|place| place == Where::Target).map(|(_, _, found)| found.timestamp).collect();
    times.sort_unstable();
    let worth = |ms: u64| (plan.capacity * ms).div_ceil(plan.cycle_ms);
    let depth = plan.capacity.div_ceil(100).max(worth(2 * plan.commit_interval_ms)).max(1);
    let round = depth + worth(plan.commit_interval_ms + JITTER);
    // The broker cuts its times to milliseconds: those less than this apart were really within a cycle.
    let window = plan.cycle_ms as i64 - 1;
    let mut oldest = 0;
    for (newest, &time) in times.iter().enumerate() {
        while times[oldest] <= time - window {
            oldest += 1;
        }
        let count = (newest + 1 - oldest) as u64;
        let allowed = running(instances, time - 2 * window, time) * (plan.capacity + 2 * round);
        if count > allowed {
            verdict.wrong("promise", format!("{count} records within a cycle up to {time}, {allowed} are allowed"));
        }
        if count > verdict.most_in_a_window {
            (verdict.most_in_a_window, verdict.allowed_in_a_window) = (count, allowed);
        }
    }
}

/// The most instances at any time between these.
fn running(instances: &[(u64, u64)], from: i64, to: i64) -> u64 {
    let before = instances.iter().rev().find(|(at, _)| (*at as i64) <= from);
    let within = instances.iter().filter(|(at, _)| (from..=to).contains(&(*at as i64)));
    within.chain(before).map(|(_, count)| *count).max().unwrap_or(0)
}
