//! Mistakes that an owner, a member or the brokers could make. They stand outside the member: in its inputs and its
//! outputs.

use watermaster_core::group::state::{SeatRecord, Slice, State};
use watermaster_core::rules::Rule;

use crate::support::random::Random;

/// A mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    /// The brokers take records of former owners of a seat.
    NoFencing,
    /// The brokers take records of former owners of the bank.
    BankUnfenced,
    /// States and moves do not tell the admissions that count against a hold.
    SlicesForgotten,
    /// Nothing is charged for what a stopped member may have admitted after its last state.
    AheadUncharged,
    /// A member admits more than its state announced.
    AheadUnlimited,
    /// A member makes announced admissions at any later time.
    AheadEndless,
    /// A move counts twice.
    MoveAppliedTwice,
    /// A member uses what it gives until the state that gives it is committed.
    GivenLate,
    /// An opening does not wait until the log is read to its end.
    NotCaughtUp,
    /// A process that takes over its former seat forgets the window.
    EmptyRestart,
    /// A member whose seat was claimed goes on with its former limit.
    ClaimIgnored,
    /// Ages are measured by clocks of different machines.
    WallClock,
    /// Records of open transactions are read.
    UncommittedRead,
    /// A member forgets which moves it has applied.
    SeenForgotten,
    /// The admissions from before the group began are not charged.
    MemoryForgotten,
}

impl Mistake {
    pub const ALL: [Mistake; 15] = [
        Mistake::NoFencing,
        Mistake::BankUnfenced,
        Mistake::SlicesForgotten,
        Mistake::AheadUncharged,
        Mistake::AheadUnlimited,
        Mistake::AheadEndless,
        Mistake::MoveAppliedTwice,
        Mistake::GivenLate,
        Mistake::NotCaughtUp,
        Mistake::EmptyRestart,
        Mistake::ClaimIgnored,
        Mistake::WallClock,
        Mistake::UncommittedRead,
        Mistake::SeenForgotten,
        Mistake::MemoryForgotten,
    ];

    /// Changes a state that a member writes.
    pub fn spoil_write(self, state: &mut State) {
        match self {
            Mistake::SlicesForgotten => {
                state.slices.clear();
                state.out.iter_mut().for_each(|one| one.slices.clear());
            }
            Mistake::AheadUncharged => state.ahead = 0,
            Mistake::SeenForgotten => state.seen.clear(),
            _ => {}
        }
    }

    /// Changes a record that a member with this seat and life reads.
    pub fn spoil_read(self, record: &mut SeatRecord, seat: &str, lives: &[u64], random: &mut Random) {
        let SeatRecord::State(state) = record else { return };
        match self {
            Mistake::MoveAppliedTwice if random.once_in(20) => {
                state.out.iter_mut().for_each(|one| one.id += 1);
                state.next += 1;
            }
            Mistake::EmptyRestart if *state.seat == *seat && !lives.contains(&state.author) => {
                (state.slices, state.ahead) = (Vec::new(), 0);
            }
            Mistake::WallClock => {
                let off = random.between(0, 12_000) as i64;
                let older = |slice: &mut Slice| slice.age_ms += off;
                state.slices.iter_mut().for_each(older);
                state.out.iter_mut().flat_map(|one| &mut one.slices).for_each(older);
            }
            _ => {}
        }
    }
}

/// A mistake that an instance could make when rules change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleMistake {
    /// The capacities of the other members count nothing: a higher one is used at once.
    HigherAlone,
    /// The capacity of a rule stays after the rule's end.
    ExpiredCapacity,
    /// A hold has no effect.
    HoldIgnored,
    /// The limit of a client group counts as a whole on each instance.
    LimitNotSplit,
}

impl RuleMistake {
    /// Changes a record that the instance reads from the control log.
    pub fn spoil_read(self, record: &mut SeatRecord) {
        if let (RuleMistake::HigherAlone, SeatRecord::State(state)) = (self, record) {
            state.terms.capacity = u64::MAX;
        }
    }

    /// Changes a rule that the instance reads.
    pub fn spoil_rule(self, rule: &mut Rule) {
        match self {
            RuleMistake::ExpiredCapacity if rule.effects.capacity.is_some() => rule.until_ms = None,
            RuleMistake::HoldIgnored => rule.effects.hold = None,
            _ => {}
        }
    }
}
