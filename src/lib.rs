//! Watermaster: a fair-share throttler for Kafka.

pub mod client_id;
pub mod kafka;
pub mod settings;
pub mod snapshot;
