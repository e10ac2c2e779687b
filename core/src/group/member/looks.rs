//! Looks: a member's periodic checks of whether to post, and its posts.

use std::{sync::Arc, time::Duration};

use super::{InFlight, MAX_IN_FLIGHT, Member};
use crate::group::Clocks;
use crate::group::record::{Key, Load, Loads, Post, Record};

/// A joining member posts again after this long without reading its post back.
const JOIN_RETRY_INTERVAL: Duration = Duration::from_secs(2);

impl Member {
    /// Checks whether to post, if a look is due. `count` is the number of records in the window, `loads` are those of
    /// the clients here. Returns records to append to the log, in order.
    pub fn look(&mut self, now: Clocks, count: u64, loads: &Loads) -> Vec<Record> {
        if now.slow < self.next_look || self.left || self.restart.is_some() || !self.seats.is_complete() {
            return Vec::new();
        }
        self.next_look = now.slow + self.params.look;
        if !self.joined {
            let waits = self.unanswered() > 0 && now.slow < self.posted.at + JOIN_RETRY_INTERVAL;
            if waits || self.conflict().is_some() {
                return Vec::new();
            }
            return vec![self.post(now, 0, 0, loads)];
        }
        self.find_targets(loads);
        let needed = self.is_needed();
        let mut records: Vec<Record> = self.due_post(now, count, loads, needed).into_iter().collect();
        records.extend(self.due_bounds(now, needed || self.target() > self.limit));
        records
    }

    /// Bounds on members that stopped. Only an active member writes them.
    fn due_bounds(&mut self, now: Clocks, needed: bool) -> Vec<Record> {
        if !self.is_active(now) {
            return Vec::new();
        }
        let bounds = self.stops.due(now, &self.params, &self.key, &self.seats, needed);
        bounds.into_iter().map(Record::Bound).collect()
    }

    /// Leaves the group: the member admits nothing from now on. Returns records to append to the log, in order.
    pub fn leave(&mut self, now: Clocks, count: u64) -> Vec<Record> {
        let mut records = self.due_bounds(now, true);
        if self.joined && !self.left && self.restart.is_none() {
            let mut post = self.next_post(now, count, count);
            (post.left, post.complete) = (true, true);
            records.push(Record::Post(post));
        }
        self.left = true;
        records
    }

    fn find_targets(&mut self, loads: &Loads) {
        let capacity = self.capacity();
        let live = self.seats.live().filter(|(key, _)| **key != self.key);
        let mut members: Vec<(&Key, &Loads)> = live.map(|(key, seat)| (key, &seat.loads)).collect();
        let place = members.partition_point(|(key, _)| **key < self.key);
        members.insert(place, (&self.key, loads));
        self.targets = self.splitter.split(&self.params, capacity, &self.shares, &self.key, &members);
    }

    /// Returns whether another member wants more than it holds, or more is held than the capacity.
    fn is_needed(&self) -> bool {
        let wants_more =
            |(key, &target): (&Key, &u64)| *key != self.key && self.seats.get(key).is_some_and(|seat| target > seat.lo);
        self.seats.held() > self.capacity() || self.targets.targets.iter().any(wants_more)
    }

    /// Posts if there is something to give back, to ask for or to tell.
    fn due_post(&mut self, now: Clocks, count: u64, loads: &Loads, needed: bool) -> Option<Record> {
        if self.unanswered() >= MAX_IN_FLIGHT {
            return None;
        }
        let (capacity, target) = (self.capacity(), self.target());
        let low = count.max(self.limit.min(target));
        let drained = u128::from(capacity) * self.params.look.as_nanos() / self.params.cycle.as_nanos() / 4;
        let least = (drained as u64).max(1);
        let gives_back = needed && low < self.limit && (self.limit - low >= least || low == target);
        let has_room = self.seats.held() < capacity;
        let raises = target > self.limit && has_room && self.unanswered() == 0;
        let is_due = self.posted.complete_due || now.slow >= self.posted.at + self.params.heartbeat;
        if !(gives_back || raises || is_due || self.has_changed(capacity, loads)) {
            return None;
        }
        let have = if gives_back || is_due || needed { low } else { self.limit };
        Some(self.post(now, have, have.max(target), loads))
    }

    /// Returns whether the demand changed by more than 5 % of the capacity, or a client of 1 % appeared or vanished.
    fn has_changed(&self, capacity: u64, loads: &Loads) -> bool {
        let mut moved = 0_u64;
        let before = |client: &Arc<str>| self.posted.loads.get(client).map_or(0, |load| load.demand);
        let mut changed = |demand: u64, before: u64| {
            moved = moved.saturating_add(demand.abs_diff(before));
            (demand == 0) != (before == 0) && demand.max(before) * 100 >= capacity
        };
        let mut came = loads.iter().any(|(client, load)| changed(load.demand, before(client)));
        let vanished = self.posted.loads.iter().filter(|(client, _)| !loads.contains_key(*client));
        for (_, load) in vanished {
            came |= changed(0, load.demand);
        }
        came || moved > capacity / 20
    }

    fn post(&mut self, now: Clocks, have: u64, want: u64, loads: &Loads) -> Record {
        let mut post = self.next_post(now, have, want);
        post.complete = self.seq == 1 || self.posted.complete_due;
        post.loads = if post.complete { loads.clone() } else { changed_loads(&self.posted.loads, loads) };
        post.update(&mut self.posted.loads);
        (self.posted.at, self.posted.complete_due) = (now.slow, false);
        Record::Post(post)
    }

    /// The next post, without loads. The limit falls before the post is sent.
    fn next_post(&mut self, now: Clocks, have: u64, want: u64) -> Post {
        self.seq += 1;
        self.limit = self.limit.min(have);
        self.in_flight.push_back(InFlight { seq: self.seq, sent: now.fast, have, want, failed: false });
        Post {
            key: self.key.clone(),
            terms: self.params.terms(),
            seq: self.seq,
            seen: self.seats.next_offset(),
            have,
            want,
            pace: self.paces.largest(),
            left: false,
            complete: false,
            loads: Loads::new(),
        }
    }
}

/// The loads that differ by a tenth or more from those posted; an empty load for a client that has none any more.
fn changed_loads(posted: &Loads, loads: &Loads) -> Loads {
    let differs = |one: u64, other: u64| one.abs_diff(other) * 10 >= one.max(other).max(1);
    let changed = loads.iter().filter(|(client, load)| {
        let before = posted.get(*client).copied().unwrap_or_default();
        differs(load.demand, before.demand) || differs(load.wants, before.wants)
    });
    let mut changed: Loads = changed.map(|(client, &load)| (Arc::clone(client), load)).collect();
    let gone = posted.keys().filter(|client| !loads.contains_key(*client));
    changed.extend(gone.map(|client| (Arc::clone(client), Load::default())));
    changed
}
