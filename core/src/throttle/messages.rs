//! The messages of a throttle: records and verdicts, and actions beyond them.

use std::{sync::Arc, time::Duration};

use crate::{reason::Rejection, slot::Slot};

/// The sender of a record, as far as the shell could tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender<'a> {
    /// A readable client id.
    Client(&'a str),
    /// The client that redriven records count for. They say nothing about the clients of their partition.
    Redriven(&'a str),
    /// A readable client id that the source does not allow.
    NotAllowed(&'a str),
    /// No client id, or one that can't be read.
    Anonymous,
    /// The record has more headers than are read, so it can't be forwarded as it is.
    Oversized,
}

/// A record that was just read.
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'a> {
    /// The partition's number, as given to [`handle_assigned`](Throttle::handle_assigned).
    pub partition: u32,
    pub offset: i64,
    /// The memory that the record costs while it is delayed.
    pub bytes: u32,
    pub sender: Sender<'a>,
    /// The record's timestamp, in milliseconds since the Unix epoch.
    pub written_ms: Option<i64>,
}

/// The answer to a record that was just read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Do nothing: the record is completed already, or delayed.
    Skip,
    /// Send the record to the target now; with the client's index, if it has one.
    Admit(Option<u32>),
    /// Keep the record under this slot until an [`Action`] names it.
    Delay(Slot),
    /// Send the record to the dead-letter topic now.
    Reject(Rejection),
}

/// Something to do beyond the record that was just read. A slot named here is free afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send the record kept under this slot to the target; its bytes are those of its arrival.
    Admit { slot: Slot, partition: u32, offset: i64, bytes: u32, client: u32, waited: Duration },
    /// Send the record kept under this slot to the dead-letter topic. The name is the one that its client had when the
    /// record was rejected: by now its index may be another client's.
    Reject { slot: Slot, partition: u32, offset: i64, bytes: u32, rejection: Rejection, name: Option<Arc<str>> },
    /// Read nothing from this partition.
    Pause { partition: u32 },
    /// Read from this partition again.
    Resume { partition: u32 },
}
