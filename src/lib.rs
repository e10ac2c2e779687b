//! Watermaster: a fair-share throttler for Kafka.

pub mod cli;
pub mod config;
pub mod exit;
pub mod client_id;
pub mod kafka;
pub mod demo;
pub mod engine;
pub mod heartbeat;
pub mod metrics;
pub mod settings;
pub mod snapshot;
pub mod telemetry;
