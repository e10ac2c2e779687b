//! Measures the memory that a delayed record takes: resident memory with all records held, minus that with none.

use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;

use crate::figures::{MIB, Spread};
use crate::report::{Report, free_memory};
use crate::topics::{CreatedTopics, Topics};
use crate::{options::Options, process::Running, runner::Runner, table, turns::in_turn, workload::Workload};

/// Time for the program to start and to read its first records.
const STARTUP_TIME: Duration = Duration::from_secs(5);
/// The run ends when the number of held records has not grown for this long.
const GROWTH_TIMEOUT: Duration = Duration::from_secs(30);
/// Free memory left to other processes, such as the broker's page cache, unless `--memory` sets a bound.
const RESERVED_BYTES: f64 = 3.0 * 1024.0 * MIB;

const HEADS: [&str; 7] =
    ["records", "", "held", "MiB with none held", "MiB with all held", "peak MiB", "bytes per record"];

/// Held records of one run, and the memory of the process in bytes.
#[derive(Debug, Clone, Copy, Serialize)]
struct Memory {
    held: f64,
    resident: f64,
    peak: f64,
}

/// Prints the bytes per held record for each number of records.
pub fn measure(broker: &str, options: &Options, points: &[u64], report: &Report) {
    let topics = Topics::new(broker, options.workload().partitions);
    let bound = options.memory.map_or(free_memory() - RESERVED_BYTES, |gibibytes| gibibytes * 1024.0 * MIB);
    let bounded = format!("or until the memory of Watermaster reaches {:.1} GiB", bound / 1024.0 / MIB);
    let runners = options.runners(options.commit_interval());
    let mut rows = Vec::new();
    for &records in points {
        let workload = Workload { records, ..options.workload() };
        let (empty_source, filled) = (topics.sources(1), topics.filled(&workload));
        let runs = in_turn(options.pairs(), &runners, |runner| {
            let empty = run(&topics, &empty_source, &Workload { records: 0, ..workload.clone() }, runner, bound);
            let full = run(&topics, &filled, &workload, runner, bound);
            eprintln!("{:.0} held in {:.0} MiB", full.held, full.resident / MIB);
            [empty, full]
        });
        for (runner, runs) in runners.iter().zip(&runs) {
            let each =
                Spread::of(runs.iter().map(|[empty, full]| (full.resident - empty.resident) / full.held.max(1.0)));
            let at = |of: fn(&[Memory; 2]) -> f64| Spread::of(runs.iter().map(of)).median;
            let mib = |of: fn(&[Memory; 2]) -> f64| format!("{:.1}", at(of) / MIB);
            rows.push(vec![
                records.to_string(),
                runner.name.clone(),
                format!("{:.0}", at(|runs| runs[1].held)),
                mib(|runs| runs[0].resident),
                mib(|runs| runs[1].resident),
                mib(|runs| runs[1].peak),
                each.text(0),
            ]);
            let result = json!({
                "workload": workload.to_string(), "name": runner.name, "memory_bound": bound,
                "bytes_per_record": each, "runs": runs,
            });
            report.add("backlog", result);
        }
    }
    let Workload { bytes, clients, partitions, .. } = options.workload();
    println!(
        "\nRecords of {bytes} bytes, {clients} clients, each in one of {partitions} partitions; all held, {bounded}.\n"
    );
    table::print(2, &HEADS, &rows);
}

fn run(topics: &Topics, sources: &CreatedTopics<'_>, workload: &Workload, runner: &Runner, bound: f64) -> Memory {
    let (_created, routes) = topics.outputs_for(sources);
    let mut running = runner.start(workload, topics.broker(), &routes);
    let held = wait_until_held(&mut running, workload, bound);
    Memory { held, resident: running.resident_bytes(), peak: running.peak_bytes() }
}

/// Waits until all records are held or the memory bound is reached; returns the number of held records.
fn wait_until_held(running: &mut Running, workload: &Workload, bound: f64) -> f64 {
    let began = Instant::now();
    let (mut most, mut since) = (0.0, began);
    loop {
        running.assert_alive();
        let held = running.metric_sum("watermaster_backlog_records");
        if held > most {
            (most, since) = (held, Instant::now());
        }
        // One record may be admitted before the backlog starts, and one in the next cycle.
        let all = held + 2.0 >= workload.records as f64 && began.elapsed() >= STARTUP_TIME;
        if all || running.resident_bytes() >= bound {
            return held;
        }
        if since.elapsed() >= GROWTH_TIMEOUT {
            eprint!("the backlog stopped growing at {held:.0} records: ");
            return held;
        }
        thread::sleep(Duration::from_millis(100));
    }
}
