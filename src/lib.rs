//! Watermaster: a fair-share throttler for Kafka. The program `main.rs` joins this library with its command line and
//! the tools.

pub mod admin;
pub mod clock;
pub mod engine;
mod fleet;
pub mod heartbeat;
pub mod metrics;
pub mod reload;
pub mod rules;
pub mod run;
pub mod services;
pub mod shared;
pub mod snapshot;
pub mod telemetry;
#[cfg(test)]
mod tests;
