//! Simulation of a group: several members of the core's own `Member` share one capacity through a log in memory, with
//! faults that a seed chooses. It uses one thread and simulated time, so a seed always gives the same run.
//!
//! Every member is an adversary: it admits all that it may, at once, at every moment. Demands jump. The model contains:
//! - a log of one partition: records take time to arrive and to be read, up to several leases; some never arrive, with
//!   and without a report, and some arrive although they were reported lost; outages of the whole log
//! - compaction: a newcomer reads the last records of each key and some of the newest records, and unread records of a
//!   stopped reader are compacted, too
//! - clocks: arbitrary offsets, rates up to 2 % apart (the members are told 5 %)
//! - processes: crashes, restarts under the same id, pauses longer than lease and cycle, drains, newcomers
//! - reloads: members change their capacity at different times, and the smallest one is in force
//!
//! The checker knows every admission, and the exact sum over each window of one cycle. `planted.rs` proves that it can
//! fail. `WATERMASTER_GROUP_SEED=n` runs one seed, `WATERMASTER_GROUP_SEEDS=n` runs n seeds.

mod cost;
mod fairness;
mod log;
mod node;
mod planted;
mod replay;
mod scenarios;
#[path = "../support/mod.rs"]
mod support;
mod world;

use std::env;

use planted::Mistake;
use support::random::Random;
use world::run;

/// Seeds of a normal run.
const SEEDS: u64 = 400;
/// The most seeds in which a planted mistake has to be found.
const MISTAKE_SEEDS: u64 = 1_000;

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

#[test]
fn the_sum_over_the_group_never_exceeds_the_capacity() {
    let seeds = match number("WATERMASTER_GROUP_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("WATERMASTER_GROUP_SEEDS").unwrap_or(SEEDS),
    };
    let count = seeds.end - seeds.start;
    let (mut used, mut largest, mut faults) = (0.0, 0.0_f64, world::Faults::default());
    for seed in seeds {
        let outcome = run(seed, None);
        assert!(outcome.most_over <= 0, "seed {seed}: {outcome}");
        used += outcome.used;
        largest = largest.max(outcome.largest);
        faults.add(&outcome.faults);
    }
    println!("{count} seeds: used {:.2} of the capacity, largest window {largest:.3}, {faults:?}", used / count as f64);
    assert!(count == 1 || used / count as f64 > 0.3, "the group used {used} of {count} capacities");
}

#[test]
fn every_planted_mistake_is_found() {
    for mistake in Mistake::ALL {
        let found = (0..MISTAKE_SEEDS).find(|&seed| run(seed, Some(mistake)).most_over > 0);
        println!("{mistake:?}: found by seed {found:?}");
        assert!(found.is_some(), "{mistake:?} was not found in {MISTAKE_SEEDS} seeds");
    }
}

#[test]
fn a_newcomer_never_trusts_a_compacted_log_too_much() {
    let (mut exact, mut starts) = (0, 0);
    for seed in 0..100 {
        let log = run(seed, None).log;
        exact += replay::check(&log, &mut Random::stream(seed, 18), 4);
        starts += 4;
    }
    println!("{exact} of {starts} newcomers knew every hold in the end");
    assert!(exact * 4 > starts, "newcomers learn the holds");
}
