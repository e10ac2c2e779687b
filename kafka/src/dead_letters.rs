//! Dead letters: read outside of any group, and sent again by a job.

mod backlog;
mod chunks;
mod job;
mod jobs;
mod parking;
mod reader;

pub use backlog::{Backlog, Counted, DEFAULT_JOB, Unread};
pub use chunks::{REASON_LABELS, Tallies, Tally};
pub use job::{Job, JobError, Outgoing, Positions};
pub use jobs::{JobPositions, job_positions};
pub use parking::ensure_parking;
pub use reader::{Header, Letter, Originals, Ranges, Reader};
