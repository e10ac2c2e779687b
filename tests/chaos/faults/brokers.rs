//! Faults of brokers: kills, freezes and restarts, of one node or of all at once.

use std::{sync::atomic::Ordering, time::Duration};

use super::between;
use crate::outcome::{Effect, Outcome};
use crate::{
    cluster::NODES, plan::now_ms, support::generator::Random, support::wait::let_the_fault_last, wire::Coordinator,
    world::World,
};

/// Time for the cluster to become whole after a fault.
const WHOLE_TIMEOUT: Duration = Duration::from_secs(120);

/// Kills a node, in half of the cases the one that leads most partitions of the target, and restarts it later.
pub fn kill(world: &World, random: &mut Random, _: &'static str) -> Outcome {
    let leading = world.site.cluster.busiest(&[&world.plan.target]);
    let node = match leading {
        Some((node, _)) if random.below(2) == 0 => node,
        _ => random.below(NODES as u64) as usize,
    };
    kill_node(world, random, node, "a broker")
}

/// Kills the node that coordinates the group, or the transactions of an instance.
pub fn kill_coordinator(world: &World, random: &mut Random, kind: &'static str) -> Outcome {
    let slot = random.below(world.permanent as u64) as usize;
    let (coordinator, key) = if kind == "group_coordinator_kill" {
        (Coordinator::Group, world.plan.consumer_group())
    } else {
        (Coordinator::Transaction, world.plan.transactional_id(&world.fleet.slot(slot).id))
    };
    let Some(node) = world.site.cluster.coordinator(coordinator, &key) else {
        return Outcome::no_target("no node knows the coordinator");
    };
    let outcome = kill_node(world, random, node, &format!("the coordinator of {key}"));
    let effect = match (outcome.effect, world.site.cluster.coordinator(coordinator, &key)) {
        (Effect::Observed(text), Some(now)) => Effect::Observed(format!("{text}; now coordinated by {}", now + 1)),
        (effect, _) => effect,
    };
    Outcome { effect, ..outcome }
}

/// Kills the node that leads the control topic.
pub fn kill_control_leader(world: &World, random: &mut Random, _: &'static str) -> Outcome {
    match world.site.cluster.busiest(&[&world.plan.control_topic()]) {
        Some((node, 1..)) => kill_node(world, random, node, "the leader of the control topic"),
        _ => Outcome::no_target("no node leads the control topic"),
    }
}

fn kill_node(world: &World, random: &mut Random, node: usize, what: &str) -> Outcome {
    let lost = || world.site.proxies[node].counts.lost_upstream.load(Ordering::Relaxed);
    let before = lost();
    let began = now_ms();
    let died = world.site.cluster.kill(node);
    let_the_fault_last(between(random, 1_000, 7_000));
    let lost = lost() - before;
    world.site.cluster.start_node(node);
    let ended = now_ms();
    let effect = match world.site.cluster.wait_whole(WHOLE_TIMEOUT) {
        Ok(took) => {
            let whole = took.as_secs_f32();
            Effect::when(
                died && lost > 0,
                format!("{what}: died {died}, {lost} connections lost, whole after {whole:.0}s"),
            )
        }
        Err(error) => Effect::Missing(error.to_string()),
    };
    Outcome::new(format!("node {}", node + 1), (began, ended), effect)
}

/// Freezes a node with SIGSTOP: its connections stay open, and after its session other nodes lead.
pub fn pause(world: &World, random: &mut Random, _: &'static str) -> Outcome {
    let node = random.below(NODES as u64) as usize;
    let troubled = |world: &World| -> f64 {
        let all = world.fleet.all_metrics();
        all.values().map(|metrics| metrics.troubled_rounds() + metrics.recreations()).sum()
    };
    let before = troubled(world);
    let began = now_ms();
    world.site.cluster.freeze(node);
    let time = between(random, 2_000, 9_000);
    let_the_fault_last(time);
    let leads = world.site.cluster.busiest(&[&world.plan.target]).is_some_and(|(busiest, _)| busiest != node);
    world.site.cluster.thaw(node);
    let ended = now_ms();
    let effect = match world.site.cluster.wait_whole(WHOLE_TIMEOUT) {
        Ok(took) => Effect::Observed(format!(
            "stopped {:.1}s, others lead {leads}, troubled rounds +{}, whole after {:.0}s",
            time.as_secs_f32(),
            troubled(world) - before,
            took.as_secs_f32()
        )),
        Err(error) => Effect::Missing(error.to_string()),
    };
    Outcome::new(format!("node {}", node + 1), (began, ended), effect)
}

/// Stops and restarts each node in turn, as for an upgrade.
pub fn rolling_restart(world: &World, _: &mut Random, _: &'static str) -> Outcome {
    let began = now_ms();
    let (mut stopped, mut ended) = (0, began);
    for node in 0..NODES {
        stopped += usize::from(world.site.cluster.stop(node, Duration::from_secs(25)));
        world.site.cluster.start_node(node);
        ended = now_ms();
        if let Err(error) = world.site.cluster.wait_whole(WHOLE_TIMEOUT) {
            return Outcome::new("all nodes", (began, ended), Effect::Missing(error.to_string()));
        }
    }
    let effect = Effect::when(stopped == NODES, format!("{stopped} of {NODES} ended without a kill"));
    Outcome::new("all nodes", (began, ended), effect)
}

/// Kills all nodes at once, for some seconds. The fault ends when all nodes answer again.
pub fn all_down(world: &World, random: &mut Random, _: &'static str) -> Outcome {
    let began = now_ms();
    let died = (0..NODES).filter(|node| world.site.cluster.kill(*node)).count();
    let time = between(random, 3_000, 9_000);
    let_the_fault_last(time);
    let before = world.oracle.number("/target");
    std::thread::sleep(Duration::from_millis(500));
    let silent = before == world.oracle.number("/target");
    world.site.cluster.heal();
    let answers = world.wait(WHOLE_TIMEOUT, || world.site.cluster.all_answer());
    let ended = now_ms();
    let effect = match world.site.cluster.wait_whole(WHOLE_TIMEOUT) {
        Ok(took) => {
            let (down, whole) = (time.as_secs_f32(), took.as_secs_f32());
            let text = format!("{died} died, silent {silent}, down for {down:.1}s, whole after {whole:.0}s");
            Effect::when(answers && died == NODES && silent, text)
        }
        Err(error) => Effect::Missing(error.to_string()),
    };
    Outcome::new("all nodes", (began, ended), effect)
}
