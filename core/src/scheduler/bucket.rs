//! A leaky bucket: it paces the service in shape mode, and each client with a limit of its own.

use std::time::Duration;

use crate::policy::{Limit, Policy};
use crate::reason::Quota;
use crate::units::{Ratio, Time, nanos};

/// The rate of a service's bucket is a multiple of 2⁻¹⁶ records per cycle, so that it can be a little lower than a
/// small capacity.
const RATE_BITS: u32 = 16;

/// A leaky bucket, empty at first: each record fills it, and it leaks at a constant rate.
///
/// The level is a debt in units of which a record has `record`, so leaking is an exact multiplication, and a bucket
/// with another rate can take the debt over, which a limiter of the crate governor can't.
#[derive(Debug, Clone)]
pub struct LeakyBucket {
    /// The units of one record.
    pub(super) record: u128,
    /// The units that leak in a nanosecond, at most.
    pub(super) full_rate: u128,
    /// The units that leak in a nanosecond now.
    rate: u128,
    depth: u128,
    /// The debt does not leak below this: the bucket is shallower for a while.
    floor: u128,
    debt: u128,
    at: Time,
}

impl LeakyBucket {
    /// The bucket of a service leaks `pace` records per cycle and is as deep as the largest of one record, `burst` ·
    /// pace and what leaks in two commit intervals (else a round late by one would waste capacity).
    pub(super) fn of_service(policy: &Policy, pace: u64) -> LeakyBucket {
        let &Policy { cycle, burst, commit_interval, .. } = policy;
        let record = u128::from(nanos(cycle)) << RATE_BITS;
        let rate = u128::from(pace) << RATE_BITS;
        let burst = u128::from(pace) * record * u128::from(burst.millionths()) / u128::from(Ratio::ONE.millionths());
        let two_rounds = rate * u128::from(nanos(commit_interval)) * 2;
        LeakyBucket::leaking(record, rate, record.max(burst).max(two_rounds))
    }

    /// The bucket of a client's own limit leaks one record in the whole nanoseconds of `per` ÷ `rate`: tests compare it
    /// with governor, which rounds so.
    pub(super) fn of_limit(limit: &Limit) -> LeakyBucket {
        let record = u128::from(nanos(limit.per / limit.rate.get()).max(1));
        LeakyBucket::leaking(record, 1, record * u128::from(limit.burst.get()))
    }

    fn leaking(record: u128, rate: u128, depth: u128) -> LeakyBucket {
        LeakyBucket { record, full_rate: rate, rate, depth, floor: 0, debt: 0, at: Time::ZERO }
    }

    /// Changes to the rate and the depth of another bucket. The debt stays, in records, up to the new depth: the debt
    /// of a much larger capacity would stop the service for several cycles, and the window keeps the promise by itself.
    pub(super) fn change(&mut self, now: Time, other: LeakyBucket) {
        let most = other.depth;
        self.take_over(now, other, most);
    }

    /// Changes to a part of a limit, for one of several instances. The debt stays, in records, up to the whole burst:
    /// a part that becomes smaller must not forgive what was sent, or the limit would be exceeded each time that the
    /// parts change.
    pub(super) fn change_part(&mut self, now: Time, limit: &Limit, ratio: Ratio) {
        let other = LeakyBucket::of_limit(&limit.part(ratio));
        let most = other.record * u128::from(limit.burst.get());
        self.take_over(now, other, most);
    }

    fn take_over(&mut self, now: Time, other: LeakyBucket, most: u128) {
        self.leak(now);
        let (records, rest) = (self.debt / self.record, self.debt % self.record);
        let debt = records * other.record + (rest * other.record).div_ceil(self.record);
        *self = LeakyBucket { debt: debt.min(most), at: self.at, ..other };
    }

    /// Returns whether the bucket is not empty now.
    pub(super) fn has_debt(&mut self, now: Time) -> bool {
        self.leak(now);
        self.debt > 0
    }

    /// Returns whether one more record fits now.
    pub(super) fn has_room(&mut self, now: Time) -> bool {
        self.leak(now);
        self.full_rate > 0 && self.debt + self.record <= self.depth
    }

    /// Adds one record to the debt, whether it fits or not.
    pub(super) fn charge(&mut self, now: Time) {
        self.leak(now);
        self.debt += self.record;
    }

    /// The time at which one more record will fit.
    pub(super) fn next_room(&mut self, now: Time) -> Time {
        self.leak(now);
        self.room_at(now, self.rate)
    }

    /// The earliest time at which one more record can fit: at the full rate from now on.
    pub(super) fn first_room(&mut self, now: Time) -> Time {
        self.leak(now);
        self.room_at(now, self.full_rate)
    }

    fn room_at(&self, now: Time, rate: u128) -> Time {
        let excess = (self.debt + self.record).saturating_sub(self.depth);
        match excess.checked_div(rate) {
            _ if self.full_rate == 0 => Time::NEVER,
            _ if excess == 0 => now,
            None => Time::NEVER,
            Some(_) => {
                let nanos = u64::try_from(excess.div_ceil(rate)).unwrap_or(u64::MAX);
                Time::from_nanos(now.as_nanos().saturating_add(nanos))
            }
        }
    }

    /// The most records that go in any window (t − `time`, t]: a full bucket, and what leaks meanwhile.
    pub fn most_in(&self, time: Duration) -> u64 {
        let leaked = u128::from(nanos(time)) * self.full_rate;
        u64::try_from((self.depth + leaked) / self.record).unwrap_or(u64::MAX)
    }

    /// The records that fit into the empty bucket, those in it now, and the time in which a full bucket leaks empty.
    pub(super) fn quota(&mut self, now: Time) -> Quota {
        self.leak(now);
        let number = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
        Quota {
            limit: number(self.depth / self.record),
            used: number(self.debt.div_ceil(self.record)),
            time: Duration::from_nanos(number(self.depth.checked_div(self.full_rate).unwrap_or(u128::MAX))),
        }
    }

    /// The records that go in this time in the long run.
    pub fn pace_in(&self, time: Duration) -> f64 {
        nanos(time) as f64 * self.full_rate as f64 / self.record as f64
    }

    /// The units that still fit now.
    pub(super) fn room(&mut self, now: Time) -> u128 {
        self.leak(now);
        self.depth.saturating_sub(self.debt)
    }

    /// Leaks at another rate from now on, and only while fewer than `most` units fit.
    pub(super) fn slow_down(&mut self, rate: u128, most: u128) {
        (self.rate, self.floor) = (rate, self.depth.saturating_sub(most));
        self.debt = self.debt.max(self.floor);
    }

    fn leak(&mut self, now: Time) {
        if now > self.at {
            let leaked = u128::from(now.nanos_since(self.at)) * self.rate;
            self.debt = self.debt.saturating_sub(leaked).max(self.floor);
            self.at = now;
        }
    }
}
