//! Dead letters: read outside of any group, and sent again by a job.

mod job;
mod parking;
mod reader;

pub use job::{Job, JobError, Outgoing, Positions};
pub use parking::ensure_parking;
pub use reader::{Header, Letter, Originals, Ranges, Reader};
