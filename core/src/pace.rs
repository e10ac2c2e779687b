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
//! - `signals`: how late the service is, by what is open in each partition and how late its commits are
//! - `estimate`: the rate that the service can finish
//! - `history`: the rate that the service finishes
//! - `view`: the state, as the shell shows it

mod estimate;
mod history;
mod params;
mod signals;
mod view;

use std::collections::VecDeque;

use crate::units::{Ratio, Time};
use estimate::{Check, Estimate};
use history::{FinishedRates, RateWindow};
pub use params::{ChangeCause, Control, Offsets, PaceParams};
use signals::Signals;
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
/// Observation: a service that is late by this part of what is tolerated is busy all of the time.
const BUSY_PART: u64 = 4;
/// The controller of one service's capacity.
#[derive(Debug)]
pub struct Pace {
    params: PaceParams,
    signals: Signals,
    rates: FinishedRates,
    /// The parts of the time in which records waited, in millionths, with the polls that told them.
    waits: VecDeque<(Time, u32)>,
    next_check: Time,
    estimate: Estimate,
    /// Observation: the service has been late, by a part of what is tolerated at least, since this time.
    late_since: Option<Time>,
    brake: u64,
    limit: u64,
    contact: OffsetNews,
    /// The sum of the ends of the partitions in which the group has not committed.
    other_ends: i64,
}

/// The last news of the offsets.
#[derive(Debug, Default)]
struct OffsetNews {
    /// Another instance searches.
    follows: bool,
    blind_since: Option<Time>,
    told_at: Option<Time>,
}

impl Pace {
    /// A controller that starts from the configured capacity; one that only observes knows nothing yet.
    pub fn new(params: PaceParams, now: Time) -> Pace {
        let capacity = params.capacity * MILLI;
        let (estimate, limit) = match params.control {
            Control::Apply => (params.clamped(capacity), params.clamped(capacity)),
            Control::Observe => (0, capacity),
        };
        Pace {
            signals: Signals::default(),
            rates: FinishedRates::new(params.cycle, 0),
            waits: VecDeque::new(),
            next_check: now + params.interval,
            estimate: Estimate::new(estimate, now),
            late_since: None,
            brake: WHOLE,
            limit,
            contact: OffsetNews::default(),
            other_ends: 0,
            params,
        }
    }

    /// Changes the settings. The estimate stays, within the new bounds; another use or cycle begins anew.
    pub fn change(&mut self, params: PaceParams, now: Time) {
        if (params.control, params.cycle) != (self.params.control, self.params.cycle) {
            let (markers, changes) = (self.rates.units.markers, self.estimate.changes);
            *self = Pace::new(params, now);
            (self.rates.units.markers, self.estimate.changes) = (markers, changes);
            return;
        }
        self.params = params;
        // The check after a longer interval would come as late as that one.
        self.next_check = self.next_check.min(now + self.params.interval);
        if self.params.control == Control::Apply {
            self.estimate.set(self.params.clamped(self.estimate.milli), ChangeCause::Reload);
        }
        self.find_limit();
    }

    /// Notes that another instance searches. The estimate follows its limit, in records per cycle, if that is known,
    /// and is no higher than the configured capacity otherwise.
    pub fn handle_other(&mut self, limit: Option<u64>) {
        self.forget();
        // A later search here begins with a signal timeout of its own: until then the other instance looks for offsets.
        (self.contact.follows, self.contact.blind_since) = (true, None);
        if self.params.control == Control::Apply {
            let followed = limit.unwrap_or(self.limit().min(self.params.capacity));
            self.estimate.follow(self.params.clamped(followed * MILLI), limit.is_some());
        }
        self.find_limit();
    }

    /// Forgets the measured rate: the records that were admitted so far are counted anew.
    pub fn forget_rate(&mut self) {
        self.rates.clear();
    }

    /// Tells how many markers of transactions our instances write to the target, per second and at most. Offsets that
    /// are neither our records nor our markers are records of other writers.
    pub fn expect_markers(&mut self, per_second: u64) {
        self.rates.units.markers = per_second;
    }

    /// Notes the sum of the ends of the partitions in which the group has not committed. Admitted records are there,
    /// too, and the service has not finished them.
    pub fn note_other_ends(&mut self, ends: i64) {
        self.other_ends = ends;
    }

    /// Takes the offsets of all partitions of the target in which the group has committed.
    ///
    /// `admitted` counts the records that were admitted so far, and `waited` is the part of the time since the last
    /// call in which records waited for admission, or were rejected for lack of capacity.
    pub fn handle_offsets(&mut self, now: Time, offsets: &[Offsets], admitted: u64, waited: Ratio) {
        self.contact = OffsetNews { follows: false, blind_since: None, told_at: Some(now) };
        let knew_any = !self.signals.partitions.is_empty();
        let differ = self.signals.note_offsets(now, offsets);
        if differ {
            self.forget_rate();
        }
        let committed: i64 = offsets.iter().map(|one| one.committed).sum();
        // After a time without offsets all partitions are new here, and the sum goes on from the former one.
        self.estimate.note_committed(committed, knew_any && differ);
        let is_busy = self.signals.measure(now);
        self.waits.push_back((now, waited.millionths()));
        while self.waits.front().is_some_and(|&(at, _)| at < now - self.params.interval) {
            self.waits.pop_front();
        }
        let ends: i64 = offsets.iter().map(|one| one.end).sum();
        let others = i128::from(ends) + i128::from(self.other_ends) - i128::from(admitted);
        let observes = self.params.control == Control::Observe;
        if self.signals.stalled {
            self.rates.clear();
        } else {
            let commits = self.signals.partitions.values().map(|partition| partition.commit).collect();
            self.rates.push(now, commits, others, is_busy, observes);
        }
        let (late, target) = (self.signals.late, self.params.target(self.known_estimate()));
        self.brake = brake(late, target);
        self.late_since = (late > target / BUSY_PART).then(|| self.late_since.unwrap_or(now));
        if now >= self.next_check {
            self.next_check = now + self.params.interval;
            if !self.signals.stalled {
                self.check(now, committed, target);
            }
        }
        self.find_limit();
    }

    /// Notes that the offsets could not be read, or that the group has committed none. The limit is the estimate: the
    /// service is unprotected meanwhile.
    pub fn handle_no_signal(&mut self, now: Time) {
        self.forget();
        self.contact.follows = false;
        let since = *self.contact.blind_since.get_or_insert(now);
        if now.since(since) >= self.params.signal_timeout && self.params.control == Control::Apply {
            self.estimate.set(self.estimate.milli.min(self.params.capacity * MILLI), ChangeCause::Signal);
        }
        self.find_limit();
    }

    fn forget(&mut self) {
        self.rates = FinishedRates::new(self.params.cycle, self.rates.units.markers);
        (self.signals, self.late_since, self.brake) = (Signals::default(), None, WHOLE);
    }

    /// The partitions whose open offsets may be markers of transactions only: their end has not moved for a while.
    /// Consumers that commit the offset after their last record never commit past such a tail.
    pub fn doubtful_tails(&self, now: Time) -> impl Iterator<Item = Offsets> {
        let partitions = self.signals.partitions.iter();
        partitions.filter_map(move |(&number, partition)| partition.doubtful_tail(now, number))
    }

    /// Notes that no record lies between the committed offset and the end of a partition.
    pub fn handle_empty_tail(&mut self, tail: Offsets) {
        if let Some(partition) = self.signals.partitions.get_mut(&tail.partition) {
            partition.close_until(tail.end);
        }
    }

    /// The limit in force, in records per cycle; the configured capacity if the estimate is only reported.
    pub fn limit(&self) -> u64 {
        self.limit / MILLI
    }

    fn find_limit(&mut self) {
        let scaled = u128::from(self.estimate.milli) * u128::from(self.brake) / u128::from(WHOLE);
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

    /// Compares the finished rate with the estimate.
    fn check(&mut self, now: Time, committed: i64, target: u64) {
        let late = self.signals.late;
        let gap = self.signals.longest(|partition| partition.gap);
        let window = |length| RateWindow { length, gap, since: None };
        let is_applied = self.params.control == Control::Apply;
        // Observation: before it was late, the service may have had less to do than it can.
        let since = self.late_since.filter(|_| !is_applied && late > target);
        let is_steady = !is_applied && late <= target;
        let rate = self.rates.measure(is_steady, &RateWindow { since, ..window(RATE_WINDOW) });
        let check = Check { now, committed, late, target, rate, records_wait: self.records_wait() };
        if is_applied {
            self.estimate.decide(&self.params, &check);
        } else {
            let steady = self.rates.long_steady(&window(STEADY_WINDOW));
            self.estimate.compare(&check, steady);
        }
    }

    /// The estimate or, while it is unknown, the configured capacity.
    fn known_estimate(&self) -> u64 {
        if self.estimate.milli == 0 { self.params.capacity * MILLI } else { self.estimate.milli }
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
