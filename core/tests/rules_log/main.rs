//! Simulation of the log of rules: the core's own `RulesLog` on a model of a compacted topic, with faults that a seed
//! chooses. Records are delayed without bound, reordered and lost; processes are killed, stand still, and read again; a
//! run of compaction may stop anywhere, and tombstones go as early as Kafka allows.
//!
//! An observer sees each record. Every reader has to know what it knows at the same offset, a change that comes in force
//! has to be based on the one before it, and answers have to be true. `planted.rs` proves that the checks can fail.
//! `WATERMASTER_RULES_SEED=n` runs one seed and prints its log, `WATERMASTER_RULES_SEEDS=n` runs n seeds.

mod examples;
mod explore;
mod planted;
#[path = "../support/mod.rs"]
mod support;
mod topic;
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, ops::Range, thread};

use planted::Mistake;
use world::{Counts, Run};

/// The most seeds in which a planted mistake has to be found.
const MISTAKE_SEEDS: u64 = 20_000;

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Runs seeds on all processors, until one breaks a promise. Returns it, and the counts of all.
fn run_all(seeds: Range<u64>, mistake: Option<Mistake>) -> (Option<Run>, Counts, u64) {
    let (next, done) = (AtomicU64::new(seeds.start), Mutex::new((None, Counts::default(), 0)));
    let work = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= seeds.end {
            return;
        }
        let run = world::run(seed, mistake);
        let mut done = done.lock().expect("no seed panics");
        done.1.add(&run.counts);
        done.2 += 1;
        if run.violation.is_some() {
            next.store(seeds.end, Ordering::Relaxed);
            done.0 = Some(run);
        }
    };
    thread::scope(|scope| {
        (0..thread::available_parallelism().map_or(1, usize::from)).for_each(|_| drop(scope.spawn(work)));
    });
    done.into_inner().expect("no seed panics")
}

#[test]
fn all_readers_agree_and_no_update_is_lost() {
    if let Some(seed) = number("WATERMASTER_RULES_SEED") {
        println!("{}", world::run(seed, None));
    }
    let seeds = match number("WATERMASTER_RULES_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("WATERMASTER_RULES_SEEDS").unwrap_or(4_000),
    };
    let (bad, counts, runs) = run_all(seeds, None);
    println!("{runs} seeds: {counts:?}");
    assert!(bad.is_none(), "{}", bad.expect("a run"));
}

#[test]
fn every_planted_mistake_is_found() {
    for mistake in Mistake::ALL {
        let (bad, _, runs) = run_all(0..MISTAKE_SEEDS, Some(mistake));
        let bad = bad.unwrap_or_else(|| panic!("{mistake:?} was not found in {MISTAKE_SEEDS} seeds"));
        println!("{mistake:?}: {runs} seeds, {:?} in seed {}", bad.violation.expect("a violation"), bad.seed);
    }
}
