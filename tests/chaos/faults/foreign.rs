//! Offsets that somebody else commits while nobody is in the group.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::{Offset, TopicPartitionList};

use super::Inflicted;
use crate::plan::now_ms;
use crate::support::generator::Random;
use crate::world::World;

const CALL: Duration = Duration::from_secs(10);

/// While all instances are down, an offset is committed without a map: the first instance that comes refuses it, says so and
/// stops. Then what was there is put back, and all come.
pub fn stop(world: &World, random: &mut Random, _: &'static str) -> Inflicted {
    let staff: Vec<usize> = (0..world.staff).collect();
    staff.iter().for_each(|slot| world.fleet.slot(*slot).claimed = true);
    let began = now_ms();
    let effect = refused(world, random);
    let ended = now_ms();
    for &slot in &staff {
        if !world.fleet.is_running(slot) {
            world.fleet.start(slot);
        }
        world.fleet.slot(slot).claimed = false;
    }
    Inflicted::new(world.plan.consumer_group(), (began, ended), effect)
}

fn refused(world: &World, random: &mut Random) -> Result<String, String> {
    for slot in world.fleet.running() {
        world.fleet.terminate(slot, Duration::from_secs(20));
    }
    let mut config = world.plan.client();
    config.set("group.id", world.plan.consumer_group()).set("isolation.level", "read_committed");
    let consumer: BaseConsumer =
        config.set("enable.auto.commit", "false").create().map_err(|error| error.to_string())?;
    let mut list = TopicPartitionList::new();
    for source in &world.plan.sources {
        (0..source.partitions).for_each(|partition| _ = list.add_partition(&source.name, partition));
    }
    let saved = consumer.committed_offsets(list, CALL).map_err(|error| error.to_string())?;
    let with_map = saved.elements();
    let with_map: Vec<_> = with_map.iter().filter(|element| matches!(element.offset(), Offset::Offset(_))).collect();
    let one = with_map.get(random.below(with_map.len().max(1) as u64) as usize).ok_or("nothing is committed")?;
    let place = format!("{}/{}", one.topic(), one.partition());
    let mut foreign = TopicPartitionList::new();
    foreign.add_partition_offset(one.topic(), one.partition(), one.offset()).map_err(|error| error.to_string())?;
    commit(world, &consumer, &foreign)?;
    world.fleet.start(0);
    let status = world.fleet.wait_end(0, Duration::from_secs(40));
    let said = world.fleet.said(0, "somebody else committed");
    if status.is_none() {
        world.fleet.kill(0);
    }
    let mut back = TopicPartitionList::new();
    let mut element = back.add_partition(one.topic(), one.partition());
    element.set_offset(one.offset()).map_err(|error| error.to_string())?;
    element.set_metadata(one.metadata());
    commit(world, &consumer, &back)?;
    let code = status.and_then(|status| status.code());
    let effect = format!("{place}: ended with {code:?}, said why: {said}");
    if code == Some(70) && said { Ok(effect) } else { Err(effect) }
}

/// The group takes it once its last member is gone.
fn commit(world: &World, consumer: &BaseConsumer, list: &TopicPartitionList) -> Result<(), String> {
    let mut last = String::new();
    let done = world.wait(Duration::from_secs(30), || match consumer.commit(list, CommitMode::Sync) {
        Ok(()) => true,
        Err(error) => {
            last = error.to_string();
            false
        }
    });
    if done { Ok(()) } else { Err(format!("committing: {last}")) }
}
