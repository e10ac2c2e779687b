//! Rejected records that wait for room in the offset map.

use std::sync::Arc;

use super::{Ledger, Location, PauseReason};
use crate::reason::{Grounds, Rejection};
use crate::slot::Slot;

/// A rejected record that waits for room in the offset map.
#[derive(Debug)]
pub struct PendingRejection {
    pub slot: Slot,
    pub bytes: u32,
    pub rejection: Rejection,
    /// The name of the client at the time of the rejection.
    pub name: Option<Arc<str>>,
    pub grounds: Grounds,
}

impl Ledger {
    /// Keeps a rejected record until its completion fits in the offset map.
    #[cold]
    pub fn keep_rejection(&mut self, number: u32, offset: i64, rejection: PendingRejection) {
        self.hold(rejection.slot, number, offset);
        self.pending_rejections.0 += 1;
        self.pending_rejections.1 += u64::from(rejection.bytes);
        let rejections = &mut self.partitions[number as usize].pending_rejections;
        rejections.push_back(rejection);
        if rejections.len() == 1 {
            self.rejecting.push(number);
        }
        if self.pauses(number) {
            self.pause(number, PauseReason::Map);
        }
    }

    /// Returns whether a held record is a pending rejection, given that it is the oldest of its partition.
    pub fn is_pending_rejection(&self, oldest: Slot) -> bool {
        let Some(location) = self.location(oldest) else { return false };
        let rejections = &self.partitions[location.partition as usize].pending_rejections;
        rejections.front().is_some_and(|rejection| rejection.slot == oldest)
    }

    /// Takes the first pending rejection that fits in the offset map of its partition; the record is not held any more,
    /// and not completed.
    pub fn take_rejection(&mut self) -> Option<(Location, PendingRejection)> {
        for at in 0..self.rejecting.len() {
            let number = self.rejecting[at];
            let slot = self.partitions[number as usize].pending_rejections.front()?.slot;
            let location = self.location(slot)?;
            if self.has_room(number, location.offset) {
                let rejections = &mut self.partitions[number as usize].pending_rejections;
                let rejection = rejections.pop_front()?;
                if rejections.is_empty() {
                    self.rejecting.swap_remove(at);
                }
                self.subtract(&rejection);
                self.release(slot);
                return Some((location, rejection));
            }
        }
        None
    }

    /// A partition with a pending rejection for which room is made by an eviction.
    pub fn next_rejecting(&self) -> Option<u32> {
        self.rejecting.iter().copied().find(|&number| !self.pauses(number))
    }

    /// Counts a pending rejection no longer.
    pub(super) fn subtract(&mut self, rejection: &PendingRejection) {
        self.pending_rejections.0 -= 1;
        self.pending_rejections.1 -= u64::from(rejection.bytes);
    }
}
