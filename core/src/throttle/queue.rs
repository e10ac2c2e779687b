//! Delayed records: who goes, who is turned away when a bound nears, which partitions pause.

use std::sync::Arc;
use std::time::Duration;

use super::{
    Action, Arrival, NOBODY, PauseReason, PendingRejection, Rejection, Sender, Throttle, VIRTUAL, arrival_held,
};
use crate::backlog::{Backlog, Held, Lane, List, Slot};
use crate::offset_runs::MAX_SPAN;
use crate::policy::{Mode, Overflow};
use crate::reason::Reason;
use crate::units::Time;

impl Throttle {
    /// The next thing to do, or `None` until something happens or [`poll_timeout`](Throttle::poll_timeout) passes.
    ///
    /// A record completes with the action that names it, not before. So an owner whose round is full may stop to ask,
    /// and records in excess of a bound are evicted over as many rounds as it takes.
    pub fn poll_action(&mut self, now: Time) -> Option<Action> {
        let now = self.not_before(now);
        loop {
            if let Some(action) = self.actions.pop_front() {
                return Some(action);
            }
            if !self.rejecting.is_empty()
                && let Some(action) = self.complete_rejection()
            {
                return Some(action);
            }
            if !self.policy.enforce
                && let Some(action) = self.let_go(now)
            {
                return Some(action);
            }
            if let Some(oldest) = self.expired(now) {
                if let Some(action) = self.turn_away(oldest, Reason::Expired) {
                    return Some(action);
                }
                continue;
            }
            match self.serve_next(now) {
                Served::Real(action) => return Some(action),
                Served::Virtual => continue,
                Served::Nobody => {}
            }
            if self.exceeds_bounds() {
                match self.evict_next() {
                    Evicted::Real(action) => return Some(action),
                    Evicted::Virtual => continue,
                    Evicted::Nothing => {}
                }
            }
            if self.surplus.due().is_some() {
                match self.evict_surplus(now) {
                    Evicted::Real(action) => return Some(action),
                    Evicted::Virtual => continue,
                    Evicted::Nothing => {}
                }
            }
            self.resume_partitions();
            if self.actions.is_empty() {
                return None;
            }
        }
    }

    /// When something will happen by itself. Call it after [`poll_action`](Throttle::poll_action) said `None`.
    pub fn poll_timeout(&mut self, now: Time) -> Time {
        let now = self.not_before(now);
        if !self.actions.is_empty() || self.exceeds_bounds() {
            return now;
        }
        let mut next = self.next_allocation();
        if let Some(oldest) = self.backlog.oldest() {
            next = next.min(self.backlog.get(oldest).since + self.policy.max_delay);
        }
        if let Some(until) = self.backlog.parked_until() {
            next = next.min(until);
        }
        if self.next_ready().is_some() {
            next = next.min(self.gates_open_at(now));
        }
        if let Some(due) = self.surplus.due() {
            next = next.min(due);
        }
        next.max(now)
    }

    /// When both gates are open if nothing else is admitted.
    fn gates_open_at(&mut self, now: Time) -> Time {
        let bucket = self.bucket.next_room(now);
        if self.window.count(now) < self.policy.capacity {
            return bucket;
        }
        self.window.next_release(now).map_or(bucket, |window| window.max(bucket))
    }

    // ## Waiting => admitted

    fn serve_next(&mut self, now: Time) -> Served {
        while let Some(client) = self.backlog.next_parked(now) {
            if self.registry.lookup(client).is_some() {
                self.backlog.unpark(now, client, &mut self.registry.get_mut(client).lane);
            }
        }
        while let Some(index) = self.next_ready() {
            if !self.gates_open(now) {
                return Served::Nobody;
            }
            let head = self.registry.get(index).lane.records.head().expect("a client with a tag has a first record");
            let slot = match self.select_record(head) {
                Ok(slot) => slot,
                Err(evicted) => return Served::Real(evicted),
            };
            let held = *self.backlog.get(slot);
            if let Err(until) = self.take_own_limit(now, held.client) {
                self.backlog.park(index, &mut self.registry.get_mut(index).lane, until);
                continue;
            }
            return self.serve(now, slot);
        }
        Served::Nobody
    }

    fn serve(&mut self, now: Time, slot: Slot) -> Served {
        let client = self.backlog.get(slot).client;
        let held = self.take_out(slot, true);
        let waited = now.since(held.since);
        self.bucket.charge(now);
        self.admitted(now, client, held.partition, waited);
        self.backlog.release(slot);
        if held.partition == VIRTUAL {
            return Served::Virtual;
        }
        self.complete(held.partition, held.offset);
        let Held { partition, offset, bytes, .. } = held;
        Served::Real(Action::Admit { slot, partition, offset, bytes, client, waited })
    }

    /// Passthrough: what still waits from before goes, in the order in which it was read. (The first one of all is the first
    /// one of its partition too, so it fits in the map.)
    #[inline(never)]
    fn let_go(&mut self, now: Time) -> Option<Action> {
        let slot = self.backlog.oldest()?;
        let Held { client, partition, offset, bytes, .. } = *self.backlog.get(slot);
        if partition == VIRTUAL || client == NOBODY {
            return None;
        }
        let waited = now.since(self.take_out(slot, true).since);
        self.backlog.release(slot);
        self.passed(now, Some(client), partition, waited);
        self.complete(partition, offset);
        Some(Action::Admit { slot, partition, offset, bytes, client, waited })
    }

    /// Picks the record to send when `slot` is next. If its completion does not fit in the offset map, then under
    /// `dead_letter` the partition's oldest record is evicted instead, an error, until it fits; under `pause` the
    /// oldest record is sent in its place. Only completing the oldest record never makes the map larger.
    fn select_record(&mut self, slot: Slot) -> Result<Slot, Action> {
        let Held { partition, offset, .. } = *self.backlog.get(slot);
        if partition == VIRTUAL || self.map_has_room(partition, offset) {
            return Ok(slot);
        }
        match self.overflow() {
            Overflow::Pause => Ok(self.partitions[partition as usize].held.head().unwrap_or(slot)),
            Overflow::DeadLetter => self.evict_oldest_of(partition).map_or(Ok(slot), Err),
        }
    }

    // ## Rejected => waiting for room in the map => completed

    /// Keeps a rejected record until its completion fits in the map.
    #[cold]
    pub(super) fn keep_rejection(&mut self, now: Time, arrival: &Arrival<'_>, rejection: Rejection) -> Slot {
        let slot = self.put_in(arrival_held(arrival, NOBODY, arrival.partition, now));
        let name = match (rejection.client, arrival.sender) {
            (Some(client), _) => Some(Arc::clone(&self.registry.get(client).name)),
            (None, Sender::Client(name) | Sender::NotAllowed(name)) => Some(Arc::from(name)),
            (None, Sender::Anonymous | Sender::Oversized) => None,
        };
        let pending = &mut self.partitions[arrival.partition as usize].pending_rejections;
        pending.push_back(PendingRejection { slot, rejection, name });
        if pending.len() == 1 {
            self.rejecting.push(arrival.partition);
        }
        if self.overflow() == Overflow::Pause {
            self.pause(arrival.partition, PauseReason::Map);
        }
        slot
    }

    /// Completes the first kept rejection of a partition, if it fits in the map. Under `dead_letter` room is made for
    /// it.
    #[inline(never)]
    fn complete_rejection(&mut self) -> Option<Action> {
        for at in 0..self.rejecting.len() {
            let number = self.rejecting[at];
            let slot = self.partitions[number as usize].pending_rejections.front()?.slot;
            let Held { offset, bytes, .. } = *self.backlog.get(slot);
            if self.map_has_room(number, offset) {
                let pending = &mut self.partitions[number as usize].pending_rejections;
                let PendingRejection { rejection, name, .. } = pending.pop_front()?;
                if pending.is_empty() {
                    self.rejecting.swap_remove(at);
                }
                self.take_out(slot, false);
                self.backlog.release(slot);
                self.complete(number, offset);
                return Some(Action::Reject { slot, partition: number, offset, bytes, rejection, name });
            }
            if self.overflow() == Overflow::DeadLetter
                && let Some(evicted) = self.evict_oldest_of(number)
            {
                return Some(evicted);
            }
        }
        None
    }

    // ## Waiting => rejected

    /// The oldest delayed record if its time is over. No other record of its partition is older, so its completion fits
    /// in the map.
    #[inline]
    fn expired(&self, now: Time) -> Option<Slot> {
        self.backlog.oldest().filter(|&slot| self.backlog.get(slot).since + self.policy.max_delay <= now)
    }

    /// Takes a delayed record out for good; no action follows for one that is only imagined.
    #[inline(never)]
    fn turn_away(&mut self, slot: Slot, reason: Reason) -> Option<Action> {
        let held = self.take_out(slot, false);
        self.counts_of(held.client).rejected.add(reason);
        self.backlog.release(slot);
        let Held { client, partition, offset, bytes, .. } = held;
        if partition == VIRTUAL {
            return None;
        }
        self.complete(partition, offset);
        let rejection = Rejection { reason, retry_after: Duration::ZERO, client: Some(client) };
        let name = Some(Arc::clone(&self.registry.get(client).name));
        Some(Action::Reject { slot, partition, offset, bytes, rejection, name })
    }

    /// Evicts the record that holds the partition's committable offset back: its completion always fits in the map, and
    /// only that makes the map smaller. Of all records of the partition it has waited the longest.
    pub(super) fn evict_oldest_of(&mut self, partition: u32) -> Option<Action> {
        let oldest = self.partitions[partition as usize].held.head()?;
        let Held { client, offset, .. } = *self.backlog.get(oldest);
        debug_assert_eq!(offset, self.partitions[partition as usize].tracker.base());
        // A kept rejection completes by itself.
        if client == NOBODY { None } else { self.turn_away(oldest, Reason::QueueFull) }
    }

    pub(super) fn put_in(&mut self, held: Held) -> Slot {
        let (backlog, lane, list) = self.lists_of(held.client, held.partition);
        backlog.push(held, lane, list)
    }

    pub(super) fn take_out(&mut self, slot: Slot, served: bool) -> Held {
        let Held { client, partition, .. } = *self.backlog.get(slot);
        let (backlog, lane, list) = self.lists_of(client, partition);
        if served { backlog.serve(slot, lane, list) } else { backlog.discard(slot, lane, list) }
    }

    fn lists_of(&mut self, client: u32, partition: u32) -> (&mut Backlog, &mut Lane, &mut List) {
        let lane = match client {
            NOBODY => &mut self.nobody,
            client => &mut self.registry.get_mut(client).lane,
        };
        let list = match partition {
            VIRTUAL => &mut self.virtual_held,
            partition => &mut self.partitions[partition as usize].held,
        };
        (&mut self.backlog, lane, list)
    }

    // ## Bounds

    /// Whether backlogs may only be bounded by reading less. Catching up in reject mode always is.
    pub(super) fn overflow(&self) -> Overflow {
        if self.policy.mode == Mode::Reject { Overflow::Pause } else { self.policy.overflow }
    }

    /// Whether excess records are evicted. Shadow mode can pause nothing: its imagined backlogs are bounded as if
    /// nothing could be paused.
    pub(super) fn evicts(&self) -> bool {
        !self.policy.enforce || self.overflow() == Overflow::DeadLetter
    }

    /// Notes that a record of this client was put in line: from now on a bound may be exceeded.
    pub(super) fn bound_backlog(&mut self, client: u32, partition: u32) {
        if self.evicts() {
            self.note_growth(client);
            if self.registry.get(client).lane.records.len() > self.policy.queue_capacity {
                self.above_capacity.push(client);
            }
            return;
        }
        if self.registry.get(client).lane.records.len() >= self.policy.queue_capacity {
            self.pause(partition, PauseReason::Queue { client });
        }
        if self.backlog.bytes() >= self.policy.queue_bytes {
            for partition in 0..self.partitions.len() as u32 {
                self.pause(partition, PauseReason::Bytes);
            }
        }
        self.pause_if_map_is_nearly_full(partition);
    }

    /// Whether [`poll_action`](Throttle::poll_action) has records to evict at once, or rejections to complete.
    #[inline]
    fn exceeds_bounds(&self) -> bool {
        let rejects = !self.rejecting.is_empty() && self.overflow() == Overflow::DeadLetter;
        rejects || !self.above_capacity.is_empty() || self.evicts() && self.backlog.bytes() > self.bytes_bound()
    }

    fn bytes_bound(&self) -> u64 {
        self.surplus.bytes_bound(self.policy.queue_bytes)
    }

    /// Evicts one record in excess of a bound: the oldest one of a client that was given another one at
    /// `queue_capacity`, or of the client furthest above its share of `queue_bytes`.
    #[inline(never)]
    fn evict_next(&mut self) -> Evicted {
        while let Some(&client) = self.above_capacity.last() {
            let length =
                |throttle: &Throttle| throttle.registry.lookup(client).map_or(0, |known| known.lane.records.len());
            let before = length(self);
            if before <= self.policy.queue_capacity {
                self.above_capacity.pop();
                continue;
            }
            let evicted = self.evict_of(client);
            // One for one, unless another record had to make room in the map.
            if length(self) < before {
                self.above_capacity.pop();
            }
            return evicted;
        }
        if self.evicts() && self.backlog.bytes() > self.bytes_bound() {
            return self.furthest_above_share().map_or(Evicted::Nothing, |client| self.evict_of(client));
        }
        Evicted::Nothing
    }

    /// Evicts a record; no action follows for one that is only imagined.
    pub(super) fn evict_record(&mut self, slot: Slot) -> Option<Action> {
        self.turn_away(slot, Reason::QueueFull)
    }

    // ## The map's bound

    /// Whether this offset may complete without the map outgrowing its budget. The committable offset always may,
    /// whatever a former owner's map was like: its completion makes no map larger.
    pub(super) fn map_has_room(&self, partition: u32, offset: i64) -> bool {
        let tracker = &self.partitions[partition as usize].tracker;
        offset == tracker.base()
            || offset - tracker.base() < MAX_SPAN as i64 && tracker.bits_bound_after(offset) <= self.map_room.set_bits
    }

    /// Whether this is the committable offset and nothing beyond it is completed.
    #[inline]
    pub(super) fn map_stays_empty(&self, partition: u32, offset: i64) -> bool {
        let tracker = &self.partitions[partition as usize].tracker;
        offset == tracker.base() && tracker.span() == 0
    }

    /// Paused at three quarters: what is in the backlog already can still complete around its holes.
    fn map_is_nearly_full(&self, partition: u32) -> bool {
        let tracker = &self.partitions[partition as usize].tracker;
        tracker.span() > MAX_SPAN / 4 * 3 || tracker.span() > 0 && tracker.bits_bound() > self.map_room.set_bits / 4 * 3
    }

    /// What comes next fits too. So it does whenever nothing of the partition waits: then only what was not read yet
    /// holds its committable offset back, as after a restart with a map that a former owner had filled.
    fn map_is_half_empty(&self, partition: u32) -> bool {
        let tracker = &self.partitions[partition as usize].tracker;
        let small = tracker.bits_bound() <= self.map_room.set_bits / 2 && tracker.span() <= MAX_SPAN / 2;
        self.partitions[partition as usize].held.is_empty() || small && self.map_has_room(partition, tracker.next())
    }

    /// Under `pause`: stops reading a partition whose map is nearly full.
    #[inline(never)]
    pub(super) fn pause_if_map_is_nearly_full(&mut self, partition: u32) {
        if self.overflow() == Overflow::Pause && self.map_is_nearly_full(partition) {
            self.pause(partition, PauseReason::Map);
        }
    }

    // ## Reading => paused => reading

    fn pause(&mut self, partition: u32, reason: PauseReason) {
        let place = &mut self.partitions[partition as usize];
        if place.assigned && place.paused.is_none() {
            place.paused = Some(reason);
            self.paused += 1;
            self.actions.push_back(Action::Pause { partition });
        }
    }

    /// Resumes at half of what paused: pausing throws librdkafka's prefetch away, so it must not toggle.
    fn resume_partitions(&mut self) {
        if self.paused == 0 {
            return;
        }
        for index in 0..self.partitions.len() {
            let Some(reason) = self.partitions[index].paused else { continue };
            let free = match reason {
                PauseReason::Queue { client } => self
                    .registry
                    .lookup(client)
                    .is_none_or(|client| client.lane.records.len() <= self.policy.queue_capacity / 2),
                PauseReason::Bytes => self.backlog.bytes() <= self.policy.queue_bytes / 2,
                PauseReason::Map => self.map_is_half_empty(index as u32),
            };
            if free {
                self.partitions[index].paused = None;
                self.paused -= 1;
                self.actions.push_back(Action::Resume { partition: index as u32 });
            }
        }
    }
}

/// What became of a bound that may be exceeded.
pub(super) enum Evicted {
    Real(Action),
    /// The record was only imagined.
    Virtual,
    Nothing,
}

/// What became of the client whose turn it was.
enum Served {
    Real(Action),
    Virtual,
    Nobody,
}
