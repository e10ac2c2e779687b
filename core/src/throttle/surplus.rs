//! Records that exceed a bound because a reload lowered it. They are evicted little by little.
//!
//! A round that is full of evictions takes seconds where a quota or a narrow network holds the producer, and nothing is
//! decided meanwhile, not even for clients within their share. So only a bounded part of the surplus is evicted in a
//! commit interval, and the part that a slow round left unused is not made up for. Records that come on top are evicted
//! at once, one for one.

use super::queue::Evicted;
use super::{Throttle, VIRTUAL};
use crate::units::Time;

/// Records of the surplus that are evicted in a commit interval, at most.
const MAX_RECORDS: u64 = 1_000;
/// Their cost in bytes, but for the last one.
const MAX_BYTES: u64 = 1 << 20;

/// What exceeds the bounds since the last reload.
#[derive(Debug, Default)]
pub(super) struct Surplus {
    /// Clients that may have more than `queue_capacity` records.
    clients: Vec<u32>,
    /// The bytes that the backlogs may have, if that is more than `queue_bytes`; never rises but by a reload.
    bytes: u64,
    /// What may still be evicted before `refill_at`.
    records_left: u64,
    bytes_left: u64,
    refill_at: Time,
}

impl Surplus {
    fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.bytes == 0
    }

    /// When the next record may be evicted; `None` without a surplus.
    #[inline]
    pub(super) fn due(&self) -> Option<Time> {
        if self.is_empty() {
            return None;
        }
        let left = self.records_left > 0 && self.bytes_left > 0;
        Some(if left { Time::ZERO } else { self.refill_at })
    }

    /// The bytes that the backlogs may have now.
    #[inline]
    pub(super) fn bytes_bound(&self, queue_bytes: u64) -> u64 {
        queue_bytes.max(self.bytes)
    }
}

impl Throttle {
    /// Looks for what exceeds the bounds, which may be lower than before.
    pub(super) fn find_surplus(&mut self, now: Time) {
        self.above_capacity.clear();
        self.surplus = Surplus { refill_at: now, ..Surplus::default() };
        if !self.evicts() {
            return;
        }
        let above = self.registry.iter().filter(|(_, one)| one.lane.records.len() > self.policy.queue_capacity);
        self.surplus.clients = above.map(|(client, _)| client).collect();
        let bytes = self.backlog.bytes();
        self.surplus.bytes = if bytes > self.policy.queue_bytes { bytes } else { 0 };
    }

    /// Evicts one record of the surplus, if one may go now.
    pub(super) fn evict_surplus(&mut self, now: Time) -> Evicted {
        let held = self.backlog.bytes();
        let surplus = &mut self.surplus;
        surplus.bytes = surplus.bytes.min(held);
        if surplus.bytes <= self.policy.queue_bytes {
            surplus.bytes = 0;
        }
        if now >= surplus.refill_at {
            (surplus.records_left, surplus.bytes_left) = (MAX_RECORDS, MAX_BYTES);
            surplus.refill_at = now + self.policy.commit_interval;
        }
        if surplus.due().is_none_or(|due| due > now) {
            return Evicted::Nothing;
        }
        let Some(client) = self.client_with_surplus() else { return Evicted::Nothing };
        let evicted = self.evict_of(client);
        let freed = held - self.backlog.bytes();
        let surplus = &mut self.surplus;
        surplus.records_left = surplus.records_left.saturating_sub(1);
        surplus.bytes_left = surplus.bytes_left.saturating_sub(freed);
        evicted
    }

    fn client_with_surplus(&mut self) -> Option<u32> {
        while let Some(&client) = self.surplus.clients.last() {
            let known = self.registry.lookup(client);
            if known.is_some_and(|known| known.lane.records.len() > self.policy.queue_capacity) {
                return Some(client);
            }
            self.surplus.clients.pop();
        }
        if self.surplus.bytes == 0 { None } else { self.furthest_above_share() }
    }

    /// Evicts the oldest record of a client or, as long as its completion does not fit in the map, the oldest one of its
    /// partition.
    pub(super) fn evict_of(&mut self, client: u32) -> Evicted {
        let Some(slot) = self.registry.get(client).lane.records.head() else { return Evicted::Nothing };
        let held = *self.backlog.get(slot);
        let fits = held.partition == VIRTUAL || self.map_has_room(held.partition, held.offset);
        let evicted = if fits { self.evict_record(slot) } else { self.evict_oldest_of(held.partition) };
        evicted.map_or(Evicted::Virtual, Evicted::Real)
    }
}
