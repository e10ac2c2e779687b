//! Watermaster: a fair-share throttler for Kafka.

pub mod admin;
pub mod client_id;
pub mod demo;
pub mod engine;
pub mod exit;
pub mod heartbeat;
pub mod kafka;
pub mod metrics;
pub mod settings;
pub mod snapshot;
pub mod telemetry;
