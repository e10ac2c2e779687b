//! `count CASE CLIENTS OPERATIONS`: runs the operations of a case and prints the time of one.
//!
//! `scripts/instructions` runs it under callgrind; alone, it gives the curves of `docs/design/performance.md`. It is a binary
//! and not a bench, so that it builds without the dependencies of benches and tests.

#[path = "mod.rs"]
mod workload;

use std::{env, fs, process, time::Duration};

use watermaster_core::policy::{Mode, Policy};
use workload::{CYCLE, Case, Service, policy};

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let numbers: Option<Vec<u64>> =
        arguments.iter().skip(1).map(|number| number.replace('_', "").parse().ok()).collect();
    let (Some(case), Some(&[clients, operations])) = (arguments.first(), numbers.as_deref()) else { usage() };
    let clients = clients as usize;
    if case == "pile_up" {
        return pile_up(clients, operations);
    }
    let Some(&(_, case)) = Case::ALL.iter().find(|(name, _)| name == case) else { usage() };
    let before = resident_kib();
    let mut service = Service::new(case, clients);
    let memory = (resident_kib() - before) as f64 * 1024.0 / clients as f64;
    let took = service.run(operations);
    println!("{}, {memory:.0} bytes a client", each(took));
}

/// Measures a backlog that only grows.
fn pile_up(clients: usize, records: u64) {
    let bounds = (u64::MAX, u64::MAX, CYCLE * 1_000_000);
    let (queue_capacity, queue_bytes, max_delay) = bounds;
    let policy = Policy { queue_capacity, queue_bytes, max_delay: Some(max_delay), ..policy(Mode::Shape, 1, clients) };
    let mut service = Service::with(Case::Delayed, policy, clients);
    let before = resident_kib();
    let took = service.pile_up(records);
    let memory = (resident_kib() - before) as f64 * 1024.0 / records as f64;
    println!("{}, {memory:.0} bytes a record", each(took));
}

/// Formats the median, which other programs on the processor disturb little, and the tenth percentile.
fn each(mut took: Vec<Duration>) -> String {
    took.sort_unstable();
    let at = |part: usize| took.get(took.len() / part).map_or(0, Duration::as_nanos);
    format!("{} ns each (tenth {})", at(2), at(10))
}

/// Returns the resident memory of the process.
fn resident_kib() -> i64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0)
}

fn usage() -> ! {
    let cases: Vec<&str> = Case::ALL.iter().map(|(name, _)| *name).collect();
    eprintln!("usage: count {}|pile_up CLIENTS OPERATIONS", cases.join("|"));
    process::exit(2)
}
