//! The control log through which the instances of a group share one capacity in seats (`watermaster_core::group`): one
//! partition of a compacted topic, and a transactional producer for each seat that this instance has opened.
//!
//! The engine's thread reads the log and hands records over. Each opening has a thread of its own, which makes the
//! calls that block; their outcomes come out of [`SeatLog`]'s `poll`.
//!
//! An opening ends with the first call that fails. The next one has another producer, and so another epoch: a record or
//! a second copy of a commit that the former one left on its way is void from then on.

mod former;
mod log;
mod opening;
#[cfg(feature = "failpoints")]
mod planted;
mod reader;
mod topic;

use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};

pub use former::FormerLog;
#[cfg(not(feature = "failpoints"))]
pub use log::SeatLog;
pub use log::SeatLogError;
#[cfg(feature = "failpoints")]
pub use planted::PlantedSeatLog as SeatLog;
pub(crate) use reader::{LogReader, LogRecord, Next};
pub(crate) use topic::{COMPACTION_LAG, MAX_MESSAGE_BYTES, MORE_SETTINGS, REQUIRED_SETTINGS};
pub use topic::{ControlTopicError, EnsuredTopic, ensure_rules_topic, ensure_topic};

/// The end of the `client.id`, by which brokers' logs, quotas and metrics tell the control log's clients from others.
const CLIENT_ID_SUFFIX: &str = ".control";

/// Returns the configuration with the `client.id` of a control log's client.
pub(crate) fn named(mut config: ClientConfig) -> ClientConfig {
    if let Some(id) = config.get("client.id").map(|id| format!("{id}{CLIENT_ID_SUFFIX}")) {
        config.set("client.id", id);
    }
    config
}

/// Returns whether an error of the consumer ends the reading of a control log.
pub(crate) fn ends_reading(error: &ClientError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            Code::OffsetOutOfRange
                | Code::AutoOffsetReset
                | Code::UnknownTopic
                | Code::UnknownTopicOrPartition
                | Code::UnknownPartition
                | Code::TopicAuthorizationFailed
                | Code::BadMessage
        )
    )
}
