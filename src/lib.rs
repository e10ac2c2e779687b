//! Watermaster: a fair-share throttler for Kafka.

pub mod settings;
pub mod snapshot;
