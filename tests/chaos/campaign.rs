//! A constant load above the capacity, and one fault at a time: how much of the capacity the group uses around each
//! fault, and how soon it uses all of it again.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{error::Error, fs, sync::Arc};

use crate::args::Args;
use crate::faults::find;
use crate::journal::{Entry, summary};
use crate::plan::{Mode, Plan};
use crate::schedule::inject;
use crate::support::{generator::Random, wait::let_the_fault_last};
use crate::world::{Site, World};

/// The faults, in this order; then from the beginning.
const FAULTS: [&str; 11] = [
    "join", "kill_same_id", "pause_short", "control_leader_kill", "leave", "control_away_5s", "kill_new_id",
    "pause_session", "broker_kill", "control_away_30s", "pause_transaction",
];
/// Cycles without a fault at the start: in the first ones the brokers have just started, and rounds take long.
const WARM_UP: u64 = 8;
const QUIET: u64 = 4;
/// Cycles after each fault.
const AFTER: u64 = 3;
/// The most records of a window by append time, and the least that are used, in percent of the capacity.
const MOST_PERCENT: u64 = 103;
const LEAST_PERCENT: u64 = 97;
const AGAIN_PERCENT: u64 = 90;

/// The append times of the target's records in ms since 1970, ascending.
struct Appended(Vec<i64>);

impl Appended {
    /// Reads the times that the oracle wrote.
    fn read(dir: &Path) -> Result<Appended, Box<dyn Error>> {
        let text = fs::read_to_string(dir.join(crate::oracle::TIMES_FILE))?;
        Ok(Appended(text.lines().map(str::parse).collect::<Result<_, _>>()?))
    }

    /// The number of records in (from, to].
    fn count(&self, from: i64, to: i64) -> u64 {
        let until = |time| self.0.partition_point(|at| *at <= time);
        (until(to) - until(from)) as u64
    }

    /// The most records in any window of this length that ends in [from, to].
    fn most(&self, from: i64, to: i64, length: i64) -> u64 {
        let ends = self.0.iter().filter(|at| (from..=to).contains(*at));
        ends.map(|&end| self.count(end - length, end)).max().unwrap_or(0)
    }

    /// The time from `from` until a window of this length begins that has at least so many records.
    fn until(&self, from: i64, length: i64, least: u64) -> Option<i64> {
        let last = *self.0.last()? - length;
        (from..=last).step_by(50).find(|&start| self.count(start, start + length) >= least).map(|start| start - from)
    }
}

/// Plays the campaign, and tells whether all checks passed.
pub fn run(args: &Args, site: &Arc<Site>, dir: &Path) -> Result<bool, Box<dyn Error>> {
    let plan = args.plan(site.cluster.bootstrap(), Mode::Shape, true);
    let dir = dir.join(&plan.group);
    let world = World::start(plan, Arc::clone(site), &dir, args.instances, None)?;
    let cycle = Duration::from_millis(world.plan.cycle_ms);
    let mut random = Random(args.seed);
    world.watched(|| {
        let_the_fault_last(cycle * (WARM_UP + QUIET) as u32);
        let end = Instant::now() + Duration::from_secs_f64(args.minutes * 60.0);
        let is_wanted = |name: &&&str| args.faults.is_empty() || args.faults.iter().any(|wanted| wanted == **name);
        for kind in FAULTS.iter().filter(is_wanted).cycle().filter_map(|name| find(name)) {
            if Instant::now() > end {
                break;
            }
            inject(&world, kind, &mut random);
            let_the_fault_last(cycle * AFTER as u32);
        }
        world.quiet()
    })?;
    let verdict = world.judge()?;
    let table = figures(&world, &Appended::read(&dir)?);
    let (text, good) = summary(&verdict, &world.journal.anomalies());
    let text = format!("seed {}, {} instances\n{table}{text}", args.seed, args.instances);
    fs::write(dir.join("report.txt"), &text)?;
    println!("{text}");
    Ok(good)
}

/// The figures of each fault as a table. Figures that break a promise become anomalies.
fn figures(world: &World, appended: &Appended) -> String {
    let (plan, entries) = (&world.plan, world.journal.entries());
    let (capacity, cycle) = (plan.capacity, plan.cycle_ms as i64);
    let percent = |records: u64| records as f64 * 100.0 / capacity as f64;
    let start = entries.first().map_or(i64::MAX, |entry| entry.began as i64);
    let quiet = (start - QUIET as i64 * cycle, start);
    let used = appended.count(quiet.0, quiet.1) / QUIET;
    let mut text = format!(
        "capacity {capacity} in {} s; without a fault {:.1} % are used, the fullest window holds {:.1} %\n{:<20} {:<13} \
         {:>7} {:>9} {:>9} {:>9}\n",
        cycle / 1000,
        percent(used),
        percent(appended.most(quiet.0, quiet.1, cycle - 1)),
        "fault",
        "target",
        "lasted",
        "fullest %",
        "used %",
        "again s"
    );
    if used * 100 < capacity * LEAST_PERCENT {
        world.journal.anomaly("unused", format!("{:.1} % used without a fault", percent(used)));
    }
    let ends = entries.iter().skip(1).map(|next| next.began as i64);
    let last = entries.last().map_or(0, |entry| entry.ended as i64 + AFTER as i64 * cycle);
    for (entry, end) in entries.iter().zip(ends.chain([last])) {
        let row = row(plan, entry, end, appended);
        let again = row.again.map_or("never".to_owned(), |ms| format!("{:.1}", ms as f64 / 1000.0));
        let effect = if entry.effect.is_observed() { "" } else { "  (no effect)" };
        let lasted = (entry.ended - entry.began) as f64 / 1000.0;
        let (fullest, used) = (percent(row.most), row.used * 100.0);
        let line = format!(
            "{:<20} {:<13} {lasted:>7.1} {fullest:>9.1} {used:>9.1} {again:>9}{effect}",
            entry.kind, entry.target
        );
        if row.most * 100 > capacity * MOST_PERCENT {
            world.journal.anomaly("promise", line.clone());
        }
        if row.again.is_none_or(|ms| ms > 2 * cycle) {
            world.journal.anomaly("slow", line.clone());
        }
        writeln!(text, "{line}").expect("writing to a String does not fail");
    }
    text
}

struct Row {
    /// The most records in any window from the fault on.
    most: u64,
    /// The part of the capacity that was used from the fault to the next one.
    used: f64,
    /// The time in ms until 90 % of a window are used again, from the moment at which Kafka has noticed the fault.
    again: Option<i64>,
}

fn row(plan: &Plan, entry: &Entry, end: i64, appended: &Appended) -> Row {
    let (began, cycle) = (entry.began as i64, plan.cycle_ms as i64);
    let session = if entry.kind.starts_with("kill_") { plan.session_ms as i64 } else { 0 };
    let noticed = (began + session).max(entry.ended as i64);
    let available = plan.capacity as f64 * (end - began) as f64 / cycle as f64;
    Row {
        // The broker truncates times to milliseconds: records less than this apart were certainly within a cycle.
        most: appended.most(began, end, cycle - 1),
        used: appended.count(began, end) as f64 / available,
        again: appended.until(noticed, cycle, plan.capacity * AGAIN_PERCENT / 100),
    }
}
