//! Starts a cluster, lets faults loose on a run, and says how it went.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::args::Args;
use crate::cluster::NODES;
use crate::faults::{Lane, find};
use crate::journal::{Entry, json_report, rows, summary, table};
use crate::plan::{Mode, Plan, Source};
use crate::schedule::{Deck, inflict, run_lane};
use crate::support::generator::Random;
use crate::teeth;
use crate::world::{Site, World};

/// What all instances together may let through, of the average load, in percent: less than it is at times.
const CAPACITY: u64 = 150;
const CYCLE_MS: u64 = 5_000;
const COMMIT_INTERVAL_MS: u64 = 200;

/// The faults of a short run, in this order.
const SHORT: [&str; 8] = [
    "kill_same_id",
    "failpoint_after_offsets",
    "hold_end_txn",
    "pause_session",
    "cut",
    "txn_coordinator_kill",
    "kill_new_id",
    "blackhole",
];

/// The exit code: 0 if everything was right.
pub fn run(args: &Args) -> i32 {
    // Below the directory of the test run, where there is one: it goes with the run, even if this process is killed.
    let parent = std::env::var_os("WATERMASTER_TEST_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let temporary = tempfile::Builder::new().prefix("watermaster-chaos-").tempdir_in(parent);
    let temporary = temporary.expect("a temporary directory");
    let dir = args.keep.clone().unwrap_or_else(|| temporary.path().to_owned());
    std::fs::create_dir_all(&dir).expect("the directory for logs can be made");
    eprintln!("seed {}; logs in {}", args.seed, dir.display());
    let ended = conduct(args, &dir);
    // Gigabytes that tell nothing: the logs do.
    for node in 1..=NODES {
        let _ = std::fs::remove_dir_all(dir.join(format!("cluster/node-{node}/data")));
    }
    let good = match ended {
        Ok(good) => good,
        Err(why) => {
            eprintln!("the run itself failed: {why}");
            false
        }
    };
    if !good && args.keep.is_none() {
        eprintln!("logs are kept in {}", temporary.keep().display());
    }
    i32::from(!good)
}

fn conduct(args: &Args, dir: &Path) -> Result<bool, String> {
    let site = Arc::new(Site::start(&dir.join("cluster"))?);
    if args.teeth {
        return teeth::run(args, &site, dir);
    }
    let deck = Deck::new(args.seed, &args.faults);
    let mut good = true;
    let mut all = Vec::new();
    for (number, &mode) in args.modes.iter().enumerate() {
        let time = Duration::from_secs_f64(args.minutes * 60.0 / args.modes.len() as f64);
        let plan = plan(args, &site, mode, append_time(args, number as u64));
        let (entries, right) = one_run(args, plan, &site, dir, &deck, time)?;
        all.extend(entries);
        good &= right;
    }
    if !args.short {
        let (again, missing) = deck.coverage();
        if !missing.is_empty() {
            println!(
                "never with effect: {}{}",
                missing.join(", "),
                if again { "" } else { " (the time was too short)" }
            );
        }
        good &= !again || missing.iter().all(|name| !is_possible(args, name));
    }
    if args.modes.len() > 1 {
        println!("all runs, seed {}\n{}", args.seed, table(&all));
    }
    let faults = serde_json::json!({
        "seed": args.seed, "minutes": args.minutes, "modes": args.modes, "instances": args.instances, "rate": args.rate,
        "group_protocol": args.group_protocol, "one_at_a_time": args.one_at_a_time, "good": good,
        "session_ms": timeouts_ms(args).0, "transaction_ms": timeouts_ms(args).1, "commit_interval_ms": COMMIT_INTERVAL_MS,
        "times": "ms; see the legend of report.txt", "kinds": rows(&all),
    });
    std::fs::write(dir.join("faults.json"), format!("{faults:#}")).map_err(|error| error.to_string())?;
    Ok(good)
}

/// Whether the target of this run sets the times; the second half has the other kind, so that each kind of poison comes.
fn append_time(args: &Args, run: u64) -> bool {
    (args.seed + run) % 2 == 1
}

/// Whether a kind can be had in any of the runs that were asked for.
fn is_possible(args: &Args, kind: &str) -> bool {
    let runs = 0..args.modes.len() as u64;
    find(kind).is_some_and(|kind| runs.into_iter().any(|run| kind.is_possible(append_time(args, run))))
}

fn one_run(
    args: &Args,
    plan: Plan,
    site: &Arc<Site>,
    dir: &Path,
    deck: &Deck,
    time: Duration,
) -> Result<(Vec<Entry>, bool), String> {
    let mode = plan.mode;
    let dir: PathBuf = dir.join(&plan.group);
    let world = World::start(plan, Arc::clone(site), &dir, args.instances, None)?;
    let began = Instant::now();
    world.journal.line("everything flows; faults begin");
    std::thread::scope(|scope| {
        scope.spawn(|| world.watch());
        // Also when a lane panics: the scope waits for the watch.
        let _stop = StopWatching(&world);
        if args.short {
            let mut random = Random(args.seed);
            let kinds = SHORT.iter().filter_map(|name| find(name));
            for kind in kinds {
                // It may have met nothing that it could hit.
                let _ = inflict(&world, kind, &mut random) || inflict(&world, kind, &mut random);
            }
        } else {
            let lanes = if args.one_at_a_time { &[Lane::Either][..] } else { &[Lane::Instances, Lane::Cluster] };
            let run = |lane: Lane| {
                let world = &world;
                scope.spawn(move || run_lane(world, deck, lane, began + time))
            };
            let lanes: Vec<_> = lanes.iter().map(|lane| run(*lane)).collect();
            lanes.into_iter().for_each(|lane| {
                if lane.join().is_err() {
                    world.journal.anomaly("rig", "a lane panicked: see above".to_owned());
                }
            });
        }
        world.journal.line("faults are over; quiet phase");
        world.quiet()
    })?;
    let verdict = world.judge()?;
    let entries = world.journal.entries();
    if let Err(why) = faults_were_real(args, &entries) {
        world.journal.anomaly("ineffective", why);
    }
    let anomalies = world.journal.anomalies();
    let (text, good) = summary(&verdict, &anomalies);
    let report = json_report(&verdict, &anomalies, &entries);
    std::fs::write(dir.join("report.json"), format!("{report:#}")).map_err(|error| error.to_string())?;
    let target = if world.plan.append_time { "append time" } else { "compacted" };
    let head = format!("seed {} mode {mode:?} target {target} {:.0}s", args.seed, world.journal.seconds());
    let text = format!("{head}\n{}{text}", table(&entries));
    std::fs::write(dir.join("report.txt"), &text).map_err(|error| error.to_string())?;
    println!("{text}");
    Ok((entries, good))
}

/// A run without faults proves nothing: each kind of a short run has to take effect, and nearly all faults of a long one.
fn faults_were_real(args: &Args, entries: &[Entry]) -> Result<(), String> {
    let took_effect = |kind: &str| entries.iter().any(|entry| entry.kind == kind && entry.effect.is_ok());
    let missing: Vec<&str> = SHORT.iter().copied().filter(|kind| args.short && !took_effect(kind)).collect();
    if !missing.is_empty() {
        return Err(format!("no effect: {}", missing.join(", ")));
    }
    let effective = entries.iter().filter(|entry| entry.effect.is_ok()).count();
    if entries.is_empty() || effective * 5 < entries.len() * 4 {
        return Err(format!("{effective} of {} faults took effect", entries.len()));
    }
    Ok(())
}

/// Ends the watch, however a scope is left.
pub struct StopWatching<'w>(pub &'w World);

impl Drop for StopWatching<'_> {
    fn drop(&mut self) {
        self.0.stop_watching();
    }
}

/// Of a session and of a transaction. A short run has no time for long ones.
fn timeouts_ms(args: &Args) -> (u64, u64) {
    if args.short { (4_000, 6_000) } else { (6_000, 8_000) }
}

pub fn plan(args: &Args, site: &Site, mode: Mode, append_time: bool) -> Plan {
    let group = format!("chaos-{}-{}", args.seed, if mode == Mode::Shape { "shape" } else { "reject" });
    let source = |n: usize, compacted| Source { name: format!("{group}.source-{n}"), partitions: 4, compacted };
    Plan {
        seed: args.seed,
        mode,
        bootstrap: site.cluster.bootstrap(),
        service: "kyc".to_owned(),
        sources: vec![source(0, false), source(1, false), source(2, true)],
        target: format!("{group}.target"),
        dead_letter: format!("{group}.dead-letter"),
        append_time,
        rate: args.rate,
        capacity: args.rate * CAPACITY * CYCLE_MS / 1000 / 100 / args.instances as u64,
        cycle_ms: CYCLE_MS,
        commit_interval_ms: COMMIT_INTERVAL_MS,
        session_ms: timeouts_ms(args).0,
        transaction_ms: timeouts_ms(args).1,
        compaction_lag_ms: if args.short { 15_000 } else { 30_000 },
        group_protocol: args.group_protocol.clone(),
        more_kafka: String::new(),
        more_properties: String::new(),
        group,
    }
}
