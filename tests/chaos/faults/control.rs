//! Faults of the control topic, through which the instances share one capacity.

use std::time::Duration;

use super::between;
use crate::outcome::{Effect, Outcome};
use crate::support::broker::{Broker, Topic};
use crate::{
    cluster::NODES, plan::now_ms, support::generator::Random, support::wait::let_the_fault_last, world::World,
};

/// The settings with which the program makes the topic on three brokers.
const SETTINGS: [(&str, &str); 7] = [
    ("cleanup.policy", "compact"),
    ("min.compaction.lag.ms", "60000"),
    ("delete.retention.ms", "86400000"),
    ("segment.ms", "600000"),
    ("max.message.bytes", "1000000"),
    ("unclean.leader.election.enable", "false"),
    ("min.insync.replicas", "2"),
];
/// Time for the controller to notice that a node is gone, and for transactions that were on their way.
const NOTICE_TIME: Duration = Duration::from_secs(5);
const WHOLE_TIMEOUT: Duration = Duration::from_secs(120);
/// Time for the instances to have states committed again.
const AGAIN_TIMEOUT: Duration = Duration::from_secs(60);

fn sum(world: &World, name: &str, labels: &[&str]) -> f64 {
    world.fleet.all_metrics().values().map(|metrics| metrics.sum(name, labels)).sum()
}

/// The number of states that the running instances have had committed and have read back.
fn states(world: &World) -> f64 {
    sum(world, "watermaster_group_exchange_seconds_count", &[])
}

/// Asks for all replicas in sync and kills a node that follows: for a while, the brokers refuse every write to the
/// topic.
pub fn few_replicas(world: &World, random: &mut Random, _: &'static str) -> Outcome {
    let broker = Broker { bootstrap: world.plan.bootstrap.clone() };
    let mut topic = Topic { name: world.plan.control_topic(), partitions: 1, settings: SETTINGS.to_vec() };
    let Some((leader, 1..)) = world.site.cluster.busiest(&[&topic.name]) else {
        return Outcome::no_target("no node leads the control topic");
    };
    let node = (leader + 1 + random.below(NODES as u64 - 1) as usize) % NODES;
    let began = now_ms();
    topic.set("min.insync.replicas", "3");
    broker.alter(&topic);
    world.site.cluster.kill(node);
    let_the_fault_last(NOTICE_TIME);
    let before = states(world);
    let time = between(random, 3_000, 12_000);
    let_the_fault_last(time);
    let after = states(world);
    topic.set("min.insync.replicas", "2");
    broker.alter(&topic);
    let again = world.wait(AGAIN_TIMEOUT, || states(world) > after);
    world.site.cluster.start_node(node);
    let ended = now_ms();
    if let Err(error) = world.site.cluster.wait_whole(WHOLE_TIMEOUT) {
        return Outcome::new(&topic.name, (began, ended), Effect::Missing(error.to_string()));
    }
    let effect = format!("{before} states, {after} of them {:.1}s later, again {again}", time.as_secs_f32());
    // An instance that was restarted counts from 0.
    Outcome::new(&topic.name, (began, ended), Effect::when(after <= before && again, effect))
}

/// Deletes the topic. The group begins anew, in a topic that an instance makes.
pub fn delete(world: &World, _: &mut Random, _: &'static str) -> Outcome {
    let topic = world.plan.control_topic();
    let begun = |world: &World| sum(world, "watermaster_group_openings_total", &["seat=\"bank\""]);
    let before = begun(world);
    let began = now_ms();
    world.oracle.send("control topic lost");
    Broker { bootstrap: world.plan.bootstrap.clone() }.delete(std::slice::from_ref(&topic));
    let ended = now_ms();
    let again = world.wait(AGAIN_TIMEOUT, || begun(world) > before && world.wait_ready(Duration::ZERO).is_ok());
    let effect = format!("the bank was opened {before} times before, {} times now, ready {again}", begun(world));
    Outcome::new(topic, (began, ended), Effect::when(again, effect))
}
