//! What the end-to-end tests share: a real Kafka, the program as a process, odd records, and an oracle of its own.
//!
//! Nothing here uses Watermaster's library: what judges the program must not share its mistakes.

// Each test crate that includes this module uses a part of it.
#![allow(dead_code)]

pub mod board;
pub mod broker;
pub mod config;
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
