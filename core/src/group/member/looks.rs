//! Looks: a member's periodic checks of whether to post, and its posts.

use std::{sync::Arc, time::Duration};

use super::{InFlight, MAX_IN_FLIGHT, Member};
use crate::group::bounds::UNPACED;
use crate::group::loads::MemberLoads;
use crate::group::record::{Key, Load, Loads, Post, Record, Tombstone};
use crate::group::seats::Seat;
use crate::group::targets::SplitInput;
use crate::group::wire::load_bytes;
use crate::group::{Clocks, GroupTimes};
use crate::policy::Mode;

/// A joining member posts again after this long without reading its post back.
const JOIN_RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// The records of a member that is gone stay in the log for this long.
const GONE_RETENTION: Duration = Duration::from_secs(86_400);
/// Tombstones that did not arrive are asked for again after this long.
const TOMBSTONE_RETRY_INTERVAL: Duration = Duration::from_secs(600);
/// The offsets of the log after which records that can't be split go to another member.
const TURN_LENGTH: u64 = 1_000;
/// Own loads count as unchanged while all demand moved by less than the capacity ÷ this.
const SMALL_MOVE: u64 = 256;

/// The loads of the clients here that targets and posts are made of.
#[derive(Debug, Default)]
pub(super) struct OwnLoads {
    /// As the owner told them when they changed last.
    told: Loads,
    loads: MemberLoads,
    changes: u64,
}

/// The inputs of a split: the numbers of changes of what is too long to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SplitBasis {
    seats: u64,
    own: u64,
    capacity: u64,
    turn: u64,
}

impl Member {
    /// Checks whether to post, if a look is due. `need` is the least limit under which the member can go on at its
    /// target as its pace ([`Throttle::window_need`](crate::throttle::Throttle::window_need)), `loads` are those of
    /// the clients here. Returns records to append to the log, in order.
    pub fn look(&mut self, now: Clocks, need: u64, loads: &Loads) -> Vec<Record> {
        if now.slow < self.next_look || self.left || self.restart.is_some() || !self.seats.is_complete() {
            return Vec::new();
        }
        if let Some(farewell) = self.farewell.take() {
            return vec![Record::Post(farewell)];
        }
        let times = self.times();
        self.next_look = now.slow + times.look;
        if !self.joined {
            let waits = self.unanswered() > 0 && now.slow < self.posted.at + JOIN_RETRY_INTERVAL;
            if waits || self.conflict(now).is_some() {
                return Vec::new();
            }
            self.take_loads(loads);
            return vec![self.post(now, 0, 0)];
        }
        if self.loads.differ(loads, self.capacity()) {
            self.take_loads(loads);
        }
        self.find_targets(now);
        let needed = self.is_needed();
        let mut records: Vec<Record> = self.due_post(now, times, need, loads, needed).into_iter().collect();
        let has_posted = !records.is_empty();
        if self.is_active(now) {
            records.extend(self.due_bounds(now, times, needed || self.target > self.limit));
            if has_posted {
                records.extend(self.due_tombstones(now));
            }
        }
        records
    }

    /// Bounds on members that stopped. Only an active member writes them.
    fn due_bounds(&mut self, now: Clocks, times: GroupTimes, needed: bool) -> impl Iterator<Item = Record> + use<> {
        let bounds = self.stops.due(now, &self.params, times.look, &self.key, &self.seats, needed);
        bounds.into_iter().map(Record::Bound)
    }

    /// Tombstones for the records of members that have been gone for long. Any member may write them, also twice.
    fn due_tombstones(&mut self, now: Clocks) -> Vec<Record> {
        let gone = self.seats.long_gone(now.slow, GONE_RETENTION, TOMBSTONE_RETRY_INTERVAL);
        let of = |subject: Key| {
            [true, false].map(|of_post| Record::Tombstone(Tombstone { subject: subject.clone(), of_post }))
        };
        gone.into_iter().flat_map(of).collect()
    }

    /// Leaves the group: the member admits nothing from now on. Returns records to append to the log, in order.
    pub fn leave(&mut self, now: Clocks, count: u64) -> Vec<Record> {
        let mut records = Vec::new();
        if self.is_active(now) {
            records.extend(self.due_bounds(now, self.times(), true));
        }
        if self.joined && !self.left && self.restart.is_none() {
            let have = (count + self.memory.at(now)).min(self.limit);
            let mut post = self.next_post(now, have, have);
            (post.left, post.complete) = (true, true);
            records.push(Record::Post(post));
        }
        self.left = true;
        records
    }

    fn take_loads(&mut self, loads: &Loads) {
        self.loads.changes += u64::from(self.seats.clients.update(&mut self.loads.loads, true, loads));
        self.loads.told.clone_from(loads);
    }

    /// Splits the capacity anew if anything changed since the last time, and moves the targets towards the split.
    fn find_targets(&mut self, now: Clocks) {
        let capacity = self.capacity();
        let turn = self.seats.next_offset() / TURN_LENGTH;
        let basis = SplitBasis { seats: self.seats.changes(), own: self.loads.changes, capacity, turn };
        if self.split_of.replace(basis) != Some(basis) {
            let others = || self.seats.live().filter(|(key, _)| **key != self.key);
            let own = others().take_while(|(key, _)| **key < self.key).count();
            let mut members: Vec<&MemberLoads> = others().map(|(_, seat)| &seat.loads).collect();
            members.insert(own, &self.loads.loads);
            let (params, shares, clients) = (&self.params, &self.shares, &self.seats.clients);
            let input = SplitInput { params, capacity, shares, clients, members, own, turn };
            self.split = (self.splitter.split(&input), own);
            self.splits += 1;
        }
        let (split, own) = &self.split;
        let mut targets = match self.params.mode {
            Mode::Shape => self.smooth.towards(now.slow, self.params.cycle, capacity, split),
            Mode::Reject => split.clone(),
        };
        self.target = targets.remove(*own);
        self.seats.set_targets(&self.key, targets.into_iter());
    }

    /// Returns whether another member wants more than it holds, or more is held than the capacity.
    fn is_needed(&self) -> bool {
        let wants_more = |(key, seat): (&Key, &Seat)| seat.target > seat.lo && *key != self.key;
        self.seats.held() > self.capacity() || self.seats.live().any(wants_more)
    }

    /// Posts if there is something to give back, to ask for or to tell.
    fn due_post(&mut self, now: Clocks, times: GroupTimes, need: u64, loads: &Loads, needed: bool) -> Option<Record> {
        if self.unanswered() >= MAX_IN_FLIGHT {
            return None;
        }
        let (capacity, memory) = (self.capacity(), self.memory.at(now));
        let target = self.target.max(memory);
        // Before the first raise the limit is below the memory, and a post must not promise more than was given.
        let low = (need + memory).max(self.limit.min(target)).min(self.limit);
        let drained = u128::from(capacity) * times.look.as_nanos() / self.params.cycle.as_nanos() / 4;
        let least = (drained as u64).max(1);
        let gives_back = needed && low < self.limit && (self.limit - low >= least || low == target);
        let has_room = self.seats.held() < capacity;
        let raises = target > self.limit && has_room && self.unanswered() == 0;
        let is_due = self.posted.complete_due || now.slow >= self.posted.at + times.heartbeat;
        if !(gives_back || raises || is_due || self.has_changed(capacity)) {
            return None;
        }
        self.take_loads(loads);
        let have = if gives_back || is_due || needed { low } else { self.limit };
        Some(self.post(now, have, have.max(target)))
    }

    /// Returns whether the demand changed by more than 5 % of the capacity, or a client of 1 % appeared or vanished.
    fn has_changed(&self, capacity: u64) -> bool {
        let (mut moved, mut came) = (0_u64, false);
        for (_, before, now) in self.posted.loads.beside(&self.loads.loads) {
            moved = moved.saturating_add(now.demand.abs_diff(before.demand));
            came |= (now.demand == 0) != (before.demand == 0) && now.demand.max(before.demand) * 100 >= capacity;
        }
        came || moved > capacity / 20
    }

    fn post(&mut self, now: Clocks, have: u64, want: u64) -> Record {
        let mut post = self.next_post(now, have, want);
        let (posted, loads) = (&self.posted.loads, &self.loads.loads);
        // A post of all loads has a bounded size. One of the changes also names the clients that are gone.
        let is_shorter = self.bytes(loads.iter()) < self.bytes(changed_loads(posted, loads));
        post.complete = self.seq == 1 || self.posted.complete_due || is_shorter;
        let named = |(number, load): (usize, Load)| (Arc::clone(self.seats.clients.name(number)), load);
        post.loads = match post.complete {
            true => loads.iter().map(named).collect(),
            false => changed_loads(posted, loads).map(named).collect(),
        };
        self.seats.clients.update(&mut self.posted.loads, post.complete, &post.loads);
        (self.posted.at, self.posted.complete_due) = (now.slow, false);
        Record::Post(post)
    }

    fn bytes(&self, loads: impl Iterator<Item = (usize, Load)>) -> usize {
        loads.map(|(number, load)| load_bytes(self.seats.clients.name(number), load)).sum()
    }

    /// The next post, without loads. The limit and the end of the lease fall before the post is sent.
    pub(super) fn next_post(&mut self, now: Clocks, have: u64, want: u64) -> Post {
        let lease = self.times().lease;
        self.seq += 1;
        self.limit = self.limit.min(have);
        self.lease_end = self.lease_end.min(now.fast + lease);
        self.in_flight.push_back(InFlight { seq: self.seq, sent: now.fast, lease, have, want, failed: false });
        let pace = match self.memory.at(now) {
            0 => self.paces.largest(),
            _ => self.params.capacity.saturating_mul(UNPACED),
        };
        Post {
            key: self.key.clone(),
            terms: self.params.terms(),
            seq: self.seq,
            seen: self.seats.next_offset(),
            have,
            want,
            pace,
            lease,
            left: false,
            complete: false,
            loads: Loads::new(),
            progress: self.progress,
        }
    }
}

impl OwnLoads {
    /// Returns whether loads differ enough from those told before to split the capacity anew.
    fn differ(&self, loads: &Loads, capacity: u64) -> bool {
        let mut moved = 0_u64;
        let alike = loads.len() == self.told.len()
            && self.told.iter().zip(loads).all(|((one, before), (other, now))| {
                moved = moved.saturating_add(now.demand.abs_diff(before.demand));
                one == other && before.wants == now.wants
            });
        !alike || moved > capacity / SMALL_MOVE
    }
}

/// The loads that differ by a tenth or more from those posted; an empty load for a client that has none any more.
fn changed_loads<'l>(posted: &'l MemberLoads, loads: &'l MemberLoads) -> impl Iterator<Item = (usize, Load)> + 'l {
    let differs = |one: u64, other: u64| one.abs_diff(other) * 10 >= one.max(other).max(1);
    let changed = move |(number, before, now): (usize, Load, Load)| {
        (differs(now.demand, before.demand) || differs(now.wants, before.wants)).then_some((number, now))
    };
    posted.beside(loads).filter_map(changed)
}
