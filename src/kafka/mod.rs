//! Everything that knows rdkafka.
//!
//! One thread per service owns one [`Consumer`](consumer::Consumer) and one [`Producer`](producer::Producer) and calls, in this order:
//!
//! 1. [`Consumer::poll`](consumer::Consumer::poll) until the round is due: assignments, revocations and records, in order;
//! 2. [`Producer::send`](producer::Producer::send) for each output of the round;
//! 3. [`Producer::flush`](producer::Producer::flush), then [`Producer::take_failures`](producer::Producer::take_failures);
//! 4. [`Consumer::commit_offsets`](consumer::Consumer::commit_offsets), or a transaction, for the offset and map of each partition
//!    that changed.
//!
//! Nothing is in flight while the consumer is polled, so that a rebalance never meets half a round.

mod assign;
mod client;
pub mod consumer;
pub mod embedded;
mod ffi;
pub mod load;
mod membership;
mod offsets_call;
pub mod preflight;
pub mod probe;
pub mod producer;
mod properties;
pub mod record;
mod tail;
mod trouble;

pub use client::{KafkaError, accepts_property};
pub use properties::{HIDDEN, shown as shown_property};

/// The version of librdkafka.
pub fn client_version() -> String {
    rdkafka::util::get_rdkafka_version().1
}
