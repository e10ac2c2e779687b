//! The rate that the service can finish, and the search that moves it.

use strum::VariantNames;

use super::{ChangeCause, PaceParams, WHOLE};
use crate::units::Time;

/// The time from a cut of the estimate to the next probe near the value that was too high.
const HOLD: u64 = 30 * super::SECOND;
/// Offsets that the group has to commit between two raises.
const MIN_EVIDENCE: i64 = 30;
/// A step, in millionths, until the estimate was too high once.
const FAST_STEP: u64 = 100_000;
/// A step, in millionths, near a value that was too high once. It doubles after each [`DOUBLE_AFTER`] raises.
const SLOW_STEP: u64 = 20_000;
const DOUBLE_AFTER: u32 = 12;
/// A part in percent: the estimate is near a value, or the finished rate near the estimate.
const NEAR_PERCENT: u64 = 85;
/// A part in percent of the estimate after its cut: the most that counts as too high after the first climb of the
/// search.
const FIRST_PERCENT: u64 = 115;

/// The first climb of the search.
///
/// Lateness takes a few seconds to show, so steps of 10 % overshoot by two or three of them. If the estimate at the end
/// of the climb counted as too high, the estimate after the cut would be far below it, climb by 10 % again, and
/// overshoot again. Later climbs end with small steps, and are taken as they are.
#[derive(Debug, Default)]
enum FirstClimb {
    /// No step up was taken.
    #[default]
    Ahead,
    UnderWay,
    Over,
}

#[derive(Debug, Default)]
pub(super) struct Estimate {
    /// In thousandths of a record per cycle; 0 while it is unknown.
    pub(super) milli: u64,
    /// The estimate when it was too high last.
    too_high: Option<u64>,
    first_climb: FirstClimb,
    /// Observation: the estimate is a rate at which the service became late, not only one that it reached.
    is_found: bool,
    /// Raises near `too_high` since the last cut.
    raises: u32,
    was_late: bool,
    /// The service has been too late since the estimate was cut.
    in_episode: bool,
    cut_at: Time,
    /// The sum of the committed offsets at the last raise; `None` before the first offsets.
    raised_at: Option<i64>,
    /// Changes, up and down, by cause.
    pub(super) changes: [[u64; ChangeCause::VARIANTS.len()]; 2],
}

/// The inputs of a check.
pub(super) struct Check {
    pub(super) now: Time,
    pub(super) committed: i64,
    /// The lateness, and the one that is tolerated.
    pub(super) late: u64,
    pub(super) target: u64,
    pub(super) rate: Option<u64>,
    pub(super) records_wait: bool,
}

impl Estimate {
    pub(super) fn new(milli: u64, now: Time) -> Estimate {
        Estimate { milli, cut_at: now, ..Estimate::default() }
    }

    /// Returns whether the service was too late with a higher estimate.
    pub(super) fn was_too_high(&self) -> bool {
        self.too_high.is_some() || self.is_found
    }

    pub(super) fn set(&mut self, milli: u64, cause: ChangeCause) {
        if milli != self.milli {
            self.changes[usize::from(milli < self.milli)][cause as usize] += 1;
            self.milli = milli;
        }
    }

    /// Follows the limit of another instance, if that is known.
    pub(super) fn follow(&mut self, milli: u64, is_known: bool) {
        // A limit that falls was too high: this instance will go there with small steps, if it has to search on.
        if is_known && milli < self.milli && !self.in_episode {
            self.too_high = Some(self.milli);
        }
        self.in_episode = milli < self.milli || self.in_episode && milli == self.milli;
        self.milli = milli;
    }

    /// Notes the sum of the committed offsets. The sum over other partitions than before tells nothing about what was
    /// finished, so that the evidence for a raise is collected anew.
    pub(super) fn note_committed(&mut self, committed: i64, over_others: bool) {
        let before = self.raised_at.filter(|_| !over_others);
        self.raised_at = Some(before.unwrap_or(committed).min(committed));
    }

    /// Changes the estimate: down to the finished rate if the service is late, up if it is on time and records wait.
    pub(super) fn decide(&mut self, params: &PaceParams, check: &Check) {
        let before = self.milli;
        if check.late > check.target {
            if let (true, Some(rate)) = (self.was_late, check.rate) {
                // Offsets that are moved by hand look like speed, so the rate raises no more than a step does.
                let cut = rate.clamp(before / 2, before + before / 10);
                if !self.in_episode {
                    self.too_high = Some(match self.first_climb {
                        // A lower rate is that of an outage: no climb is so far beyond the capacity.
                        FirstClimb::UnderWay if rate > before / 2 => {
                            self.first_climb = FirstClimb::Over;
                            before.min(cut * FIRST_PERCENT / 100)
                        }
                        _ => before,
                    });
                }
                (self.in_episode, self.raises, self.cut_at) = (true, 0, check.now);
                self.set(params.clamped(cut), ChangeCause::Late);
            }
            self.was_late = true;
        } else if check.late < check.target / 2 {
            (self.was_late, self.in_episode) = (false, false);
            let evidence = check.committed - self.raised_at.unwrap_or(check.committed);
            if check.records_wait && evidence >= MIN_EVIDENCE {
                let step = self.next_step(check);
                if step > 0 {
                    self.raised_at = Some(check.committed);
                    let raised = before + (u128::from(before) * u128::from(step) / u128::from(WHOLE)) as u64;
                    self.set(params.clamped(raised), ChangeCause::Probe);
                    if self.milli > before && matches!(self.first_climb, FirstClimb::Ahead) {
                        self.first_climb = FirstClimb::UnderWay;
                    }
                }
            }
        }
    }

    /// The next raise, in millionths of the estimate; 0 for none.
    fn next_step(&mut self, check: &Check) -> u64 {
        let is_near = |rate: u64, other: u64| u128::from(rate) * 100 >= u128::from(other) * u128::from(NEAR_PERCENT);
        match self.too_high {
            Some(too_high) if is_near(self.milli, too_high) => {
                let keeps_up = check.rate.is_none_or(|rate| is_near(rate, self.milli));
                if check.now.nanos_since(self.cut_at) < HOLD || !keeps_up {
                    return 0;
                }
                let doublings = (self.raises / DOUBLE_AFTER).min(8);
                self.raises += 1;
                FAST_STEP.min(SLOW_STEP << doublings)
            }
            _ => FAST_STEP,
        }
    }

    /// Observation: compares the finished rate with the estimate; `steady` is the rate of a long time without lateness.
    /// An overloaded service may be degraded, so within an episode only the first rate counts.
    pub(super) fn compare(&mut self, check: &Check, steady: Option<u64>) {
        if check.late > check.target {
            if let (Some(rate), true, false) = (check.rate, self.was_late, self.in_episode) {
                (self.is_found, self.in_episode) = (true, true);
                self.set(rate, ChangeCause::Late);
            }
            self.was_late |= check.rate.is_some();
            return;
        }
        self.was_late = false;
        if check.late < check.target / 2 {
            self.in_episode = false;
        }
        if let Some(steady) = steady {
            self.set(self.milli.max(steady), ChangeCause::Probe);
        }
    }
}
