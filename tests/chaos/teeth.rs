//! The oracle can fail: with each known mistake planted in the program, a short run must not be called good.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::args::Args;
use crate::conductor::plan;
use crate::faults::find;
use crate::journal::summary;
use crate::plan::{Mode, Plan};
use crate::schedule::inflict;
use crate::support::generator::Random;
use crate::world::{Site, World};

/// A mistake, what brings it to light, and what the oracle should call it (any of these).
struct Plant {
    name: &'static str,
    faults: &'static [&'static str],
    kinds: &'static [&'static str],
}

const PLANTS: [Plant; 8] = [
    Plant { name: "empty_map", faults: &["kill_same_id", "kill_new_id"], kinds: &["duplicated", "in_both"] },
    Plant {
        name: "unfenced_group_metadata",
        faults: &["pause_session", "pause_session", "pause_session", "pause_session", "pause_session"],
        kinds: &["duplicated", "in_both", "lost"],
    },
    Plant {
        name: "read_uncommitted",
        faults: &["failpoint_before_commit", "kill_new_id"],
        kinds: &["alien", "duplicated", "in_both"],
    },
    Plant {
        name: "no_purge_on_revoke",
        faults: &["join", "leave"],
        kinds: &["duplicated", "silent", "died", "reordered"],
    },
    Plant { name: "ignored_send_error", faults: &["slow"], kinds: &["lost"] },
    Plant {
        name: "offsets_outside_transaction",
        faults: &["failpoint_before_commit", "failpoint_before_offsets", "failpoint_after_send"],
        kinds: &["lost"],
    },
    Plant { name: "offset_off_by_one", faults: &["kill_same_id", "kill_new_id"], kinds: &["lost", "silent"] },
    Plant {
        name: "no_taint",
        faults: &["hold_end_txn", "hold_end_txn", "hold_end_txn", "hold_end_txn", "hold_end_txn", "hold_end_txn"],
        kinds: &["duplicated", "in_both", "lost"],
    },
];

/// The names of all mistakes.
pub fn names() -> impl Iterator<Item = &'static str> {
    PLANTS.iter().map(|plant| plant.name)
}

/// Whether each was found.
pub fn run(args: &Args, site: &Arc<Site>, dir: &Path) -> Result<bool, String> {
    let mut table = format!("{:<28} {:<8} as\n", "planted", "caught");
    let mut all = true;
    let is_wanted = |plant: &&Plant| args.plants.is_empty() || args.plants.iter().any(|name| name == plant.name);
    for plant in PLANTS.iter().filter(is_wanted) {
        let found = one(args, site, dir, plant);
        if let Err(why) = &found {
            eprintln!("{}: the run itself failed: {why}", plant.name);
        }
        let (caught, what) = match &found {
            Ok((caught, what)) => (*caught, what.clone()),
            Err(why) => (false, format!("the run itself failed: {why}")),
        };
        all &= caught;
        table += &format!("{:<28} {:<8} {what}\n", plant.name, if caught { "yes" } else { "NO" });
        site.heal();
    }
    println!("seed {}\n{table}", args.seed);
    std::fs::write(dir.join("teeth.txt"), table).map_err(|error| error.to_string())?;
    Ok(all)
}

fn one(args: &Args, site: &Arc<Site>, dir: &Path, plant: &Plant) -> Result<(bool, String), String> {
    let base = plan(args, site, Mode::Shape);
    let group = format!("teeth-{}-{}", args.seed, plant.name);
    let rename = |name: &str| name.replace(&base.group, &group);
    let mut plan = Plan { target: rename(&base.target), dead_letter: rename(&base.dead_letter), ..base.clone() };
    plan.sources.iter_mut().for_each(|source| source.name = rename(&source.name));
    plan.group = group.clone();
    if plant.name == "ignored_send_error" {
        // So that the queue is full now and then.
        plan.more_properties = "\"queue.buffering.max.messages\" = \"40\"\n".to_owned();
    }
    eprintln!("== {}", plant.name);
    let mut world = World::start(plan, Arc::clone(site), &dir.join(&group), args.instances, Some(plant.name))?;
    world.patience = Duration::from_secs(30);
    let mut random = Random(args.seed);
    std::thread::scope(|scope| {
        scope.spawn(|| world.watch());
        let _stop = crate::conductor::StopWatching(&world);
        for kind in plant.faults.iter().filter_map(|name| find(name)) {
            inflict(&world, kind, &mut random);
        }
        world.quiet()
    })?;
    let verdict = world.judge()?;
    let anomalies = world.journal.anomalies();
    let (text, _) = summary(&verdict, &anomalies);
    eprintln!("{text}");
    let mut found = anomalies;
    for (kind, count) in verdict["anomalies"].as_object().into_iter().flatten() {
        *found.entry(kind.clone()).or_default() += count.as_u64().unwrap_or(0);
    }
    let what: Vec<String> = found.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    Ok((plant.kinds.iter().any(|kind| found.contains_key(*kind)), what.join(", ")))
}
