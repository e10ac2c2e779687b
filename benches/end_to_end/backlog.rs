//! What a delayed record takes in memory: resident with all records held, and with none.

use std::thread;
use std::time::{Duration, Instant};

use crate::measure::{Running, memory, scraped};
use crate::options::Options;
use crate::runner::{Route, Runner};
use crate::topics::Topics;
use crate::workload::{self, Workload};

/// Prints bytes per record, of each run.
pub fn measure(broker: &str, options: &Options, runners: &[Runner]) {
    let workload = options.workload();
    let topics = Topics::new(broker, workload.partitions);
    println!("{workload}");
    for runner in runners {
        for pair in 0..options.pairs {
            let [empty, full] = [0, workload.records].map(|records| {
                let workload = Workload { records, ..workload.clone() };
                run(broker, &topics, &workload, runner, &format!("{pair}-{records}"))
            });
            println!(
                "{}: {:.1} MiB with none, {:.1} MiB with all (peak {:.1}): {:.0} bytes a record, {:.0} of all memory",
                runner.name,
                empty.resident / MIB,
                full.resident / MIB,
                full.peak / MIB,
                (full.resident - empty.resident) / workload.records as f64,
                full.resident / workload.records as f64,
            );
        }
    }
}

const MIB: f64 = 1024.0 * 1024.0;

struct Memory {
    resident: f64,
    peak: f64,
}

fn run(broker: &str, topics: &Topics, workload: &Workload, runner: &Runner, name: &str) -> Memory {
    let target = format!("bench-{}-{}-{name}", std::process::id(), runner.name.replace(' ', "-"));
    let (source, dead_letter) = (format!("{target}-source"), format!("{target}-dead"));
    let made = [&target, &source, &dead_letter];
    made.into_iter().for_each(|topic| topics.create(topic));
    workload::send(broker, &source, workload, Instant::now());
    let route = Route { broker, source: &source, target: &target, dead_letter: &dead_letter };
    let mut start = runner.start(workload, route);
    let child = Running(start.command.spawn().expect("the forwarder starts"));
    // What it takes to start, and then until all are read; one may have gone.
    thread::sleep(Duration::from_secs(5));
    let port = start.admin.expect("watermaster tells of itself");
    while scraped(port, "watermaster_backlog_records") + 2.0 < workload.records as f64 {
        thread::sleep(Duration::from_millis(100));
    }
    let (resident, peak) = (memory(&child.0, "VmRSS:"), memory(&child.0, "VmHWM:"));
    drop(child);
    made.into_iter().for_each(|topic| topics.delete(topic));
    Memory { resident, peak }
}
