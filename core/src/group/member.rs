//! One member of a group: the owner of a seat.
//!
//! ```text
//! start ─► opening ─► adopts its seat's last state ─► first state committed ─► active ◄───────────────┐
//!             ▲                                                                 │  │                  │ committed, or
//!             │       fenced, in doubt, or its own state was claimed            │  └─► in doubt ──────┤ found by
//!             └─────────────────────────────────────────────────────────────────┴──────────────────── ┘ opening again
//! ```
//!
//! A member admits only while it is active and has admissions left of those that its last committed state announced.
//! While it is in doubt whether a state was committed, it goes on with what both states allow.

mod holding;
mod looks;
mod others;

use std::collections::BTreeMap;
use std::{sync::Arc, time::Duration};

use strum::IntoStaticStr;

use super::charged::Charged;
use super::control::{Event, LogCall, OpeningNumber};
use super::ledger::{LastState, SeatLedger};
use super::state::{BANK, SeatLoads, SeatRecord, State, StateKind, Terms};
use super::targets::Shares;
use super::{Clocks, GroupParams, GroupTimes};
use crate::allocator::{ClientGroupPart, Part};
use crate::scheduler::GroupPart;
pub use crate::throttle::Admissions;
use crate::units::{Time, lengthened};
use holding::Holding;
use looks::Targets;
use others::Other;

/// An opening that failed is begun again after this time.
const REOPEN_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum MemberState {
    /// The member opens its seat, reads the log, or waits for its first state.
    Joining,
    /// The member admits up to its limit.
    Active,
    /// The announced admissions are used, or too old: nothing is admitted until a state is committed.
    Waiting,
    /// The member left.
    Left,
}

#[derive(Debug, Default)]
struct OwnOpening {
    /// 0 while none is under way.
    attempt: OpeningNumber,
    /// The end of the log at the opening.
    end: Option<u64>,
    /// The reader has reached this end: no other process writes this seat.
    is_open: bool,
    /// A state is on its way.
    is_writing: bool,
    /// The next opening begins then.
    retry_at: Option<Time>,
}

/// An own state, and what it announced.
#[derive(Debug)]
struct Announcement {
    state: State,
    /// On the fast clock.
    made: Time,
    /// The total of admissions that must not be exceeded.
    until_total: u64,
    /// The end of the time for which they may be made, on the fast clock.
    until: Time,
}

#[derive(Debug, Default)]
struct Openings {
    /// The number of openings so far.
    attempts: OpeningNumber,
    own: OwnOpening,
    other: Option<Other>,
    /// The times from which on a seat may be claimed, or the bank opened.
    suspected: BTreeMap<Arc<str>, Time>,
    /// The admissions of before the group began; `None` until the owner knows them.
    memory: Option<u64>,
}

/// The states of this life.
#[derive(Debug, Default)]
struct Announced {
    /// The last committed own state.
    committed: Option<Announcement>,
    /// The own state that is on its way, or in doubt.
    flight: Option<Announcement>,
    /// A state of this life was committed.
    began: bool,
    /// The time at which the last state was made.
    made_at: Time,
    /// The loads that the log was told last, and the time of that.
    told: Option<(SeatLoads, Time)>,
}

/// The end of a membership.
#[derive(Debug, Default)]
struct Departure {
    leaving: bool,
    left: bool,
    is_replaced: bool,
}

#[derive(Debug)]
pub struct Member {
    params: GroupParams,
    seat: Arc<str>,
    /// A random number that no other life of the seat has.
    life: u64,
    ledger: SeatLedger,
    openings: Openings,
    holding: Holding,
    announced: Announced,
    exit: Departure,
    split: Targets,
    /// By the size of the group at the last look.
    times: GroupTimes,
    next_look: Time,
}

impl Member {
    /// A member that begins to read the log from its beginning. `life` is a random number.
    pub fn new(params: GroupParams, shares: Shares, seat: Arc<str>, life: u64, now: Clocks) -> Member {
        let own = OwnOpening { retry_at: Some(now.slow), ..OwnOpening::default() };
        let times = params.times(0, 0);
        Member {
            params,
            seat,
            life,
            ledger: SeatLedger::default(),
            openings: Openings { own, ..Openings::default() },
            holding: Holding::default(),
            announced: Announced::default(),
            exit: Departure::default(),
            split: Targets::new(shares),
            times,
            next_look: now.slow,
        }
    }

    // ## News from the log

    /// Takes over what the log tells. Returns the calls that the owner has to make.
    pub fn handle_event(&mut self, now: Clocks, event: &Event, admissions: &mut impl Admissions) -> Vec<LogCall> {
        let mut calls = Vec::new();
        match event {
            Event::Record { record, .. } => self.read(now, record, admissions),
            Event::End(end) => self.ledger.note_end(*end),
            Event::Opened { attempt, end } if *attempt == self.openings.own.attempt => {
                self.openings.own.end = Some(*end)
            }
            Event::Failed { attempt } if *attempt == self.openings.own.attempt => self.reopen(now, REOPEN_INTERVAL),
            Event::Written { attempt, committed } if *attempt == self.openings.own.attempt => {
                self.openings.own.is_writing = false;
                if *committed { self.commit() } else { self.reopen(now, Duration::ZERO) }
            }
            Event::Opened { attempt, .. } | Event::Failed { attempt } | Event::Written { attempt, .. } => {
                self.note_other(*attempt, event, &mut calls);
            }
        }
        if !self.openings.own.is_open && self.openings.own.end.is_some_and(|end| self.ledger.reaches(end)) {
            self.openings.own.is_open = true;
            self.adopt(now, admissions);
        }
        self.work_other(now, &mut calls);
        calls
    }

    fn read(&mut self, now: Clocks, record: &SeatRecord, admissions: &mut impl Admissions) {
        let began_anew = self.ledger.apply(now.slow, record);
        if began_anew {
            // This member holds nothing, and begins as a newcomer.
            self.vacate(admissions);
            self.reopen(now, Duration::ZERO);
            return;
        }
        match record {
            SeatRecord::State(state) => {
                self.openings.suspected.remove(&state.seat);
                let is_mine = state.author == self.life && state.kind != StateKind::Claimed;
                if state.seat == self.seat && self.openings.own.is_open && !is_mine && state.seq >= self.holding.seq() {
                    self.reopen(now, Duration::ZERO);
                }
                self.take_moves(now, &state.seat, admissions);
                self.holding.forget_applied(&self.ledger, &self.seat);
            }
            // In a large group, looks are rare because each takes long.
            SeatRecord::Loads(loads) if loads.seat != self.seat && self.times.look == self.params.look => {
                self.look_soon();
            }
            SeatRecord::Tombstone(seat) => self.holding.forget(seat),
            _ => {}
        }
    }

    /// Applies the moves of a giver's last state to this seat, and forgets those that it has dropped.
    fn take_moves(&mut self, now: Clocks, giver: &str, admissions: &mut impl Admissions) {
        let can_take = self.openings.own.is_open && !self.exit.leaving;
        let Some(giver) = self.ledger.seat(giver).filter(|_| can_take) else { return };
        if let Some(charged) = self.holding.take_moves(&self.seat, giver) {
            self.holding.charge(now.slow, charged, admissions);
            self.look_soon();
        }
    }

    /// The own seat is open: its last state is known for sure, and no other process writes it.
    fn adopt(&mut self, now: Clocks, admissions: &mut impl Admissions) {
        let last = self.ledger.seat(&self.seat).cloned();
        match last {
            Some(LastState { state, .. }) if state.author == self.life && state.kind != StateKind::Claimed => {
                self.exit.left |= state.kind == StateKind::Left;
                match &self.announced.flight {
                    Some(flight) if flight.state.seq == state.seq => self.commit(),
                    // The state in doubt was never committed, and never will be.
                    Some(_) => {
                        self.holding.take_back();
                        (self.announced.flight, self.announced.told) = (None, None);
                    }
                    None => {}
                }
                self.holding.note_state(state.seq);
            }
            // Another member claimed the seat after the own last state, whose outcome this one did not learn.
            Some(LastState { state, .. }) if state.kind == StateKind::Left && self.last_state_is_in_doubt() => {
                self.exit.left = true;
            }
            Some(LastState { state, .. }) if self.announced.began && state.kind != StateKind::Claimed => {
                self.exit.is_replaced = true
            }
            Some(seat) => {
                self.vacate(admissions);
                self.holding = Holding::inherited(&seat.state, seat.read);
                self.holding.charge(now.slow, self.charged_of(now, &seat, seat.state.hold), admissions);
            }
            None => {
                self.vacate(admissions);
                self.holding = Holding::inherited(&self.blank_state(&self.seat, StateKind::Own), now.slow);
            }
        }
        let givers: Vec<Arc<str>> = self.ledger.givers().map(|giver| Arc::clone(&giver.state.seat)).collect();
        givers.iter().for_each(|giver| self.take_moves(now, giver, admissions));
        self.holding.keep_givers(&self.ledger);
        self.look_soon();
    }

    /// The admissions that count against the hold of a seat whose author is not heard of any more.
    fn charged_of(&self, now: Clocks, seat: &LastState, hold: u64) -> Charged {
        let LastState { state, read, .. } = seat;
        let mut charged = Charged::default();
        if u128::from(state.terms.cycle_ms) < self.params.cycle.as_millis() {
            // The window of a shorter cycle does not tell what a longer one holds.
            charged.add(now.slow, hold);
            return charged;
        }
        charged.add_slices(*read, &state.slices);
        let ahead_time = Duration::from_millis(state.ahead_time_ms);
        charged.add(*read + lengthened(ahead_time), state.ahead);
        charged
    }

    /// Gives up all that this life knows of its hold.
    fn vacate(&mut self, admissions: &mut impl Admissions) {
        self.holding = Holding::default();
        (self.announced.committed, self.announced.flight, self.announced.told) = (None, None, None);
        self.split.forget_shortage();
        admissions.forget();
    }

    /// Returns whether this life's last state may be committed.
    fn last_state_is_in_doubt(&self) -> bool {
        self.announced.flight.as_ref().is_some_and(|flight| flight.state.kind == StateKind::Left)
    }

    /// The own state that was on its way is committed.
    fn commit(&mut self) {
        if let Some(flight) = self.announced.flight.take() {
            self.announced.began = true;
            self.exit.left |= flight.state.kind == StateKind::Left;
            self.holding.note_state(flight.state.seq);
            self.announced.committed = Some(flight);
        }
    }

    /// Opens the own seat again after a time.
    fn reopen(&mut self, now: Clocks, after: Duration) {
        self.openings.own = OwnOpening { retry_at: Some(now.slow + after), ..OwnOpening::default() };
        self.look_soon();
    }

    fn look_soon(&mut self) {
        self.next_look = self.next_look.min(self.announced.made_at + self.params.look);
    }

    // ## Admissions

    /// The states that bound the admissions: the last committed one, and the one on its way.
    fn announcements(&self) -> impl Iterator<Item = &Announcement> {
        self.announced.committed.iter().chain(&self.announced.flight)
    }

    /// The end of the time for which admissions are announced; that of a state in doubt may be the earlier one. `None`
    /// without a committed state, or if it is of another cycle or mode: what it held may be many times the capacity of
    /// this cycle. The first state of this one burns the rest.
    fn announced_until(&self) -> Option<Time> {
        let last = self.announced.committed.as_ref()?;
        let is_valid = last.state.terms.agree_with(&self.params.terms());
        self.announcements().map(|state| state.until).min().filter(|_| is_valid)
    }

    /// The part of the capacity that the instance may use now.
    pub fn part_now(&self, now: Clocks) -> GroupPart {
        let may_admit = !self.exit.leaving && !self.exit.is_replaced && !self.has_conflict();
        let Some(end) = self.announced_until().filter(|_| may_admit) else { return GroupPart::NONE };
        let left = end.since(now.fast);
        let until = if left.is_zero() { Time::ZERO } else { now.slow + left };
        let later = self.holding.later().sum();
        let limit = self.holding.hold().saturating_sub(later);
        GroupPart {
            limit,
            until,
            admitted: self.announcements().map(|state| state.until_total).min().unwrap_or(0),
            pace: self.split.pace(limit),
            growth: self.split.growth(&self.params, later),
            rejects: self.split.is_met(now.slow),
        }
    }

    pub fn state(&self, now: Clocks, total: u64) -> MemberState {
        let is_used = self.announcements().any(|state| total >= state.until_total);
        match self.announced_until() {
            _ if self.exit.left => MemberState::Left,
            _ if self.has_conflict() => MemberState::Joining,
            None => MemberState::Joining,
            Some(end) if is_used || now.fast > end => MemberState::Waiting,
            Some(_) => MemberState::Active,
        }
    }

    /// Returns whether the bank has another cycle or mode: then this member admits nothing.
    pub fn has_conflict(&self) -> bool {
        self.bank_terms().is_some_and(|terms| !terms.agree_with(&self.params.terms()))
    }

    /// The cycle and mode of the group.
    pub fn bank_terms(&self) -> Option<Terms> {
        self.ledger.seat(BANK).map(|bank| bank.state.terms)
    }

    /// Returns whether another process has this instance id. The member must not go on.
    pub fn is_replaced(&self) -> bool {
        self.exit.is_replaced
    }

    // ## The configuration

    /// Changes the configuration: the capacity, or the weights and rules of lending. The member looks when it is served
    /// next, so that no instance applies a new limit as a whole.
    pub fn change(&mut self, params: GroupParams, shares: Shares) {
        (self.params, self.next_look) = (params, Time::ZERO);
        self.split.change(shares);
    }

    /// Returns whether this member begins the group, and has to know the admissions of before.
    pub fn needs_memory(&self) -> bool {
        self.openings.memory.is_none()
            && self.openings.other.as_ref().is_some_and(|other| other.is_open && &*other.seat == BANK)
            && self.ledger.issue().is_none()
    }

    /// Takes the number of records that were admitted in the last cycle, from all source partitions, before the group
    /// began.
    pub fn charge_memory(&mut self, count: u64) {
        self.openings.memory = Some(count);
    }

    // ## Views

    /// The seats, as far as this member knows.
    pub fn ledger(&self) -> &SeatLedger {
        &self.ledger
    }

    pub fn params(&self) -> &GroupParams {
        &self.params
    }

    pub fn seat(&self) -> &Arc<str> {
        &self.seat
    }

    pub fn hold(&self) -> u64 {
        self.holding.hold()
    }

    /// The hold that this member ought to have.
    pub fn target(&self) -> u64 {
        self.split.target
    }

    /// The hold that a member ought to have.
    pub fn target_of(&self, seat: &str) -> u64 {
        self.split.targets.get(seat).copied().unwrap_or(0)
    }

    /// The admissions that the last committed state announced.
    pub fn ahead(&self) -> u64 {
        self.announced.committed.as_ref().map_or(0, |last| last.state.ahead)
    }

    /// The part of a client at this member; `None` for a client without load at any member.
    pub fn part(&self, client: &str) -> Option<Part> {
        let Targets { shares, splitter, .. } = &self.split;
        let part = |name: &str| splitter.part(self.ledger.clients.number(name)?);
        let unnamed = || part(shares.unnamed(client)).filter(|_| !shares.lists(client));
        part(&shares.named(client)).or_else(unnamed)
    }

    /// The part of a client group at this member, at the last split; the name is that of
    /// [`ClientGroup`](crate::scheduler::ClientGroup).
    pub fn group_part(&self, name: &str) -> Option<ClientGroupPart> {
        self.split.splitter.group_part(&self.split.shares, name)
    }

    /// Returns the groups of clients in the names of the clients that any member's loads name, perhaps repeatedly.
    pub fn groups_in_loads(&self) -> impl Iterator<Item = &str> {
        self.ledger.clients.names().filter_map(|name| Some(name.split_once('/')?.0))
    }

    /// Counts the splits of the capacity so far. [`part`](Member::part) answers as before until the next one.
    pub fn splits(&self) -> u64 {
        self.split.count
    }

    pub fn next_look(&self) -> Time {
        self.next_look
    }

    /// The time of silence after which a seat may be claimed.
    pub fn silence_limit(&self) -> Duration {
        self.times.silence
    }

    /// The capacity in force: the smallest among the live members and this one.
    pub fn capacity(&self) -> u64 {
        let live = self.ledger.live(self.silence_limit()).filter(|(name, _)| **name != self.seat);
        // No configuration has a capacity of 0, but a damaged state may: it must not stop all members.
        live.map(|(_, seat)| seat.state.terms.capacity.max(1)).fold(self.params.capacity, u64::min)
    }
}
