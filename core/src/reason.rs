//! The reasons for rejections. One table: headers, metrics and documents come from it.

use std::time::Duration;

use strum::{IntoStaticStr, VariantArray, VariantNames};

/// The reason for which a record went to the dead-letter topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoStaticStr, VariantArray, VariantNames)]
#[strum(serialize_all = "snake_case", const_into_str)]
#[repr(u8)]
pub enum Reason {
    /// No client id, or one that can't be read.
    Anonymous,
    /// The source does not allow this client.
    UnknownClient,
    /// The registry is full.
    TooManyClients,
    /// The client's own absolute limit.
    ClientLimit,
    /// The client used its grant (reject mode).
    OverAllocation,
    /// The client is below its grant, but others used the capacity before it was recalled (reject mode).
    CapacityInUse,
    /// A backlog bound was reached.
    QueueFull,
    /// The record waited for longer than `max_delay`.
    Expired,
    /// The target refuses it for good.
    Undeliverable,
}

impl Reason {
    /// Every reason, in the order of the enum.
    pub const ALL: &[Reason] = <Reason as VariantArray>::VARIANTS;
    /// The names of all reasons, in the same order.
    pub const NAMES: &[&str] = <Reason as VariantNames>::VARIANTS;
}

/// A decision to reject a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rejection {
    pub reason: Reason,
    /// The time after which the record might be admitted; zero where that has no meaning.
    pub retry_after: Duration,
    /// The index of the client, if it is a known one.
    pub client: Option<u32>,
}

/// A count for each reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReasonCounts([u64; Reason::NAMES.len()]);

impl ReasonCounts {
    /// Counts one more rejection.
    pub fn add(&mut self, reason: Reason) {
        self.0[reason as usize] += 1;
    }

    /// Takes one rejection back.
    pub fn remove(&mut self, reason: Reason) {
        self.0[reason as usize] = self.0[reason as usize].saturating_sub(1);
    }

    /// The number of rejections for this reason.
    pub fn get(&self, reason: Reason) -> u64 {
        self.0[reason as usize]
    }

    /// The number of rejections for any reason.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Adds another set of counts.
    pub fn merge(&mut self, other: &ReasonCounts) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// Iterates over the reasons and their counts.
    pub fn iter(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::ALL.iter().copied().map(|reason| (reason, self.get(reason)))
    }
}
