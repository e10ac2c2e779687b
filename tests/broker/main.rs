//! End to end on a real Kafka: run `scripts/test`. Without one, only the oracle's own tests run. What lies in a module
//! `long` runs with `scripts/test --long` only.

#[path = "../support/mod.rs"]
mod support;

mod bad_input;
mod damaged;
mod exactly_once;
mod fidelity;
mod group_protocol;
mod harness;
mod load;
mod lowered;
mod many_partitions;
mod oracle;
mod outage;
mod panels;
mod poison;
mod preflight;
mod promise;
mod reload;
mod restart;
mod rig;
mod strangers;
