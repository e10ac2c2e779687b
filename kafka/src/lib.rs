//! Everything that knows rdkafka.
//!
//! One thread per service owns one [`Consumer`] and one [`Producer`]. In each round it calls, in this order:
//!
//! 1. [`Consumer::poll`] until the round is due: assignments, revocations and records, in order;
//! 2. [`Producer::send`] for each output of the round;
//! 3. [`Transactions::flush`], then [`Transactions::take_failures`];
//! 4. [`Consumer::commit_offsets`], or a transaction, for the offset and map of each partition that changed.
//!
//! No output is in flight while the consumer is polled, so a rebalance never falls into the middle of a round.
//!
//! [`Consumer`]: consumer::Consumer
//! [`Consumer::poll`]: consumer::Consumer::poll
//! [`Consumer::commit_offsets`]: consumer::Consumer::commit_offsets
//! [`Producer`]: producer::Producer
//! [`Producer::send`]: producer::Producer::send
//! [`Transactions::flush`]: producer::Transactions::flush
//! [`Transactions::take_failures`]: producer::Transactions::take_failures

pub mod ask;
mod assign;
mod client;
pub mod consumer;
mod consumer_error;
pub mod control;
pub mod dead_letters;
pub mod embedded;
mod end_probe;
mod event;
pub mod failpoint;
mod ffi;
pub mod handover;
pub mod headers;
pub mod load;
pub mod log_limiter;
mod login;
mod mac;
mod membership;
mod msk;
mod oauth;
mod offline;
pub mod preflight;
pub mod producer;
pub mod record;
pub mod redrive;
mod refusal;
pub mod rules_log;
pub mod source_log;
pub mod topics;

pub use client::{KafkaError, WrongLibrary, check_library, client_features, client_version};
pub use offline::PROPERTY_RULES;
