//! Shared parts of the end-to-end tests: a real Kafka, the program as a process, unusual records, and an oracle.
//!
//! Nothing here uses Watermaster's library: the oracle must not share the program's mistakes.

// Each test crate that includes this module uses only a part of it.
#![allow(dead_code)]

pub mod board;
pub mod broker;
pub mod config;
pub mod documents;
pub mod generator;
pub mod judge;
pub mod murmur;
pub mod own_broker;
pub mod process;
pub mod producer;
pub mod promise;
pub mod reader;
pub mod record;
pub mod repository;
pub mod wait;
pub mod watermaster;
pub mod wire;
