//! Errors that stop a service.

use thiserror::Error;
use tracing::error;
use watermaster_core::delivery::{DeliveryError, FatalError};
use watermaster_core::offset_map::DecodeError;

use super::Job;
use watermaster_kafka::control::{ControlTopicError, SeatLogError};
use watermaster_kafka::{KafkaError, consumer::FatalConsumerError};

/// The error that stopped a service.
#[derive(Debug, Error)]
#[error("service {service}: {cause}")]
pub struct EngineError {
    pub service: String,
    #[source]
    pub cause: Box<StopCause>,
}

/// The reason why a service can't go on.
#[derive(Debug, Error)]
pub enum StopCause {
    #[error(transparent)]
    Client(#[from] KafkaError),
    #[error(transparent)]
    Consumer(#[from] FatalConsumerError),
    #[error("panicked: this is a bug")]
    Panicked,
    #[error("{}", describe_foreign(.topic, *.partition, *.offset, .source))]
    ForeignOffset { topic: String, partition: i32, offset: i64, source: DecodeError },
    #[error(
        "the dead-letter topic refuses {topic}/{partition} offset {offset}: {source} (on_undeliverable = \"discard\" \
         would drop it)"
    )]
    Undeliverable { topic: String, partition: i32, offset: i64, source: DeliveryError },
    #[error(
        "another producer took the transactional.id {transactional_id} twice within a minute: two instances seem to \
         share the instance_id {instance_id}: {source}"
    )]
    FencedTwice { transactional_id: String, instance_id: String, source: DeliveryError },
    #[error(transparent)]
    Control(#[from] SeatLogError),
    #[error(
        "another process took the seat of this instance in the group: two instances of service {service} have the \
         instance_id {instance_id}"
    )]
    SeatTaken { service: String, instance_id: String },
    #[error(transparent)]
    ControlTopic(#[from] ControlTopicError),
    #[error(transparent)]
    Delivery(FatalError),
}

fn describe_foreign(topic: &str, partition: i32, offset: i64, source: &DecodeError) -> String {
    match source {
        DecodeError::HandedOver(_) => format!(
            "{topic}/{partition} was handed over to the service's own consumers. `watermaster handover --from GROUP \
             --execute` takes it back. `watermaster run --accept-foreign-offsets` goes on at offset {offset}, and \
             repeats what they have done"
        ),
        _ => format!(
            "another program committed offset {offset} of {topic}/{partition}: {source}. `watermaster run \
             --accept-foreign-offsets` takes the committed offsets as they are, once; on_foreign_offset = \"replay\" \
             always does"
        ),
    }
}

/// Logs and shows that a service stopped.
pub(super) fn stop(job: &Job, cause: StopCause) -> EngineError {
    let error = EngineError { service: job.service.name.clone(), cause: Box::new(cause) };
    error!(service = error.service, "{error}; this service stops");
    job.handle.cell.show_stopped(error.to_string());
    error
}
