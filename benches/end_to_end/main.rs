//! Measures the cost of a decision end to end: compares `watermaster run` with bare loops, which consume and produce
//! without deciding anything.
//!
//! Needs a broker: `WATERMASTER_TEST_BROKER=localhost:9092 cargo bench --bench end_to_end`. `scripts/bench` starts one,
//! and explains all options with `--help`. All programs forward the same records on the same broker, in turn, in
//! alternating order.
//!
//! - `options.rs`, `axis.rs`: the command line, and the axis and points of `--scale`
//! - `workload.rs`, `topics.rs`: the records and their topics
//! - `bare.rs`: the bare loops
//! - `runner.rs`, `process.rs`, `turns.rs`: the programs, a running process, and the order of the runs
//! - `cost.rs`, `results.rs`: CPU, time and memory of a run, and ratios pair by pair
//! - `latency.rs`, `backlog.rs`, `scale.rs`: latency, memory per delayed record, and costs at each point of an axis
//! - `figures.rs`, `table.rs`, `report.rs`: medians, tables, and the JSON report

mod axis;
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
    let conflict = options.conflict().map(str::to_owned);
    let broker = std::env::var("WATERMASTER_TEST_BROKER");
    let missing = "end_to_end needs a broker: set WATERMASTER_TEST_BROKER, or use scripts/bench".to_owned();
    let broker = match conflict.map_or(broker.map_err(|_| missing), Err) {
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

/// Prints the costs of all programs.
fn compare(broker: &str, options: &Options, report: &Report) {
    let (workload, runners) = (options.workload(), options.runners(options.commit_interval()));
    let costs = cost::compare(broker, &workload, &runners, options.pairs(), false);
    let results = Results::new(&workload, &runners, costs);
    report.add("cost", results.json());
    println!("\n{}", results.workload());
    println!("Medians; ratios to the loop of the same delivery, pair by pair: median (smallest–largest).\n");
    table::print(1, &results::HEADS, &results.rows());
    results.delayed_or_rejected().iter().for_each(|line| println!("{line}"));
}
