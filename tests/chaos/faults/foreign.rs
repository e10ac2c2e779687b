//! Offsets that another program commits while the group has no members.

use std::{error::Error, time::Duration};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::{Offset, TopicPartitionList, error::KafkaError};

use crate::outcome::{Effect, Outcome};
use crate::{plan::now_ms, support::generator::Random, world::World};

const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Commits an offset without an offset map while all instances are down. The first instance that starts must refuse the
/// offset, log the reason and stop. Then the previous offset is restored, and all instances start.
pub fn stop(world: &World, random: &mut Random, _: &'static str) -> Outcome {
    let permanent: Vec<usize> = (0..world.permanent).collect();
    permanent.iter().for_each(|slot| world.fleet.slot(*slot).claimed = true);
    let began = now_ms();
    let effect = check_refused(world, random).unwrap_or_else(|error| Effect::Missing(error.to_string()));
    let ended = now_ms();
    for &slot in &permanent {
        if !world.fleet.is_running(slot) {
            world.fleet.start(slot);
        }
        world.fleet.slot(slot).claimed = false;
    }
    Outcome::new(world.plan.consumer_group(), (began, ended), effect)
}

/// Commits a foreign offset and checks that an instance refuses it.
fn check_refused(world: &World, random: &mut Random) -> Result<Effect, Box<dyn Error>> {
    for slot in world.fleet.running() {
        world.fleet.terminate(slot, Duration::from_secs(20));
    }
    let mut config = world.plan.client();
    config.set("group.id", world.plan.consumer_group()).set("isolation.level", "read_committed");
    let consumer: BaseConsumer = config.set("enable.auto.commit", "false").create()?;
    let mut list = TopicPartitionList::new();
    for source in &world.plan.sources {
        (0..source.partitions).for_each(|partition| _ = list.add_partition(&source.name, partition));
    }
    let saved = consumer.committed_offsets(list, CALL_TIMEOUT)?;
    let with_map = saved.elements();
    let with_map: Vec<_> = with_map.iter().filter(|element| matches!(element.offset(), Offset::Offset(_))).collect();
    let one = with_map
        .get(random.below(with_map.len().max(1) as u64) as usize)
        .ok_or("the group has no committed offsets")?;
    let place = format!("{}/{}", one.topic(), one.partition());
    let mut foreign = TopicPartitionList::new();
    foreign.add_partition_offset(one.topic(), one.partition(), one.offset())?;
    commit(world, &consumer, &foreign)?;
    world.fleet.start(0);
    let status = world.fleet.wait_end(0, Duration::from_secs(40));
    let logged = world.fleet.log_contains(0, "--accept-foreign-offsets");
    if status.is_none() {
        world.fleet.kill(0);
    }
    let mut restored = TopicPartitionList::new();
    let mut element = restored.add_partition(one.topic(), one.partition());
    element.set_offset(one.offset())?;
    element.set_metadata(one.metadata());
    commit(world, &consumer, &restored)?;
    let code = status.and_then(|status| status.code());
    Ok(Effect::when(code == Some(70) && logged, format!("{place}: ended with {code:?}, reason logged {logged}")))
}

/// Commits offsets. The broker accepts them only once the group has lost its last member, so failures are retried.
fn commit(world: &World, consumer: &BaseConsumer, list: &TopicPartitionList) -> Result<(), KafkaError> {
    let mut result = Ok(());
    world.wait(Duration::from_secs(30), || {
        result = consumer.commit(list, CommitMode::Sync);
        result.is_ok()
    });
    result
}
