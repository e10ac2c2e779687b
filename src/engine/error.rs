//! Errors that stop a service.

use thiserror::Error;
use tracing::error;
use watermaster_core::delivery::{DeliveryError, FatalError};

use super::Job;
use watermaster_kafka::control::{ControlTopicError, SeatLogError};
use watermaster_kafka::{
    KafkaError,
    consumer::{FatalConsumerError, ForeignOffset},
};

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
    #[error(transparent)]
    ForeignOffset(#[from] ForeignOffset),
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

/// Logs and shows that a service stopped.
pub(super) fn stop(job: &Job, cause: StopCause) -> EngineError {
    let error = EngineError { service: job.service.name.clone(), cause: Box::new(cause) };
    error!(service = error.service, "{error}; this service stops");
    job.handle.cell.show_stopped(error.to_string());
    error
}
