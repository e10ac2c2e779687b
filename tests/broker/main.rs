//! End-to-end tests on a real Kafka: run `scripts/test`. Without a broker, only the tests of the oracle itself run.
//! Tests in a module `long` run only with `scripts/test --long`.

#[path = "../../schemas/src/registry/tests/stub.rs"]
mod registry_stub;
#[path = "../support/mod.rs"]
mod support;

mod adopting;
mod auth;
mod bad_input;
mod client_groups;
mod clients;
mod control;
mod control_topic;
mod damaged;
mod dead_letters;
mod documents;
mod exactly_once;
mod fidelity;
mod group;
mod group_configurations;
mod group_protocol;
mod group_restarts;
mod handover;
mod harness;
mod latency;
mod load;
mod lowered;
mod many_partitions;
mod mirror;
mod open;
mod oracle;
mod outage;
mod overflow;
mod pace;
mod panels;
mod patterns;
mod platform;
mod poison;
mod preflight;
mod promise;
mod recall;
mod redriven;
mod reload;
mod restart;
mod rig;
mod routes;
mod rules;
mod rules_log;
mod schemas;
mod seat_log;
mod simulate;
mod sources;
mod strangers;
mod upgrade;
