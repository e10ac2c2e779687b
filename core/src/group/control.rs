//! The trait through which a member talks to the control log. A model in simulated time implements it as well as
//! brokers do.
//!
//! To *open* a seat is to initialise its transactional id, which ends all earlier transactions of the id and fences
//! their producers, and then to ask for the end of the log, open transactions included. The seat is open once the
//! reader has reached an end of the log that is no earlier.

use std::sync::Arc;

use super::state::SeatRecord;

/// The number of an opening. It is never used again.
pub type OpeningNumber = u64;

/// News from the control log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A committed record, in the order of the log.
    Record { offset: u64, record: SeatRecord },
    /// The reader has reached the end of the stable records: everything below this offset was read, committed records,
    /// aborted ones and markers. It comes behind the records, and not before all that one answer of the brokers held.
    End(u64),
    /// The transactional id is initialised. After that the log ended at this offset, open transactions included.
    Opened { attempt: OpeningNumber, end: u64 },
    /// A call of the opening failed, or got no answer. The opening is over.
    Failed { attempt: OpeningNumber },
    /// A state or a removal was committed, or it is not known whether it was. In the latter case the opening is over.
    Written { attempt: OpeningNumber, committed: bool },
}

/// A call to the control log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogCall {
    /// Begins to open a seat. Openings of different seats may be under way at the same time. An earlier opening of the
    /// same seat is over.
    Open { seat: Arc<str>, attempt: OpeningNumber },
    /// Writes a state and perhaps loads, or removes both, in one transaction of an opening. One is under way at a time.
    Write { attempt: OpeningNumber, records: Vec<SeatRecord> },
    /// Ends an opening: nothing more will be written under it.
    Close { attempt: OpeningNumber },
}

/// A reader of the control log, and the producers of the seats that this member has opened.
pub trait ControlLog {
    /// A failure after which the log has to be opened anew: records are gone, or may not be read.
    type Error;

    /// Returns what happened since the last call, one after the other; `None` if there is nothing new.
    ///
    /// # Errors
    /// The log can't be read any more.
    fn poll(&mut self) -> Result<Option<Event>, Self::Error>;
    /// Makes a call, whose outcome is an event.
    fn call(&mut self, call: LogCall);
}
