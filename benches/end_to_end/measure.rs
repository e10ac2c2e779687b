//! What a run costs.

use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::bare;
use crate::runner::{Route, Runner, Start};
use crate::topics::{Probe, Topics};
use crate::workload::{self, Workload};

const LONGEST: Duration = Duration::from_secs(3600);

/// One run, from its start until all records are committed.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Cost {
    /// User and system time of the whole process.
    pub cpu_seconds: f64,
    pub wall_seconds: f64,
    /// The most that was resident at once.
    pub peak_bytes: f64,
    /// How long a round took on average; 0 for others than watermaster.
    pub round_seconds: f64,
    /// Which part was delayed or rejected; 0 for others than watermaster.
    pub turned: f64,
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cost { cpu_seconds, wall_seconds, peak_bytes, .. } = self;
        write!(f, "CPU {cpu_seconds:.2} s, wall {wall_seconds:.2} s, peak {:.1} MiB", peak_bytes / 1024.0 / 1024.0)
    }
}

/// Runs a forwarder until all records have arrived, and it says that all are committed if it says so at all.
pub fn run(broker: &str, topics: &Topics, source: &str, workload: &Workload, runner: &Runner) -> Cost {
    let target = format!("bench-{}-{}", std::process::id(), unique());
    let dead_letter = format!("{target}-dead");
    // What comes while it runs comes to a topic of its own.
    let own = format!("{target}-source");
    let source = if workload.live() { own.as_str() } else { source };
    let made = [Some(target.as_str()), Some(&dead_letter), workload.live().then_some(source)];
    made.iter().flatten().for_each(|topic| topics.create(topic));
    let route = Route { broker, source, target: &target, dead_letter: &dead_letter };
    let cost = thread::scope(|scope| {
        let Start { mut command, admin, _folder } = runner.start(workload, route);
        let began = Instant::now();
        let mut child = Running(command.spawn().expect("the forwarder starts"));
        let mut said = BufReader::new(child.0.stdout.take().expect("it is a pipe"));
        if workload.live() {
            scope.spawn(|| {
                thread::sleep(workload::LEAD);
                workload::send(broker, source, workload, Instant::now());
            });
        }
        if runner.bare() {
            await_done(&mut said);
        } else {
            await_arrival(&topics.probe(), route, workload, &mut child);
            await_commit(admin, workload);
        }
        Cost {
            wall_seconds: began.elapsed().as_secs_f64(),
            cpu_seconds: cpu_seconds(&child.0),
            peak_bytes: peak_bytes(&child.0),
            round_seconds: admin.map_or(0.0, |port| {
                scraped(port, "watermaster_round_seconds_sum") / scraped(port, "watermaster_round_seconds_count")
            }),
            turned: admin.map_or(0.0, |port| {
                let turned = scraped(port, "watermaster_delayed_total") + scraped(port, "watermaster_rejected_total");
                turned / workload.records as f64
            }),
        }
    });
    made.iter().flatten().for_each(|topic| topics.delete(topic));
    cost
}

fn unique() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A process that ends with its run, be it by a panic.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

fn await_done(said: &mut BufReader<ChildStdout>) {
    let mut line = String::new();
    said.read_line(&mut line).expect("it says something");
    assert_eq!(line.trim(), bare::DONE, "the loop failed");
}

/// Partition by partition: what came from one goes to the same one of either topic. Markers of transactions count as
/// offsets too, so it may not be over yet.
fn await_arrival(probe: &Probe, route: Route<'_>, workload: &Workload, child: &mut Running) {
    let began = Instant::now();
    let mut pause = || {
        assert!(began.elapsed() < LONGEST, "the forwarder takes too long");
        assert!(child.0.try_wait().expect("it is a child").is_none(), "the forwarder ended");
        thread::sleep(Duration::from_millis(20));
    };
    let arrived = |partition| probe.end(route.target, partition) + probe.end(route.dead_letter, partition);
    let sent = || probe.partitions().map(|partition| probe.end(route.source, partition)).sum::<u64>();
    while sent() < workload.records {
        pause();
    }
    for partition in probe.partitions() {
        while arrived(partition) < probe.end(route.source, partition) {
            pause();
        }
    }
}

fn await_commit(admin: Option<u16>, workload: &Workload) {
    let decided = |port| scraped(port, "watermaster_records_total") as u64;
    while admin.is_some_and(|port| decided(port) < workload.records) {
        thread::sleep(Duration::from_millis(5));
    }
}

/// The sum of the samples of watermaster's own scrape whose line begins so.
pub fn scraped(port: u16, beginning: &str) -> f64 {
    let scrape = ureq::get(format!("http://127.0.0.1:{port}/metrics")).call().expect("it is watched");
    let text = scrape.into_body().read_to_string().expect("text");
    let values = text.lines().filter(|line| line.starts_with(beginning)).filter_map(|line| line.rsplit(' ').next());
    values.map(|value| value.parse::<f64>().expect("a number")).sum()
}

/// User and system time of a running process, from /proc.
fn cpu_seconds(child: &Child) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("Linux's /proc");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a command in brackets").split_whitespace().collect();
    let ticks: f64 = fields[11..13].iter().map(|field| field.parse::<f64>().expect("ticks")).sum();
    ticks / 100.0
}

/// The most that was resident at once.
fn peak_bytes(child: &Child) -> f64 {
    memory(child, "VmHWM:")
}

/// A line of /proc's status, in bytes.
pub fn memory(child: &Child, name: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).expect("Linux's /proc");
    let line = status.lines().find(|line| line.starts_with(name)).expect("it is told");
    let kibibytes: f64 = line.split_whitespace().nth(1).expect("a figure").parse().expect("a number");
    kibibytes * 1024.0
}
