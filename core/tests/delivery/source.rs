//! The logs that are read.

use watermaster_core::delivery::Form;
use watermaster_core::units::Time;

/// The most source partitions.
pub const PARTITIONS: usize = 6;

/// Who refuses a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Poison {
    Nobody,
    /// The producer does at once: too large for the target.
    Producer,
    /// The target's broker does, and with it the whole batch.
    Broker,
    /// Both topics' brokers do; the dead-letter topic takes a stub.
    Whole,
    /// As `Whole`, but the dead-letter topic takes only a stub without the key.
    Key,
    /// Every broker does, a stub, too.
    Everywhere,
    /// The instance does: it has too many headers, so that only a stub is ever sent.
    Instance,
}

impl Poison {
    /// Whether the dead-letter topic refuses the record in this form.
    pub fn is_refused_as(self, form: Form) -> bool {
        match self {
            Poison::Nobody | Poison::Producer | Poison::Broker => false,
            Poison::Whole | Poison::Instance => form == Form::Whole,
            Poison::Key => form != Form::KeylessStub,
            Poison::Everywhere => true,
        }
    }
}

/// A record; who it is is all it carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    pub partition: u32,
    pub offset: i64,
    pub client: u8,
    pub poison: Poison,
}

/// A source partition. What is no record is a hole: compacted away, or a transaction's marker.
#[derive(Debug)]
pub struct Source {
    pub start: i64,
    pub entries: Vec<Option<Record>>,
    /// When each can be read, ascending.
    pub arrivals: Vec<Time>,
    pub arrived: usize,
}

impl Source {
    /// The log's end now.
    pub fn end(&mut self, now: Time) -> i64 {
        while self.arrivals.get(self.arrived).is_some_and(|&at| at <= now) {
            self.arrived += 1;
        }
        self.start + self.arrived as i64
    }

    /// The log's end once everything has arrived.
    pub fn last_end(&self) -> i64 {
        self.start + self.entries.len() as i64
    }

    pub fn get(&self, offset: i64) -> Option<Record> {
        self.entries[(offset - self.start) as usize]
    }
}
