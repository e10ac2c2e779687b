//! Simulation of a group: several members of the core's own `Member` share one capacity through a log in memory, with
//! faults that a seed chooses. A run uses one thread and simulated time, so a seed always gives the same run.
//!
//! Every member is an adversary: it admits all that it may, at once, whenever it acts. Demands jump. Small groups act
//! each 10 to 60 ms. Larger ones act rarely and irregularly, each 50 ms to 8 s, so that an hour takes a second: a member
//! that acts late reads late, looks late and gives back late. The model contains:
//! - a log of one partition: records take time to arrive and to be read, up to several leases; some never arrive, with
//!   and without a report, and some arrive although they were reported lost; outages of the whole log
//! - compaction: a newcomer reads the last records of each key and some of the newest records, and unread records of a
//!   stopped reader are compacted, too
//! - clocks: arbitrary offsets, rates that differ by nearly the margin, and a second clock that is slewed forward
//! - processes: crashes, restarts under the same id, pauses longer than lease and cycle, drains, newcomers
//! - reloads: members change their capacity at different times, and the smallest one is in force
//! - records that were admitted before the group began
//!
//! The checker knows every admission, and the exact sum over each window of one cycle. `planted.rs` proves that it can
//! fail. `WATERMASTER_GROUP_SEED=n` runs one seed, `WATERMASTER_GROUP_SEEDS=n` runs n seeds.

mod attacks;
mod cost;
mod fairness;
mod log;
mod node;
mod planted;
mod replay;
mod scale;
mod scenarios;
mod setting;
mod shares;
#[path = "../support/mod.rs"]
mod support;
mod waits;
mod world;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use std::{env, ops::Range, panic, thread};

use planted::Mistake;
use setting::{Setting, Size};
use support::random::Random;
use world::{Faults, Outcome};

/// The most seeds in which a planted mistake has to be found.
const MISTAKE_SEEDS: u64 = 1_000;

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

fn run(size: Size, seed: u64, mistake: Option<Mistake>) -> Outcome {
    let mut random = Random::stream(seed, 17);
    let setting = Setting::random(size, &mut random);
    world::run(setting, random, mistake)
}

/// Runs the seeds of a size on all processors, or those that the environment names.
fn survey(size: Size, seeds: u64, least_used: f64) {
    let seeds = match number("WATERMASTER_GROUP_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("WATERMASTER_GROUP_SEEDS").unwrap_or(seeds),
    };
    let (count, began) = (seeds.end - seeds.start, Instant::now());
    let (used, largest, faults) = check_all(size, seeds);
    let (used, took) = (used / count as f64, began.elapsed().as_secs_f64());
    println!("{size:?}: {count} seeds in {took:.1} s: used {used:.2} of the capacity, largest window {largest:.4}");
    println!("{faults:?}");
    assert!(count == 1 || used > least_used, "the group used {used} of the capacity");
}

fn check_all(size: Size, seeds: Range<u64>) -> (f64, f64, Faults) {
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let mut sum = (0.0, 0.0_f64, Faults::default());
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return sum;
            }
            let outcome = run(size, seed, None);
            assert!(outcome.most_over <= 0, "seed {seed} of {size:?}: {outcome}");
            sum = (sum.0 + outcome.used, sum.1.max(outcome.largest), sum.2);
            sum.2.add(&outcome.faults);
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut sum = (0.0, 0.0_f64, Faults::default());
        for worker in workers {
            let part = worker.join().unwrap_or_else(|panic| panic::resume_unwind(panic));
            sum = (sum.0 + part.0, sum.1.max(part.1), sum.2);
            sum.2.add(&part.2);
        }
        sum
    })
}

#[test]
fn the_sum_over_the_group_never_exceeds_the_capacity() {
    survey(Size::Small, 400, 0.3);
}

#[test]
fn twenty_instances_keep_to_the_capacity_for_an_hour() {
    let is_long = std::env::var_os("WATERMASTER_TEST_LONG").is_some();
    survey(Size::Medium, if is_long { 200 } else { 40 }, 0.3);
}

#[test]
#[ignore = "takes minutes and gigabytes: scripts/test --long"]
fn a_thousand_instances_keep_to_the_capacity() {
    survey(Size::Large, 3, 0.3);
}

#[test]
fn every_planted_mistake_is_found() {
    for mistake in Mistake::ALL {
        let found = (0..MISTAKE_SEEDS).find(|&seed| run(Size::Small, seed, Some(mistake)).most_over > 0);
        println!("{mistake:?}: found by seed {found:?}");
        assert!(found.is_some(), "{mistake:?} was not found in {MISTAKE_SEEDS} seeds");
    }
}

#[test]
fn a_newcomer_never_trusts_a_compacted_log_too_much() {
    let (mut exact, mut starts) = (0, 0);
    for seed in 0..100 {
        let log = run(Size::Small, seed, None).log;
        exact += replay::check(&log, &mut Random::stream(seed, 18), 4);
        starts += 4;
    }
    println!("{exact} of {starts} newcomers knew every hold in the end");
    assert!(exact * 4 > starts, "newcomers learn the holds");
}
