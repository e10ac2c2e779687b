//! The source partitions.

use watermaster_core::{delivery::Form, units::Time};

/// Maximum number of source partitions.
pub const PARTITIONS: usize = 6;

/// The part of the system that refuses a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Poison {
    None,
    /// The producer refuses it at once: too large for the target.
    Producer,
    /// The target's broker refuses it, together with its whole batch.
    Broker,
    /// The brokers of both topics refuse it; the dead-letter topic takes a stub.
    Whole,
    /// Like `Whole`, but the dead-letter topic takes only a stub without the key.
    Key,
    /// Every broker refuses it, and its stubs.
    Everywhere,
    /// The instance rejects it for too many headers, so that only a stub is ever sent.
    Instance,
}

impl Poison {
    /// Returns whether the dead-letter topic refuses the record in this form.
    pub fn is_refused_as(self, form: Form) -> bool {
        match self {
            Poison::None | Poison::Producer | Poison::Broker => false,
            Poison::Whole | Poison::Instance => form == Form::Whole,
            Poison::Key => form != Form::KeylessStub,
            Poison::Everywhere => true,
        }
    }
}

/// A record, reduced to its identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    pub partition: u32,
    pub offset: i64,
    pub client: u8,
    pub poison: Poison,
}

/// A source partition. `None` is a hole: a compacted record or a transaction's marker.
#[derive(Debug)]
pub struct Source {
    pub start: i64,
    pub entries: Vec<Option<Record>>,
    /// The time at which each entry becomes readable, ascending.
    pub arrivals: Vec<Time>,
    pub arrived: usize,
}

impl Source {
    /// Returns the end of the log at `now`.
    pub fn end(&mut self, now: Time) -> i64 {
        while self.arrivals.get(self.arrived).is_some_and(|&at| at <= now) {
            self.arrived += 1;
        }
        self.start + self.arrived as i64
    }

    /// Returns the end of the log once all entries have arrived.
    pub fn last_end(&self) -> i64 {
        self.start + self.entries.len() as i64
    }

    pub fn get(&self, offset: i64) -> Option<Record> {
        self.entries[(offset - self.start) as usize]
    }
}
