//! Dead letters: read outside of any group, and sent again by jobs, which keep a common ledger.

mod backlog;
mod job;
mod ledger;
mod reader;
mod runs;

pub use backlog::{Backlog, DEFAULT_JOB, HeaderHead, LetterHead, NewestHeads, Unread};
pub use job::{Job, JobError, Outgoing, Positions, ensure_ledger, ensure_parking};
pub use ledger::{Holder, Ledger};
pub use reader::{Header, Letter, Originals, Ranges, Reader};
pub use runs::DoneState;
