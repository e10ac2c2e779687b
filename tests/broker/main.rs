//! End to end on a real Kafka: run `scripts/test`. Without one, only the oracle's own tests run.

#[path = "../support/mod.rs"]
mod support;

mod bad_input;
mod exactly_once;
mod fidelity;
mod harness;
mod oracle;
mod outage;
mod promise;
mod restart;
mod rig;
