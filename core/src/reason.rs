//! The reasons for rejections. One table: headers, metrics and documents come from it.

use std::time::Duration;

/// The reason for which a record went to the dead-letter topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
    pub const ALL: [Reason; 9] = [
        Reason::Anonymous,
        Reason::UnknownClient,
        Reason::TooManyClients,
        Reason::ClientLimit,
        Reason::OverAllocation,
        Reason::CapacityInUse,
        Reason::QueueFull,
        Reason::Expired,
        Reason::Undeliverable,
    ];

    /// The name in headers, metrics and the HTTP API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Reason::Anonymous => "anonymous",
            Reason::UnknownClient => "unknown_client",
            Reason::TooManyClients => "too_many_clients",
            Reason::ClientLimit => "client_limit",
            Reason::OverAllocation => "over_allocation",
            Reason::CapacityInUse => "capacity_in_use",
            Reason::QueueFull => "queue_full",
            Reason::Expired => "expired",
            Reason::Undeliverable => "undeliverable",
        }
    }
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
pub struct ReasonCounts([u64; Reason::ALL.len()]);

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
        Reason::ALL.into_iter().map(|reason| (reason, self.get(reason)))
    }
}
