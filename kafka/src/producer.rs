//! Sends the outputs of a service to its target and dead-letter topic, in transactions if so configured.

mod config;
mod context;
mod dead_letter;
mod offsets_call;
#[cfg(feature = "failpoints")]
mod planted;
mod polled;
mod topic_producer;

pub use watermaster_core::round::{Failure, Form, SendError};

pub use config::Limits;
pub(super) use config::{transaction_timeout, transactional_id};
pub use dead_letter::DeadLetter;
#[cfg(feature = "failpoints")]
pub use planted::PlantedProducer as Producer;
pub use topic_producer::Destination;
#[cfg(not(feature = "failpoints"))]
pub use topic_producer::Producer;
