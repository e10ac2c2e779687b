//! The gates: the service's window over a cycle, which the promise rests on, and leaky buckets. One bucket paces the
//! service in shape mode; each client with a limit of its own has another.

use std::time::Duration;

use super::mean_limit::MeanLimit;
use crate::policy::{Limit, Policy, Scope};
use crate::units::{Ratio, Time, nanos};
use crate::window::SlidingCount;

/// The gates on the service. Both are checked before either is charged.
#[derive(Debug)]
pub(crate) struct Gates {
    pub(crate) window: SlidingCount,
    pub(super) bucket: LeakyBucket,
    /// The most records that the window may hold: the capacity, or this instance's part of the group's. If the
    /// capacity has changed within the window, the mean of the capacities that were in force over it.
    limit: u64,
    /// The limit is found anew after this time.
    fresh_until: Time,
    /// After this time nothing is admitted.
    until: Time,
    capacities: MeanLimit,
}

impl Gates {
    pub(super) fn new(policy: &Policy) -> Gates {
        let (limit, until) = match policy.scope {
            Scope::Instance => (policy.capacity, Time::NEVER),
            Scope::Group => (0, Time::ZERO),
        };
        let bucket = LeakyBucket::of_service(policy, limit);
        let window = SlidingCount::new(policy.window_length());
        let capacities = MeanLimit::new(policy.cycle, limit);
        Gates { window, bucket, limit, fresh_until: until, until, capacities }
    }

    /// Changes to another policy, perhaps with another length of the cycle.
    pub(super) fn change(&mut self, now: Time, old: &Policy, policy: &Policy) {
        if old.cycle != policy.cycle {
            self.window = self.window.over(now, policy.window_length());
        }
        if policy.scope == Scope::Instance && (old.capacity, old.cycle) == (policy.capacity, policy.cycle) {
            self.bucket.change(now, LeakyBucket::of_service(policy, policy.capacity));
        } else if policy.scope == Scope::Instance {
            self.set_limit(now, policy, policy.capacity, Time::NEVER, policy.capacity);
        }
    }

    /// Changes to another capacity of the same cycle. The window may hold the mean of the capacities that were in force
    /// over it: to hold fewer than the new one at once would stop the service for up to a cycle when the capacity
    /// falls, and would let a burst through when it rises.
    pub(super) fn change_capacity(&mut self, now: Time, policy: &Policy) {
        if policy.scope == Scope::Instance {
            self.capacities.change(now, policy.capacity);
            self.bucket.change(now, LeakyBucket::of_service(policy, policy.capacity));
            self.refresh(now);
        }
    }

    /// Finds the limit of this moment. Returns whether there is one.
    #[cold]
    fn refresh(&mut self, now: Time) -> bool {
        if self.has_limit(now) {
            (self.limit, self.fresh_until) = self.capacities.mean(now);
        }
        self.has_limit(now)
    }

    /// Sets the most records that the window may hold until a time, and the pace in records per cycle.
    pub(super) fn set_limit(&mut self, now: Time, policy: &Policy, limit: u64, until: Time, pace: u64) {
        (self.limit, self.fresh_until, self.until) = (limit, until, until);
        self.capacities = MeanLimit::new(policy.cycle, limit);
        self.bucket.change(now, LeakyBucket::of_service(policy, pace));
    }

    /// Returns whether there is a limit now. Without one nothing is decided for lack of capacity.
    #[inline]
    pub(super) fn has_limit(&self, now: Time) -> bool {
        now <= self.until
    }

    #[inline]
    pub(super) fn window_is_open(&mut self, now: Time) -> bool {
        (now <= self.fresh_until || self.refresh(now)) && self.window.count(now) < self.limit
    }

    #[inline]
    pub(super) fn are_open(&mut self, now: Time) -> bool {
        self.window_is_open(now) && self.bucket.has_room(now)
    }

    /// The time at which both gates are open if nothing is admitted until then.
    pub(super) fn open_at(&mut self, now: Time) -> Time {
        let bucket = self.bucket.next_room(now);
        if self.window_is_open(now) {
            return bucket;
        }
        let limit_changes = Time::from_nanos(self.fresh_until.as_nanos().saturating_add(1));
        bucket.max(self.window_open_at(now).min(limit_changes))
    }

    /// The time at which the window has room for another record, if the limit stays.
    pub(super) fn window_open_at(&mut self, now: Time) -> Time {
        if !self.has_limit(now) {
            return Time::NEVER;
        }
        self.window.below_at(now, self.limit)
    }
}

/// A leaky bucket, empty at first: each record fills it, and it leaks at a constant rate.
///
/// The level is a debt in records × nanoseconds of a period, so leaking is an exact multiplication, and a bucket with
/// another rate can take the debt over, which a limiter of the crate governor can't.
#[derive(Debug, Clone)]
pub struct LeakyBucket {
    /// Records that leak in a period.
    rate: u64,
    /// One record weighs as much as a period has nanoseconds; the bucket leaks `rate` a nanosecond.
    record: u128,
    depth: u128,
    debt: u128,
    at: Time,
}

impl LeakyBucket {
    /// The bucket of a service with this policy.
    pub(super) fn of_service(policy: &Policy, rate: u64) -> LeakyBucket {
        LeakyBucket::new(policy.cycle, policy.burst, policy.commit_interval, rate)
    }

    /// A bucket that leaks `rate` records per cycle and is as deep as the largest of one record, `burst` · rate and
    /// what leaks in two commit intervals (else a round late by one would waste capacity).
    pub fn new(cycle: Duration, burst: Ratio, commit_interval: Duration, rate: u64) -> LeakyBucket {
        let record = u128::from(nanos(cycle));
        let capacity = u128::from(rate) * record;
        let burst = capacity * u128::from(burst.millionths()) / u128::from(Ratio::ONE.millionths());
        let two_rounds = u128::from(rate) * u128::from(nanos(commit_interval)) * 2;
        LeakyBucket { rate, record, depth: record.max(burst).max(two_rounds), debt: 0, at: Time::ZERO }
    }

    /// The bucket of a client's own limit leaks one record in the whole nanoseconds of `per` ÷ `rate`: tests compare it
    /// with governor, which rounds so.
    pub(super) fn of_limit(limit: &Limit) -> LeakyBucket {
        let record = u128::from(nanos(limit.per / limit.rate.get()).max(1));
        LeakyBucket { rate: 1, record, depth: record * u128::from(limit.burst.get()), debt: 0, at: Time::ZERO }
    }

    /// Changes to the rate and the depth of another bucket. The debt stays, in records, up to the new depth: the debt
    /// of a much larger capacity would stop the service for several cycles, and the window keeps the promise by itself.
    pub(super) fn change(&mut self, now: Time, other: LeakyBucket) {
        self.leak(now);
        let (records, rest) = (self.debt / self.record, self.debt % self.record);
        let debt = records * other.record + (rest * other.record).div_ceil(self.record);
        *self = LeakyBucket { debt: debt.min(other.depth), at: self.at, ..other };
    }

    /// Returns whether one more record fits now.
    pub(super) fn has_room(&mut self, now: Time) -> bool {
        self.leak(now);
        self.rate > 0 && self.debt + self.record <= self.depth
    }

    /// Adds one record to the debt, whether it fits or not.
    pub(super) fn charge(&mut self, now: Time) {
        self.leak(now);
        self.debt += self.record;
    }

    /// Adds one record if it fits.
    ///
    /// # Errors
    /// The record does not fit; the error is the time at which it will.
    pub(super) fn take(&mut self, now: Time) -> Result<(), Time> {
        if !self.has_room(now) {
            return Err(self.next_room(now));
        }
        self.charge(now);
        Ok(())
    }

    /// The time at which one more record will fit.
    pub(super) fn next_room(&mut self, now: Time) -> Time {
        self.leak(now);
        let excess = (self.debt + self.record).saturating_sub(self.depth);
        if self.rate == 0 {
            return Time::NEVER;
        }
        if excess == 0 {
            return now;
        }
        now + Duration::from_nanos(u64::try_from(excess.div_ceil(u128::from(self.rate))).unwrap_or(u64::MAX))
    }

    /// The most records that go in any window (t − `time`, t]: a full bucket, and what leaks meanwhile.
    pub fn most_in(&self, time: Duration) -> u64 {
        let leaked = u128::from(nanos(time)) * u128::from(self.rate);
        u64::try_from((self.depth + leaked) / self.record).unwrap_or(u64::MAX)
    }

    /// The records that go in this time in the long run.
    pub fn pace_in(&self, time: Duration) -> f64 {
        nanos(time) as f64 * self.rate as f64 / self.record as f64
    }

    fn leak(&mut self, now: Time) {
        if now > self.at {
            let leaked = u128::from(now.nanos_since(self.at)) * u128::from(self.rate);
            self.debt = self.debt.saturating_sub(leaked);
            self.at = now;
        }
    }
}
