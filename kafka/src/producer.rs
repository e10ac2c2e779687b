//! Sends the outputs of a service to its target and dead-letter topic, in transactions if so configured.

mod config;
mod context;
mod dead_letter;
mod offsets_call;
mod polled;
mod topic_producer;

pub use watermaster_core::delivery::{Failure, Form, Rejected, SendError};

pub use config::{DEFAULT_BATCH_BYTES, transaction_timeout, transactional_id};
pub use topic_producer::Producer;
