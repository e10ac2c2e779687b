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

mod looks;
mod others;

use std::collections::BTreeMap;
use std::{sync::Arc, time::Duration};

use strum::IntoStaticStr;

use super::charged::Charged;
use super::control::{Event, OpeningNumber};
use super::ledger::{Change, LastState, SeatLedger};
use super::state::{BANK, Loads, Move, Progress, SeatLoads, SeatRecord, State, StateKind, Terms};
use super::targets::Shares;
use super::{Clocks, GroupParams};
use crate::allocator::Part;
use crate::scheduler::GroupPart;
use crate::units::Time;
use looks::Targets;
use others::Other;

/// An opening that failed is begun again after this time.
const REOPEN_INTERVAL: Duration = Duration::from_millis(200);

/// The admissions of the instance, as its throttle counts them.
pub trait Admissions {
    /// The admissions in the window that ends now.
    fn count(&mut self, now: Time) -> u64;
    /// The times at which admissions leave the window, ascending, with their numbers.
    fn departures(&mut self, now: Time) -> Vec<(Time, u64)>;
    /// The admissions in the window, with the moment until which they were made.
    fn slices(&mut self, now: Time) -> Vec<(Time, u64)>;
    /// All admissions so far.
    fn total(&self) -> u64;
    /// Forgets the window: its admissions are charged elsewhere.
    fn forget(&mut self);
}

/// A call that the owner has to make at the control log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// [`ControlLog::open`](super::control::ControlLog::open).
    Open {
        /// The seat.
        seat: Arc<str>,
        /// The number of the opening.
        attempt: OpeningNumber,
    },
    /// [`ControlLog::write`](super::control::ControlLog::write).
    Write {
        /// The opening.
        attempt: OpeningNumber,
        /// The state.
        state: Box<State>,
        /// Loads for the same transaction.
        loads: Option<SeatLoads>,
    },
    /// [`ControlLog::remove`](super::control::ControlLog::remove).
    Remove {
        /// The opening.
        attempt: OpeningNumber,
        /// The seat.
        seat: Arc<str>,
    },
    /// [`ControlLog::close`](super::control::ControlLog::close).
    Close {
        /// The opening.
        attempt: OpeningNumber,
    },
}

/// The state of a member.
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

/// The opening of the own seat.
#[derive(Debug, Default)]
struct Opening {
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

/// Announced admissions.
#[derive(Debug, Clone, Copy)]
struct Account {
    /// On the fast clock.
    made: Time,
    /// The number of announced admissions.
    ahead: u64,
    /// The total of admissions that must not be exceeded.
    until_total: u64,
    /// The time for which they may be made.
    time: Duration,
}

/// The own state that is on its way, or in doubt.
#[derive(Debug)]
struct Flight {
    seq: u64,
    /// The member leaves with this state.
    is_last: bool,
    account: Account,
    /// The hold that comes back if the state was not committed: of gifts and of what was burned.
    given: u64,
    /// The number of the next move before the state was made.
    next: u64,
    /// The moves that the state acknowledges.
    seen: BTreeMap<Arc<str>, u64>,
}

/// A move of the own seat that its taker has not acknowledged.
#[derive(Debug, Clone)]
struct Gift {
    to: Arc<str>,
    id: u64,
    hold: u64,
    charged: Charged,
}

/// A member.
#[derive(Debug)]
pub struct Member {
    params: GroupParams,
    shares: Shares,
    seat: Arc<str>,
    /// A random number that no other life of the seat has.
    life: u64,
    ledger: SeatLedger,
    /// Everything below this offset was read.
    position: u64,
    /// The last event was an end of the log. Only then is the ledger the truth of one moment: between two ends it may
    /// lack records that were compacted away, and have those that supersede them still before it.
    is_at_end: bool,
    attempts: OpeningNumber,
    own: Opening,
    /// A state of this life was committed.
    began: bool,
    hold: u64,
    charged: Charged,
    out: Vec<Gift>,
    seen: BTreeMap<Arc<str>, u64>,
    seq: u64,
    next: u64,
    /// The account of the last committed own state.
    account: Option<Account>,
    flight: Option<Flight>,
    /// The moves that the last committed own state acknowledged.
    acknowledged: BTreeMap<Arc<str>, u64>,
    other: Option<Other>,
    /// The times from which on a seat may be claimed, or the bank opened.
    suspected: BTreeMap<Arc<str>, Time>,
    /// The admissions of before the group began; `None` until the owner knows them.
    memory: Option<u64>,
    leaving: bool,
    left: bool,
    is_replaced: bool,
    progress: Option<Progress>,
    split: Targets,
    /// The time since which the hold has been below the target.
    short_since: Option<Time>,
    made_at: Time,
    looked_at: Option<Time>,
    next_look: Time,
    /// The loads that the log was told last.
    told: Loads,
}

impl Member {
    /// A member that begins to read the log from its beginning. `life` is a random number.
    pub fn new(params: GroupParams, shares: Shares, seat: Arc<str>, life: u64, now: Clocks) -> Member {
        Member {
            params,
            shares,
            seat,
            life,
            ledger: SeatLedger::default(),
            position: 0,
            is_at_end: false,
            attempts: 0,
            own: Opening { retry_at: Some(now.slow), ..Opening::default() },
            began: false,
            hold: 0,
            charged: Charged::default(),
            out: Vec::new(),
            seen: BTreeMap::new(),
            seq: 0,
            next: 0,
            account: None,
            flight: None,
            acknowledged: BTreeMap::new(),
            other: None,
            suspected: BTreeMap::new(),
            memory: None,
            leaving: false,
            left: false,
            is_replaced: false,
            progress: None,
            split: Targets::default(),
            short_since: None,
            made_at: Time::ZERO,
            looked_at: None,
            next_look: now.slow,
            told: Loads::new(),
        }
    }

    // ## News from the log

    /// Takes over what the log tells. Returns calls to make.
    pub fn handle_event(&mut self, now: Clocks, event: &Event, admissions: &mut impl Admissions) -> Vec<Command> {
        let mut commands = Vec::new();
        match event {
            Event::Record { record, .. } => {
                self.is_at_end = false;
                self.read(now, record, admissions);
            }
            Event::End(end) => (self.position, self.is_at_end) = (self.position.max(*end), true),
            Event::Opened { attempt, end } if *attempt == self.own.attempt => self.own.end = Some(*end),
            Event::Failed { attempt } if *attempt == self.own.attempt => self.reopen(now, REOPEN_INTERVAL),
            Event::Written { attempt, committed } if *attempt == self.own.attempt => {
                self.own.is_writing = false;
                if *committed { self.note_committed() } else { self.reopen(now, Duration::ZERO) }
            }
            Event::Opened { attempt, .. } | Event::Failed { attempt } | Event::Written { attempt, .. } => {
                self.note_other(*attempt, event, &mut commands);
            }
        }
        if self.is_at_end && !self.own.is_open && self.own.end.is_some_and(|end| self.position >= end) {
            self.own.is_open = true;
            self.adopt(now, admissions);
        }
        self.work_other(now, &mut commands);
        commands
    }

    fn read(&mut self, now: Clocks, record: &SeatRecord, admissions: &mut impl Admissions) {
        if self.ledger.apply(now.slow, record) == Change::Issue {
            // The log began anew: this member holds nothing, and begins as a newcomer.
            self.vacate(admissions);
            self.reopen(now, Duration::ZERO);
            return;
        }
        match record {
            SeatRecord::State(state) => {
                self.suspected.remove(&state.seat);
                let is_mine = state.author == self.life && state.kind != StateKind::Claimed;
                if state.seat == self.seat && self.own.is_open && !is_mine && state.seq >= self.seq {
                    self.reopen(now, Duration::ZERO);
                }
                self.take_moves(state);
                let own = &self.seat;
                self.out.retain(|gift| !self.ledger.is_applied(own, &gift.to, gift.id));
            }
            SeatRecord::Loads(loads) if loads.seat != self.seat => self.look_soon(),
            // A seat of this name begins with larger numbers.
            SeatRecord::Tombstone(seat) => drop(self.seen.remove(seat)),
            _ => {}
        }
    }

    /// Applies the moves of a state to this seat, and forgets those that its giver has dropped.
    fn take_moves(&mut self, state: &State) {
        if !self.own.is_open || self.leaving || Some(state.issue) != self.ledger.issue() {
            return;
        }
        let Some(read) = self.ledger.seat(&state.seat).map(|seat| seat.read) else { return };
        let last = self.seen.get(&state.seat).copied().unwrap_or(0);
        let mut newest = last;
        let mut names_this = false;
        for one in state.out.iter().filter(|one| one.to == self.seat) {
            names_this = true;
            if one.id > last {
                self.hold = self.hold.saturating_add(one.hold);
                self.charged.add_slices(read, &one.slices);
                newest = newest.max(one.id);
            }
        }
        if names_this {
            self.seen.insert(Arc::clone(&state.seat), newest);
        } else {
            self.seen.remove(&state.seat);
        }
        if newest > last {
            self.look_soon();
        }
    }

    /// The number of the first move of a seat without a state: larger than any that it had before.
    fn first_move(&self) -> u64 {
        (self.position << 16) + 1
    }

    fn take_all_moves(&mut self) {
        let givers: Vec<State> = self.ledger.givers().cloned().collect();
        givers.iter().for_each(|state| self.take_moves(state));
        self.seen.retain(|giver, _| self.ledger.seat(giver).is_some());
    }

    /// The own seat is open: its last state is known for sure, and no other process writes it.
    fn adopt(&mut self, now: Clocks, admissions: &mut impl Admissions) {
        let last = self.ledger.seat(&self.seat).cloned();
        match last {
            Some(LastState { state, .. }) if state.author == self.life && state.kind != StateKind::Claimed => {
                self.left |= state.kind == StateKind::Left;
                match self.flight.take() {
                    Some(flight) if flight.seq == state.seq => self.commit(flight),
                    // The state in doubt was never committed, and never will be.
                    Some(flight) => {
                        self.hold += flight.given;
                        self.out.retain(|gift| gift.id < flight.next);
                        self.next = flight.next;
                    }
                    None => {}
                }
                self.seq = state.seq;
            }
            Some(LastState { state, .. }) if self.began && state.kind != StateKind::Claimed => self.is_replaced = true,
            last => {
                self.vacate(admissions);
                match last {
                    Some(seat) => self.inherit(now, &seat),
                    None => self.next = self.first_move(),
                }
            }
        }
        self.take_all_moves();
        self.look_soon();
    }

    /// Takes over the seat from its last author.
    fn inherit(&mut self, now: Clocks, seat: &LastState) {
        let LastState { state, read, .. } = seat;
        (self.hold, self.seq, self.next, self.seen) = (state.hold, state.seq, state.next, state.seen.clone());
        self.charged = self.charged_of(now, seat, state.hold);
        let gift = |one: &Move| {
            let mut charged = Charged::default();
            charged.add_slices(*read, &one.slices);
            Gift { to: Arc::clone(&one.to), id: one.id, hold: one.hold, charged }
        };
        self.out = state.out.iter().map(gift).collect();
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
        charged.add(*read + self.params.lengthened(ahead_time), state.ahead);
        charged
    }

    /// Gives up all that this life knows of its hold.
    fn vacate(&mut self, admissions: &mut impl Admissions) {
        (self.hold, self.charged, self.seq) = (0, Charged::default(), 0);
        self.out.clear();
        self.seen.clear();
        self.acknowledged.clear();
        (self.account, self.flight, self.short_since) = (None, None, None);
        admissions.forget();
    }

    fn note_committed(&mut self) {
        if let Some(flight) = self.flight.take() {
            self.commit(flight);
        }
    }

    fn commit(&mut self, flight: Flight) {
        self.began = true;
        self.left |= flight.is_last;
        (self.account, self.seq, self.acknowledged) = (Some(flight.account), flight.seq, flight.seen);
    }

    /// Opens the own seat again after a time.
    fn reopen(&mut self, now: Clocks, after: Duration) {
        self.own = Opening { retry_at: Some(now.slow + after), ..Opening::default() };
        self.look_soon();
    }

    fn look_soon(&mut self) {
        self.next_look = self.next_look.min(self.made_at + self.params.look);
    }

    // ## Admissions

    /// The accounts that bound the admissions: of the last committed state, and of the one on its way.
    fn accounts(&self) -> impl Iterator<Item = &Account> {
        self.account.iter().chain(self.flight.as_ref().map(|flight| &flight.account))
    }

    /// The part of the capacity that the instance may use now.
    pub fn part_now(&mut self, now: Clocks) -> GroupPart {
        let Some(account) = self.account.filter(|_| !self.leaving && !self.is_replaced && !self.has_conflict()) else {
            return GroupPart::NONE;
        };
        let left = (account.made + account.time).since(now.fast);
        let until = if left.is_zero() { Time::ZERO } else { now.slow + left };
        let charged = self.charged.count(now.slow, self.params.window());
        GroupPart {
            limit: self.hold.saturating_sub(charged),
            until,
            admitted: self.accounts().map(|account| account.until_total).min().unwrap_or(0),
            pace: self.split.target,
            rejects: self.has_enough(now),
        }
    }

    /// Returns whether the member has its target, or has been below it for long.
    fn has_enough(&self, now: Clocks) -> bool {
        self.short_since.is_none_or(|since| now.slow >= since + Duration::from_secs(1))
    }

    /// The state of the member.
    pub fn state(&self, now: Clocks, total: u64) -> MemberState {
        let is_used = self.accounts().any(|account| total >= account.until_total);
        match self.account {
            _ if self.left => MemberState::Left,
            _ if self.has_conflict() => MemberState::Joining,
            None => MemberState::Joining,
            Some(account) if is_used || now.fast > account.made + account.time => MemberState::Waiting,
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
        self.is_replaced
    }

    // ## The configuration

    /// Changes the configuration: the capacity, or the weights and rules of lending.
    pub fn change(&mut self, params: GroupParams, shares: Shares) {
        (self.params, self.shares) = (params, shares);
        self.split.forget();
    }

    /// Notes the admissions that the next loads tell.
    pub fn note_progress(&mut self, progress: Progress) {
        self.progress = Some(progress);
    }

    /// Returns whether this member begins the group, and has to know the admissions of before.
    pub fn needs_memory(&self) -> bool {
        self.memory.is_none()
            && self.other.as_ref().is_some_and(|other| other.is_open && &*other.seat == BANK)
            && self.ledger.issue().is_none()
    }

    /// Takes the number of records that were admitted in the last cycle, from all source partitions, before the group
    /// began.
    pub fn charge_memory(&mut self, count: u64) {
        self.memory = Some(count);
    }

    // ## Views

    /// The seats, as far as this member knows.
    pub fn ledger(&self) -> &SeatLedger {
        &self.ledger
    }

    /// The rules of the group.
    pub fn params(&self) -> &GroupParams {
        &self.params
    }

    /// The name of the own seat.
    pub fn seat(&self) -> &Arc<str> {
        &self.seat
    }

    /// The hold.
    pub fn hold(&self) -> u64 {
        self.hold
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
        self.account.map_or(0, |account| account.ahead)
    }

    /// The part of a client at this member; `None` for a client without load at any member.
    pub fn part(&self, client: &str) -> Option<Part> {
        self.split.part(&self.ledger, &self.shares, client)
    }

    /// Counts the splits of the capacity so far. [`part`](Member::part) answers as before until the next one.
    pub fn splits(&self) -> u64 {
        self.split.count
    }

    /// The time of the next look.
    pub fn next_look(&self) -> Time {
        self.next_look
    }

    /// The time of silence after which a seat may be claimed.
    pub fn silence_limit(&self) -> Duration {
        self.times().silence
    }

    /// The capacity in force: the smallest among the live members and this one.
    pub fn capacity(&self) -> u64 {
        let live = self.ledger.live(self.silence_limit()).filter(|(name, _)| **name != self.seat);
        live.map(|(_, seat)| seat.state.terms.capacity).fold(self.params.capacity, u64::min)
    }
}
