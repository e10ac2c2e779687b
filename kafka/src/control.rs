//! The control log of a service: one partition of a compacted topic, through which the instances of a group share one
//! capacity (`watermaster_core::group`).
//!
//! The log's order decides, so two things matter here: a producer is never replaced within the life of a key, and every
//! record is read back through the broker, its own ones, too.

mod log;
#[cfg(feature = "failpoints")]
mod planted;
mod topic;

#[cfg(not(feature = "failpoints"))]
pub use log::ControlLog;
pub use log::ControlLogError;
#[cfg(feature = "failpoints")]
pub use planted::PlantedControlLog as ControlLog;
pub use topic::{ControlTopicError, EnsuredTopic, ensure_topic};
pub(crate) use topic::{MAX_MESSAGE_BYTES, SETTINGS};
