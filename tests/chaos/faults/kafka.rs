//! What other clients do to the topics, the group and the transactional ids of the program.

use std::sync::Mutex;
use std::time::Duration;

use rdkafka::admin::{AdminClient, NewPartitions};
use rdkafka::client::DefaultClientContext;
use rdkafka::producer::{BaseProducer, Producer};

use super::Inflicted;
use super::instances::Claim;
use crate::plan::now_ms;
use crate::support::generator::Random;
use crate::world::{World, admin_options, block_on};

/// Partitions that a source topic may get in a run, at most.
const MOST_PARTITIONS: i32 = 8;
const SEEN: Duration = Duration::from_secs(60);

/// A foreign producer takes an instance's transactional id, and goes away again.
pub fn hijack(world: &World, random: &mut Random, _: &'static str) -> Inflicted {
    let slot = random.below(world.staff as u64) as usize;
    let transactional_id = world.plan.transactional_id(&world.fleet.slot(slot).id);
    let _claim = Claim::of(world, slot);
    let before = world.fleet.metrics(slot).recreations();
    let mut config = world.plan.client();
    config.set("transactional.id", &transactional_id).set("transaction.timeout.ms", "5000");
    let producer: BaseProducer = config.create().expect("a producer");
    let began = now_ms();
    let taken = producer.init_transactions(Duration::from_secs(30));
    drop(producer);
    let ended = now_ms();
    let recreated = |world: &World| world.fleet.metrics(slot).recreations() - before;
    let noticed = world.wait(Duration::from_secs(30), || recreated(world) > 0.0);
    let effect = format!("taken {taken:?}, its producers +{}", recreated(world));
    Inflicted::new(transactional_id, (began, ended), if taken.is_ok() && noticed { Ok(effect) } else { Err(effect) })
}

/// A record that the target refuses for good; it comes as the only one, or in the midst of others.
pub fn poison(world: &World, _: &mut Random, kind: &'static str) -> Inflicted {
    let kind = kind.strip_prefix("poison_").expect("they are called so");
    // Another lane's would count as this one.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let undeliverable = || world.oracle.number("/reasons/undeliverable");
    let before = undeliverable();
    let began = now_ms();
    world.generator.tell(&format!("poison {kind}"));
    let found = world.wait(SEEN, || undeliverable() > before);
    let took = (now_ms() - began) as f32 / 1000.0;
    let effect = if found {
        Ok(format!("undeliverable after {took:.1}s"))
    } else {
        Err("not among the dead letters".to_owned())
    };
    Inflicted::new(kind, (began, now_ms()), effect)
}

/// A source topic gets one partition more: the one that has the fewest.
pub fn add_partitions(world: &World, _: &mut Random, _: &'static str) -> Inflicted {
    let admin: AdminClient<DefaultClientContext> = world.plan.client().create().expect("an admin client");
    let Ok(all) = admin.inner().fetch_metadata(None, Duration::from_secs(10)) else {
        return Inflicted::none("no metadata");
    };
    let count = |name: &str| {
        let topic = all.topics().iter().find(|topic| topic.name() == name);
        topic.map_or(i32::MAX, |topic| topic.partitions().len() as i32)
    };
    let known = (0_u8..).zip(&world.plan.sources).map(|(topic, source)| (count(&source.name), topic));
    let Some((known, topic)) = known.min().filter(|(known, _)| *known < MOST_PARTITIONS) else {
        return Inflicted::none("all have enough");
    };
    let name = &world.plan.sources[usize::from(topic)].name;
    let began = now_ms();
    let more = [NewPartitions::new(name, known as usize + 1)];
    let mut answer = String::new();
    let created = world.wait(SEEN, || {
        // Refused while a broker is down: it could not be replicated.
        let created = block_on(admin.create_partitions(&more, &admin_options()));
        answer = format!("{created:?}");
        matches!(created.as_deref(), Ok([Ok(_)]))
    });
    if !created {
        return Inflicted::new(name, (began, now_ms()), Err(answer));
    }
    world.generator.tell(&format!("partitions {topic} {}", known + 1));
    let flows = world.wait(SEEN, || world.flow.knows((topic, known)));
    let took = (now_ms() - began) as f32 / 1000.0;
    let effect = format!("partition {known}: flows {flows} after {took:.1}s");
    Inflicted::new(name, (began, now_ms()), if flows { Ok(effect) } else { Err(effect) })
}
