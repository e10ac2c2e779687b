//! The clients of a group that are not configured. However many of them come one after another, together they send as
//! many records within their shares as their part of the group's share. Each newcomer gets a share at once, and the
//! clients before it have often used theirs already.

use std::time::Duration;

use super::client::Used;
use crate::units::{Time, nanos};

/// All clients of a group that are not configured.
#[derive(Debug, Default)]
pub(super) struct Unlisted {
    /// The weights of these clients inside the group, in thousandths.
    pub weight: u128,
    /// The most records that they may send within their shares.
    pub share: u64,
    /// The records that these clients sent within their shares (reject mode).
    pub used: Used,
    pub owed: Owed,
}

impl Unlisted {
    /// Returns whether these clients have used all of their shares without any doubt.
    pub fn has_used_its_share(&mut self, now: Time, cycle: u64) -> bool {
        self.used.count(now, cycle) >= self.share && self.used.count_at_least(now, cycle) >= self.share
    }

    /// The time from which on these clients have room within their shares, if nothing is admitted.
    pub fn share_opens(&mut self, now: Time, cycle: u64, cycle_end: Time) -> Time {
        if self.has_used_its_share(now, cycle) { self.used.below_at(now, self.share, cycle_end) } else { now }
    }
}

/// The records that a client, or all of a group that are not configured, are owed since a takeover of partitions.
#[derive(Debug, Default)]
pub(super) struct Owed {
    /// The last takeover since which records went first, their number, and the longest time for which the partition of
    /// any of them had no owner.
    pub since: Time,
    pub taken: u64,
    wait: Duration,
}

impl Owed {
    /// Returns whether another record is owed: as many are as the share lets through in the longest of these times, and
    /// since the takeover; in a cycle at most.
    pub fn has_more(&mut self, now: Time, takeover: Time, share: u64, wait: Duration, cycle: Duration) -> bool {
        if self.since != takeover {
            *self = Owed { since: takeover, taken: 0, wait: Duration::ZERO };
        }
        self.wait = self.wait.max(wait);
        let time = (self.wait + now.since(takeover)).min(cycle);
        let owed = u128::from(share) * u128::from(nanos(time)) / u128::from(nanos(cycle).max(1));
        u128::from(self.taken) <= owed
    }
}
