//! Watermaster: a fair-share throttler for Kafka.

pub mod admin;
pub mod cli;
pub mod clock;
pub mod engine;
pub mod heartbeat;
pub mod metrics;
pub mod reload;
pub mod run;
pub mod services;
pub mod snapshot;
pub mod telemetry;
#[cfg(test)]
mod tests;
