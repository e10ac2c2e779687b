//! Looks: a member's periodic checks of whether to write a state.

use std::collections::BTreeMap;
use std::{sync::Arc, time::Duration};

use super::{Account, Admissions, Command, Flight, Gift, Member, Opening};
use crate::allocator::Part;
use crate::group::charged::{Charged, slices};
use crate::group::ledger::SeatLedger;
use crate::group::loads::MemberLoads;
use crate::group::state::{Loads, Move, SeatLoads, State, StateKind};
use crate::group::targets::{Shares, SmoothTargets, SplitInput, Splitter};
use crate::group::{Clocks, GroupTimes};
use crate::policy::Mode;
use crate::scheduler::least_limit;
use crate::units::{NANOS_PER_MILLI, Time, nanos};

/// A longer time between two looks counts as so much of other members' silence.
const LONGEST_SILENCE_OF_A_LOOK: Duration = Duration::from_millis(300);
/// The time after which records that can't be split go to another member.
const TURN: Duration = Duration::from_secs(10);
/// Small gifts and acknowledgements wait until the last state is so old.
const UNHURRIED: Duration = Duration::from_millis(200);
/// The most open moves of a state.
const MAX_MOVES: usize = 64;
/// The time for which announced admissions last under full load, at least …
const LEAST_AHEAD: Duration = Duration::from_millis(500);
/// … and, where that is a small part of a cycle, for longer than a leader of the control topic usually takes to fail
/// over. (They stay idle for a while after a crash.)
const AHEAD: Duration = Duration::from_millis(4_500);
/// The part of a cycle, beyond the first ten seconds of it, that they may take, in thousandths.
const MAX_AHEAD: u32 = 90;
const SHORT_CYCLE: Duration = Duration::from_secs(10);
/// With long cycles, they are a hundredth of a cycle's, so that few states are written.
const MIN_AHEAD: u32 = 10;
/// The next state is due while the admissions of so long are left.
const LEFT_AHEAD: Duration = Duration::from_secs(4);

/// The targets, and all that they were computed from.
#[derive(Debug, Default)]
pub(super) struct Targets {
    pub target: u64,
    pub targets: BTreeMap<Arc<str>, u64>,
    pub count: u64,
    splitter: Splitter,
    smooth: SmoothTargets,
    own_loads: MemberLoads,
    own_changes: u64,
    basis: Option<Basis>,
    split: Vec<u64>,
}

/// The inputs of a split: the numbers of changes of what is too long to compare.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Basis {
    live: Vec<Arc<str>>,
    loads: u64,
    own: u64,
    capacity: u64,
    turn: u64,
}

impl Targets {
    pub fn forget(&mut self) {
        self.basis = None;
    }

    pub fn part(&self, ledger: &SeatLedger, shares: &Shares, client: &str) -> Option<Part> {
        let named = ledger.clients.number(client).and_then(|number| self.splitter.part(number));
        named.or_else(|| self.splitter.unnamed_part().filter(|_| !shares.lists(client)))
    }
}

/// The hold that comes back if a state turns out not to be committed, and the number of the next move then.
struct Given {
    hold: u64,
    next: u64,
}

impl Member {
    pub(super) fn heartbeat(&self) -> Duration {
        self.times().heartbeat
    }

    /// The times of this member, by the size of the group.
    pub(super) fn times(&self) -> GroupTimes {
        self.params.times(self.ledger.members(), self.ledger.clients.len())
    }

    /// Checks whether to write a state, if a look is due. Returns calls to make.
    pub fn look(&mut self, now: Clocks, loads: &Loads, admissions: &mut impl Admissions) -> Vec<Command> {
        let mut commands = Vec::new();
        if now.slow < self.next_look || self.left || self.is_replaced {
            return commands;
        }
        self.next_look = now.slow + self.times().look;
        self.count_silence(now);
        if self.own.retry_at.is_some_and(|at| at <= now.slow) {
            self.attempts += 1;
            self.own = Opening { attempt: self.attempts, ..Opening::default() };
            commands.push(Command::Open { seat: Arc::clone(&self.seat), attempt: self.attempts });
        }
        if !self.own.is_open {
            return commands;
        }
        self.find_targets(now, loads);
        if !self.leaving {
            self.look_at_others(now, &mut commands);
        }
        let is_free = !self.own.is_writing && self.flight.is_none();
        if self.ledger.issue().is_some() && is_free {
            if self.leaving {
                self.write_last(now, admissions, &mut commands);
            } else if !self.has_conflict() {
                self.write_if_due(now, loads, admissions, &mut commands);
            }
        }
        commands
    }

    fn count_silence(&mut self, now: Clocks) {
        let passed = self.looked_at.map_or(Duration::ZERO, |at| now.slow.since(at)).min(LONGEST_SILENCE_OF_A_LOOK);
        self.looked_at = Some(now.slow);
        let heartbeats = self.heartbeat() * 2;
        let is_read = || self.ledger.seat(&self.seat).is_some_and(|own| now.slow < own.read + heartbeats);
        let hears = match self.account {
            // A member that does not join writes no states.
            _ if self.has_conflict() => self.own.is_open,
            // While an open transaction holds up the readers, states are committed, but those of the others not read.
            Some(account) => now.fast < account.made + heartbeats && is_read(),
            None => false,
        };
        if hears {
            self.ledger.add_silence(passed);
        }
    }

    /// Splits the capacity anew if anything changed since the last time, and moves the targets towards the split.
    fn find_targets(&mut self, now: Clocks, loads: &Loads) {
        let limit = self.silence_limit();
        let mut live: Vec<Arc<str>> = self.ledger.live(limit).map(|(name, _)| Arc::clone(name)).collect();
        if let Err(place) = live.binary_search(&self.seat) {
            live.insert(place, Arc::clone(&self.seat));
        }
        let own = live.binary_search(&self.seat).expect("this seat is among them");
        let capacity = self.capacity();
        let split = &mut self.split;
        split.own_changes += u64::from(self.ledger.clients.update(&mut split.own_loads, loads));
        let turn = now.slow.as_nanos() / nanos(TURN);
        let basis = Basis { live, loads: self.ledger.changes(), own: split.own_changes, capacity, turn };
        if split.basis.as_ref() != Some(&basis) {
            let none = MemberLoads::default();
            let members = basis.live.iter().map(|name| match *name == self.seat {
                true => &split.own_loads,
                false => self.ledger.loads(name).unwrap_or(&none),
            });
            let (params, shares, clients) = (&self.params, &self.shares, &self.ledger.clients);
            let members = members.collect();
            split.split = split.splitter.split(&SplitInput { params, capacity, shares, clients, members, own, turn });
            split.basis = Some(basis);
            split.count += 1;
        }
        let targets = match self.params.mode {
            Mode::Shape => split.smooth.towards(now.slow, self.params.cycle, capacity, &split.split),
            Mode::Reject => split.split.clone(),
        };
        split.target = targets[own];
        let live = split.basis.iter().flat_map(|basis| &basis.live).cloned();
        split.targets = live.zip(targets).collect();
        let is_short = self.hold < self.split.target;
        self.short_since = is_short.then(|| self.short_since.unwrap_or(now.slow));
    }

    /// Writes a state if there is something to give, to burn, to acknowledge or to tell.
    fn write_if_due(
        &mut self, now: Clocks, loads: &Loads, admissions: &mut impl Admissions, commands: &mut Vec<Command>,
    ) {
        let charged = self.charged.count(now.slow, self.params.window());
        let used = admissions.count(now.slow).saturating_add(charged);
        let burn = self.find_burn(used);
        let keeps = match self.params.mode {
            Mode::Shape => {
                let mut departures = admissions.departures(now.slow);
                let window = self.params.window();
                departures.extend(self.charged.iter().map(|(at, count)| (at + window, count)));
                departures.sort_unstable();
                least_limit(now.slow, departures.into_iter(), self.params.cycle, self.split.target)
            }
            Mode::Reject => used.saturating_add(self.reserve()),
        };
        let loads = self.due_loads(now, loads);
        let total = admissions.total();
        let is_low = |account: &Account| {
            let left = account.until_total.saturating_sub(total);
            let spare = account.ahead.saturating_sub(self.records_in(LEFT_AHEAD)).max(self.records_in(LEAST_AHEAD));
            account.ahead.saturating_sub(left) > spare.min(account.ahead / 2)
        };
        let is_due = self.is_state_old(now) || self.account.as_ref().is_some_and(is_low);
        let free = (self.hold - burn).saturating_sub(self.split.target.max(keeps));
        let gifts = self.find_gifts(now, free, is_due);
        let is_unacknowledged =
            self.seen.iter().any(|(giver, id)| self.acknowledged.get(giver).is_none_or(|known| known < id));
        let acknowledges = is_unacknowledged && now.slow >= self.made_at + UNHURRIED;
        if !is_due && burn == 0 && gifts.is_empty() && loads.is_none() && !acknowledges {
            return;
        }
        let given = Given { hold: burn + gifts.iter().map(|(_, hold)| hold).sum::<u64>(), next: self.next };
        self.hold -= given.hold;
        for (to, hold) in gifts {
            self.give(to, hold, Charged::default());
        }
        let ahead = self.find_ahead(used);
        self.write(now, StateKind::Own, ahead, given, loads, admissions, commands);
    }

    fn give(&mut self, to: Arc<str>, hold: u64, charged: Charged) {
        self.out.push(Gift { to, id: self.next, hold, charged });
        self.next += 1;
    }

    /// The part of what circulates beyond the capacity that this member gives up.
    fn find_burn(&self, used: u64) -> u64 {
        let circulating = self.ledger.circulating();
        let excess = circulating.saturating_sub(self.capacity());
        let part = (u128::from(excess) * u128::from(self.hold)).div_ceil(u128::from(circulating.max(1))) as u64;
        part.min(self.hold.saturating_sub(self.split.target.max(used)))
    }

    /// The parts of the free hold that go to other seats, by what they lack.
    fn find_gifts(&self, now: Clocks, free: u64, is_due: bool) -> Vec<(Arc<str>, u64)> {
        if free == 0 || self.out.len() >= MAX_MOVES {
            return Vec::new();
        }
        let mut all_free = free;
        let mut lacks: Vec<(&Arc<str>, u64)> = Vec::new();
        for (name, &target) in self.split.targets.iter().filter(|(name, _)| **name != self.seat) {
            let Some(seat) = self.ledger.seat(name) else { continue };
            all_free = all_free.saturating_add(seat.state.hold.saturating_sub(target.max(seat.state.used())));
            let mine: u64 = self.out.iter().filter(|gift| gift.to == *name).map(|gift| gift.hold).sum();
            let coming = self.ledger.coming(name).max(mine);
            let lack = target.saturating_sub(seat.state.hold).saturating_sub(coming);
            if lack > 0 {
                lacks.push((name, lack));
            }
        }
        let all = lacks.iter().map(|(_, lack)| u128::from(*lack)).sum::<u128>();
        // Small gifts wait for the next state.
        let small = match now.slow < self.made_at + UNHURRIED {
            true => self.capacity() / 50,
            false => self.capacity() / 500,
        };
        let is_enough = |hold: u64, lack: u64| hold > 0 && (is_due || hold >= small || hold >= lack && lack >= small);
        let part = |lack: u64| {
            let product = u128::from(free) * u128::from(lack);
            // Each giver gives its part, so that together they give no more than is lacking.
            lack.min((product / all) as u64).min(product.div_ceil(all.max(u128::from(all_free))) as u64)
        };
        let gifts = lacks.iter().map(|&(name, lack)| (Arc::clone(name), part(lack), lack));
        let gifts = gifts.filter(|&(_, hold, lack)| is_enough(hold, lack));
        gifts.take(MAX_MOVES - self.out.len()).map(|(name, hold, _)| (name, hold)).collect()
    }

    /// Reject mode: the records that come until the window next empties a bit. Without room they would be lost.
    fn reserve(&self) -> u64 {
        let time = Duration::from_secs(1).max(self.params.cycle / 64);
        self.part_of_cycle(self.split.target.min(self.hold), time)
    }

    /// The number of admissions to announce: those of a time, or a quarter of what is free.
    fn find_ahead(&self, used: u64) -> u64 {
        let cycle = self.params.cycle;
        let longer = AHEAD.min(cycle.saturating_sub(SHORT_CYCLE) * MAX_AHEAD / 1_000);
        let ahead = LEAST_AHEAD.min(cycle / 2).max(longer).max(cycle * MIN_AHEAD / 1_000);
        // Nothing is written between two looks.
        let ahead = ahead.max(self.times().look * 2);
        let ahead = self.records_in(ahead);
        ahead.max(self.hold.saturating_sub(used) / 4).max(1)
    }

    /// The records that the whole hold, or the target, admits in a time.
    fn records_in(&self, time: Duration) -> u64 {
        self.part_of_cycle(self.hold.max(self.split.target), time)
    }

    /// The part of a cycle's records that comes in a time, rounded up.
    fn part_of_cycle(&self, records: u64, time: Duration) -> u64 {
        (u128::from(records) * time.as_nanos()).div_ceil(self.params.cycle.as_nanos().max(1)) as u64
    }

    /// Returns whether there is no committed state, or the last one is a heartbeat old.
    fn is_state_old(&self, now: Clocks) -> bool {
        self.account.is_none_or(|account| now.fast >= account.made + self.heartbeat())
    }

    /// The loads, if they are to be told.
    fn due_loads(&self, now: Clocks, loads: &Loads) -> Option<SeatLoads> {
        let is_old = self.is_state_old(now);
        let tells_progress = self.progress.is_some() && is_old;
        let has_changed = *loads != self.told && (is_old || self.have_loads_moved(loads));
        (self.account.is_none() || has_changed || tells_progress).then(|| SeatLoads {
            seat: Arc::clone(&self.seat),
            loads: loads.clone(),
            progress: self.progress,
        })
    }

    /// Returns whether the demand changed by more than 5 % of the capacity, or a client of 1 % appeared or vanished.
    fn have_loads_moved(&self, loads: &Loads) -> bool {
        let capacity = self.capacity();
        let mut demands = BTreeMap::<&str, (u64, u64)>::new();
        self.told.iter().for_each(|(name, load)| demands.entry(name).or_default().0 = load.demand);
        loads.iter().for_each(|(name, load)| demands.entry(name).or_default().1 = load.demand);
        let moved = demands.values().map(|(one, other)| one.abs_diff(*other)).fold(0, u64::saturating_add);
        let came =
            |&(one, other): &(u64, u64)| (one == 0) != (other == 0) && one.max(other).saturating_mul(100) >= capacity;
        moved > capacity / 20 || demands.values().any(came)
    }

    // ## Leaving

    /// Begins to leave the group: the member admits nothing from now on, and its next state is its last one.
    pub fn leave(&mut self) {
        self.leaving = true;
        self.left |= !self.began && self.flight.is_none();
        self.next_look = Time::ZERO;
    }

    /// Returns whether the member has left.
    pub fn has_left(&self) -> bool {
        self.left
    }

    /// Writes the last state: everything goes to the member that lacks most; if there is none, the seat keeps it.
    fn write_last(&mut self, now: Clocks, admissions: &mut impl Admissions, commands: &mut Vec<Command>) {
        let others = self.split.targets.iter().filter(|(name, _)| **name != self.seat);
        let lack = |(name, &target): (&Arc<str>, &u64)| {
            let hold = self.ledger.seat(name).map_or(0, |seat| seat.state.hold);
            (i128::from(target) - i128::from(hold), Arc::clone(name))
        };
        let (mut given, next) = (0, self.next);
        if let Some((_, to)) = others.map(lack).max() {
            let charged = self.all_charged(now, admissions);
            given = std::mem::take(&mut self.hold);
            self.give(to, given, charged);
        }
        self.write(now, StateKind::Left, 0, Given { hold: given, next }, None, admissions, commands);
    }

    // ## Writing

    /// The admissions that count against the hold: those of this life, and those that are charged beside them.
    fn all_charged(&self, now: Clocks, admissions: &mut impl Admissions) -> Charged {
        let mut charged = self.charged.clone();
        admissions.slices(now.slow).into_iter().for_each(|(at, count)| charged.add(at.min(now.slow), count));
        charged
    }

    #[expect(clippy::too_many_arguments, reason = "they make one state")]
    fn write(
        &mut self, now: Clocks, kind: StateKind, ahead: u64, given: Given, loads: Option<SeatLoads>,
        admissions: &mut impl Admissions, commands: &mut Vec<Command>,
    ) {
        let Some(issue) = self.ledger.issue() else { return };
        let own = match kind {
            // The admissions have left with the hold.
            StateKind::Left if self.hold == 0 => Charged::default(),
            _ => self.all_charged(now, admissions),
        };
        let moved = |gift: &Gift| Move {
            to: Arc::clone(&gift.to),
            id: gift.id,
            hold: gift.hold,
            slices: slices(now.slow, &self.params, &gift.charged),
        };
        let state = State {
            seat: Arc::clone(&self.seat),
            issue,
            author: self.life,
            kind,
            seq: self.seq + 1,
            hold: self.hold,
            slices: slices(now.slow, &self.params, &own),
            ahead,
            ahead_time_ms: nanos(self.params.ahead_time) / NANOS_PER_MILLI,
            out: self.out.iter().map(moved).collect(),
            next: self.next,
            seen: self.seen.clone(),
            terms: self.params.terms(),
        };
        let until_total = admissions.total().saturating_add(ahead);
        let account = Account { made: now.fast, ahead, until_total, time: self.params.ahead_time };
        let (given, next, seen) = (given.hold, given.next, self.seen.clone());
        let is_last = kind == StateKind::Left;
        self.flight = Some(Flight { seq: state.seq, is_last, account, given, next, seen });
        if let Some(loads) = &loads {
            self.told.clone_from(&loads.loads);
        }
        (self.own.is_writing, self.made_at) = (true, now.slow);
        commands.push(Command::Write { attempt: self.own.attempt, state: Box::new(state), loads });
    }
}
