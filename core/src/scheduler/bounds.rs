//! The bounds of the backlogs where excess records are evicted: the choice of the client that loses its oldest record.
//!
//! A record that exceeds a bound when it comes is made up for at once, one for one. Records that exceed a bound
//! because a reload lowered it, the *surplus*, are evicted little by little: a round full of evictions takes seconds
//! where a quota or a narrow network holds the producer, and no record is decided meanwhile. So a bounded part of the
//! surplus goes in each commit interval; a part that a slow round left unused is not made up for.
//!
//! Beyond `queue_bytes`, the client furthest above its default share of the bound loses its oldest record. A scan of
//! all clients for each eviction would do for some 1 000 clients. With 100 000 it takes milliseconds (a flood of
//! evictions did not end in 90 s), so it happens at most once per allocation, on the first overflow; afterwards a heap
//! is maintained, and an eviction takes about 1 µs.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, binary_heap::PeekMut};
use std::mem;

use super::{Scheduler, client::Client};
use crate::{slot::Slot, units::Time};

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
    /// Clients by their excess over their share of `queue_bytes`, in whole bytes; of clients that tie, the one with the
    /// smallest index is first. Each client with a backlog has an entry at least as far up as it belongs: a client that
    /// got a record gets another entry, one that lost a record is moved down when it reaches the top.
    excess: BinaryHeap<(i64, Reverse<u32>)>,
    /// The heap was filled after the last allocation, which changed all shares.
    pub(super) excess_is_known: bool,
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

impl Scheduler {
    fn length_of(&self, client: u32) -> u64 {
        self.clients.lookup(client).map_or(0, |client| client.queue.records.len())
    }

    /// Returns whether the backlog of a client reached its bound in records.
    pub fn is_full(&self, client: u32) -> bool {
        self.clients.lookup(client).is_some_and(|client| client.backlog().0 >= self.policy.queue_capacity)
    }

    fn exceeds_capacity(&self, client: u32) -> bool {
        self.length_of(client) > self.policy.queue_capacity && !self.keeps(client)
    }

    /// Returns whether no record of a client is evicted.
    pub fn keeps(&self, client: u32) -> bool {
        let is_kept = || self.clients.lookup(client).is_some_and(|client| client.queue.kept);
        self.backlog.kept_clients > 0 && self.policy.keeps() && is_kept()
    }

    /// The bytes of the records that are kept.
    fn kept_bytes(&self) -> u64 {
        if self.policy.keeps() { self.backlog.kept_bytes } else { 0 }
    }

    /// Returns whether a client's records that are kept take too much of this part of `queue_bytes`.
    pub fn keeps_too_much(&self, client: u32, part: u64) -> bool {
        let bound = self.policy.queue_bytes / part;
        let excess = || self.clients.lookup(client).is_some_and(|client| self.above_share(client, bound) > 0);
        self.kept_bytes() >= bound && self.keeps(client) && excess()
    }

    /// The whole bytes by which a client's backlog exceeds its default share of a bound, negative below that.
    fn above_share(&self, client: &Client, bound: u64) -> i64 {
        let share = client.grant.default_share.as_f64() / self.policy.capacity as f64;
        (client.queue.bytes as f64 - share * bound as f64) as i64
    }

    /// Returns whether the backlogs exceed a bound in bytes by records that may be evicted. Those that are kept take
    /// some half of it at most, which leaves the other half to the other clients.
    fn exceeds(&self, bound: u64) -> bool {
        let bytes = self.backlog.bytes;
        bytes > bound && bytes - self.kept_bytes() > bound / 2
    }

    /// Notes that a client's queue got a record, and has this many now.
    #[inline]
    pub(super) fn note_growth(&mut self, client: u32, length: u64) {
        let is_above = length > self.policy.queue_capacity;
        if (is_above || self.bounds.excess_is_known) && self.policy.evicts() {
            if self.bounds.excess_is_known {
                self.note_excess(client);
            }
            if is_above {
                self.bounds.above_capacity.push(client);
            }
        }
    }

    #[inline(never)]
    fn note_excess(&mut self, client: u32) {
        if self.bounds.excess.len() > 2 * self.clients.len() + 64 {
            // By now as many entries were added as a scan looks at.
            self.bounds.excess_is_known = false;
        } else {
            let entry = self.excess_of(client);
            self.bounds.excess.extend(entry);
        }
    }

    /// The entry of a client in the heap; `None` without a backlog of records that may be evicted.
    fn excess_of(&self, index: u32) -> Option<(i64, Reverse<u32>)> {
        let client = self.clients.lookup(index).filter(|client| client.queue.bytes > 0)?;
        (!self.keeps(index)).then(|| (self.above_share(client, self.policy.queue_bytes), Reverse(index)))
    }

    /// The client with the most bytes above its default share of `queue_bytes`.
    pub(crate) fn furthest_above_share(&mut self) -> Option<u32> {
        let mut heap = mem::take(&mut self.bounds.excess);
        if !mem::replace(&mut self.bounds.excess_is_known, true) {
            heap = self.clients.iter().filter_map(|(client, _)| self.excess_of(client)).collect();
        }
        let mut furthest = None;
        while let Some(mut top) = heap.peek_mut() {
            let (_, Reverse(client)) = *top;
            match self.excess_of(client) {
                Some(entry) if entry == *top => {
                    furthest = Some(client);
                    break;
                }
                Some(entry) => *top = entry,
                None => drop(PeekMut::pop(top)),
            }
        }
        self.bounds.excess = heap;
        furthest
    }

    /// Determines the records that exceed the bounds of a new policy.
    pub fn find_surplus(&mut self, now: Time) {
        let evicts = self.policy.evicts();
        let clients = self.clients.iter().map(|(client, _)| client);
        let clients = clients.filter(|client| evicts && self.exceeds_capacity(*client)).collect();
        let bytes = if evicts && self.exceeds(self.policy.queue_bytes) { self.backlog.bytes } else { 0 };
        self.bounds.above_capacity.clear();
        self.bounds.surplus = Surplus { clients, bytes, refill_at: now, ..Surplus::default() };
    }

    /// Returns whether a record is to be evicted at once.
    #[inline]
    pub(super) fn exceeds_bounds(&self) -> bool {
        let bytes = self.policy.queue_bytes.max(self.bounds.surplus.bytes);
        !self.bounds.above_capacity.is_empty() || self.policy.evicts() && self.exceeds(bytes)
    }

    /// The next eviction that is due; [`note_evicted`](Scheduler::note_evicted) follows.
    #[inline]
    pub fn next_eviction(&mut self, now: Time) -> Option<Eviction> {
        let is_due = self.exceeds_bounds() || self.bounds.surplus.due().is_some();
        if is_due { self.find_eviction(now) } else { None }
    }

    fn find_eviction(&mut self, now: Time) -> Option<Eviction> {
        let mut above = mem::take(&mut self.bounds.above_capacity);
        let above_capacity = self.last_above_capacity(&mut above);
        self.bounds.above_capacity = above;
        let (client, cause) = if let Some(client) = above_capacity {
            (client, BacklogBound::QueueCapacity)
        } else if self.exceeds_bounds() {
            (self.furthest_above_share()?, BacklogBound::QueueBytes)
        } else if self.surplus_may_go(now) {
            (self.client_with_surplus()?, BacklogBound::Surplus)
        } else {
            return None;
        };
        let slot = self.clients.lookup(client)?.queue.records.head()?;
        Some(Eviction { client, slot, cause, before: (self.length_of(client), self.backlog.bytes) })
    }

    /// The last of these clients, without those behind it that do not exceed `queue_capacity` any more.
    fn last_above_capacity(&self, clients: &mut Vec<u32>) -> Option<u32> {
        while clients.pop_if(|client| !self.exceeds_capacity(*client)).is_some() {}
        clients.last().copied()
    }

    fn client_with_surplus(&mut self) -> Option<u32> {
        let mut clients = mem::take(&mut self.bounds.surplus.clients);
        let above_capacity = self.last_above_capacity(&mut clients);
        self.bounds.surplus.clients = clients;
        match above_capacity {
            None if self.bounds.surplus.bytes > 0 => self.furthest_above_share(),
            client => client,
        }
    }

    /// Returns whether a record of the surplus may be evicted now, after a look at what is left of it.
    fn surplus_may_go(&mut self, now: Time) -> bool {
        let bytes = if self.exceeds(self.policy.queue_bytes) { self.backlog.bytes } else { 0 };
        let surplus = &mut self.bounds.surplus;
        if surplus.due().is_none() {
            return false;
        }
        surplus.bytes = surplus.bytes.min(bytes);
        if now >= surplus.refill_at {
            (surplus.records_left, surplus.bytes_left) = (MAX_RECORDS, MAX_BYTES);
            surplus.refill_at = now + self.policy.commit_interval;
        }
        surplus.due().is_some_and(|due| due <= now)
    }

    /// Notes that an eviction was carried out, with another record than the client's oldest one if that had to make
    /// room in the offset map.
    pub fn note_evicted(&mut self, eviction: Eviction) {
        let (length, bytes) = eviction.before;
        match eviction.cause {
            BacklogBound::QueueCapacity if self.length_of(eviction.client) < length => {
                self.bounds.above_capacity.pop();
            }
            BacklogBound::QueueCapacity | BacklogBound::QueueBytes => {}
            BacklogBound::Surplus => {
                let surplus = &mut self.bounds.surplus;
                surplus.records_left = surplus.records_left.saturating_sub(1);
                surplus.bytes_left = surplus.bytes_left.saturating_sub(bytes - self.backlog.bytes);
            }
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
}
