//! Both deliveries, simulated: several instances of the core's own `Throttle`, `Round` and `Machine` against brokers in memory,
//! with faults that a seed chooses. One thread, simulated time, the same again for the same seed.
//!
//! `WATERMASTER_SIM_SEED=n` runs one seed (in each delivery), `WATERMASTER_SIM_SEEDS=n` that many instead of 20 000. A seed that breaks an
//! invariant is run again with a trace of its last moments.
//!
//! What is modelled:
//! - source partitions with holes; a target of two partitions and a dead-letter topic, with open and aborted transactions
//!   (`source.rs`, `broker.rs`)
//! - the transaction coordinator: epochs, fencing, its own clock, a moment between its decision and the markers, and the
//!   protocol of before KIP-890: an `EndTxn` that comes late ends whatever this epoch has open (`broker.rs`)
//! - the group coordinator: cooperative rebalances over several generations, sessions, expulsion; offsets are checked by member
//!   and generation, never by ownership, and taken unfenced from nobody (`group.rs`)
//! - librdkafka: its own thread that heartbeats and joins, revocations that wait for the application, error classes, batches that
//!   are refused as a whole, full queues, taints (`client.rs`, `link.rs`)
//! - the network: lost requests, lost answers, late copies of `EndTxn` and `TxnOffsetCommit`, cuts (`network.rs`)
//! - at least once: producers without transactions, commits through the consumer that are lost, or applied and not answered
//!   (`consumer.rs`)
//! - processes: death in any call, before and after it was applied, and between calls; hanging for shorter and longer than
//!   session and transaction, also while another takes over the same id; drains; strangers who take an id (`strikes.rs`)
//! - the engine: reading and deciding, rounds that serve the group only while no transaction is open, records put aside
//!   (`instance.rs`, `serving.rs`, `rounds.rs`)
//!
//! What is not: the wire and librdkafka's own code, brokers that lose what they acknowledged, KIP-848 groups, requests in more than
//! one part, `max.poll.interval.ms`, foreign commits, a taint that is told only after the next transaction began, late
//! `Produce` requests (sequence numbers stop them), late `OffsetCommit` requests (the consumer awaits the answer to each). Outputs and offsets of a transaction become visible in one moment.
//!
//! What must hold is in `checker.rs`; what was really put to the test is counted in `coverage.rs`; `planted.rs` proves that
//! the checker can fail. The promise to the service is tested elsewhere (`tests/promise`).

mod broker;
mod checker;
mod client;
mod consumer;
mod coverage;
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
mod strikes;
#[path = "../support/mod.rs"]
mod support;
mod trace;
mod world;

use std::env;
use std::time::Instant;

use coverage::Coverage;

/// Seeds of one run.
const SEEDS: u64 = 20_000;

#[test]
fn every_record_comes_out_exactly_once_whatever_dies() {
    let Some(coverage) = survey(true) else { return };
    assert_eq!(coverage.torn + coverage.late_offsets_taken, 0, "a late request joined another transaction");
}

#[test]
fn every_record_comes_out_at_least_once_whatever_dies() {
    survey(false);
}

/// Runs the seeds. Returns the counts, unless only one seed was asked for.
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
        assert!(count >= least, "{what}: {count}, which proves little; expected at least {least}");
    }
    Some(coverage)
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not {text}")))
}

// ## Seeds that once broke something. They do so again where its remedy is taken out.

/// Offsets that were not answered in time joined the next transaction of their epoch and took its offsets back.
#[test]
fn offsets_that_come_late_join_no_other_transaction() {
    run::check(447, true);
}

/// Holes before a record that was completed already were all that held the committable offset back, and nothing said that
/// it had moved.
#[test]
fn an_offset_that_moved_over_holes_is_committed() {
    run::check(2560, true);
}

/// A batch was stored, but asked for again, and given up with its transaction. The next one had its sequence numbers: it was
/// taken for that batch, acknowledged and dropped.
#[test]
fn records_that_were_given_up_hide_no_others() {
    run::check(1, true);
}
