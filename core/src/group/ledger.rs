//! The last committed state of each seat, as one reader of the control log knows it.

use std::collections::BTreeMap;
use std::{sync::Arc, time::Duration};

use super::state::{BANK, Move, SeatRecord, State, StateKind};
use crate::group::loads::{ClientTable, MemberLoads};
use crate::group::state::Progress;
use crate::units::Time;

/// A seat that is silent for longer is left out of the group's size. This limit does not grow with that size, as the
/// time of silence does.
const MEMBER_SILENCE: Duration = Duration::from_secs(60);

/// A longer time between two looks counts as so much of other members' silence.
const LONGEST_SILENCE_OF_A_LOOK: Duration = Duration::from_millis(300);

/// The last state of a seat.
#[derive(Debug, Clone)]
pub struct LastState {
    pub state: State,
    pub read: Time,
    /// The time since then in which states of this reader were committed: an outage is no seat's silence.
    pub silence: Duration,
}

/// The loads that a member told last, its admissions, and the sum over its rules.
#[derive(Debug, Clone, Default)]
struct Told {
    loads: MemberLoads,
    progress: Option<Progress>,
    rules: u64,
}

/// The states and loads of all seats.
#[derive(Debug, Clone, Default)]
pub struct SeatLedger {
    seats: BTreeMap<Arc<str>, LastState>,
    issue: Option<u64>,
    pub(super) clients: ClientTable,
    told: BTreeMap<Arc<str>, Told>,
    /// Everything below this offset was read.
    position: u64,
    /// The last event was an end of the log. Only then is this the truth of one moment: between two ends it may lack
    /// records that were compacted away, and have those that supersede them still before it.
    is_at_end: bool,
    passed_at: Option<Time>,
}

impl SeatLedger {
    /// Takes over a committed record. Returns whether the log began anew: then all that was known about holds is void.
    pub(super) fn apply(&mut self, now: Time, record: &SeatRecord) -> bool {
        self.is_at_end = false;
        match record {
            SeatRecord::State(state) => {
                let began_anew = &*state.seat == BANK && self.issue.is_some_and(|issue| issue != state.issue);
                if &*state.seat == BANK {
                    self.issue = Some(state.issue);
                }
                let seat = LastState { state: state.clone(), read: now, silence: Duration::ZERO };
                self.seats.insert(Arc::clone(&state.seat), seat);
                return began_anew;
            }
            SeatRecord::Loads(loads) => {
                let told = self.told.entry(Arc::clone(&loads.seat)).or_default();
                self.clients.update(&mut told.loads, &loads.loads);
                (told.progress, told.rules) = (loads.progress.or(told.progress), loads.rules);
            }
            SeatRecord::Tombstone(seat) => drop(self.seats.remove(seat)),
            SeatRecord::LoadsTombstone(seat) => {
                if let Some(mut told) = self.told.remove(seat) {
                    self.clients.update(&mut told.loads, &[]);
                }
            }
        }
        false
    }

    /// The issue of the bank; `None` if no member ever made capacity.
    pub fn issue(&self) -> Option<u64> {
        self.issue
    }

    fn is_valid(&self, seat: &LastState) -> bool {
        Some(seat.state.issue) == self.issue
    }

    pub fn seat(&self, name: &str) -> Option<&LastState> {
        self.seats.get(name).filter(|seat| self.is_valid(seat))
    }

    /// The seats of members, in the order of their names.
    pub fn seats(&self) -> impl Iterator<Item = (&Arc<str>, &LastState)> {
        self.seats.iter().filter(|(name, seat)| &***name != BANK && self.is_valid(seat))
    }

    /// The seats of members that go on, as far as this reader knows: those that are not silent for `limit`.
    pub fn live(&self, limit: Duration) -> impl Iterator<Item = (&Arc<str>, &LastState)> {
        self.seats().filter(move |(_, seat)| seat.state.kind == StateKind::Own && seat.silence < limit)
    }

    /// The number of members that go on, or stopped a moment ago.
    pub(super) fn members(&self) -> usize {
        self.live(MEMBER_SILENCE).count()
    }

    /// Returns whether nothing depends on a seat any more: it holds nothing, all its moves are applied, and no move to
    /// it is left, applied or not.
    pub(super) fn is_forgettable(&self, name: &str, after: Duration) -> bool {
        let is_empty = |LastState { state, silence, .. }: &LastState| {
            let is_over = matches!(state.kind, StateKind::Left | StateKind::Claimed);
            let is_applied = |one: &Move| self.is_applied(name, &one.to, one.id);
            is_over && state.hold == 0 && *silence >= after && state.out.iter().all(is_applied)
        };
        self.seat(name).is_some_and(is_empty) && self.givers_to(name).next().is_none()
    }

    /// The last move of a giver that a seat applied, by its last state.
    fn seen(&self, seat: &str, giver: &str) -> u64 {
        self.seat(seat).and_then(|seat| seat.state.seen.get(giver)).copied().unwrap_or(0)
    }

    /// Returns whether a seat's last state acknowledges a move.
    pub(super) fn is_applied(&self, giver: &str, to: &str, id: u64) -> bool {
        self.seen(to, giver) >= id
    }

    /// The moves that their takers have not applied, with their givers.
    pub(super) fn open_moves(&self) -> impl Iterator<Item = (&Arc<str>, &LastState, &Move)> {
        let valid = self.seats.iter().filter(|(_, seat)| self.is_valid(seat));
        let moves = valid.flat_map(|(giver, seat)| seat.state.out.iter().map(move |one| (giver, seat, one)));
        moves.filter(|(giver, _, one)| !self.is_applied(giver, &one.to, one.id))
    }

    /// The states with moves.
    pub(super) fn givers(&self) -> impl Iterator<Item = &LastState> {
        self.seats.values().filter(|seat| self.is_valid(seat) && !seat.state.out.is_empty())
    }

    /// The states with moves to a seat, applied or not.
    pub(super) fn givers_to(&self, to: &str) -> impl Iterator<Item = &LastState> {
        self.givers().filter(move |seat| seat.state.out.iter().any(|one| *one.to == *to))
    }

    /// The sum of all holds and of all open moves.
    pub fn circulating(&self) -> u64 {
        let holds = self.seats().map(|(_, seat)| seat.state.hold).fold(0, u64::saturating_add);
        self.open_moves().map(|(_, _, one)| one.hold).fold(holds, u64::saturating_add)
    }

    /// The sum of the open moves to a seat.
    pub(super) fn coming(&self, to: &str) -> u64 {
        self.open_moves().filter(|(_, _, one)| *one.to == *to).map(|(_, _, one)| one.hold).fold(0, u64::saturating_add)
    }

    pub(super) fn note_end(&mut self, end: u64) {
        (self.position, self.is_at_end) = (self.position.max(end), true);
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Returns whether this is the truth of a moment after this end of the log.
    pub(super) fn reaches(&self, end: u64) -> bool {
        self.is_at_end && self.position >= end
    }

    /// Notes that time has passed. If states of this reader were committed in it, it counts as the silence of all
    /// seats.
    pub(super) fn pass(&mut self, now: Time, counts: bool) {
        let passed = self.passed_at.map_or(Duration::ZERO, |at| now.since(at)).min(LONGEST_SILENCE_OF_A_LOOK);
        self.passed_at = Some(now);
        if counts {
            self.seats.values_mut().for_each(|seat| seat.silence += passed);
        }
    }

    /// The loads that a member told last.
    pub(super) fn loads(&self, seat: &str) -> Option<&MemberLoads> {
        self.told.get(seat).map(|told| &told.loads)
    }

    /// The admissions that a member told last.
    pub fn progress(&self, seat: &str) -> Option<Progress> {
        self.told.get(seat)?.progress
    }

    /// The sum over the rules of run time that a member told last.
    pub fn rules(&self, seat: &str) -> u64 {
        self.told.get(seat).map_or(0, |told| told.rules)
    }
}
