//! The capacity of a service, found from the commits of its consumer group (`docs/pace.md` is its prose).
//!
//! The owner tells a [`Pace`] at each poll how far each partition of the target reaches and how far the group has
//! committed. From that follow how late the service is and how much it finishes, and from these the limit:
//!
//! - while the service is on time and records wait for admission, the estimate rises;
//! - when the service is late at two checks, the estimate becomes the rate that the service really finishes;
//! - the brake acts at each poll: it scales the limit down while the service is late.
//!
//! All arithmetic is in integers: rates in thousandths of a record per cycle, ratios in millionths, times in
//! nanoseconds.
//!
//! - `params`: the settings, and the offsets of a poll
//! - `partition`: the signals of one partition: what is open, and how late its commits are
//! - `history`: the rate that the service finishes
//! - `view`: the state, as the shell shows it

mod history;
mod params;
mod partition;
mod view;

use std::collections::{BTreeMap, VecDeque};

use strum::VariantNames;

use crate::units::{Ratio, Time};
use history::{History, RateWindow, Units};
pub use params::{ChangeCause, Control, Offsets, PaceParams};
use partition::Partition;
pub use view::{PaceState, PaceView};

/// Thousandths in a record.
const MILLI: u64 = 1_000;
/// Millionths in a whole.
const WHOLE: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

/// The window over which a finished rate is measured, at least.
const RATE_WINDOW: u64 = 15 * SECOND;
/// The window of the rate that a service finished while it was on time, if nothing is held back.
const STEADY_WINDOW: u64 = 55 * SECOND;
/// The time from a cut of the estimate to the next probe near the value that was too high.
const HOLD: u64 = 30 * SECOND;
/// Offsets that the group has to commit between two raises.
const MIN_EVIDENCE: i64 = 30;
/// A step, in millionths, until the estimate was too high once.
const FAST_STEP: u64 = 100_000;
/// A step, in millionths, near a value that was too high once. It doubles after each [`DOUBLE_AFTER`] raises.
const SLOW_STEP: u64 = 20_000;
const DOUBLE_AFTER: u32 = 12;
/// Observation: a service that is late by this part of what is tolerated is busy all of the time.
const BUSY_PART: u64 = 4;
/// A part in percent: the estimate is near a value, or the finished rate near the estimate.
const NEAR_PERCENT: u64 = 85;

/// The controller of one service's capacity.
#[derive(Debug)]
pub struct Pace {
    params: PaceParams,
    partitions: BTreeMap<i32, Partition>,
    history: History,
    /// Observation: the commits of the last minute, also of times in which most partitions had nothing open.
    steady: History,
    /// The parts of the time in which records waited, in millionths, with the polls that told them.
    waits: VecDeque<(Time, u32)>,
    next_check: Time,
    /// The rate that the service can finish, in thousandths of a record per cycle; 0 while it is unknown.
    estimate: u64,
    /// The estimate when it was too high last.
    too_high: Option<u64>,
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
    /// The finished rate of the last check.
    rate: Option<u64>,
    late: u64,
    /// Observation: the service has been late, by a part of what is tolerated at least, since this time.
    late_since: Option<Time>,
    brake: u64,
    limit: u64,
    stalled: bool,
    /// The most markers of transactions that our instances write to the target, per second.
    markers: u64,
    /// Another instance searches.
    follows: bool,
    blind_since: Option<Time>,
    told_at: Option<Time>,
    /// Changes of the estimate, up and down, by cause.
    changes: [[u64; ChangeCause::VARIANTS.len()]; 2],
}

impl Pace {
    /// A controller that starts from the configured capacity; one that only observes knows nothing yet.
    pub fn new(params: PaceParams, now: Time) -> Pace {
        let capacity = params.capacity * MILLI;
        Pace {
            partitions: BTreeMap::new(),
            history: History::default(),
            steady: History::default(),
            waits: VecDeque::new(),
            next_check: now + params.interval,
            estimate: if params.control == Control::Apply { params.clamped(capacity) } else { 0 },
            too_high: None,
            is_found: false,
            raises: 0,
            was_late: false,
            in_episode: false,
            cut_at: now,
            raised_at: None,
            rate: None,
            late: 0,
            late_since: None,
            brake: WHOLE,
            limit: if params.control == Control::Apply { params.clamped(capacity) } else { capacity },
            stalled: false,
            markers: 0,
            follows: false,
            blind_since: None,
            told_at: None,
            changes: Default::default(),
            params,
        }
    }

    /// Changes the settings. The estimate stays, within the new bounds; another use or cycle begins anew.
    pub fn change(&mut self, params: PaceParams, now: Time) {
        if (params.control, params.cycle) != (self.params.control, self.params.cycle) {
            let (changes, markers) = (self.changes, self.markers);
            *self = Pace { changes, markers, ..Pace::new(params, now) };
            return;
        }
        self.params = params;
        if self.params.control == Control::Apply {
            self.set_estimate(self.params.clamped(self.estimate), ChangeCause::Reload);
        }
        self.find_limit();
    }

    /// Notes that another instance searches. The estimate follows its limit, in records per cycle, if that is known,
    /// and is no higher than the configured capacity otherwise.
    pub fn handle_other(&mut self, limit: Option<u64>) {
        self.forget();
        self.follows = true;
        if self.params.control == Control::Apply {
            let followed = limit.unwrap_or(self.limit().min(self.params.capacity));
            let followed = self.params.clamped(followed * MILLI);
            // A limit that falls was too high: this instance will go there with small steps, if it has to search on.
            if limit.is_some() && followed < self.estimate && !self.in_episode {
                self.too_high = Some(self.estimate);
            }
            self.in_episode = followed < self.estimate || self.in_episode && followed == self.estimate;
            self.estimate = followed;
        }
        self.find_limit();
    }

    /// Forgets the measured rate: the records that were admitted so far are counted anew.
    pub fn forget_rate(&mut self) {
        self.history.clear();
        self.steady.clear();
    }

    /// Tells how many markers of transactions our instances write to the target, per second and at most. Offsets that
    /// are neither our records nor our markers are records of other writers.
    pub fn expect_markers(&mut self, per_second: u64) {
        self.markers = per_second;
    }

    /// Takes the offsets of all partitions of the target in which the group has committed.
    ///
    /// `admitted` counts the records that were admitted so far, and `waited` is the part of the time since the last
    /// call in which records waited for admission, or were rejected for lack of capacity.
    pub fn handle_offsets(&mut self, now: Time, offsets: &[Offsets], admitted: u64, waited: Ratio) {
        (self.follows, self.blind_since, self.told_at) = (false, None, Some(now));
        self.note_offsets(now, offsets);
        let committed: i64 = offsets.iter().map(|one| one.committed).sum();
        self.raised_at = Some(self.raised_at.unwrap_or(committed).min(committed));
        let written = self.partitions.values().filter(|partition| partition.was_written(now)).count();
        let signals: Vec<_> = self.partitions.values().filter_map(|partition| partition.signal(now)).collect();
        let (open, quiet) = (signals.len(), signals.iter().filter(|signal| signal.is_quiet).count());
        let idle = written.saturating_sub(open);
        let mut lates: Vec<u64> =
            signals.iter().map(|signal| signal.late).chain(std::iter::repeat_n(0, idle)).collect();
        self.late = median(&mut lates);
        self.stalled = 2 * quiet > open;
        self.waits.push_back((now, waited.millionths()));
        while self.waits.front().is_some_and(|&(at, _)| at < now - self.params.interval) {
            self.waits.pop_front();
        }
        let ends: i64 = offsets.iter().map(|one| one.end).sum();
        let commits: Vec<_> = self.partitions.values().map(Partition::last_commit).collect();
        let others = i128::from(ends) - i128::from(admitted);
        if self.stalled {
            self.forget_rate();
        } else if self.params.control == Control::Observe {
            self.steady.push(now, commits.clone(), others);
        }
        if self.stalled || 2 * open < written.max(1) {
            self.history.clear();
        } else {
            self.history.push(now, commits, others);
        }
        let target = self.params.target(self.known_estimate());
        self.brake = brake(self.late, target);
        let is_late = self.late > target / BUSY_PART;
        self.late_since = is_late.then(|| self.late_since.unwrap_or(now));
        if now >= self.next_check {
            self.next_check = now + self.params.interval;
            if !self.stalled {
                match self.params.control {
                    Control::Apply => self.decide(now, committed, target),
                    Control::Observe => self.compare(target),
                }
            }
        }
        self.find_limit();
    }

    fn note_offsets(&mut self, now: Time, offsets: &[Offsets]) {
        let before = self.partitions.len();
        self.partitions.retain(|number, _| offsets.iter().any(|one| one.partition == *number));
        let mut is_new = self.partitions.len() != before;
        for one in offsets {
            let known = self.partitions.get_mut(&one.partition);
            let went_on = known.is_some_and(|partition| partition.handle_offsets(now, one.end, one.committed));
            if !went_on {
                self.partitions.insert(one.partition, Partition::new(now, one.end, one.committed));
                is_new = true;
            }
        }
        // Offsets that were set back or that vanished tell nothing about the service.
        if is_new {
            self.forget_rate();
        }
    }

    /// Notes that the offsets could not be read, or that the group has committed none. The limit is the estimate: the
    /// service is unprotected meanwhile.
    pub fn handle_no_signal(&mut self, now: Time) {
        self.forget();
        self.follows = false;
        let since = *self.blind_since.get_or_insert(now);
        if now.since(since) >= self.params.signal_timeout && self.params.control == Control::Apply {
            self.set_estimate(self.estimate.min(self.params.capacity * MILLI), ChangeCause::Signal);
        }
        self.find_limit();
    }

    fn forget(&mut self) {
        self.forget_rate();
        self.partitions.clear();
        (self.late, self.late_since, self.brake, self.stalled, self.rate) = (0, None, WHOLE, false, None);
    }

    /// The partitions whose open offsets may be markers of transactions only: their end has not moved for a while.
    /// Consumers that commit the offset after their last record never commit past such a tail.
    pub fn doubtful_tails(&self, now: Time) -> impl Iterator<Item = Offsets> {
        self.partitions.iter().filter_map(move |(&number, partition)| partition.doubtful_tail(now, number))
    }

    /// Notes that no record lies between the committed offset and the end of a partition.
    pub fn handle_empty_tail(&mut self, tail: Offsets) {
        if let Some(partition) = self.partitions.get_mut(&tail.partition) {
            partition.close_until(tail.end);
        }
    }

    /// The limit in force, in records per cycle; the configured capacity if the estimate is only reported.
    pub fn limit(&self) -> u64 {
        self.limit / MILLI
    }

    fn find_limit(&mut self) {
        let scaled = u128::from(self.estimate) * u128::from(self.brake) / u128::from(WHOLE);
        self.limit = match self.params.control {
            Control::Apply => self.params.clamped(scaled as u64),
            Control::Observe => self.params.capacity * MILLI,
        };
    }

    /// Returns whether records waited in over half of the last interval.
    fn records_wait(&self) -> bool {
        let sum: u64 = self.waits.iter().map(|&(_, waited)| u64::from(waited)).sum();
        2 * sum > WHOLE * self.waits.len() as u64
    }

    /// Changes the estimate: down to the finished rate if the service is late, up if it is on time and records wait.
    fn decide(&mut self, now: Time, committed: i64, target: u64) {
        let before = self.estimate;
        self.rate = self.history.rate(&self.window(RATE_WINDOW, None), &self.units());
        if self.late > target {
            if let (true, Some(rate)) = (self.was_late, self.rate) {
                if !self.in_episode {
                    self.too_high = Some(before);
                }
                (self.in_episode, self.raises, self.cut_at) = (true, 0, now);
                // Offsets that are moved by hand look like speed, so the rate raises no more than a step does.
                let cut = rate.clamp(before / 2, before + before / 10);
                self.set_estimate(self.params.clamped(cut), ChangeCause::Late);
            }
            self.was_late = true;
        } else if self.late < target / 2 {
            (self.was_late, self.in_episode) = (false, false);
            let evidence = committed - self.raised_at.unwrap_or(committed);
            if self.records_wait() && evidence >= MIN_EVIDENCE {
                let step = self.next_step(now);
                if step > 0 {
                    self.raised_at = Some(committed);
                    let raised = before + (u128::from(before) * u128::from(step) / u128::from(WHOLE)) as u64;
                    self.set_estimate(self.params.clamped(raised), ChangeCause::Probe);
                }
            }
        }
    }

    /// The next raise, in millionths of the estimate; 0 for none.
    fn next_step(&mut self, now: Time) -> u64 {
        let (estimate, rate) = (self.estimate, self.rate);
        match self.too_high {
            Some(too_high) if u128::from(estimate) * 100 >= u128::from(too_high) * u128::from(NEAR_PERCENT) => {
                let keeps_up =
                    rate.is_none_or(|rate| u128::from(rate) * 100 >= u128::from(estimate) * u128::from(NEAR_PERCENT));
                if now.nanos_since(self.cut_at) < HOLD || !keeps_up {
                    return 0;
                }
                let doublings = (self.raises / DOUBLE_AFTER).min(8);
                self.raises += 1;
                FAST_STEP.min(SLOW_STEP << doublings)
            }
            _ => FAST_STEP,
        }
    }

    /// Observation: compares the finished rate with the estimate. An overloaded service may be degraded, so within an
    /// episode only the first rate counts.
    fn compare(&mut self, target: u64) {
        if self.late > target {
            // Before it was late, the service may have had less to do than it can.
            self.rate = self.history.rate(&self.window(RATE_WINDOW, self.late_since), &self.units());
            if let (Some(rate), true, false) = (self.rate, self.was_late, self.in_episode) {
                (self.is_found, self.in_episode) = (true, true);
                self.set_estimate(rate, ChangeCause::Late);
            }
            self.was_late |= self.rate.is_some();
            return;
        }
        self.rate = self.steady.rate(&self.window(RATE_WINDOW, None), &self.units());
        self.was_late = false;
        if self.late < target / 2 {
            self.in_episode = false;
        }
        if self.steady.age() > STEADY_WINDOW
            && let Some(steady) = self.steady.rate(&self.window(STEADY_WINDOW, None), &self.units())
        {
            self.set_estimate(self.estimate.max(steady), ChangeCause::Probe);
        }
    }

    fn window(&self, length: u64, since: Option<Time>) -> RateWindow {
        RateWindow { length, gap: self.longest_gap(), since }
    }

    fn units(&self) -> Units {
        Units { cycle: self.params.cycle, markers: self.markers }
    }

    fn longest_gap(&self) -> u64 {
        self.partitions.values().map(Partition::gap).max().unwrap_or(0)
    }

    /// The estimate or, while it is unknown, the configured capacity.
    fn known_estimate(&self) -> u64 {
        if self.estimate == 0 { self.params.capacity * MILLI } else { self.estimate }
    }

    fn set_estimate(&mut self, estimate: u64, cause: ChangeCause) {
        if estimate != self.estimate {
            self.changes[usize::from(estimate < self.estimate)][cause as usize] += 1;
            self.estimate = estimate;
        }
    }
}

/// The part of the estimate that is let through, in millionths: all of it up to the target, none at three times that.
fn brake(late: u64, target: u64) -> u64 {
    let left = u128::from((3 * target).saturating_sub(late)) * u128::from(WHOLE) / u128::from(2 * target);
    left.min(u128::from(WHOLE)) as u64
}

/// The median, the mean of the two middle ones of an even number; 0 without values.
fn median(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    let middle = values.len() / 2;
    match values {
        [] => 0,
        _ if values.len() % 2 == 1 => values[middle],
        _ => values[middle - 1] + (values[middle] - values[middle - 1]) / 2,
    }
}
