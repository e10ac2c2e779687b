//! What a decision costs end to end: `watermaster run` beside loops that consume and produce and decide nothing.
//!
//! Needs a broker: `WATERMASTER_TEST_BROKER=localhost:9092 cargo bench --bench end_to_end` (`scripts/bench` starts one, and tells
//! of all options with `--help`). All forward the same records on the same broker, in turn, in alternating order.
//!
//! - `bare.rs`: the loops
//! - `runner.rs`, `process.rs`: how each program is started, and what it takes while it runs
//! - `cost.rs`, `results.rs`: CPU, time and memory of a run, and ratios pair by pair
//! - `latency.rs`: how long a record is on its way
//! - `backlog.rs`: what a delayed record takes in memory
//! - `scale.rs`: curves
//! - `workload.rs`, `topics.rs`, `turns.rs`: what is forwarded, from where, and when
//! - `figures.rs`, `table.rs`, `report.rs`: medians, tables, and what is kept as JSON

mod backlog;
mod bare;
mod cost;
mod figures;
mod latency;
mod options;
mod process;
mod report;
mod results;
mod runner;
mod scale;
mod table;
mod topics;
mod turns;
mod workload;

use clap::Parser as _;

use options::Options;
use report::Report;
use results::Results;

fn main() {
    let options = Options::parse();
    if let Some(task) = options.bare_task() {
        return bare::run(&task);
    }
    let refused = options.refused().map(str::to_owned);
    let broker = std::env::var("WATERMASTER_TEST_BROKER");
    let missing = "end_to_end needs a broker: set WATERMASTER_TEST_BROKER, or use scripts/bench".to_owned();
    let broker = match refused.map_or(broker.map_err(|_| missing), Err) {
        Ok(broker) => broker,
        Err(reason) => {
            eprintln!("{reason}");
            std::process::exit(2);
        }
    };
    let report = Report::new(options.json.clone());
    if options.latency {
        latency::sweep(&broker, &options, &report);
    } else if options.backlog {
        backlog::measure(&broker, &options, &[options.workload().records], &report);
    } else if let Some(scale) = &options.scale {
        scale::measure(&broker, &options, scale, &report);
    } else {
        compare(&broker, &options, &report);
    }
}

/// Prints what all programs cost.
fn compare(broker: &str, options: &Options, report: &Report) {
    let (workload, runners) = (options.workload(), options.runners(options.commit_interval()));
    let costs = cost::compare(broker, &workload, &runners, options.pairs(), false);
    let results = Results::new(&workload, &runners, costs);
    report.add("cost", results.json());
    println!("\n{}", results.workload());
    println!("Medians; ratios to the loop of the same delivery, pair by pair: median (least–largest).\n");
    table::print(1, &results::HEADS, &results.rows());
    results.turned().iter().for_each(|line| println!("{line}"));
}
