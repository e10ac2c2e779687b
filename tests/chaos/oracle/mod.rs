//! The oracle's process: reads sources, target and dead-letter topic during the run, and once more from the beginning
//! after it.
//!
//! The oracle shares no code with the program and reads past the proxies. Commands on standard input, one on a line:
//! `instances N` (the number of instances that may admit records from now on), `control topic lost`, and `judge N` (the
//! number of records known to be in the sources). The oracle reports its progress five times a second; its final report
//! has the field `verdict`.

mod judge;
mod kafka;
mod pass;
mod promise;

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::children;
use crate::plan::{Plan, now_ms};
use judge::judge;
use kafka::Reader;
use pass::Pass;
use promise::Admitting;

/// The times at which the brokers appended the target's records, for a plan with a steady load: beside the plan.
pub const TIMES_FILE: &str = "append-times.txt";
const REPORT_INTERVAL: Duration = Duration::from_millis(200);
const PARTITION_INTERVAL: Duration = Duration::from_secs(3);

pub fn run(file: &Path) {
    let plan = Plan::read(file);
    let commands = children::commands(None);
    let mut live = Pass::new(&plan);
    let mut reader = Reader::new(&plan);
    let mut admitting = Admitting::default();
    let (mut reported, mut looked) = (Instant::now(), Instant::now());
    let acknowledged = loop {
        reader.read(&mut live, Duration::from_millis(100));
        if reported.elapsed() > REPORT_INTERVAL {
            reported = Instant::now();
            println!("{}", live.report());
        }
        if looked.elapsed() > PARTITION_INTERVAL {
            looked = Instant::now();
            reader.look_for_partitions();
        }
        match commands.try_recv().as_deref() {
            Ok(command) if command.starts_with("judge ") => break command["judge ".len()..].parse().expect("a count"),
            Ok(command) => {
                let count = command.strip_prefix("instances ");
                admitting.instances.extend(count.map(|n| (now_ms(), n.parse().unwrap_or(0))));
                admitting.losses.extend((command == "control topic lost").then(now_ms));
            }
            Err(_) => {}
        }
    };
    let mut last = Pass::new(&plan);
    let ended = kafka::read_all(&plan, &mut last, Duration::from_secs(180));
    // The live pass catches up with records that became visible after its last read.
    let caught_up = Instant::now();
    while live.records() < last.records() && caught_up.elapsed() < Duration::from_secs(20) {
        reader.read(&mut live, Duration::from_millis(100));
    }
    if live.records() < last.records() {
        reader.print_state();
    }
    let mut verdict = judge(&plan, &live, &last, acknowledged);
    if let Err(error) = ended {
        verdict.add("unreadable", error.to_string());
    }
    kafka::check_ends(&plan, &last, &mut verdict);
    let times = promise::append_times(&last);
    promise::check(&plan, &times, &admitting, &mut verdict);
    if plan.steady {
        let lines: String = times.iter().map(|time| format!("{time}\n")).collect();
        std::fs::write(file.with_file_name(TIMES_FILE), lines).expect("the run's directory can be written");
    }
    println!("{}", json!({ "verdict": verdict }));
}
