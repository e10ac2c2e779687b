//! The part of a client's grant at one instance of a group, as it falls (reject mode).
//!
//! When partitions move to another instance, the client's part of its grant follows its demand at once. The records
//! that the former owner admitted count there for another cycle. If they counted against the smaller part, the former
//! owner would refuse all further records of the client until enough of them have left the window. So the part falls
//! evenly over a cycle: use that was even goes down with it while the client goes on at the pace of its new part.
//!
//! Only the part falls slowly. A grant that becomes smaller as a whole, because a client takes its share back, is
//! smaller at once at all instances. The window bounds what an instance admits, whatever the parts are.

use std::time::Duration;

use crate::units::{Ratio, Time, nanos};

/// A part of a grant that has changed.
#[derive(Debug, Clone, Copy)]
pub(super) struct FallingPart {
    /// The whole grant, in records.
    whole: u64,
    /// The part that is reached after a cycle, in millionths.
    target: u64,
    /// The part at the last change, in millionths: at least the target.
    start: u64,
    since: Time,
}

impl FallingPart {
    /// No part of nothing.
    pub const NONE: FallingPart = FallingPart { whole: 0, target: 0, start: 0, since: Time::ZERO };

    /// Changes to a part of so many records. A larger part is in force at once.
    pub fn change(&mut self, now: Time, cycle: Duration, records: u64, whole: u64) {
        let records = u128::from(records.min(whole)) * u128::from(Ratio::ONE.millionths());
        let target = (records / u128::from(whole.max(1))) as u64;
        if target != self.target {
            (self.start, self.since) = (self.millionths(now, cycle).max(target), now);
            self.target = target;
        }
        self.whole = whole;
    }

    fn millionths(&self, now: Time, cycle: Duration) -> u64 {
        let left = nanos(cycle).saturating_sub(now.nanos_since(self.since));
        let beyond = u128::from(self.start - self.target) * u128::from(left) / u128::from(nanos(cycle).max(1));
        self.target + beyond as u64
    }

    /// The part of this moment, in records.
    pub fn records(&self, now: Time, cycle: Duration) -> u64 {
        let records = u128::from(self.whole) * u128::from(self.millionths(now, cycle));
        (records / u128::from(Ratio::ONE.millionths())) as u64
    }
}
