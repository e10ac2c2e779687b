//! The leaky bucket that paces shape mode: admissions fill it, it leaks at capacity per cycle.
//!
//! Its level is a debt in records × nanoseconds of a cycle, so leaking is an exact multiplication. Unlike a
//! governor limiter it can be re-rated: the debt keeps its value in records.

use std::time::Duration;

use crate::units::{Ratio, Time, nanos};

/// A leaky bucket, empty at first.
#[derive(Debug, Clone)]
pub struct LeakyBucket {
    capacity: u64,
    /// One record weighs as much as a cycle has nanoseconds; the bucket leaks `capacity` a nanosecond.
    record: u128,
    depth: u128,
    debt: u128,
    at: Time,
}

impl LeakyBucket {
    /// A bucket that leaks `capacity` records per `cycle` and is as deep as the largest of one record,
    /// `burst` · capacity and what leaks in two commit intervals (else a round late by one would waste capacity).
    pub fn new(capacity: u64, cycle: Duration, burst: Ratio, commit_interval: Duration) -> LeakyBucket {
        let record = u128::from(nanos(cycle));
        let cycle_leaks = u128::from(capacity) * record;
        let burst = cycle_leaks * u128::from(burst.millionths()) / u128::from(Ratio::ONE.millionths());
        let two_rounds = u128::from(capacity) * u128::from(nanos(commit_interval)) * 2;
        LeakyBucket { capacity, record, depth: record.max(burst).max(two_rounds), debt: 0, at: Time::ZERO }
    }

    /// Changes the rate and the depth. The debt stays, in records, up to the new depth: the debt of a much larger
    /// capacity would stop the service for several cycles, and the window keeps the promise by itself.
    pub fn change(&mut self, now: Time, capacity: u64, cycle: Duration, burst: Ratio, commit_interval: Duration) {
        self.leak(now);
        let other = LeakyBucket::new(capacity, cycle, burst, commit_interval);
        let (records, rest) = (self.debt / self.record, self.debt % self.record);
        let debt = records * other.record + (rest * other.record).div_ceil(self.record);
        *self = LeakyBucket { debt: debt.min(other.depth), at: self.at, ..other };
    }

    /// Returns whether one more record fits now.
    pub fn has_room(&mut self, now: Time) -> bool {
        self.leak(now);
        self.debt + self.record <= self.depth
    }

    /// Adds one record to the debt, whether it fits or not.
    pub fn charge(&mut self, now: Time) {
        self.leak(now);
        self.debt += self.record;
    }

    /// The time at which one more record will fit.
    pub fn next_room(&mut self, now: Time) -> Time {
        self.leak(now);
        let excess = (self.debt + self.record).saturating_sub(self.depth);
        if excess == 0 {
            return now;
        }
        now + Duration::from_nanos(u64::try_from(excess.div_ceil(u128::from(self.capacity))).unwrap_or(u64::MAX))
    }

    fn leak(&mut self, now: Time) {
        if now > self.at {
            let leaked = u128::from(now.nanos_since(self.at)) * u128::from(self.capacity);
            self.debt = self.debt.saturating_sub(leaked);
            self.at = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_bucket_paces_at_capacity_per_cycle() {
        let mut bucket = LeakyBucket::new(10, Duration::from_secs(1), Ratio::ZERO, Duration::from_millis(1));
        let mut now = at(1_000);
        for n in 0..20 {
            assert_eq!(now, at(1_000 + n * 100));
            assert!(bucket.has_room(now));
            bucket.charge(now);
            assert!(!bucket.has_room(now));
            now = bucket.next_room(now);
        }
    }

    #[test]
    fn a_burst_is_admitted_at_once_and_leaks_away() {
        let burst = Ratio::from_millionths(300_000).unwrap();
        let mut bucket = LeakyBucket::new(10, Duration::from_secs(1), burst, Duration::from_millis(1));
        let took = std::iter::repeat_with(|| bucket.has_room(at(500)).then(|| bucket.charge(at(500))))
            .take_while(Option::is_some)
            .count();
        assert_eq!(took, 3);
        assert_eq!(bucket.next_room(at(500)), at(600));
    }
}
