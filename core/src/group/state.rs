//! The records of the control log.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::policy::Mode;

/// The name of the seat that no process owns. Only its states create capacity.
pub const BANK: &str = "";

/// The relation of a state's author to the seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum StateKind {
    /// The seat's owner wrote it, and goes on.
    #[default]
    Own,
    /// The seat's owner left. Another member may since have moved to itself what came too late for the owner.
    Left,
    /// Another member wrote it in place of an owner that stopped, and moved everything to itself.
    Claimed,
    Bank,
}

/// Admissions that count against a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// The age of the youngest of them when the state was made, in milliseconds, rounded down. They count for a cycle
    /// from then on. A negative age lies in the future: they count for a cycle and that time.
    pub age_ms: i64,
    pub count: u64,
}

/// A part of a hold that belongs to another seat from now on, and the admissions for which it is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// The seat that takes it.
    pub to: Arc<str>,
    /// The number of the move. The numbers of a giver only grow.
    pub id: u64,
    /// The part of the hold, in records.
    pub hold: u64,
    /// The admissions for which it is used.
    pub slices: Vec<Slice>,
}

/// A state of a seat. The last committed one is the truth about it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct State {
    pub seat: Arc<str>,
    /// The random number that the bank got when the log began. States of another issue count as none.
    pub issue: u64,
    /// The random number of the author's life.
    pub author: u64,
    /// The relation of the author to the seat.
    pub kind: StateKind,
    /// The number of the state, over all authors of the seat.
    pub seq: u64,
    /// The most records that the seat's window may hold.
    pub hold: u64,
    /// The records in the window when the state was made.
    pub slices: Vec<Slice>,
    /// The number of records that the author may admit after the state was made and before another one is committed.
    pub ahead: u64,
    /// The time for which it may do so, in milliseconds.
    pub ahead_time_ms: u64,
    /// Moves that the takers have not acknowledged yet, as far as the author knows.
    pub out: Vec<Move>,
    /// The number of the next move.
    pub next: u64,
    /// The last applied move of each giver.
    pub seen: BTreeMap<Arc<str>, u64>,
    pub terms: Terms,
}

impl State {
    pub fn used(&self) -> u64 {
        self.slices.iter().map(|slice| slice.count).fold(0, u64::saturating_add)
    }
}

/// The configuration of a member, as far as other members must know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Terms {
    /// The capacity in records per cycle.
    pub capacity: u64,
    /// The length of the cycle in milliseconds. Members with different ones can't share a capacity.
    pub cycle_ms: u64,
    /// The mode. Members in different modes can't share a capacity.
    pub mode: Mode,
    /// A digest of the other settings in which the members must agree: lending, weights, limits.
    pub digest: u64,
}

impl Terms {
    /// Returns whether members with these terms and others can share a capacity.
    pub fn agree_with(&self, other: &Terms) -> bool {
        (self.cycle_ms, self.mode) == (other.cycle_ms, other.mode)
    }

    /// Names the settings in which these terms differ from others.
    pub fn differences(self, other: Terms) -> impl Iterator<Item = &'static str> {
        let settings = [
            ("capacity", self.capacity != other.capacity),
            ("cycle", self.cycle_ms != other.cycle_ms),
            ("mode", self.mode != other.mode),
            ("other settings", self.digest != other.digest),
        ];
        settings.into_iter().filter_map(|(name, differs)| differs.then_some(name))
    }
}

/// The load of one client at one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
pub struct Load {
    /// The records that the member could send in the next cycle, arrivals and backlog.
    pub demand: u64,
    /// The client's wants of the member's last full cycle.
    pub wants: u64,
}

/// The loads of clients, with their ids, each once. The empty id names all clients together whose loads are too small
/// to be named.
pub type Loads = Vec<(Arc<str>, Load)>;

/// The admissions of one member, for the search for the capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The records that the member has admitted since its process started.
    pub admitted: u64,
    /// Records wait for admission at the member.
    pub waits: bool,
}

/// The loads of a member's clients. They decide targets only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeatLoads {
    pub seat: Arc<str>,
    pub loads: Loads,
    /// Admissions, for the instance that searches for the capacity.
    pub progress: Option<Progress>,
    /// The sum over the rules of run time that the member has in force: members with the same rules tell the same.
    pub rules: u64,
}

/// A record of the control log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SeatRecord {
    State(State),
    Loads(SeatLoads),
    /// The removal of a seat that is gone, from the log.
    Tombstone(Arc<str>),
    /// The removal of loads from the log.
    LoadsTombstone(Arc<str>),
}
