//! The gates on the service: the window over a cycle, which the promise rests on, and in shape mode the leaky bucket,
//! which paces the admissions.

use super::bucket::LeakyBucket;
use super::mean_limit::MeanLimit;
use super::spacing::{Spacing, WindowAhead};
use crate::policy::{Policy, Scope};
use crate::units::Time;
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
    spacing: Spacing,
    /// The pace is found anew from this time on.
    paced_until: Time,
}

impl Gates {
    pub(super) fn new(policy: &Policy) -> Gates {
        let (limit, until) = match policy.scope {
            Scope::Instance => (policy.capacity, Time::NEVER),
            Scope::Group => (0, Time::ZERO),
        };
        let bucket = LeakyBucket::of_service(policy, limit);
        let window = SlidingCount::new(policy.window_length());
        let (capacities, spacing) = (MeanLimit::new(policy.cycle, limit), Spacing::new(policy));
        Gates { window, bucket, limit, fresh_until: until, until, capacities, spacing, paced_until: Time::ZERO }
    }

    /// Changes to another policy, perhaps with another length of the cycle.
    pub(super) fn change(&mut self, now: Time, old: &Policy, policy: &Policy) {
        if old.cycle != policy.cycle {
            self.window = self.window.over(now, policy.window_length());
        }
        self.spacing.change(policy);
        if policy.scope == Scope::Instance && (old.capacity, old.cycle) == (policy.capacity, policy.cycle) {
            self.set_pace(now, policy, policy.capacity);
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
            self.set_pace(now, policy, policy.capacity);
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
        self.set_pace(now, policy, pace);
    }

    fn set_pace(&mut self, now: Time, policy: &Policy, pace: u64) {
        self.bucket.change(now, LeakyBucket::of_service(policy, pace));
        self.paced_until = Time::ZERO;
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
        if now >= self.paced_until {
            self.find_pace(now);
        }
        self.window_is_open(now) && self.bucket.has_room(now)
    }

    /// Notes that the owner looks at the waiting records.
    #[inline]
    pub(super) fn note_look(&mut self, now: Time) {
        self.spacing.note_look(now);
    }

    /// Finds the pace until the next record leaves the window, or for one slice.
    #[cold]
    #[inline(never)]
    fn find_pace(&mut self, now: Time) {
        if now > self.fresh_until {
            self.refresh(now);
        }
        let soon = Time::from_nanos(now.as_nanos() + 1);
        let next_slice = now + self.window.width();
        let next = self.window.departures(now).next().map_or(next_slice, |(at, _)| at.clamp(soon, next_slice));
        let mut forecast = self.capacities.forecast(now);
        let limit = self.limit;
        let window = WindowAhead {
            count: self.window.count(now),
            limit_in: |nanos| forecast.at(nanos).unwrap_or(limit),
            departures: self.window.departures(now),
        };
        self.spacing.pace(now, &mut self.bucket, self.until == Time::NEVER, window);
        self.paced_until = next;
    }

    /// The time at which both gates are open if nothing is admitted until then, or the time before which they are not
    /// but after which the pace may be higher. The owner is late if it comes back later.
    pub(super) fn open_at(&mut self, now: Time) -> Time {
        let open = self.find_open(now);
        self.spacing.promise(open);
        open
    }

    fn find_open(&mut self, now: Time) -> Time {
        if now >= self.paced_until {
            self.find_pace(now);
        }
        let bucket = match self.bucket.next_room(now) {
            room if room > self.paced_until => room.min(self.paced_until.max(self.bucket.first_room(now))),
            room => room,
        };
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
