//! Brokers that are killed, stopped and restarted, one by one or all at once.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Inflicted, between};
use crate::cluster::NODES;
use crate::plan::now_ms;
use crate::support::generator::Random;
use crate::support::wait::let_the_fault_last;
use crate::wire::Coordinator;
use crate::world::World;

const WHOLE: Duration = Duration::from_secs(120);

/// Kills a node that leads partitions of the target, and starts it again later.
pub fn kill(world: &World, random: &mut Random, _: &'static str) -> Inflicted {
    let leading = world.site.cluster.busiest(&[&world.plan.target]);
    let node = match leading {
        Some((node, _)) if random.below(2) == 0 => node,
        _ => random.below(NODES as u64) as usize,
    };
    kill_node(world, random, node, "a broker")
}

/// Kills the node that coordinates the group, or the transactions of an instance.
pub fn kill_coordinator(world: &World, random: &mut Random, kind: &'static str) -> Inflicted {
    let slot = random.below(world.staff as u64) as usize;
    let (coordinator, key) = if kind == "group_coordinator_kill" {
        (Coordinator::Group, world.plan.consumer_group())
    } else {
        (Coordinator::Transaction, world.plan.transactional_id(&world.fleet.slot(slot).id))
    };
    let Some(node) = world.site.cluster.coordinator(coordinator, &key) else {
        return Inflicted::none("nobody tells the coordinator");
    };
    let inflicted = kill_node(world, random, node, &format!("the coordinator of {key}"));
    let effect = inflicted.effect.map(|effect| match world.site.cluster.coordinator(coordinator, &key) {
        Some(now) => format!("{effect}; now coordinated by {}", now + 1),
        None => effect,
    });
    Inflicted { effect, ..inflicted }
}

fn kill_node(world: &World, random: &mut Random, node: usize, what: &str) -> Inflicted {
    let lost = || world.site.proxies[node].counts.lost_upstream.load(Ordering::Relaxed);
    let before = lost();
    let began = now_ms();
    let died = world.site.cluster.kill(node);
    let_the_fault_last(between(random, 1_000, 7_000));
    let lost = lost() - before;
    world.site.cluster.start_node(node);
    let ended = now_ms();
    let effect = match world.site.cluster.wait_whole(WHOLE) {
        Ok(took) if died && lost > 0 => {
            Ok(format!("{what}: {lost} connections lost, whole after {:.0}s", took.as_secs_f32()))
        }
        Ok(_) => Err(format!("{what}: died {died}, {lost} connections lost")),
        Err(why) => Err(why),
    };
    Inflicted::new(format!("node {}", node + 1), (began, ended), effect)
}

/// SIGSTOP: its connections stay open, and others lead after its session.
pub fn pause(world: &World, random: &mut Random, _: &'static str) -> Inflicted {
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
    let effect = match world.site.cluster.wait_whole(WHOLE) {
        Ok(took) => Ok(format!(
            "stopped {:.1}s, others lead {leads}, troubled rounds +{}, whole after {:.0}s",
            time.as_secs_f32(),
            troubled(world) - before,
            took.as_secs_f32()
        )),
        Err(why) => Err(why),
    };
    Inflicted::new(format!("node {}", node + 1), (began, ended), effect)
}

/// Each node in turn, politely, as for an upgrade.
pub fn rolling_restart(world: &World, _: &mut Random, _: &'static str) -> Inflicted {
    let began = now_ms();
    let (mut polite, mut ended) = (0, began);
    for node in 0..NODES {
        polite += usize::from(world.site.cluster.stop(node, Duration::from_secs(25)));
        world.site.cluster.start_node(node);
        ended = now_ms();
        if let Err(why) = world.site.cluster.wait_whole(WHOLE) {
            return Inflicted::new("all nodes", (began, ended), Err(why));
        }
    }
    let effect = format!("{polite} of {NODES} ended by themselves");
    Inflicted::new("all nodes", (began, ended), if polite == NODES { Ok(effect) } else { Err(effect) })
}

/// All nodes at once, for some seconds. It is over when they answer again.
pub fn all_down(world: &World, random: &mut Random, _: &'static str) -> Inflicted {
    let began = now_ms();
    let died = (0..NODES).filter(|node| world.site.cluster.kill(*node)).count();
    let time = between(random, 3_000, 9_000);
    let_the_fault_last(time);
    let flowing = world.oracle.number("/target");
    std::thread::sleep(Duration::from_millis(500));
    let silent = flowing == world.oracle.number("/target");
    world.site.cluster.heal();
    let answer = world.wait(WHOLE, || world.site.cluster.all_answer());
    let ended = now_ms();
    let effect = match world.site.cluster.wait_whole(WHOLE) {
        Ok(took) if answer && died == NODES && silent => {
            Ok(format!("nothing flowed for {:.1}s, whole after {:.0}s", time.as_secs_f32(), took.as_secs_f32()))
        }
        Ok(_) => Err(format!("{died} died, silent {silent}")),
        Err(why) => Err(why),
    };
    Inflicted::new("all nodes", (began, ended), effect)
}
