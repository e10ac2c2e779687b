//! Reads the sources of a service as a member of its group, and commits its offsets.

mod commit;
mod config;
mod group_consumer;
#[cfg(feature = "failpoints")]
mod planted;
#[cfg(test)]
mod tests;

pub use crate::consumer_error::{FatalConsumerError, Outage, Reported};
pub use crate::event::{Assignment, Event, ForeignOffset};
pub use crate::{assign::Committed, end_probe::Holes, topics::SourcePartition};
pub use commit::Offsets;
pub(crate) use commit::{CommitRequests, lists};
pub(crate) use config::config;
pub use config::{group_id, joins_within};
#[cfg(not(feature = "failpoints"))]
pub use group_consumer::Consumer;
#[cfg(feature = "failpoints")]
pub use planted::PlantedConsumer as Consumer;
