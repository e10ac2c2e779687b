//! The runs under faults: plays a schedule on a cluster, and reports the verdict.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{error::Error, sync::Arc};

use crate::args::{Args, COMMIT_INTERVAL_MS};
use crate::faults::{Lane, find};
use crate::journal::{Entry, json_report, rows, summary, table};
use crate::schedule::{Deck, inject, run_lane};
use crate::world::{Site, World};
use crate::{plan::Plan, support::generator::Random};

/// The faults of a short run, in this order.
const SHORT: [&str; 8] = [
    "kill_same_id", "failpoint_after_offsets", "hold_end_txn", "pause_session", "cut", "txn_coordinator_kill",
    "kill_new_id", "blackhole",
];

/// Runs each requested mode, and tells whether all checks passed.
pub fn run(args: &Args, site: &Arc<Site>, dir: &Path) -> Result<bool, Box<dyn Error>> {
    let deck = Deck::new(args.seed, &args.faults);
    let mut good = true;
    let mut all = Vec::new();
    for (number, &mode) in args.modes.iter().enumerate() {
        let time = Duration::from_secs_f64(args.minutes * 60.0 / args.modes.len() as f64);
        let plan = args.plan(site.cluster.bootstrap(), mode, append_time(args, number as u64));
        let (entries, passed) = one_run(args, plan, site, dir, &deck, time)?;
        all.extend(entries);
        good &= passed;
    }
    if !args.short {
        let (complete, missing) = deck.coverage();
        if !missing.is_empty() {
            println!(
                "never took effect: {}{}",
                missing.join(", "),
                if complete { "" } else { " (the time was too short)" }
            );
        }
        good &= !complete || missing.iter().all(|name| !is_possible(args, name));
    }
    if args.modes.len() > 1 {
        println!("all runs, seed {}\n{}", args.seed, table(&all));
    }
    let faults = serde_json::json!({
        "seed": args.seed, "minutes": args.minutes, "modes": args.modes, "instances": args.instances, "rate": args.rate,
        "group_protocol": args.group_protocol, "one_at_a_time": args.one_at_a_time, "good": good,
        "session_ms": args.timeouts_ms().0, "transaction_ms": args.timeouts_ms().1,
        "commit_interval_ms": COMMIT_INTERVAL_MS,
        "times": "ms; see the legend of report.txt", "kinds": rows(&all),
    });
    std::fs::write(dir.join("faults.json"), format!("{faults:#}"))?;
    Ok(good)
}

/// Tells whether the brokers set the timestamps in the target of this run. The second half of `--mode both` has the
/// other kind of target, so that each kind of poison record is sent.
fn append_time(args: &Args, run: u64) -> bool {
    (args.seed + run) % 2 == 1
}

/// Tells whether a kind of fault is possible in any of the requested runs.
fn is_possible(args: &Args, kind: &str) -> bool {
    let runs = 0..args.modes.len() as u64;
    find(kind).is_some_and(|kind| runs.into_iter().any(|run| kind.is_possible(append_time(args, run), args.grouped)))
}

fn one_run(
    args: &Args, plan: Plan, site: &Arc<Site>, dir: &Path, deck: &Deck, time: Duration,
) -> Result<(Vec<Entry>, bool), Box<dyn Error>> {
    let mode = plan.mode;
    let dir: PathBuf = dir.join(&plan.group);
    let world = World::start(plan, Arc::clone(site), &dir, args.instances, None)?;
    let began = Instant::now();
    world.journal.line("all partitions flow; faults begin");
    world.watched(|| {
        if args.short {
            let mut random = Random(args.seed);
            for kind in SHORT.iter().filter_map(|name| find(name)) {
                // The first attempt may find no target.
                let _ = inject(&world, kind, &mut random) || inject(&world, kind, &mut random);
            }
        } else {
            run_lanes(args, &world, deck, began + time);
        }
        world.journal.line("faults are over; quiet phase");
        world.quiet()
    })?;
    let verdict = world.judge()?;
    let entries = world.journal.entries();
    if let Some(why) = ineffective(args, &entries) {
        world.journal.anomaly("ineffective", why);
    }
    let anomalies = world.journal.anomalies();
    let (text, good) = summary(&verdict, &anomalies);
    let report = json_report(&verdict, &anomalies, &entries);
    std::fs::write(dir.join("report.json"), format!("{report:#}"))?;
    let target = if world.plan.append_time { "append time" } else { "compacted" };
    let head = format!("seed {} mode {mode:?} target {target} {:.0}s", args.seed, world.journal.seconds());
    let text = format!("{head}\n{}{text}", table(&entries));
    std::fs::write(dir.join("report.txt"), &text)?;
    println!("{text}");
    Ok((entries, good))
}

/// Injects faults in all lanes until `until`.
fn run_lanes(args: &Args, world: &World, deck: &Deck, until: Instant) {
    let lanes = if args.one_at_a_time { &[Lane::Either][..] } else { &[Lane::Instances, Lane::Cluster] };
    std::thread::scope(|scope| {
        let start = |lane: &Lane| {
            let lane = *lane;
            scope.spawn(move || run_lane(world, deck, lane, until))
        };
        let lanes: Vec<_> = lanes.iter().map(start).collect();
        for lane in lanes {
            if lane.join().is_err() {
                world.journal.anomaly("harness", "a lane panicked: see above".to_owned());
            }
        }
    });
}

/// Returns the reason if too few faults took effect: a run without faults proves nothing. Each kind of a short run has
/// to take effect, and 80 % of the faults of a long run.
fn ineffective(args: &Args, entries: &[Entry]) -> Option<String> {
    let took_effect = |kind: &str| entries.iter().any(|entry| entry.kind == kind && entry.effect.is_observed());
    let missing: Vec<&str> = SHORT.iter().copied().filter(|kind| args.short && !took_effect(kind)).collect();
    if !missing.is_empty() {
        return Some(format!("no effect: {}", missing.join(", ")));
    }
    let effective = entries.iter().filter(|entry| entry.effect.is_observed()).count();
    let too_few = entries.is_empty() || effective * 5 < entries.len() * 4;
    too_few.then(|| format!("{effective} of {} faults took effect", entries.len()))
}
