//! What a decision costs end to end: `watermaster run` beside loops that consume and produce and decide nothing.
//!
//! Needs a broker: `WATERMASTER_TEST_BROKER=localhost:9092 cargo bench --bench end_to_end` (`scripts/bench` starts one, and tells
//! of all options with `--help`). All forward the same records on the same broker, in turn, in alternating order.
//!
//! - `bare.rs`: the loops
//! - `runner.rs`: how each program is started
//! - `measure.rs`: what a run costs
//! - `latency.rs`: how long a record is on its way
//! - `backlog.rs`: what a delayed record takes in memory
//! - `workload.rs`, `topics.rs`: what is forwarded
//! - `results.rs`: ratios, pair by pair, as a table and as JSON

mod backlog;
mod bare;
mod latency;
mod measure;
mod options;
mod results;
mod runner;
mod topics;
mod workload;

use clap::Parser as _;

use measure::Cost;
use options::Options;
use results::Results;
use runner::Runner;
use topics::Topics;

fn main() {
    let options = Options::parse();
    if let Some(task) = options.bare_task() {
        return bare::run(&task);
    }
    let Ok(broker) = std::env::var("WATERMASTER_TEST_BROKER") else {
        eprintln!("end_to_end needs a broker: set WATERMASTER_TEST_BROKER, or use scripts/bench");
        std::process::exit(2);
    };
    let runners = options.runners();
    if options.latency {
        return latency::compare(&broker, &options, &runners);
    }
    if options.backlog {
        return backlog::measure(&broker, &options, &runners);
    }
    let results = compare(&broker, &options, &runners);
    results.print();
    if let Some(file) = &options.json {
        std::fs::write(file, results.json()).expect("the results are written");
    }
}

fn compare(broker: &str, options: &Options, runners: &[Runner]) -> Results {
    let workload = options.workload();
    let topics = Topics::new(broker, workload.partitions);
    let source = format!("bench-{}-source", std::process::id());
    topics.create(&source);
    if !workload.live() {
        eprintln!("filling {source}: {workload}");
        workload::send(broker, &source, &workload, std::time::Instant::now());
    }
    let mut results = Results::new(&workload, runners);
    for pair in 0..options.pairs {
        eprintln!("pair {} of {}", pair + 1, options.pairs);
        for step in 0..runners.len() {
            // Alternating order: whatever drifts, drifts for all.
            let n = if pair % 2 == 0 { step } else { runners.len() - 1 - step };
            let cost: Cost = measure::run(broker, &topics, &source, &workload, &runners[n]);
            eprintln!("  {:<24} {cost}", runners[n].name);
            results.add(n, cost);
        }
    }
    topics.delete(&source);
    results
}
