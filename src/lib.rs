//! Watermaster: a fair-share throttler for Kafka.

pub mod admin;
pub mod demo;
pub mod heartbeat;
pub mod metrics;
pub mod settings;
pub mod snapshot;
