//! The gates on the service: the window over a cycle, which the promise rests on, and the bucket that paces shape mode.

use super::bucket::LeakyBucket;
use crate::{policy::Policy, units::Time, window::SlidingCount};

/// Both gates. They are checked before either is charged.
#[derive(Debug)]
pub(super) struct Gates {
    pub(super) window: SlidingCount,
    pub(super) bucket: LeakyBucket,
    capacity: u64,
}

impl Gates {
    pub(super) fn new(policy: &Policy) -> Gates {
        let bucket = LeakyBucket::new(policy.capacity, policy.cycle, policy.burst, policy.commit_interval);
        Gates { window: SlidingCount::new(policy.cycle), bucket, capacity: policy.capacity }
    }

    /// Changes to another policy, perhaps with another length of the cycle.
    pub(super) fn change(&mut self, now: Time, old: &Policy, policy: &Policy) {
        if old.cycle != policy.cycle {
            self.window = self.window.over(now, policy.cycle);
        }
        self.bucket.change(now, policy.capacity, policy.cycle, policy.burst, policy.commit_interval);
        self.capacity = policy.capacity;
    }

    #[inline]
    pub(super) fn window_is_open(&mut self, now: Time) -> bool {
        self.window.count(now) < self.capacity
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
        self.window.next_release(now).map_or(bucket, |window| window.max(bucket))
    }

    /// The time at which the window has room for another record.
    pub(super) fn window_open_at(&mut self, now: Time) -> Time {
        self.window.below_at(now, self.capacity)
    }
}
