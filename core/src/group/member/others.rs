//! Other seats: members claim those of members that stopped, and open the bank to make capacity.

use std::collections::BTreeSet;
use std::{sync::Arc, time::Duration};

use super::{Member, holding::Holding};
use crate::group::Clocks;
use crate::group::charged::Charged;
use crate::group::control::{Event, LogCall, OpeningNumber};
use crate::group::ledger::LastState;
use crate::group::state::{BANK, SeatRecord, State, StateKind};
use crate::units::Time;

/// The silence after which a seat whose owner left may be claimed.
const LEFT_SILENCE: Duration = Duration::from_millis(300);
/// Members wait for one another by their rank, so that usually one of them claims a seat …
const CLAIM_RANK_DELAY: Duration = Duration::from_millis(500);
/// … and one makes missing capacity, once it has been missing for [`MISSING`].
const MINT_RANK_DELAY: Duration = Duration::from_millis(300);
const MISSING: Duration = Duration::from_millis(500);
/// An opening of another seat that takes longer is given up.
const OPENING_TIMEOUT: Duration = Duration::from_secs(12);
/// A seat that was opened is not opened again before this time.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// The opening of another seat.
#[derive(Debug)]
pub(super) struct Other {
    pub seat: Arc<str>,
    attempt: OpeningNumber,
    end: Option<u64>,
    pub is_open: bool,
    is_writing: bool,
    since: Time,
    /// The number of the seat's last state when the opening began.
    seq: u64,
}

impl Member {
    /// Begins to claim a seat, or to make capacity, if it is time.
    pub(super) fn look_at_others(&mut self, now: Clocks, calls: &mut Vec<LogCall>) {
        if let Some(other) = &self.openings.other {
            if now.slow > other.since + OPENING_TIMEOUT {
                self.end_other(now, calls);
            }
            return self.work_other(now, calls);
        }
        if self.ledger.issue().is_none() {
            return self.open_other(now, Arc::from(BANK), Duration::ZERO, calls);
        }
        let limit = self.silence_limit();
        let conflicts = self.has_conflict();
        let is_alone = || self.ledger.live(limit).all(|(name, _)| *name == self.seat);
        if if conflicts { !is_alone() } else { self.announced.committed.is_none() } {
            return;
        }
        let takers: BTreeSet<&Arc<str>> = self.ledger.open_moves().map(|(_, _, one)| &one.to).collect();
        let is_suspect = |(name, seat): &(&Arc<str>, &LastState)| {
            let is_gone = seat.state.kind == StateKind::Own && seat.silence >= self.params.forget_after;
            let is_over = match seat.state.kind {
                StateKind::Own => seat.silence >= limit,
                StateKind::Left | StateKind::Claimed => seat.silence >= LEFT_SILENCE,
                StateKind::Bank => false,
            };
            is_over && **name != self.seat && (is_gone || seat.state.hold > 0 || takers.contains(*name))
        };
        let mut due: Vec<Arc<str>> = self.ledger.seats().filter(is_suspect).map(|(name, _)| Arc::clone(name)).collect();
        // A member that stopped before its first state may have been given something.
        let vacant = |name: &&Arc<str>| **name != self.seat && self.ledger.seat(name).is_none();
        due.extend(takers.iter().copied().filter(vacant).cloned());
        if due.is_empty() && (conflicts || self.ledger.circulating() < self.capacity()) {
            due.push(Arc::from(BANK));
        }
        if due.is_empty() {
            let is_forgettable = |name: &&Arc<str>| self.ledger.is_forgettable(name, self.params.forget_after);
            due.extend(self.ledger.seats().map(|(name, _)| name).find(is_forgettable).cloned());
        }
        self.openings.suspected.retain(|name, _| due.contains(name));
        for name in due {
            let rank = self.rank(&name);
            let wait = match (&*name, self.ledger.seat(&name)) {
                (BANK, _) => MISSING + MINT_RANK_DELAY * rank,
                (_, None) => limit + CLAIM_RANK_DELAY * rank,
                (_, Some(_)) => CLAIM_RANK_DELAY * rank,
            };
            self.open_other(now, name, wait, calls);
        }
    }

    /// The place of this member among the live ones, in an order that differs from seat to seat.
    fn rank(&self, seat: &str) -> u32 {
        let hash = |name: &str| crc32fast::hash(format!("{seat}/{name}").as_bytes());
        let own = (hash(&self.seat), &self.seat);
        let live = self.ledger.live(self.silence_limit());
        live.filter(|(name, _)| (hash(name), *name) < own).count() as u32
    }

    /// Opens another seat once `wait` has passed since it was due first.
    fn open_other(&mut self, now: Clocks, seat: Arc<str>, wait: Duration, calls: &mut Vec<LogCall>) {
        let at = *self.openings.suspected.entry(Arc::clone(&seat)).or_insert(now.slow + wait);
        if self.openings.other.is_some() || now.slow < at {
            return;
        }
        self.openings.suspected.insert(Arc::clone(&seat), now.slow + RETRY_INTERVAL);
        self.openings.attempts += 1;
        let (attempt, end) = (self.openings.attempts, None);
        let seq = self.ledger.seat(&seat).map_or(0, |seat| seat.state.seq);
        calls.push(LogCall::Open { seat: Arc::clone(&seat), attempt });
        self.openings.other =
            Some(Other { seat, attempt, end, is_open: false, is_writing: false, since: now.slow, seq });
    }

    fn end_other(&mut self, now: Clocks, calls: &mut Vec<LogCall>) {
        if let Some(other) = self.openings.other.take() {
            calls.push(LogCall::Close { attempt: other.attempt });
            self.openings.suspected.insert(other.seat, now.slow + RETRY_INTERVAL);
        }
    }

    pub(super) fn note_other(&mut self, attempt: OpeningNumber, event: &Event, calls: &mut Vec<LogCall>) {
        let Some(other) = self.openings.other.as_mut().filter(|other| other.attempt == attempt) else { return };
        match event {
            Event::Opened { end, .. } => other.end = Some(*end),
            _ => {
                calls.push(LogCall::Close { attempt });
                self.openings.other = None;
            }
        }
    }

    /// Writes the state for which another seat was opened, as soon as its last state is known for sure.
    pub(super) fn work_other(&mut self, now: Clocks, calls: &mut Vec<LogCall>) {
        let Some(other) = &mut self.openings.other else { return };
        if other.is_writing || other.end.is_none_or(|end| !self.ledger.reaches(end)) {
            return;
        }
        other.is_open = true;
        let (attempt, name, seq) = (other.attempt, Arc::clone(&other.seat), other.seq);
        if self.needs_memory() {
            return;
        }
        let write = |state| vec![SeatRecord::State(state)];
        let records = match &*name {
            BANK => self.find_mint(now).map(write),
            _ if self.ledger.is_forgettable(&name, self.params.forget_after) => {
                Some(vec![SeatRecord::Tombstone(Arc::clone(&name)), SeatRecord::LoadsTombstone(name)])
            }
            _ => self.find_claim(now, &name, seq).map(write),
        };
        match records.filter(|_| self.openings.own.is_open && !self.exit.leaving) {
            Some(records) => {
                if let Some(other) = &mut self.openings.other {
                    other.is_writing = true;
                }
                calls.push(LogCall::Write { attempt, records });
            }
            None => self.end_other(now, calls),
        }
    }

    /// A state of the bank that makes the missing capacity, or that begins the group.
    fn find_mint(&self, now: Clocks) -> Option<State> {
        let missing = self.capacity().saturating_sub(self.ledger.circulating());
        if missing == 0 && !self.has_conflict() {
            return None;
        }
        let blank = self.blank_state(&Arc::from(BANK), StateKind::Bank);
        let bank = self.ledger.seat(BANK);
        let mut holding = self.content_of(now, bank.map_or(&blank, |bank| &bank.state));
        if missing > 0 {
            // Records that were admitted before the group began count for a cycle from now on.
            let mut memory = Charged::default();
            memory.add(now.slow, self.openings.memory.filter(|_| bank.is_none()).unwrap_or(0).min(missing));
            holding.make(missing);
            holding.give(Arc::clone(&self.seat), missing, memory);
        }
        Some(holding.fill(now.slow, &self.params, &Charged::default(), blank))
    }

    /// The content of another seat after this state, but for the moves that their takers have acknowledged.
    fn content_of(&self, now: Clocks, last: &State) -> Holding {
        let read = self.ledger.seat(&last.seat).map_or(now.slow, |seat| seat.read);
        let mut holding = Holding::inherited(last, read);
        holding.forget_applied(&self.ledger, &last.seat);
        holding
    }

    /// A state of a seat that has none yet, before it gets its number.
    pub(super) fn blank_state(&self, seat: &Arc<str>, kind: StateKind) -> State {
        State {
            seat: Arc::clone(seat),
            issue: self.ledger.issue().unwrap_or(self.life),
            author: self.life,
            kind,
            // Larger than the number of any move that the seat had before.
            next: (self.ledger.position() << 16) + 1,
            terms: self.params.terms(),
            ..State::default()
        }
    }

    /// A state that moves all that a seat holds, and what counts against it, to this member.
    fn find_claim(&self, now: Clocks, name: &Arc<str>, seq: u64) -> Option<State> {
        let seat = self.ledger.seat(name);
        let vacant = || self.blank_state(name, StateKind::Claimed);
        let last = seat.map_or_else(vacant, |seat| seat.state.clone());
        if last.seq != seq {
            return None;
        }
        let mut holding = self.content_of(now, &last);
        let taken: Vec<Charged> =
            self.ledger.givers_to(name).filter_map(|giver| holding.take_moves(name, giver)).collect();
        let mut charged = seat.map_or_else(Charged::default, |seat| self.charged_of(now, seat, holding.hold()));
        taken.iter().flat_map(Charged::iter).for_each(|(at, count)| charged.add(at, count));
        holding.give(Arc::clone(&self.seat), holding.hold(), charged);
        let kind = if last.kind == StateKind::Left { StateKind::Left } else { StateKind::Claimed };
        let state = State { author: self.life, kind, ahead: 0, ..last };
        Some(holding.fill(now.slow, &self.params, &Charged::default(), state))
    }
}
