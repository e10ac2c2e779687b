//! The limits of a client, or of a group of clients: all of them must have room for a record.

use std::time::Duration;

use super::bucket::LeakyBucket;
use crate::policy::Limit;
use crate::reason::Quota;
use crate::units::{Ratio, Time};

/// Limits, and a hold: a limit under which no record has room.
#[derive(Debug, Clone)]
pub struct Limits {
    pub held: bool,
    /// The limits in force. In a group of instances, the buckets have this instance's part of them.
    whole: Vec<Limit>,
    part: Ratio,
    /// The limits as they are applied; none if there is only a hold.
    pub buckets: Vec<LeakyBucket>,
}

/// The ways in which a limit may be like a former one, whose debt it keeps: the most alike first.
const LIKENESS: [fn(&Limit, &Limit) -> bool; 4] = [
    |one, other| one == other,
    |one, other| (one.rate, one.per) == (other.rate, other.per),
    |one, other| one.per == other.per,
    |_, _| true,
];

impl Limits {
    /// Changes to other limits. Each keeps the debt of the former one that is most like it: the same one, one of the
    /// same rate, one over the same time, or else any that is left.
    pub(super) fn change(this: &mut Option<Box<Limits>>, now: Time, limits: &[Limit], held: bool) {
        if limits.is_empty() && !held {
            *this = None;
            return;
        }
        let none = || Box::new(Limits { held, whole: Vec::new(), part: Ratio::ONE, buckets: Vec::new() });
        let this = this.get_or_insert_with(none);
        this.held = held;
        if this.whole == limits {
            return;
        }
        let mut former: Vec<_> = this.whole.drain(..).zip(this.buckets.drain(..)).collect();
        let mut buckets = vec![None; limits.len()];
        for is_alike in LIKENESS {
            for (limit, bucket) in limits.iter().zip(&mut buckets).filter(|(_, bucket)| bucket.is_none()) {
                if let Some(place) = former.iter().position(|(former, _)| is_alike(former, limit)) {
                    let (_, mut kept) = former.remove(place);
                    kept.change_part(now, limit, this.part);
                    *bucket = Some(kept);
                }
            }
        }
        let anew = |limit: &Limit| LeakyBucket::of_limit(&limit.part(this.part));
        let buckets = limits.iter().zip(buckets).map(|(limit, kept)| kept.unwrap_or_else(|| anew(limit)));
        this.buckets = buckets.collect();
        this.whole = limits.to_vec();
    }

    /// Changes to a part of the limits, for one of several instances.
    pub(super) fn take_part(&mut self, now: Time, ratio: Ratio) {
        self.part = ratio;
        for (bucket, limit) in self.buckets.iter_mut().zip(&self.whole) {
            bucket.change_part(now, limit, ratio);
        }
    }

    /// Returns whether records that were sent still count, if none was for this time. The bucket of a small part leaks
    /// slowly, so nothing counts after the time in which a full bucket of the whole limit leaks empty.
    pub(super) fn has_debt(&mut self, now: Time, idle: Duration) -> bool {
        let counts = |limit: &Limit| idle < limit.per / limit.rate.get() * limit.burst.get();
        self.buckets.iter_mut().zip(&self.whole).any(|(bucket, limit)| counts(limit) && bucket.has_debt(now))
    }

    /// The most records that go in this time, at all instances together.
    pub(crate) fn most_in(&self, time: Duration) -> u64 {
        if self.held { 0 } else { Limit::most_in(&self.whole, time) }
    }

    /// The records that go in this time in the long run, at all instances together.
    pub(crate) fn pace_in(&self, time: Duration) -> f64 {
        self.whole.iter().map(|limit| limit.pace_in(time)).fold(f64::INFINITY, f64::min)
    }

    /// Returns whether one more record fits now.
    pub(super) fn has_room(&mut self, now: Time) -> bool {
        !self.held && self.buckets.iter_mut().all(|bucket| bucket.has_room(now))
    }

    /// Adds one record to each debt, whether it fits or not.
    pub(super) fn charge(&mut self, now: Time) {
        self.buckets.iter_mut().for_each(|bucket| bucket.charge(now));
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

    /// The quota of the limit that has no room for one more record, and will have some last.
    pub(super) fn exhausted(&mut self, now: Time) -> Option<Quota> {
        let full = self.buckets.iter_mut().filter_map(|bucket| (!bucket.has_room(now)).then_some(bucket));
        let quotas = full.map(|bucket| (bucket.next_room(now), bucket.quota(now)));
        quotas.max_by_key(|(room, _)| *room).map(|(_, quota)| quota)
    }

    /// The time at which one more record will fit.
    pub(super) fn next_room(&mut self, now: Time) -> Time {
        if self.held {
            return Time::NEVER;
        }
        self.buckets.iter_mut().map(|bucket| bucket.next_room(now)).max().unwrap_or(now)
    }
}
