//! Exactly once, simulated.

mod broker;
mod checker;
mod client;
mod coverage;
mod group;
mod instance;
mod link;
mod network;
mod planted;
mod random;
mod rounds;
mod run;
mod scenario;
mod serving;
#[path = "../sim/mod.rs"]
mod sim;
mod source;
mod strikes;
mod trace;
mod world;

use std::env;
use std::time::Instant;

/// Seeds of one run.
const SEEDS: u64 = 20_000;

#[test]
fn every_record_comes_out_exactly_once_whatever_dies() {
    if let Ok(seed) = env::var("WATERMASTER_SIM_SEED") {
        run::check(seed.parse().expect("WATERMASTER_SIM_SEED is a number"));
        return;
    }
    let seeds = env::var("WATERMASTER_SIM_SEEDS").map_or(SEEDS, |seeds| seeds.parse().expect("a number"));
    let began = Instant::now();
    let coverage = run::check_all(0..seeds);
    let took = began.elapsed().as_secs_f64();
    println!("{seeds} seeds in {took:.1} s: {:.0} a second", seeds as f64 / took);
    for (what, count, _) in coverage.rows() {
        println!("{count:>12} {what}");
    }
    for (what, count, least) in coverage.rows() {
        let least = least * seeds / SEEDS;
        assert!(count >= least, "{what}: {count}, which proves little; expected at least {least}");
    }
    assert_eq!(coverage.torn + coverage.late_offsets_taken, 0, "a late request joined another transaction");
}
