//! Simulation of both deliveries: several instances of the core's own `Throttle`, `Round` and `Machine` run against
//! brokers in memory, with faults that a seed chooses. It uses one thread and simulated time, so a seed always gives
//! the same run.
//!
//! `WATERMASTER_SIM_SEED=n` runs one seed (in each delivery), `WATERMASTER_SIM_SEEDS=n` runs n seeds instead of 20 000.
//! A seed that breaks an invariant is run again with a trace of its last events.
//!
//! The model contains:
//! - source partitions with holes; a target of two partitions and a dead-letter topic, with open and aborted
//!   transactions (`source.rs`, `broker.rs`)
//! - the transaction coordinator: epochs, fencing, its own clock, a delay between its decision and the markers, and the
//!   protocol before KIP-890, where a late `EndTxn` ends any transaction that its epoch has open (`broker.rs`)
//! - the group coordinator: cooperative rebalances over several generations, sessions, expulsion; offsets are checked
//!   by member and generation, never by ownership, and accepted unfenced from clients without a member (`group.rs`)
//! - librdkafka: its own thread that heartbeats and joins, revocations that wait for the application, error classes,
//!   batches that are refused as a whole, full queues, taints (`client.rs`, `link.rs`)
//! - the network: lost requests, lost answers, late copies of `EndTxn` and `TxnOffsetCommit`, cuts (`network.rs`)
//! - at least once: producers without transactions, commits through the consumer that are lost, or applied and not
//!   answered (`consumer.rs`)
//! - processes: crashes in any call, before and after it is applied, and between calls; pauses shorter and longer than
//!   session and transaction, also while another process takes over the same id; drains; foreign producers that take an
//!   id (`faults.rs`)
//! - the engine: reading and deciding, rounds that poll the group only while no transaction is open, in a third of the
//!   seeds transactions that begin before their rounds, deferred records (`instance.rs`, `serving.rs`, `rounds.rs`)
//!
//! The model leaves out: the wire and librdkafka's own code, brokers that lose acknowledged records, KIP-848 groups,
//! requests in more than one part, `max.poll.interval.ms`, foreign commits, a taint that is reported only after the
//! next transaction began, late `Produce` requests (sequence numbers stop them), late `OffsetCommit` requests (the
//! consumer awaits the answer to each). Outputs and offsets of a transaction become visible at the same moment.
//!
//! `checker.rs` holds the invariants; `coverage.rs` counts the faults that took effect; `planted.rs` proves that the
//! checker can fail. The promise to the service is tested in `tests/promise`.

mod broker;
mod checker;
mod client;
mod consumer;
mod coverage;
mod faults;
mod group;
mod instance;
mod link;
mod network;
mod planted;
mod rounds;
mod run;
mod scenario;
mod serving;
#[path = "../sim/mod.rs"]
mod sim;
mod source;
#[path = "../support/mod.rs"]
mod support;
mod trace;
mod world;

use std::{env, time::Instant};

use coverage::Coverage;

/// Number of seeds in one run.
const SEEDS: u64 = 20_000;

#[test]
fn every_record_is_delivered_exactly_once_despite_faults() {
    let Some(coverage) = survey(true) else { return };
    assert_eq!(coverage.torn + coverage.late_offsets_taken, 0, "a late request changed another transaction");
}

#[test]
fn every_record_is_delivered_at_least_once_despite_faults() {
    survey(false);
}

/// Runs the seeds and returns the counts; returns `None` if the environment names one seed.
fn survey(exactly_once: bool) -> Option<Coverage> {
    if let Some(seed) = number("WATERMASTER_SIM_SEED") {
        run::check(seed, exactly_once);
        return None;
    }
    let seeds = number("WATERMASTER_SIM_SEEDS").unwrap_or(SEEDS);
    let began = Instant::now();
    let coverage = run::check_all(0..seeds, exactly_once);
    let took = began.elapsed().as_secs_f64();
    println!("{seeds} seeds in {took:.1} s: {:.0} a second", seeds as f64 / took);
    let rows = coverage.rows(exactly_once);
    for (what, count, _) in &rows {
        println!("{count:>12} {what}");
    }
    for (what, count, least) in rows {
        let least = least * seeds / SEEDS;
        assert!(count >= least, "too few of \"{what}\": {count}, expected at least {least}");
    }
    Some(coverage)
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a number, not {text}")))
}

// ## Seeds that found bugs. Each fails again if its fix is removed.

/// The bug: offsets that were not answered in time joined the next transaction of their epoch and moved its offsets
/// back.
#[test]
fn late_offsets_join_no_other_transaction() {
    run::check(447, true);
}

/// The bug: only holes before a completed record held the committable offset back, and no event reported that it had
/// moved past them.
#[test]
fn an_offset_that_moved_over_holes_is_committed() {
    run::check(2560, true);
}

/// The bug: a batch was stored, its answer asked to send it again, and the producer abandoned it with its transaction.
/// The next batch reused its sequence numbers, so the broker took it for a duplicate, acknowledged it and dropped it.
#[test]
fn abandoned_records_hide_no_others() {
    run::check(1, true);
}
