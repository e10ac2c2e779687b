//! The bounds of the backlogs where excess records are evicted: the choice of the client that loses its oldest record.
//!
//! A record that exceeds a bound when it comes is made up for at once, one for one. Records that exceed a bound
//! because a reload lowered it, the *surplus*, are evicted little by little: a round full of evictions takes seconds
//! where a quota or a narrow network holds the producer, and no record is decided meanwhile. So a bounded part of the
//! surplus goes in each commit interval; a part that a slow round left unused is not made up for.

use super::backlog::Backlog;
use super::excess::{Excess, above_share};
use super::registry::Registry;
use crate::{policy::Policy, slot::Slot, units::Time};

/// The most surplus records that are evicted in a commit interval.
const MAX_RECORDS: u64 = 1_000;
/// The most bytes of surplus records that are evicted in a commit interval, but for the last record.
const MAX_BYTES: u64 = 1 << 20;

/// The excess over the bounds, if excess records are evicted.
#[derive(Debug, Default)]
pub(super) struct Bounds {
    /// Clients that got a record beyond `queue_capacity`, once for each such record.
    above_capacity: Vec<u32>,
    pub(super) surplus: Surplus,
    pub(super) excess: Excess,
}

/// The excess since the last reload.
#[derive(Debug, Default)]
pub(super) struct Surplus {
    /// Clients that may have more than `queue_capacity` records.
    clients: Vec<u32>,
    /// The bytes that the backlogs may have, if that is more than `queue_bytes`; only a reload raises it.
    bytes: u64,
    /// The allowance until `refill_at`.
    records_left: u64,
    bytes_left: u64,
    refill_at: Time,
}

/// An eviction to carry out: a record of this client goes, the oldest one if its completion is possible.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Eviction {
    pub client: u32,
    /// The oldest record of the client.
    pub slot: Slot,
    cause: BacklogBound,
    /// The length of the client's queue, and the bytes of all backlogs.
    before: (u64, u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BacklogBound {
    QueueCapacity,
    QueueBytes,
    Surplus,
}

/// The state of the backlogs that the bounds apply to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backlogs<'a> {
    pub(super) policy: &'a Policy,
    pub(super) clients: &'a Registry,
    /// The bytes of all delayed records, and of those that are kept.
    pub(super) bytes: u64,
    pub(super) kept_bytes: u64,
}

impl<'a> Backlogs<'a> {
    #[inline]
    pub(super) fn of(policy: &'a Policy, clients: &'a Registry, backlog: &Backlog) -> Backlogs<'a> {
        let kept_bytes = if policy.keeps() { backlog.kept_bytes } else { 0 };
        Backlogs { policy, clients, bytes: backlog.bytes, kept_bytes }
    }

    fn length_of(&self, client: u32) -> u64 {
        self.clients.lookup(client).map_or(0, |client| client.queue.records.len())
    }

    fn exceeds_capacity(&self, client: u32) -> bool {
        self.length_of(client) > self.policy.queue_capacity && !self.keep(client)
    }

    /// Returns whether no record of a client is evicted.
    pub(super) fn keep(&self, client: u32) -> bool {
        self.policy.keeps() && self.clients.lookup(client).is_some_and(|client| client.queue.kept)
    }

    /// Returns whether the backlogs exceed a bound in bytes by records that may be evicted. Those that are kept take
    /// some half of it at most, which leaves the other half to the other clients.
    fn exceed(&self, bound: u64) -> bool {
        self.bytes > bound && self.bytes - self.kept_bytes > bound / 2
    }

    /// Returns whether a client keeps more than its share of a bound in bytes on all records that are kept.
    pub(super) fn keep_too_much(&self, client: u32, bound: u64) -> bool {
        let excess = || self.clients.lookup(client).is_some_and(|client| above_share(client, bound, self.policy) > 0);
        self.kept_bytes >= bound && self.keep(client) && excess()
    }
}

impl Bounds {
    /// Returns whether a queue of this many records is to be [noted](Bounds::note_growth).
    #[inline]
    pub(super) fn are_near(&self, length: u64, policy: &Policy) -> bool {
        length > policy.queue_capacity || self.excess.known
    }

    /// Notes that a client's queue got a record, and has this many now.
    #[inline]
    pub(super) fn note_growth(&mut self, client: u32, length: u64, backlogs: Backlogs<'_>) {
        self.excess.note_growth(client, backlogs);
        if length > backlogs.policy.queue_capacity {
            self.above_capacity.push(client);
        }
    }

    /// Notes that the bounds changed, perhaps to lower ones.
    pub(super) fn find_surplus(&mut self, now: Time, backlogs: Backlogs<'_>) {
        self.above_capacity.clear();
        self.surplus = Surplus { refill_at: now, ..Surplus::default() };
        if !backlogs.policy.evicts() {
            return;
        }
        let clients = backlogs.clients.iter().map(|(client, _)| client);
        self.surplus.clients = clients.filter(|client| backlogs.exceeds_capacity(*client)).collect();
        self.surplus.bytes = if backlogs.exceed(backlogs.policy.queue_bytes) { backlogs.bytes } else { 0 };
    }

    /// Returns whether a record is to be evicted at once.
    #[inline]
    pub(super) fn are_exceeded(&self, backlogs: Backlogs<'_>) -> bool {
        let bytes = backlogs.policy.queue_bytes.max(self.surplus.bytes);
        !self.above_capacity.is_empty() || backlogs.policy.evicts() && backlogs.exceed(bytes)
    }

    /// The next eviction that is due.
    pub(super) fn next_eviction(&mut self, now: Time, backlogs: Backlogs<'_>) -> Option<Eviction> {
        let eviction = |client: u32, cause| {
            let slot = backlogs.clients.lookup(client)?.queue.records.head()?;
            Some(Eviction { client, slot, cause, before: (backlogs.length_of(client), backlogs.bytes) })
        };
        while self.above_capacity.pop_if(|client| !backlogs.exceeds_capacity(*client)).is_some() {}
        if let Some(&client) = self.above_capacity.last() {
            return eviction(client, BacklogBound::QueueCapacity);
        }
        if self.are_exceeded(backlogs) {
            return eviction(self.excess.furthest_above_share(backlogs)?, BacklogBound::QueueBytes);
        }
        if !self.surplus.may_go(now, backlogs) {
            return None;
        }
        eviction(self.client_with_surplus(backlogs)?, BacklogBound::Surplus)
    }

    /// Notes that an eviction was carried out, with another record than the client's oldest one if that had to make
    /// room in the offset map.
    pub(super) fn note_evicted(&mut self, eviction: Eviction, backlogs: Backlogs<'_>) {
        let (length, bytes) = eviction.before;
        match eviction.cause {
            BacklogBound::QueueCapacity if backlogs.length_of(eviction.client) < length => {
                self.above_capacity.pop();
            }
            BacklogBound::QueueCapacity | BacklogBound::QueueBytes => {}
            BacklogBound::Surplus => self.surplus.spend(bytes - backlogs.bytes),
        }
    }

    fn client_with_surplus(&mut self, backlogs: Backlogs<'_>) -> Option<u32> {
        while self.surplus.clients.pop_if(|client| !backlogs.exceeds_capacity(*client)).is_some() {}
        match self.surplus.clients.last() {
            Some(client) => Some(*client),
            None if self.surplus.bytes == 0 => None,
            None => self.excess.furthest_above_share(backlogs),
        }
    }
}

impl Surplus {
    /// The time at which the next record may be evicted; `None` without a surplus.
    #[inline]
    pub(super) fn due(&self) -> Option<Time> {
        if self.clients.is_empty() && self.bytes == 0 {
            return None;
        }
        let left = self.records_left > 0 && self.bytes_left > 0;
        Some(if left { Time::ZERO } else { self.refill_at })
    }

    /// Returns whether a record of the surplus may be evicted now, after a look at what is left of it.
    fn may_go(&mut self, now: Time, backlogs: Backlogs<'_>) -> bool {
        if self.due().is_none() {
            return false;
        }
        self.bytes = self.bytes.min(backlogs.bytes);
        if !backlogs.exceed(backlogs.policy.queue_bytes) {
            self.bytes = 0;
        }
        if now >= self.refill_at {
            (self.records_left, self.bytes_left) = (MAX_RECORDS, MAX_BYTES);
            self.refill_at = now + backlogs.policy.commit_interval;
        }
        self.due().is_some_and(|due| due <= now)
    }

    fn spend(&mut self, bytes: u64) {
        self.records_left = self.records_left.saturating_sub(1);
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
    }
}
