//! Watermaster: a fair-share throttler for Kafka.

pub mod cli;
pub mod config;
pub mod exit;
pub mod client_id;
pub mod kafka;
pub mod settings;
pub mod snapshot;
pub mod telemetry;
