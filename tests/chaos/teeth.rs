//! The oracle can fail: with each known mistake planted in the program a short run must not be called good, and with none it must.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

// The one thing that is taken from the program: what its mistakes are called.
use watermaster_kafka::failpoint::Fault;

use crate::args::Args;
use crate::conductor::{StopWatching, plan};
use crate::faults::find;
use crate::journal::summary;
use crate::plan::{Mode, Plan};
use crate::schedule::inflict;
use crate::support::generator::Random;
use crate::world::{Site, World};

/// What brings a mistake to light, and what the oracle should call it (any of these).
struct Trial {
    faults: &'static [&'static str],
    kinds: &'static [&'static str],
}

/// With every fault that any mistake is tried with: what the oracle finds without a mistake, it finds for no reason.
const CONTROL: &[&str] = &[
    "kill_same_id",
    "join",
    "leave",
    "pause_session",
    "slow",
    "failpoint_before_commit",
    "failpoint_before_offsets",
    "failpoint_after_send",
    "hold_end_txn",
    "hold_end_txn",
    "kill_new_id",
];

fn trial(fault: Fault) -> Trial {
    let (faults, kinds): (&[&str], &[&str]) = match fault {
        Fault::EmptyMap => (&["kill_same_id", "kill_new_id"], &["duplicated", "in_both"]),
        Fault::UnfencedGroupMetadata => (&["pause_session"; 5], &["duplicated", "in_both", "lost"]),
        Fault::ReadUncommitted => (&["failpoint_before_commit", "kill_new_id"], &["alien", "duplicated", "in_both"]),
        // Who keeps what was revoked, and believes that it still owns it, sends it beside the new owner: brokers ask for
        // membership and generation, never for partitions.
        Fault::NoPurgeOnRevoke => (&["join", "leave"], &["duplicated"]),
        Fault::IgnoredSendError => (&["slow"], &["lost"]),
        Fault::OffsetsOutsideTransaction => {
            (&["failpoint_before_commit", "failpoint_before_offsets", "failpoint_after_send"], &["lost"])
        }
        // Each partition that changes hands while its first record waits loses that one: a few each time, so several times.
        Fault::OffsetOffByOne => (&["kill_same_id", "leave", "join", "kill_new_id"], &["lost"]),
        Fault::NoTaint => (&["hold_end_txn"; 6], &["duplicated", "in_both", "lost"]),
    };
    Trial { faults, kinds }
}

/// The names of all mistakes.
pub fn names() -> impl Iterator<Item = &'static str> {
    Fault::ALL.iter().map(|fault| fault.name())
}

/// Whether each was found, and nothing where there was none.
pub fn run(args: &Args, site: &Arc<Site>, dir: &Path) -> Result<bool, String> {
    let mut table = format!("seed {}\n{:<28} {:<8} as\n", args.seed, "planted", "caught");
    let mut all = true;
    let is_wanted = |fault: &&Fault| args.plants.is_empty() || args.plants.iter().any(|name| name == fault.name());
    let plants = Fault::ALL.iter().filter(is_wanted).copied();
    for plant in std::iter::once(None).chain(plants.map(Some)) {
        let name = plant.map_or("none", Fault::name);
        let found = one(args, site, dir, plant);
        let (caught, what) = match &found {
            Ok(found) => {
                let strong = |kinds: &[&str]| kinds.iter().any(|kind| found.contains_key(*kind));
                let caught = plant.map_or(!found.is_empty(), |plant| strong(trial(plant).kinds));
                let what: Vec<String> = found.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
                (caught, if what.is_empty() { "good".to_owned() } else { what.join(", ") })
            }
            Err(why) => (plant.is_none(), format!("the run itself failed: {why}")),
        };
        let right = caught == plant.is_some();
        all &= right;
        let caught = if caught { "yes" } else { "no" };
        let row = format!("{name:<28} {caught:<8} {what}{}", if right { "" } else { "   <== WRONG" });
        eprintln!("{row}");
        table += &format!("{row}\n");
        site.heal();
    }
    println!("{table}");
    std::fs::write(dir.join("teeth.txt"), table).map_err(|error| error.to_string())?;
    Ok(all)
}

/// All anomalies of a run with this mistake, by kind.
fn one(args: &Args, site: &Arc<Site>, dir: &Path, plant: Option<Fault>) -> Result<BTreeMap<String, u64>, String> {
    let name = plant.map_or("none", Fault::name);
    let base = plan(args, site, Mode::Shape, args.seed % 2 == 1);
    let group = format!("teeth-{}-{name}", args.seed);
    let rename = |name: &str| name.replace(&base.group, &group);
    let mut plan = Plan { target: rename(&base.target), dead_letter: rename(&base.dead_letter), ..base.clone() };
    plan.sources.iter_mut().for_each(|source| source.name = rename(&source.name));
    plan.group = group.clone();
    if matches!(plant, None | Some(Fault::IgnoredSendError)) {
        // So that the queue is full now and then.
        plan.more_properties = "\"queue.buffering.max.messages\" = \"40\"\n".to_owned();
    }
    eprintln!("== {name}");
    let planted = plant.map(Fault::name);
    let mut world = World::start(plan, Arc::clone(site), &dir.join(&group), args.instances, planted)?;
    if plant.is_some() {
        world.patience = Duration::from_secs(30);
    }
    let mut random = Random(args.seed);
    let faults = plant.map_or(CONTROL, |plant| trial(plant).faults);
    std::thread::scope(|scope| {
        scope.spawn(|| world.watch());
        let _stop = StopWatching(&world);
        for kind in faults.iter().filter_map(|name| find(name)) {
            let took_effect = inflict(&world, kind, &mut random);
            // A control without faults would be good for nothing.
            if !took_effect && plant.is_none() && !inflict(&world, kind, &mut random) {
                world.journal.anomaly("ineffective", kind.name.to_owned());
            }
        }
        world.quiet()
    })?;
    let verdict = world.judge()?;
    let mut found = world.journal.anomalies();
    let (text, _) = summary(&verdict, &found);
    eprintln!("{text}");
    for (kind, count) in verdict["anomalies"].as_object().into_iter().flatten() {
        *found.entry(kind.clone()).or_default() += count.as_u64().unwrap_or(0);
    }
    Ok(found)
}
