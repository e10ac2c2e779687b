//! What a run costs.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::process::Running;
use crate::runner::Runner;
use crate::topics::{Lane, Made, Probe, Topics};
use crate::turns::in_turn;
use crate::workload::{self, Workload};

/// The longest that a run may take.
const LONGEST: Duration = Duration::from_secs(3600);
/// How long it is watched with nothing to do.
const IDLE: Duration = Duration::from_secs(10);

/// One run, from its start until all records are committed.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Cost {
    /// User and system time of the whole process.
    pub cpu_seconds: f64,
    pub wall_seconds: f64,
    /// From the first arrivals on: what a start takes is left out, and what had arrived by then, too.
    pub records_per_second: f64,
    /// The most that was resident at once.
    pub peak_bytes: f64,
    /// How long a round took on average; 0 for others than watermaster.
    pub round_seconds: f64,
    /// Which part was delayed or rejected; 0 for others than watermaster.
    pub turned: f64,
    /// Which part of a core is used when all is forwarded and nothing more comes, if that was asked for.
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

/// What each of them costs, pair by pair.
pub fn compare(broker: &str, workload: &Workload, runners: &[Runner], pairs: usize, idle: bool) -> Vec<Vec<Cost>> {
    let topics = Topics::new(broker, workload.partitions);
    // What comes while it runs comes to a topic of its own.
    let filled = (!workload.live()).then(|| topics.filled(workload));
    in_turn(pairs, runners, |runner| {
        let own = workload.live().then(|| topics.sources(workload.services));
        let sources = own.as_ref().or(filled.as_ref()).expect("one of both");
        let cost = run(&topics, sources, workload, runner, idle);
        eprintln!("{cost}");
        cost
    })
}

/// Runs a forwarder until all records have arrived, and it says that all are committed if it says so at all.
fn run(topics: &Topics, sources: &Made<'_>, workload: &Workload, runner: &Runner, idle: bool) -> Cost {
    let (_made, lanes) = topics.behind(sources);
    thread::scope(|scope| {
        let began = Instant::now();
        let mut running = runner.start(workload, topics.broker(), &lanes);
        if workload.live() {
            scope.spawn(|| {
                thread::sleep(workload::LEAD);
                workload::send(topics.broker(), &lanes[0].source, workload, Instant::now());
            });
        }
        let flowing = scope.spawn(|| Flowing::awaited(&topics.probe(), &lanes));
        if runner.bare() {
            running.await_done();
        } else {
            await_arrival(&topics.probe(), &lanes, workload, &mut running);
            if running.tells() {
                await_commit(topics, &lanes, &mut running);
            }
        }
        let (ended, cpu_seconds) = (Instant::now(), running.cpu_seconds());
        let flowing = flowing.join().expect("something arrived");
        let [delayed, rejected, rounds, seconds] =
            ["delayed_total", "rejected_total", "round_seconds_count", "round_seconds_sum"]
                .map(|name| running.scraped(&format!("watermaster_{name}")));
        Cost {
            cpu_seconds,
            wall_seconds: ended.duration_since(began).as_secs_f64(),
            records_per_second: flowing.rate(workload.records, ended),
            peak_bytes: running.peak_bytes(),
            round_seconds: seconds / rounds.max(1.0),
            turned: (delayed + rejected) / workload.records as f64,
            idle: (idle && !runner.bare()).then(|| idle_part(&running)),
        }
    })
}

/// When something had arrived, and how much.
struct Flowing {
    at: Instant,
    arrived: u64,
}

impl Flowing {
    fn awaited(probe: &Probe, lanes: &[Lane]) -> Flowing {
        let began = Instant::now();
        loop {
            let at = Instant::now();
            let topics = lanes.iter().flat_map(|lane| [&lane.target, &lane.dead_letter]);
            let arrived = topics.flat_map(|topic| probe.ends(topic)).sum();
            if arrived > 0 {
                return Flowing { at, arrived };
            }
            assert!(began.elapsed() < LONGEST, "nothing arrives");
            thread::sleep(often(lanes, probe));
        }
    }

    fn rate(&self, records: u64, ended: Instant) -> f64 {
        records.saturating_sub(self.arrived) as f64 / ended.duration_since(self.at).as_secs_f64()
    }
}

/// Answering for many partitions takes the broker a while, which those who forward would have to wait for.
fn often(lanes: &[Lane], probe: &Probe) -> Duration {
    Duration::from_millis(20 + lanes.len() as u64 * probe.partitions() / 10)
}

/// Partition by partition: what came from one goes to the same one of either topic. Markers of transactions count as
/// offsets too, so it may not be over yet.
fn await_arrival(probe: &Probe, lanes: &[Lane], workload: &Workload, running: &mut Running) {
    let began = Instant::now();
    let often = often(lanes, probe);
    let mut pause = || {
        assert!(began.elapsed() < LONGEST, "the forwarder takes too long");
        running.assert_alive();
        thread::sleep(often);
    };
    let sent = || lanes.iter().flat_map(|lane| probe.ends(&lane.source)).sum::<u64>();
    while sent() < workload.records {
        pause();
    }
    for lane in lanes {
        let asked = probe.ends(&lane.source);
        let arrived = || {
            let both = probe.ends(&lane.target).into_iter().zip(probe.ends(&lane.dead_letter));
            both.zip(&asked).all(|((target, dead), &asked)| target + dead >= asked)
        };
        while !arrived() {
            pause();
        }
    }
}

/// Until the group has committed all that is in the sources. Watermaster tells it too, but with many clients its sums are of
/// some rounds ago, and each scrape takes CPU.
fn await_commit(topics: &Topics, lanes: &[Lane], running: &mut Running) {
    for lane in lanes {
        let probe = topics.probe_of(&lane.group(&lanes[0]));
        let asked = probe.ends(&lane.source);
        while probe.committed(&lane.source).into_iter().zip(&asked).any(|(committed, &asked)| committed < asked) {
            running.assert_alive();
            thread::sleep(often(lanes, &probe) / 4);
        }
    }
}

fn idle_part(running: &Running) -> f64 {
    let (before, began) = (running.cpu_seconds(), Instant::now());
    thread::sleep(IDLE);
    (running.cpu_seconds() - before) / began.elapsed().as_secs_f64()
}
