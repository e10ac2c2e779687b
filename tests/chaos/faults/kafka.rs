//! Faults of other Kafka clients: they affect the topics and the transactional ids of the service.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, NewPartitions};
use rdkafka::client::DefaultClientContext;
use rdkafka::producer::{BaseProducer, Producer};

use super::instances::Claim;
use crate::outcome::{Effect, Outcome};
use crate::world::{World, admin_options, block_on};
use crate::{plan::now_ms, support::generator::Random};

/// Largest number of partitions that a source topic gets in a run.
const MAX_PARTITIONS: i32 = 8;
/// Time for the oracle to see the effect of a fault.
const EFFECT_TIMEOUT: Duration = Duration::from_secs(60);

/// The time within which an instance ends when its transactional id is taken twice, and a little more.
const FENCED_TWICE_WITHIN: Duration = Duration::from_secs(70);

/// Lets a foreign producer take an instance's transactional id for a moment.
pub fn hijack(world: &World, random: &mut Random, _: &'static str) -> Outcome {
    let first = random.below(world.permanent as u64) as usize;
    let may_lose_it = |slot: &usize| world.fleet.slot(*slot).fenced.is_none_or(|at| at.elapsed() > FENCED_TWICE_WITHIN);
    let Some(slot) = (0..world.permanent).map(|n| (first + n) % world.permanent).find(may_lose_it) else {
        return Outcome::no_target("each instance lost its id within the last minute");
    };
    world.fleet.slot(slot).fenced = Some(Instant::now());
    let transactional_id = world.plan.transactional_id(&world.fleet.slot(slot).id);
    let _claim = Claim::of(world, slot);
    let before = world.fleet.metrics(slot).recreations();
    let mut config = world.plan.client();
    config.set("transactional.id", &transactional_id).set("transaction.timeout.ms", "5000");
    let producer: BaseProducer = config.create().expect("the producer configuration is valid");
    let began = now_ms();
    let taken = producer.init_transactions(Duration::from_secs(30));
    drop(producer);
    let ended = now_ms();
    let recreated = |world: &World| world.fleet.metrics(slot).recreations() - before;
    let noticed = world.wait(Duration::from_secs(30), || recreated(world) > 0.0);
    let effect = format!("taken {taken:?}, its producers +{}", recreated(world));
    Outcome::new(transactional_id, (began, ended), Effect::when(taken.is_ok() && noticed, effect))
}

/// Sends a record that the target refuses permanently.
pub fn poison(world: &World, _: &mut Random, kind: &'static str) -> Outcome {
    let kind = kind.strip_prefix("poison_").expect("the names of these kinds have this prefix");
    // One poison record at a time: the count does not tell them apart.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let undeliverable = || world.oracle.number("/reasons/undeliverable");
    let before = undeliverable();
    let began = now_ms();
    world.generator.send(&format!("poison {kind}"));
    let found = world.wait(EFFECT_TIMEOUT, || undeliverable() > before);
    let took = (now_ms() - began) as f32 / 1000.0;
    let effect = Effect::when(found, format!("dead letter {found} after {took:.1}s"));
    Outcome::new(kind, (began, now_ms()), effect)
}

/// Adds one partition to the source topic with the fewest.
pub fn add_partitions(world: &World, _: &mut Random, _: &'static str) -> Outcome {
    let admin: AdminClient<DefaultClientContext> =
        world.plan.client().create().expect("the client configuration is valid");
    let Ok(all) = admin.inner().fetch_metadata(None, Duration::from_secs(10)) else {
        return Outcome::no_target("no metadata");
    };
    let count = |name: &str| {
        let topic = all.topics().iter().find(|topic| topic.name() == name);
        topic.map_or(i32::MAX, |topic| topic.partitions().len() as i32)
    };
    let known = (0_u8..).zip(&world.plan.sources).map(|(topic, source)| (count(&source.name), topic));
    let Some((known, topic)) = known.min().filter(|(known, _)| *known < MAX_PARTITIONS) else {
        return Outcome::no_target("all source topics have the maximum");
    };
    let name = &world.plan.sources[usize::from(topic)].name;
    let began = now_ms();
    let more = [NewPartitions::new(name, known as usize + 1)];
    let mut answer = String::new();
    let created = world.wait(EFFECT_TIMEOUT, || {
        // The request fails while a broker is down, because the partition could not be replicated.
        let created = block_on(admin.create_partitions(&more, &admin_options()));
        answer = format!("{created:?}");
        matches!(created.as_deref(), Ok([Ok(_)]))
    });
    if !created {
        return Outcome::new(name, (began, now_ms()), Effect::Missing(answer));
    }
    world.generator.send(&format!("partitions {topic} {}", known + 1));
    let flows = world.wait(EFFECT_TIMEOUT, || world.flow.knows((topic, known)));
    let took = (now_ms() - began) as f32 / 1000.0;
    let effect = format!("partition {known}: flows {flows} after {took:.1}s");
    Outcome::new(name, (began, now_ms()), Effect::when(flows, effect))
}
