//! The hold of a seat, and the moves that leave it and come to it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Admissions;
use crate::group::GroupParams;
use crate::group::charged::{Charged, slices};
use crate::group::ledger::{LastState, SeatLedger};
use crate::group::state::{Move, State};
use crate::units::Time;

/// A move of the seat that its taker has not acknowledged.
#[derive(Debug, Clone)]
struct Gift {
    to: Arc<str>,
    id: u64,
    hold: u64,
    charged: Charged,
}

/// The content of a seat: the own one, or another one that this member writes.
#[derive(Debug, Default)]
pub(super) struct Holding {
    hold: u64,
    /// Admissions that earlier lives and other seats may have made after their last states: they count until a moment
    /// to come, and for a cycle after it.
    later: Charged,
    out: Vec<Gift>,
    /// The last move of each giver that was applied.
    seen: BTreeMap<Arc<str>, u64>,
    seq: u64,
    next: u64,
    /// The part of the hold that was given away or burned since the last state.
    gone: u64,
    /// The number of the first move since then.
    first: u64,
}

impl Holding {
    /// The seat as its last author left it, but for the admissions that count against its hold.
    pub(super) fn inherited(state: &State, read: Time) -> Holding {
        let gift = |one: &Move| {
            let mut charged = Charged::default();
            charged.add_slices(read, &one.slices);
            Gift { to: Arc::clone(&one.to), id: one.id, hold: one.hold, charged }
        };
        let out = state.out.iter().map(gift).collect();
        let (hold, seq, next) = (state.hold, state.seq, state.next);
        Holding { hold, later: Charged::default(), out, seen: state.seen.clone(), seq, next, gone: 0, first: next }
    }

    pub(super) fn hold(&self) -> u64 {
        self.hold
    }

    pub(super) fn seq(&self) -> u64 {
        self.seq
    }

    pub(super) fn seen(&self) -> &BTreeMap<Arc<str>, u64> {
        &self.seen
    }

    /// Charges admissions that count against the hold: to the window of `admissions`, unless their moment is to come.
    pub(super) fn charge(&mut self, now: Time, mut charged: Charged, admissions: &mut impl Admissions) {
        charged.take_until(now).into_iter().for_each(|(at, count)| admissions.charge(now, at, count));
        charged.iter().for_each(|(at, count)| self.later.add(at, count));
    }

    /// Charges the admissions whose moment has come.
    pub(super) fn release(&mut self, now: Time, admissions: &mut impl Admissions) {
        self.later.take_until(now).into_iter().for_each(|(at, count)| admissions.charge(now, at, count));
    }

    /// The charged admissions that are in no window yet.
    pub(super) fn later(&self) -> &Charged {
        &self.later
    }

    pub(super) fn open_moves(&self) -> usize {
        self.out.len()
    }

    /// The sum of the open moves to a seat.
    pub(super) fn given_to(&self, seat: &str) -> u64 {
        self.out.iter().filter(|gift| *gift.to == *seat).map(|gift| gift.hold).sum()
    }

    /// Applies the moves of a giver's last state to this seat, and forgets those that it has dropped. If one was new,
    /// returns the admissions to charge.
    pub(super) fn take_moves(&mut self, own: &str, giver: &LastState) -> Option<Charged> {
        let LastState { state, read, .. } = giver;
        let moves = || state.out.iter().filter(|one| *one.to == *own);
        let last = self.seen.remove(&state.seat).unwrap_or(0);
        // A giver without moves to this seat stays forgotten.
        let newest = moves().map(|one| one.id).max()?.max(last);
        self.seen.insert(Arc::clone(&state.seat), newest);
        let mut charged = Charged::default();
        for one in moves().filter(|one| one.id > last) {
            self.hold = self.hold.saturating_add(one.hold);
            charged.add_slices(*read, &one.slices);
        }
        (newest > last).then_some(charged)
    }

    /// Forgets a giver: a seat of this name begins with larger numbers.
    pub(super) fn forget(&mut self, giver: &str) {
        self.seen.remove(giver);
    }

    /// Forgets the moves that their takers acknowledged.
    pub(super) fn forget_applied(&mut self, ledger: &SeatLedger, own: &str) {
        self.out.retain(|gift| !ledger.is_applied(own, &gift.to, gift.id));
    }

    /// Forgets the givers without a state.
    pub(super) fn keep_givers(&mut self, ledger: &SeatLedger) {
        self.seen.retain(|giver, _| ledger.seat(giver).is_some());
    }

    /// Gives a part of the hold to another seat, with the admissions that count against it.
    pub(super) fn give(&mut self, to: Arc<str>, hold: u64, charged: Charged) {
        self.out.push(Gift { to, id: self.next, hold, charged });
        self.next += 1;
        self.burn(hold);
    }

    /// Makes capacity, in the bank.
    pub(super) fn make(&mut self, hold: u64) {
        self.hold += hold;
    }

    /// Gives a part of the hold up.
    pub(super) fn burn(&mut self, hold: u64) {
        self.hold -= hold;
        self.gone += hold;
    }

    /// Notes that a state is the seat's last one.
    pub(super) fn note_state(&mut self, seq: u64) {
        (self.seq, self.gone, self.first) = (seq, 0, self.next);
    }

    /// Takes back what went since the last state: the next one was never committed.
    pub(super) fn take_back(&mut self) {
        self.hold += self.gone;
        self.out.retain(|gift| gift.id < self.first);
        (self.gone, self.next) = (0, self.first);
    }

    /// Fills the next state of the seat in. `charged` counts against the hold.
    pub(super) fn fill(&self, now: Time, params: &GroupParams, charged: &Charged, state: State) -> State {
        let moved = |gift: &Gift| Move {
            to: Arc::clone(&gift.to),
            id: gift.id,
            hold: gift.hold,
            slices: slices(now, params, &gift.charged),
        };
        State {
            seq: self.seq + 1,
            hold: self.hold,
            slices: slices(now, params, charged),
            out: self.out.iter().map(moved).collect(),
            next: self.next,
            seen: self.seen.clone(),
            ..state
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::group::state::Slice;
    use crate::policy::Policy;

    /// The taker of a move may read no state but that of the giver's next life.
    #[test]
    fn the_next_life_of_a_seat_tells_the_admissions_of_its_open_moves() {
        let cycle = Duration::from_secs(10);
        let params = GroupParams::new(&Policy::new(100, cycle), cycle, cycle);
        let read = Time::ZERO + cycle * 5;
        let slices = vec![Slice { age_ms: 0, count: 7 }];
        let out = vec![Move { to: Arc::from("taker"), id: 1, hold: 10, slices }];
        let holding = Holding::inherited(&State { out, ..State::default() }, read);
        let next = holding.fill(read, &params, &Charged::default(), State::default());
        assert_eq!(next.out[0].slices.iter().map(|slice| slice.count).sum::<u64>(), 7);
    }
}
