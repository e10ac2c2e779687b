//! One member of a group.
//!
//! The owner drives it: it hands over every record of the control log ([`Member::handle_record`]), asks for records to
//! append ([`Member::look`]), and admits records only while its window holds fewer than [`Member::limit`].
//!
//! ```text
//!           posts seq 1 (have 0, want 0)             reads it back
//!  start ──────────────────────────────► joining ─────────────────► active ──── the lease ends ────► expired
//!    ▲ reads the log to its end                                      │  ▲                             │
//!    │                                                               │  └────── reads back a post ────┤
//!    │                        leaves: a post that says `left`        ▼                                │
//!    └──────────────── is put out: reads a valid bound on its key ◄───────────────────────────────────┘
//! ```

mod looks;
mod paces;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use strum::IntoStaticStr;

use super::bounds::Stops;
use super::loads::MemberLoads;
use super::record::{Key, Post, Progress, Record};
use super::seats::{LostHistory, Seat, SeatState, Seats};
use super::targets::{Part, Shares, SmoothTargets, Splitter};
use super::{Clocks, GroupParams, GroupTimes};
use crate::units::Time;
use looks::{OwnLoads, SplitBasis};
use paces::Paces;

/// The most posts without an answer.
const MAX_IN_FLIGHT: usize = 4;

/// A reason for which a member has to take a new key, with an empty window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Restart {
    /// Another member put it out.
    #[error("another member took this one for stopped")]
    PutOut,
    /// Posts of its key are in the log that it did not send.
    #[error("another process posts under the same key")]
    Copied,
    /// By the log, a member with another cycle or mode joined before this one.
    #[error("an instance with another cycle or mode joined first")]
    Conflict,
    /// The member's posts got no answer for longer than a lease.
    #[error("the control topic did not answer for longer than a lease")]
    Unanswered,
    /// The replay can't be trusted: the owner has to read the log from its beginning.
    #[error(transparent)]
    LostHistory(#[from] LostHistory),
}

/// The state of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum MemberState {
    /// The member reads the log, or waits for its first post.
    Joining,
    /// The member admits up to its limit.
    Active,
    /// The lease ended: the member admits nothing until it reads a post back.
    Expired,
    /// The member left.
    Left,
}

/// A member.
#[derive(Debug)]
pub struct Member {
    params: GroupParams,
    shares: Shares,
    key: Key,
    seats: Seats,
    joined: bool,
    left: bool,
    restart: Option<Restart>,
    /// The next look tells that the former key, which held nothing, left.
    farewell: Option<Post>,
    /// The number of the last post.
    seq: u64,
    /// Own posts that were not read back, oldest first.
    in_flight: VecDeque<InFlight>,
    /// The limit while the lease runs.
    limit: u64,
    /// On the fast clock.
    lease_end: Time,
    /// The `want` of the own post that was read back last.
    want_back: u64,
    paces: Paces,
    posted: Posted,
    next_look: Time,
    stops: Stops,
    loads: OwnLoads,
    memory: Memory,
    progress: Option<Progress>,
    target: u64,
    splitter: Splitter,
    /// The targets of the last split, and the index of this member in them.
    split: (Vec<u64>, usize),
    smooth: SmoothTargets,
    /// The inputs of the last split, to know whether they changed.
    split_of: Option<SplitBasis>,
    splits: u64,
}

#[derive(Debug, Clone, Copy)]
struct InFlight {
    seq: u64,
    /// On the fast clock, read before the post was handed over.
    sent: Time,
    lease: Duration,
    have: u64,
    want: u64,
    /// The producer gave the post up. It may be in the log all the same, so that its `have` still binds.
    failed: bool,
}

/// The records of before the group began, which count in no member's window. This member holds capacity for them.
#[derive(Debug, Default)]
struct Memory {
    count: u64,
    /// On the slow clock.
    until: Time,
}

impl Memory {
    fn at(&self, now: Clocks) -> u64 {
        if now.slow < self.until { self.count } else { 0 }
    }
}

/// The last post, to know what changed since.
#[derive(Debug, Default)]
struct Posted {
    at: Time,
    /// The loads that posts told.
    loads: MemberLoads,
    /// The next post names all clients, at once: a newcomer knows none.
    complete_due: bool,
}

impl Member {
    /// A member that begins to read the log when the log's end is `start`.
    pub fn new(params: GroupParams, shares: Shares, key: Key, start: u64, now: Clocks) -> Member {
        Member {
            params,
            shares,
            key,
            seats: Seats::new(start),
            joined: false,
            left: false,
            restart: None,
            farewell: None,
            seq: 0,
            in_flight: VecDeque::new(),
            limit: 0,
            lease_end: Time::ZERO,
            want_back: 0,
            paces: Paces::default(),
            posted: Posted::default(),
            next_look: now.slow,
            stops: Stops::default(),
            loads: OwnLoads::default(),
            memory: Memory::default(),
            progress: None,
            target: 0,
            splitter: Splitter::default(),
            split: (Vec::new(), 0),
            smooth: SmoothTargets::default(),
            split_of: None,
            splits: 0,
        }
    }

    /// Returns whether this member is the first one of its group: by the log, no member ever held anything.
    /// Then the owner has to call [`charge_memory`](Member::charge_memory) before the first look.
    pub fn is_first(&self) -> bool {
        self.seq == 0 && self.seats.is_complete() && self.seats.are_fresh()
    }

    /// Charges the records that were admitted in the last cycle, from all source partitions, before the group began: no
    /// member's window counts them. This member asks for a hold of at least as many with its first raise, when no other
    /// member holds anything yet, and leaves them free until they have left the service's window.
    pub fn charge_memory(&mut self, now: Clocks, count: u64) {
        self.memory = Memory { count: count.min(self.params.capacity), until: now.slow + self.params.window() };
    }

    /// Takes a new key after [`restart`](Member::restart) was asked for, and keeps the replay. The owner begins an
    /// empty window: the records admitted so far stay charged to the former key.
    ///
    /// # Panics
    /// If history was lost: then a new member has to read the log again.
    pub fn rejoin(&mut self, now: Clocks, incarnation: u64) {
        assert!(!matches!(self.restart, Some(Restart::LostHistory(_))), "the log has to be read again");
        if self.restart == Some(Restart::Conflict) {
            self.farewell = Some(Post { left: true, complete: true, ..self.next_post(now, 0, 0) });
        }
        let key = Key { instance: Arc::clone(&self.key.instance), incarnation };
        let former = std::mem::replace(&mut self.key, key);
        self.stops.former.insert(former, now.slow);
        (self.joined, self.restart, self.seq) = (false, None, 0);
        self.in_flight.clear();
        (self.limit, self.lease_end, self.want_back) = (0, Time::ZERO, 0);
        self.paces = Paces::default();
        self.seats.clients.update(&mut self.posted.loads, true, &[]);
        self.posted = Posted::default();
        self.next_look = now.slow;
        self.split_of = None;
    }

    /// Changes the configuration: the capacity, or the weights and rules of lending.
    pub fn change(&mut self, params: GroupParams, shares: Shares) {
        (self.params, self.shares) = (params, shares);
        self.posted.complete_due = true;
        self.split_of = None;
    }

    /// Notes the admissions that the next posts tell.
    pub fn note_progress(&mut self, progress: Progress) {
        self.progress = Some(progress);
    }

    /// Notes that the broker fenced all former processes with this instance id.
    pub fn handle_fenced(&mut self, now: Clocks) {
        self.stops.fenced_at = Some(now.slow);
    }

    /// Notes that all records below `start` were read.
    pub fn handle_caught_up(&mut self, now: Clocks) {
        self.seats.finish_prefix(now.slow);
    }

    /// Notes that the producer gave up a post.
    pub fn handle_failed(&mut self, seq: u64) {
        if let Some(post) = self.in_flight.iter_mut().find(|post| post.seq == seq) {
            post.failed = true;
            self.posted.complete_due = true;
        }
    }

    /// Replays a record of the log.
    pub fn handle_record(&mut self, now: Clocks, offset: u64, record: &Record) {
        if let Err(lost) = self.seats.apply(now.slow, offset, record) {
            self.restart = Some(lost.into());
            return;
        }
        match record {
            Record::Post(post) if post.key == self.key => self.read_back(now, post),
            Record::Post(post) => self.posted.complete_due |= post.seq == 1,
            Record::Bound(bound) if bound.target == self.key => {
                let is_out = self.own_seat().is_none_or(|seat| seat.state == SeatState::Out);
                if is_out && !self.left {
                    self.restart.get_or_insert(Restart::PutOut);
                }
            }
            Record::Bound(_) | Record::Tombstone(_) => {}
        }
    }

    fn read_back(&mut self, now: Clocks, post: &Post) {
        let Some(sent) = self.in_flight.iter().find(|sent| sent.seq == post.seq) else {
            if post.seq > self.seq {
                self.restart = Some(Restart::Copied);
            }
            return;
        };
        if (sent.have, sent.want) != (post.have, post.want) {
            self.restart = Some(Restart::Copied);
            return;
        }
        if !self.joined && self.conflict(now).is_some() {
            self.restart = Some(Restart::Conflict);
            return;
        }
        if !self.joined || now.fast > self.lease_end {
            self.stops.active_since = now.slow;
        }
        let lease_end = self.lease_end.max(sent.sent + sent.lease);
        self.in_flight.retain(|sent| sent.seq > post.seq);
        (self.joined, self.want_back) = (true, post.want);
        self.limit = self.in_flight.iter().map(|sent| sent.have).fold(self.hold(), u64::min);
        // Others count the lease of the last post that arrived, which may be one on its way.
        self.lease_end = self.in_flight.iter().map(|sent| sent.sent + sent.lease).fold(lease_end, Time::min);
    }

    /// The hold of this member, by the log.
    pub fn hold(&self) -> u64 {
        self.own_seat().map_or(0, |seat| seat.lo)
    }

    fn own_seat(&self) -> Option<&Seat> {
        self.seats.get(&self.key)
    }

    /// The most records that the member's window may hold. The owner asks before each decision.
    #[inline]
    pub fn limit(&self, now: Clocks) -> u64 {
        if self.is_active(now) { self.limit.saturating_sub(self.memory.at(now)) } else { 0 }
    }

    /// The time, on the fast clock, from which on the limit is 0 unless a post is read back.
    pub fn lease_end(&self) -> Time {
        self.lease_end
    }

    fn is_active(&self, now: Clocks) -> bool {
        self.joined && !self.left && self.restart.is_none() && now.fast <= self.lease_end
    }

    /// The state of the member.
    pub fn state(&self, now: Clocks) -> MemberState {
        match (self.left, self.joined, self.is_active(now)) {
            (true, ..) => MemberState::Left,
            (_, false, _) => MemberState::Joining,
            (_, _, true) => MemberState::Active,
            _ => MemberState::Expired,
        }
    }

    /// The pace, in records per cycle, at which the member may fill its window from now on, in shape mode. The pace
    /// holds until it is asked for again.
    pub fn pace(&mut self, now: Clocks) -> u64 {
        let asked = self.in_flight.iter().map(|sent| sent.want).fold(self.want_back, u64::min);
        let pace = self.target.min(GroupParams::fast_pace(asked));
        self.paces.set(now.slow, pace, self.params.window());
        pace
    }

    /// The hold that this member ought to have.
    pub fn target(&self) -> u64 {
        self.target
    }

    /// The hold that a member ought to have; 0 for one that is not live.
    pub fn target_of(&self, key: &Key) -> u64 {
        if *key == self.key { self.target } else { self.seats.get(key).map_or(0, |seat| seat.target) }
    }

    /// The part of a client at this member; `None` for a client without load at any member.
    pub fn part(&self, client: &str) -> Option<Part> {
        let named = self.seats.clients.number(client).and_then(|number| self.splitter.part(number));
        named.or_else(|| self.splitter.unnamed_part().filter(|_| !self.shares.lists(client)))
    }

    /// Counts the splits of the capacity so far. [`part`](Member::part) answers as before until the next one.
    pub fn splits(&self) -> u64 {
        self.splits
    }

    /// The reason for which the owner has to call [`rejoin`](Member::rejoin), or read the log again with a new member.
    pub fn restart(&self, now: Clocks) -> Option<Restart> {
        let unanswered = self.joined && self.unanswered() >= MAX_IN_FLIGHT && !self.left;
        let stuck = unanswered && now.fast > self.lease_end + self.times().lease;
        self.restart.or(stuck.then_some(Restart::Unanswered))
    }

    /// The times that follow from the size of the group.
    pub fn times(&self) -> GroupTimes {
        self.params.times(self.seats.live_count().max(1), self.seats.clients.len())
    }

    fn unanswered(&self) -> usize {
        self.in_flight.iter().filter(|sent| !sent.failed).count()
    }

    /// A member whose cycle or mode is another, so that this one can't join. Of two that start together, the one whose
    /// post is earlier in the log joins. The other member may have died without leaving: once it was silent for its
    /// lease and its cycle, its window is empty.
    pub fn conflict(&self, now: Clocks) -> Option<(&Key, &Seat)> {
        let terms = self.params.terms();
        let is_over = |seat: &Seat| {
            let time = seat.lease + Duration::from_millis(seat.terms.cycle_ms);
            now.slow > seat.received + self.params.lengthened(time)
        };
        let is_rival = |&(_, seat): &(&Key, &Seat)| !seat.terms.agree_with(&terms) && !is_over(seat);
        self.seats.live().find(is_rival).filter(|_| !self.joined)
    }

    /// All members, as far as this one knows.
    pub fn seats(&self) -> &Seats {
        &self.seats
    }

    /// The name of this member.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The time of the next look.
    pub fn next_look(&self) -> Time {
        self.next_look
    }

    /// The capacity in force: the smallest among the live members and this one.
    pub fn capacity(&self) -> u64 {
        self.seats.capacity().map_or(self.params.capacity, |least| least.min(self.params.capacity))
    }
}
