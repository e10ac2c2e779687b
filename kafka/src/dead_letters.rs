//! Dead letters: read outside of any group, and sent again by a job.

mod backlog;
mod job;
mod parking;
mod reader;

pub use backlog::{Backlog, DEFAULT_JOB, Unread};
pub use job::{Job, JobError, Outgoing, Positions};
pub use parking::ensure_parking;
pub use reader::{Header, Letter, Originals, Ranges, Reader};
