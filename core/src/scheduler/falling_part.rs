//! The part of a client's grant at one instance of a group, as it falls (reject mode).
//!
//! When partitions move to another instance, a client's part of its grant follows the client's demand at once. The
//! former owner of the partitions still counts the records that it admitted, for another cycle. Against the smaller
//! part it would refuse all further records of the client until enough of those have left the window. So the part
//! falls evenly over a cycle: even use goes down with it while the client goes on at the pace of its new part.
//!
//! The whole grant does not fall slowly. When a client takes its share back, the grants of the others shrink at all
//! instances at once. The window bounds the admissions of an instance, whatever the parts are.

use std::time::Duration;

use crate::units::{Ratio, Time, nanos};

/// A part of a grant that has changed.
#[derive(Debug, Clone, Copy, Default)]
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
