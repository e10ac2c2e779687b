//! Checks the promise to the service, by the times at which the brokers appended the admitted records.
//!
//! All instances together admit at most the capacity in any window of one cycle, or each of them does, if it has one
//! for itself; `tests/support/promise.rs` explains why a reader may find one more round. Here each instance may have
//! one such round, and another one that was repeated after a fault. A round of the group is as large as one of an
//! instance that has the whole capacity.
//!
//! After the control topic was lost, the group begins anew with the admissions that the commits tell. Until an instance
//! notices the loss, it admits up to the number that it announced: all of them together at most a quarter of the
//! capacity.

use super::judge::Verdict;
use super::pass::{Pass, TopicRole};
use crate::plan::{Mode, Plan};

/// Extra time of a phase of decisions on a busy machine, in ms.
const JITTER_MS: u64 = 50;

/// The reports of the main process, with times in ms since 1970.
#[derive(Default)]
pub struct Admitting {
    /// The number of instances that may admit records from each time on.
    pub instances: Vec<(u64, u64)>,
    /// The times at which the control topic was lost.
    pub losses: Vec<u64>,
}

/// The append times of the target's records in ms since 1970, ascending.
pub fn append_times(last: &Pass) -> Vec<i64> {
    let mut times: Vec<i64> =
        last.of(|place| place == TopicRole::Target).map(|(_, _, found)| found.timestamp).collect();
    times.sort_unstable();
    times
}

/// Checks every window of the target.
pub fn check(plan: &Plan, times: &[i64], admitting: &Admitting, verdict: &mut Verdict) {
    // In reject mode a round may hold as many records as the whole capacity, so append times prove nothing.
    if !plan.append_time || plan.mode == Mode::Reject {
        return;
    }
    let worth = |ms: u64| (plan.capacity * ms).div_ceil(plan.cycle_ms);
    let depth = plan.capacity.div_ceil(100).max(worth(2 * plan.commit_interval_ms)).max(1);
    let round = depth + worth(plan.commit_interval_ms + JITTER_MS);
    // The broker truncates times to milliseconds: records less than this apart were certainly within a cycle.
    let window = plan.cycle_ms as i64 - 1;
    let mut oldest = 0;
    for (newest, &time) in times.iter().enumerate() {
        while times[oldest] <= time - window {
            oldest += 1;
        }
        let count = (newest + 1 - oldest) as u64;
        let running = running(&admitting.instances, time - 2 * window, time);
        let unknown_until = |lost: u64| (lost + plan.ahead_time_ms() + plan.cycle_ms) as i64;
        let is_unknown = admitting.losses.iter().any(|&lost| (lost as i64..unknown_until(lost)).contains(&time));
        let unknown = if is_unknown { plan.capacity / 4 + running * round } else { 0 };
        let allowed = match plan.grouped {
            true => plan.capacity + 2 * round + running + unknown,
            false => running * (plan.capacity + 2 * round),
        };
        if count > allowed {
            verdict.add("promise", format!("{count} records within a cycle up to {time}, {allowed} are allowed"));
        }
        if count > verdict.most_in_a_window {
            (verdict.most_in_a_window, verdict.allowed_in_a_window) = (count, allowed);
        }
    }
}

/// Returns the largest number of instances at any time in this range.
fn running(instances: &[(u64, u64)], from: i64, to: i64) -> u64 {
    let before = instances.iter().rev().find(|(at, _)| (*at as i64) <= from);
    let within = instances.iter().filter(|(at, _)| (from..=to).contains(&(*at as i64)));
    within.chain(before).map(|(_, count)| *count).max().unwrap_or(0)
}
