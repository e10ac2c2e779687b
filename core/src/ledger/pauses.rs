//! Pausing partitions, and resuming them.

use std::collections::VecDeque;

use strum::{IntoStaticStr, VariantNames};

use crate::policy::{Overflow, Policy};

/// The reason for which a partition is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum PauseReason {
    /// A client's backlog reached `queue_capacity`.
    #[strum(serialize = "queue_capacity")]
    Queue { client: u32 },
    /// The backlogs reached `queue_bytes`.
    #[strum(serialize = "queue_bytes")]
    Bytes,
    /// The partition's offset map is nearly as large as it may be.
    Map,
}

/// A change in the reading of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    Pause(u32),
    Resume(u32),
}

/// The changes to announce, and the number of paused partitions.
#[derive(Debug)]
pub(super) struct Pauses {
    /// Under `pause`, a bound that nears pauses partitions.
    pub(super) overflow: Overflow,
    paused: usize,
    changes: VecDeque<Reading>,
}

impl Pauses {
    pub(super) fn new(policy: &Policy) -> Pauses {
        Pauses { overflow: policy.overflow(), paused: 0, changes: VecDeque::new() }
    }

    pub(super) fn change(&mut self, policy: &Policy) {
        self.overflow = policy.overflow();
    }

    pub(super) fn any(&self) -> bool {
        self.paused > 0
    }

    pub(super) fn add(&mut self, partition: u32) {
        self.paused += 1;
        self.changes.push_back(Reading::Pause(partition));
    }

    pub(super) fn remove(&mut self, partition: u32) {
        self.paused -= 1;
        self.changes.push_back(Reading::Resume(partition));
    }

    /// Drops what was not announced about a revoked partition, which had this reason to be paused.
    pub(super) fn forget(&mut self, partition: u32, reason: Option<PauseReason>) {
        self.paused -= usize::from(reason.is_some());
        self.changes.retain(|change| !matches!(*change, Reading::Pause(of) | Reading::Resume(of) if of == partition));
    }

    #[inline]
    pub(super) fn next(&mut self) -> Option<Reading> {
        self.changes.pop_front()
    }

    pub(super) fn has_next(&self) -> bool {
        !self.changes.is_empty()
    }
}
