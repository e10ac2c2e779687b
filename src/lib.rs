//! Watermaster: a fair-share throttler for Kafka.

pub mod admin;
pub mod cli;
pub mod clock;
pub mod demo;
pub mod engine;
pub mod exit;
#[cfg(test)]
mod fixture;
pub mod heartbeat;
pub mod load;
pub mod metrics;
pub mod reload;
pub mod run;
pub mod snapshot;
pub mod telemetry;
pub mod top;
pub mod trial;
pub mod words;
