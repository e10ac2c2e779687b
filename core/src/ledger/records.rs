//! Records as the ledger knows them.

use std::sync::Arc;

use crate::{linked_list::Links, reason::Rejection, slot::Slot};

/// The partition and the offset of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    pub partition: u32,
    pub offset: i64,
}

/// A first-time look at a record.
#[derive(Debug, Clone, Copy)]
pub struct Observed {
    /// The record counts as an arrival: it was not read before in this process, nor completed by a former owner.
    pub first_time: bool,
    /// The record was written before the partition's backlog was read up (reject mode).
    pub catching_up: bool,
}

/// Stands for "no partition" in a slot that the ledger does not hold.
pub(super) const NOT_HELD: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
pub(super) struct HeldRecord {
    pub(super) location: Location,
    pub(super) links: Links,
}

impl Default for HeldRecord {
    fn default() -> HeldRecord {
        HeldRecord { location: Location { partition: NOT_HELD, offset: 0 }, links: Links::default() }
    }
}

/// A rejected record that waits for room in the offset map.
#[derive(Debug)]
pub struct PendingRejection {
    pub slot: Slot,
    pub bytes: u32,
    pub rejection: Rejection,
    /// The name of the client at the time of the rejection.
    pub name: Option<Arc<str>>,
}

/// The sum over the pending rejections of all partitions.
#[derive(Debug, Default)]
pub(super) struct PendingRejections {
    /// Partitions that have any.
    pub(super) partitions: Vec<u32>,
    pub(super) records: u64,
    pub(super) bytes: u64,
}

impl PendingRejections {
    pub(super) fn subtract(&mut self, rejection: &PendingRejection) {
        self.records -= 1;
        self.bytes -= u64::from(rejection.bytes);
    }
}
