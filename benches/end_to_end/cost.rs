//! Measures CPU, time and memory of a run.

use std::time::{Duration, Instant};
use std::{fmt, thread};

use serde::Serialize;

use crate::topics::{CreatedTopics, Probe, Route, Topics};
use crate::workload::{self, Workload};
use crate::{process::Running, runner::Runner, turns::in_turn};

/// The time after which a run counts as failed.
const RUN_TIMEOUT: Duration = Duration::from_secs(3600);
/// The time for which an idle program is measured.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// The cost of one run, from its start until all records are committed.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Cost {
    /// User and system time of the whole process.
    pub cpu_seconds: f64,
    pub wall_seconds: f64,
    /// Throughput after the first arrival. Excludes the time of the start and the records that had arrived by then.
    pub records_per_second: f64,
    /// Peak resident memory.
    pub peak_bytes: f64,
    /// Mean duration of a commit round; 0 for programs other than Watermaster.
    pub round_seconds: f64,
    /// Fraction of the records that were delayed or rejected; 0 for programs other than Watermaster.
    pub delayed_or_rejected: f64,
    /// Fraction of a core used once all records are forwarded, if requested.
    pub idle: Option<f64>,
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cost { cpu_seconds, wall_seconds, records_per_second, peak_bytes, .. } = self;
        write!(
            f,
            "CPU {cpu_seconds:.2} s, wall {wall_seconds:.2} s, {records_per_second:.0} records/s, peak {:.1} MiB",
            peak_bytes / 1024.0 / 1024.0
        )?;
        self.idle.map_or(Ok(()), |idle| write!(f, ", idle {:.2} %", idle * 100.0))
    }
}

/// Measures the costs of each program, pair by pair.
pub fn compare(broker: &str, workload: &Workload, runners: &[Runner], pairs: usize, idle: bool) -> Vec<Vec<Cost>> {
    let topics = Topics::new(broker, workload.partitions);
    // A live workload is sent during each run, so each run needs a source of its own.
    let filled = (!workload.live()).then(|| topics.filled(workload));
    in_turn(pairs, runners, |runner| {
        let own = workload.live().then(|| topics.sources(workload.services));
        let sources = own.as_ref().or(filled.as_ref()).expect("a workload is either live or filled beforehand");
        let cost = run(&topics, sources, workload, runner, idle);
        eprintln!("{cost}");
        cost
    })
}

/// Runs a program until all records have arrived and, where the program shows its commits, are committed.
fn run(topics: &Topics, sources: &CreatedTopics<'_>, workload: &Workload, runner: &Runner, idle: bool) -> Cost {
    let (_created, routes) = topics.outputs_for(sources);
    thread::scope(|scope| {
        let began = Instant::now();
        let mut running = runner.start(workload, topics.broker(), &routes);
        if workload.live() {
            scope.spawn(|| {
                thread::sleep(workload::LEAD);
                workload::send(topics.broker(), &routes[0].source, workload, Instant::now());
            });
        }
        let first = scope.spawn(|| FirstArrival::wait(&topics.probe(), &routes));
        if runner.bare() {
            running.wait_until_done();
        } else {
            wait_until_arrived(&topics.probe(), &routes, workload, &mut running);
            if running.has_metrics() {
                wait_until_committed(topics, &routes, &mut running);
            }
        }
        let (ended, cpu_seconds) = (Instant::now(), running.cpu_seconds());
        let first = first.join().expect("a record arrived");
        let [delayed, rejected, rounds, seconds] =
            ["delayed_total", "rejected_total", "round_seconds_count", "round_seconds_sum"]
                .map(|name| running.metric_sum(&format!("watermaster_{name}")));
        Cost {
            cpu_seconds,
            wall_seconds: ended.duration_since(began).as_secs_f64(),
            records_per_second: first.rate_since(workload.records, ended),
            peak_bytes: running.peak_bytes(),
            round_seconds: seconds / rounds.max(1.0),
            delayed_or_rejected: (delayed + rejected) / workload.records as f64,
            idle: (idle && !runner.bare()).then(|| idle_fraction(&running)),
        }
    })
}

/// The time at which records had first arrived, and the number of arrived records at that time.
struct FirstArrival {
    at: Instant,
    arrived: u64,
}

impl FirstArrival {
    fn wait(probe: &Probe, routes: &[Route]) -> FirstArrival {
        let began = Instant::now();
        loop {
            let at = Instant::now();
            let topics = routes.iter().flat_map(|route| [&route.target, &route.dead_letter]);
            let arrived = topics.flat_map(|topic| probe.ends(topic)).sum();
            if arrived > 0 {
                return FirstArrival { at, arrived };
            }
            assert!(began.elapsed() < RUN_TIMEOUT, "no record arrived");
            thread::sleep(probe_interval(routes, probe));
        }
    }

    fn rate_since(&self, records: u64, ended: Instant) -> f64 {
        records.saturating_sub(self.arrived) as f64 / ended.duration_since(self.at).as_secs_f64()
    }
}

/// The interval between probes. It grows with the number of partitions: answering for many partitions keeps the broker
/// busy, and the measured program would have to wait.
fn probe_interval(routes: &[Route], probe: &Probe) -> Duration {
    Duration::from_millis(20 + routes.len() as u64 * probe.partitions() / 10)
}

/// Waits until the outputs of each partition have as many offsets as its source; records keep their partition number.
/// Transaction markers also take offsets, so the last records may still be on their way.
fn wait_until_arrived(probe: &Probe, routes: &[Route], workload: &Workload, running: &mut Running) {
    let began = Instant::now();
    let interval = probe_interval(routes, probe);
    let mut pause = || {
        assert!(began.elapsed() < RUN_TIMEOUT, "the program did not forward all records in time");
        running.assert_alive();
        thread::sleep(interval);
    };
    let sent = || routes.iter().flat_map(|route| probe.ends(&route.source)).sum::<u64>();
    while sent() < workload.records {
        pause();
    }
    for route in routes {
        let wanted = probe.ends(&route.source);
        let arrived = || {
            let both = probe.ends(&route.target).into_iter().zip(probe.ends(&route.dead_letter));
            both.zip(&wanted).all(|((target, dead), &wanted)| target + dead >= wanted)
        };
        while !arrived() {
            pause();
        }
    }
}

/// Waits until the group has committed the ends of all sources. Watermaster's metrics are not used for this: with many
/// clients their sums lag by some rounds, and each scrape takes CPU.
fn wait_until_committed(topics: &Topics, routes: &[Route], running: &mut Running) {
    for route in routes {
        let probe = topics.probe_of(&route.group(&routes[0]));
        let wanted = probe.ends(&route.source);
        while probe.committed(&route.source).into_iter().zip(&wanted).any(|(committed, &wanted)| committed < wanted) {
            running.assert_alive();
            thread::sleep(probe_interval(routes, &probe) / 4);
        }
    }
}

fn idle_fraction(running: &Running) -> f64 {
    let (before, began) = (running.cpu_seconds(), Instant::now());
    thread::sleep(IDLE_TIME);
    (running.cpu_seconds() - before) / began.elapsed().as_secs_f64()
}
