//! Checks the oracle: a short run must fail with each planted fault in the program, and pass without one.

use std::{collections::BTreeMap, error::Error, path::Path, sync::Arc, time::Duration};

// The names of the planted faults, the only part of the program that this executable uses.
use watermaster_kafka::failpoint::Fault;

use crate::plan::{Mode, Plan};
use crate::world::{Site, World};
use crate::{args::Args, faults::find, journal::summary, schedule::inject, support::generator::Random};

/// The injected faults that expose a planted fault, and the anomalies with which the oracle may report it.
struct Mutant {
    faults: &'static [&'static str],
    anomalies: &'static [&'static str],
}

/// The injected faults of the control run, which has no planted fault: all that the planted faults are combined with.
/// Any anomaly in it is a false alarm.
const CONTROL: &[&str] = &[
    "kill_same_id", "join", "leave", "pause_session", "slow", "failpoint_before_commit", "failpoint_before_offsets",
    "failpoint_after_send", "hold_end_txn", "hold_end_txn", "kill_new_id",
];

fn mutant(fault: Fault) -> Mutant {
    let (faults, anomalies): (&[&str], &[&str]) = match fault {
        Fault::EmptyMap => (&["kill_same_id", "kill_new_id"], &["duplicated", "in_both"]),
        Fault::UnfencedGroupMetadata => (&["pause_before_offsets"; 2], &["duplicated", "in_both", "lost"]),
        Fault::ReadUncommitted => (&["failpoint_before_commit", "kill_new_id"], &["alien", "duplicated", "in_both"]),
        // An instance that keeps revoked partitions sends their records beside the new owner: brokers check membership
        // and generation, but not partitions.
        Fault::NoPurgeOnRevoke => (&["join", "leave"], &["duplicated"]),
        Fault::IgnoredSendError => (&["slow"], &["lost"]),
        Fault::OffsetsOutsideTransaction => {
            (&["failpoint_before_commit", "failpoint_before_offsets", "failpoint_after_send"], &["lost"])
        }
        // A partition that moves while its first record waits loses that record. Each move loses only a few, so there
        // are several.
        Fault::OffsetOffByOne => (&["kill_same_id", "leave", "join", "kill_new_id"], &["lost"]),
        // Other mistakes of a member make the log contradict what it knows, so that it stops admitting. And a member
        // that does not tell its window, or begins with an empty one, still admits at its target's pace, so that in mode
        // shape no window shows it. The simulation in core/tests/group has them: its members admit all that they may.
        Fault::ForeignStatesIgnored => (&["join", "leave"], &["promise", "circulating"]),
        Fault::UnfencedSeats => (&["pause_before_state"; 2], &["promise", "circulating"]),
        Fault::NoTaint => (&["hold_end_txn"; 6], &["duplicated", "in_both", "lost"]),
    };
    Mutant { faults, anomalies }
}

/// Tells whether the oracle found each planted fault, and no anomaly in the control run.
pub fn run(args: &Args, site: &Arc<Site>, dir: &Path) -> Result<bool, Box<dyn Error>> {
    let mut table = format!("seed {}\n{:<28} {:<8} anomalies\n", args.seed, "planted fault", "found");
    let mut all = true;
    let is_wanted = |fault: &&Fault| args.planted.is_empty() || args.planted.iter().any(|name| name == fault.name());
    let planted = Fault::ALL.iter().filter(is_wanted).copied();
    for planted in std::iter::once(None).chain(planted.map(Some)) {
        let name = planted.map_or("none", Fault::name);
        let result = one_run(args, site, dir, planted);
        let (found, text) = match &result {
            Ok(anomalies) => {
                let any_of = |kinds: &[&str]| kinds.iter().any(|kind| anomalies.contains_key(*kind));
                let found = planted.map_or(!anomalies.is_empty(), |fault| any_of(mutant(fault).anomalies));
                let counts: Vec<String> = anomalies.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
                (found, if counts.is_empty() { "good".to_owned() } else { counts.join(", ") })
            }
            Err(error) => (planted.is_none(), format!("the run itself failed: {error}")),
        };
        let passed = found == planted.is_some();
        all &= passed;
        let found = if found { "yes" } else { "no" };
        let row = format!("{name:<28} {found:<8} {text}{}", if passed { "" } else { "   <== WRONG" });
        eprintln!("{row}");
        table += &format!("{row}\n");
        site.heal();
    }
    println!("{table}");
    std::fs::write(dir.join("mutants.txt"), table)?;
    Ok(all)
}

/// Returns the number of anomalies of each kind in a run with this planted fault.
fn one_run(
    args: &Args, site: &Arc<Site>, dir: &Path, planted: Option<Fault>,
) -> Result<BTreeMap<String, u64>, Box<dyn Error>> {
    let name = planted.map_or("none", Fault::name);
    let base = args.plan(site.cluster.bootstrap(), Mode::Shape, args.seed % 2 == 1);
    let group = format!("mutant-{}-{name}", args.seed);
    let rename = |name: &str| name.replace(&base.group, &group);
    let mut plan = Plan { target: rename(&base.target), dead_letter: rename(&base.dead_letter), ..base.clone() };
    plan.sources.iter_mut().for_each(|source| source.name = rename(&source.name));
    plan.group = group.clone();
    if matches!(planted, None | Some(Fault::IgnoredSendError)) {
        // A small queue, so that sending sometimes fails because it is full.
        plan.more_properties = "\"queue.buffering.max.messages\" = \"40\"\n".to_owned();
    }
    if planted.is_some_and(Fault::is_of_the_group) {
        // A capacity that the average load fills, so that no part of it stays unused, and a cycle of many rounds that
        // lasts longer than it takes to claim a seat.
        (plan.cycle_ms, plan.commit_interval_ms) = (10_000, 100);
        (plan.capacity, plan.append_time) = (plan.rate * plan.cycle_ms / 1000, true);
    }
    if planted == Some(Fault::UnfencedGroupMetadata) {
        // The others take all of the capacity from a member of a group that stands still, so that it has nothing to
        // commit when it goes on.
        plan.grouped = false;
        plan.capacity = (plan.capacity / args.instances as u64).max(1);
        // Otherwise the transaction is too old when the instance goes on, which gives it up for that.
        plan.transaction_ms = 30_000;
    }
    eprintln!("== {name}");
    let mut world = World::start(plan, Arc::clone(site), &dir.join(&group), args.instances, planted.map(Fault::name))?;
    if planted.is_some() {
        world.recovery_timeout = Duration::from_secs(30);
    }
    let mut random = Random(args.seed);
    let faults = planted.map_or(CONTROL, |fault| mutant(fault).faults);
    world.watched(|| {
        for kind in faults.iter().filter_map(|name| find(name)) {
            let took_effect = inject(&world, kind, &mut random);
            // A control run without faults would prove nothing.
            if !took_effect && planted.is_none() && !inject(&world, kind, &mut random) {
                world.journal.anomaly("ineffective", kind.name.to_owned());
            }
        }
        world.quiet()
    })?;
    let verdict = world.judge()?;
    let mut anomalies = world.journal.anomalies();
    let (text, _) = summary(&verdict, &anomalies);
    eprintln!("{text}");
    for (kind, count) in verdict["anomalies"].as_object().into_iter().flatten() {
        *anomalies.entry(kind.clone()).or_default() += count.as_u64().unwrap_or(0);
    }
    Ok(anomalies)
}
