//! `on_foreign_offset = "replay"`: a service of its own, whose duplicates are exactly what its maps had recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::{Offset, TopicPartitionList};

use super::Inflicted;
use crate::instances::{Fleet, Metrics};
use crate::plan::{Plan, Source, now_ms};
use crate::support::broker::{Broker, unique};
use crate::support::generator::Random;
use crate::support::producer::{Outgoing, Producer};
use crate::support::reader::read_all;
use crate::support::record::Identity;
use crate::world::{World, create_topics};

const RECORDS: u64 = 6_000;
const PARTITIONS: i32 = 4;
const CALL: Duration = Duration::from_secs(10);
const DRAIN: Duration = Duration::from_secs(90);

type Place = (i32, i64);

/// Ends an instance with records delayed, commits its offsets without their maps, and lets another drain.
pub fn replay(world: &World, _: &mut Random, _: &'static str) -> Inflicted {
    let plan = plan(world);
    let effect = run(world, &plan);
    Inflicted::new(plan.consumer_group(), (now_ms(), now_ms()), effect)
}

fn plan(world: &World) -> Plan {
    let group = unique("replay");
    Plan {
        sources: vec![Source { name: format!("{group}.source"), partitions: PARTITIONS, compacted: false }],
        target: format!("{group}.target"),
        dead_letter: format!("{group}.dead-letter"),
        append_time: true,
        capacity: 2_000,
        more_kafka: "on_foreign_offset = \"replay\"".to_owned(),
        group,
        ..world.plan.clone()
    }
}

fn run(world: &World, plan: &Plan) -> Result<String, String> {
    create_topics(plan)?;
    world.site.cluster.wait_known(&plan.target, Duration::from_secs(30))?;
    let broker = Broker { bootstrap: plan.bootstrap.clone() };
    let source = &plan.sources[0].name;
    // One client in ten overtakes the flood's backlog: what is completed has holes.
    let client = |n: u64| if n.is_multiple_of(10) { "trickle" } else { "flood" };
    Producer::to(&broker).send_all((0..RECORDS).map(|n| Outgoing::numbered(source, n, client(n))));
    let folder = world.dir.join(&plan.group);
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::copy(world.dir.join("watermaster"), folder.join("watermaster")))
        .map_err(|error| error.to_string())?;
    let fleet = Fleet::new(plan, &folder, &world.site.proxied(), 1, Vec::new());
    fleet.start(0);
    let admitted = |metrics: &Metrics| metrics.sum("watermaster_records_total", &["decision=\"admitted\""]);
    let enough = |metrics: Metrics| admitted(&metrics) >= 1_200.0 && metrics.backlog() > 1_000.0;
    let delayed = world.wait(DRAIN, || enough(fleet.metrics(0)));
    fleet.terminate(0, Duration::from_secs(20));
    if !delayed {
        return Err(format!("nothing was delayed: {}", fleet.last_words(0, 4)));
    }
    let places = places(&broker, source);
    let before = outputs(&broker, plan, &places);
    let bases = forget_maps(world, plan)?;
    let recorded: BTreeSet<Place> = before.keys().filter(|(p, offset)| *offset >= bases[p]).copied().collect();
    let faster = Plan { capacity: 1_000_000, ..plan.clone() };
    let fleet = Fleet::new(&faster, &folder, &world.site.proxied(), 1, Vec::new());
    fleet.start(0);
    let drained = world.wait(DRAIN, || {
        let metrics = fleet.metrics(0);
        admitted(&metrics) > 0.0 && metrics.backlog() + metrics.sum("watermaster_consumer_lag_records", &[]) == 0.0
    });
    fleet.terminate(0, Duration::from_secs(20));
    let after = outputs(&broker, plan, &places);
    let repeated: BTreeSet<Place> = after.iter().filter(|(_, times)| **times > 1).map(|(place, _)| *place).collect();
    let lost = RECORDS as usize - after.len();
    let effect = format!("{} recorded, {} repeated, {lost} lost, drained {drained}", recorded.len(), repeated.len());
    if recorded != repeated || lost > 0 || !drained {
        world.journal.anomaly("replay", format!("{}: {effect}", plan.group));
    }
    if recorded.is_empty() { Err(effect) } else { Ok(effect) }
}

/// Where each numbered record lies.
fn places(broker: &Broker, source: &str) -> BTreeMap<u64, Place> {
    let records = read_all(broker, source);
    records.iter().filter_map(|record| Some((Identity::Value.of(record)?, (record.partition, record.offset)))).collect()
}

/// How often each source record came out.
fn outputs(broker: &Broker, plan: &Plan, places: &BTreeMap<u64, Place>) -> BTreeMap<Place, u32> {
    let mut times = BTreeMap::new();
    for record in plan.outputs().iter().flat_map(|topic| read_all(broker, topic)) {
        if let Some(place) = Identity::Value.of(&record).and_then(|number| places.get(&number)) {
            *times.entry(*place).or_default() += 1;
        }
    }
    times
}

/// Commits what is committed, without the maps; the offsets, by partition.
fn forget_maps(world: &World, plan: &Plan) -> Result<BTreeMap<i32, i64>, String> {
    let mut config = plan.client();
    config.set("group.id", plan.consumer_group()).set("isolation.level", "read_committed");
    let consumer: BaseConsumer =
        config.set("enable.auto.commit", "false").create().map_err(|error| error.to_string())?;
    let mut list = TopicPartitionList::new();
    (0..PARTITIONS).for_each(|partition| _ = list.add_partition(&plan.sources[0].name, partition));
    let committed = consumer.committed_offsets(list, CALL).map_err(|error| error.to_string())?;
    let mut bases = BTreeMap::new();
    let mut foreign = TopicPartitionList::new();
    for element in committed.elements() {
        let offset = element.offset().to_raw().filter(|offset| *offset >= 0).ok_or("nothing is committed")?;
        bases.insert(element.partition(), offset);
        foreign
            .add_partition_offset(element.topic(), element.partition(), Offset::Offset(offset))
            .map_err(|error| error.to_string())?;
    }
    let done = world.wait(Duration::from_secs(30), || consumer.commit(&foreign, CommitMode::Sync).is_ok());
    if done { Ok(bases) } else { Err("the foreign commit was refused".to_owned()) }
}
