//! Delayed records: who goes, who is turned away when a bound nears, which partitions pause.

use std::time::Duration;

use super::{Action, Arrival, NOBODY, PauseReason, Rejection, Throttle, VIRTUAL, arrival_held};
use crate::backlog::{Backlog, Held, Lane, List, Slot};
use crate::map::MAX_SPAN;
use crate::policy::{Mode, Overflow};
use crate::reason::Reason;
use crate::units::Time;

impl Throttle {
    /// The next thing to do, or `None` until something happens or [`poll_timeout`](Throttle::poll_timeout) passes.
    pub fn poll_action(&mut self, now: Time) -> Option<Action> {
        let now = self.not_before(now);
        loop {
            if let Some(action) = self.say(0) {
                return Some(action);
            }
            if self.reject_doomed() {
                continue;
            }
            if let Some(action) = self.let_go(now) {
                return Some(action);
            }
            if self.expire_oldest(now) {
                continue;
            }
            match self.serve_next(now) {
                Served::Real(action) => return Some(action),
                Served::Virtual => {}
                Served::Nobody => {
                    self.resume_partitions();
                    if self.actions.is_empty() {
                        return None;
                    }
                }
            }
        }
    }

    /// The next rejection that was decided already. A round that is full takes no more from
    /// [`poll_action`](Throttle::poll_action), but must take these: they count as completed.
    pub fn poll_rejection(&mut self) -> Option<Action> {
        // What else was said concerns reading, and may as well be heard later.
        let at = self.actions.iter().position(|action| matches!(action, Action::Reject { .. }))?;
        self.say(at)
    }

    fn say(&mut self, at: usize) -> Option<Action> {
        let action = self.actions.remove(at)?;
        if let Action::Reject { slot, .. } = action {
            self.backlog.release(slot);
        }
        Some(action)
    }

    /// Whether a rejection in this partition was not heard yet.
    pub(super) fn decides_on(&self, partition: u32) -> bool {
        self.actions.iter().any(|action| match *action {
            Action::Reject { partition: of, .. } => of == partition,
            _ => false,
        })
    }

    /// When something will happen by itself. Call it after [`poll_action`](Throttle::poll_action) said `None`.
    pub fn poll_timeout(&mut self, now: Time) -> Time {
        let now = self.not_before(now);
        if !self.actions.is_empty() {
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
            let Some(slot) = self.sendable(head) else { continue };
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
    fn let_go(&mut self, now: Time) -> Option<Action> {
        let slot = self.backlog.oldest().filter(|_| !self.policy.enforce)?;
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

    /// The record itself, if its completion fits in its partition's map, or can be made to; `None` if it was turned away for
    /// that. Where nobody may be, the one that holds this partition's committable offset back, whoever's it is: completing
    /// that never makes a map larger, and only that helps.
    fn sendable(&mut self, slot: Slot) -> Option<Slot> {
        let Held { partition, offset, .. } = *self.backlog.get(slot);
        if partition == VIRTUAL || self.map_has_room(partition, offset) {
            return Some(slot);
        }
        if self.overflow() == Overflow::Pause {
            return Some(self.partitions[partition as usize].held.head().unwrap_or(slot));
        }
        self.make_fit(slot).then_some(slot)
    }

    // ## Rejected => waiting for room in the map => heard

    /// Keeps a rejected record until its completion fits.
    pub(super) fn doom(&mut self, now: Time, arrival: &Arrival<'_>, rejection: Rejection) -> Slot {
        let slot = self.put_in(arrival_held(arrival, NOBODY, arrival.partition, now));
        self.doomed.push_back((slot, rejection));
        self.pause(arrival.partition, PauseReason::Map);
        slot
    }

    /// Completes a doomed record if one fits. One that holds its partition's committable offset back always does.
    fn reject_doomed(&mut self) -> bool {
        let fits = |&(slot, _): &(Slot, Rejection)| {
            let held = self.backlog.get(slot);
            self.map_has_room(held.partition, held.offset)
        };
        let Some((slot, rejection)) = self.doomed.iter().position(fits).and_then(|at| self.doomed.remove(at)) else {
            return false;
        };
        let Held { partition, offset, bytes, .. } = self.take_out(slot, false);
        self.complete(partition, offset);
        self.actions.push_back(Action::Reject { slot, partition, offset, bytes, rejection });
        true
    }

    // ## Waiting => rejected

    /// Rejects the oldest delayed record if its time is over.
    fn expire_oldest(&mut self, now: Time) -> bool {
        let oldest = self.backlog.oldest().filter(|&slot| self.backlog.get(slot).since + self.policy.max_delay <= now);
        oldest.map(|slot| self.turn_away(slot, Reason::Expired)).is_some()
    }

    /// Takes a delayed record out for good and says so.
    fn turn_away(&mut self, slot: Slot, reason: Reason) {
        let held = self.take_out(slot, false);
        self.counts_of(held.client).rejected.add(reason);
        if held.partition == VIRTUAL {
            self.backlog.release(slot);
            return;
        }
        let Held { client, partition, offset, bytes, .. } = held;
        self.complete(partition, offset);
        let rejection = Rejection { reason, retry_after: Duration::ZERO, client: Some(client) };
        self.actions.push_back(Action::Reject { slot, partition, offset, bytes, rejection });
    }

    /// Turns a delayed record away after others of its partition, if its completion would not fit in the map.
    pub(super) fn turn_away_fitting(&mut self, slot: Slot, reason: Reason) {
        if self.make_fit(slot) {
            self.turn_away(slot, reason);
        }
    }

    /// Makes the completion of its client's first record fit in the map; false if that itself was turned away for it.
    fn make_fit(&mut self, slot: Slot) -> bool {
        let Held { client, partition, offset, .. } = *self.backlog.get(slot);
        if partition != VIRTUAL {
            self.make_room_in_map(partition, offset);
        }
        self.registry.get(client).lane.records.head() == Some(slot)
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

    /// A partition went: what was said about it and not yet heard is void; its slots are free.
    pub(super) fn drop_actions_of(&mut self, partition: u32, freed: &mut Vec<Slot>) {
        let backlog = &mut self.backlog;
        self.actions.retain(|action| match *action {
            Action::Pause { partition: of } | Action::Resume { partition: of } => of != partition,
            Action::Reject { slot, partition: of, .. } if of == partition => {
                backlog.release(slot);
                freed.push(slot);
                false
            }
            Action::Reject { .. } | Action::Admit { .. } => true,
        });
    }

    // ## Bounds

    /// Whether backlogs may only be bounded by reading less. Catching up in reject mode always is.
    pub(super) fn overflow(&self) -> Overflow {
        if self.policy.mode == Mode::Reject { Overflow::Pause } else { self.policy.overflow }
    }

    /// Keeps the backlogs within their bounds after a record of this client was put in line.
    pub(super) fn bound_backlog(&mut self, client: u32, partition: u32) {
        // Passthrough can't pause anything: its imagined backlogs are bounded as if it could not.
        if self.overflow() == Overflow::DeadLetter || partition == VIRTUAL {
            self.shed_records(client);
            self.bound_bytes(client);
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
        if self.map_is_nearly_full(partition) {
            self.pause(partition, PauseReason::Map);
        }
    }

    /// Turns away the oldest records of a client until it has no more than `queue_capacity`.
    pub(super) fn shed_records(&mut self, client: u32) {
        while self.registry.get(client).lane.records.len() > self.policy.queue_capacity
            && let Some(oldest) = self.registry.get(client).lane.records.head()
        {
            self.turn_away_fitting(oldest, Reason::QueueFull);
        }
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

    /// Makes this offset's completion fit: turns away what holds the partition's committable offset back, whoever's it is, or
    /// pauses it. Anything else that completes may make the map larger; and who waits the longest sends more than its share, or
    /// than its own limit.
    pub(super) fn make_room_in_map(&mut self, partition: u32, offset: i64) {
        if self.overflow() == Overflow::Pause {
            if self.map_is_nearly_full(partition) {
                self.pause(partition, PauseReason::Map);
            }
            return;
        }
        while !self.map_has_room(partition, offset)
            && let Some(first) = self.partitions[partition as usize].held.head()
        {
            debug_assert_eq!(self.backlog.get(first).offset, self.partitions[partition as usize].tracker.base());
            if self.backlog.get(first).client != NOBODY {
                self.turn_away(first, Reason::QueueFull);
            } else if !self.reject_doomed() {
                return;
            }
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

/// What became of the client whose turn it was.
enum Served {
    Real(Action),
    Virtual,
    Nobody,
}
