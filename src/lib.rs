//! Watermaster: a fair-share throttler for Kafka.

pub mod admin;
pub mod cli;
pub mod client_id;
pub mod clock;
pub mod config;
pub mod demo;
pub mod engine;
pub mod exit;
pub mod failpoint;
pub mod heartbeat;
pub mod kafka;
pub mod load;
pub mod metrics;
pub mod reload;
pub mod run;
pub mod seldom;
pub mod settings;
pub mod snapshot;
pub mod telemetry;
pub mod token;
pub mod top;
pub mod trial;
pub mod words;
