//! Tests `on_foreign_offset = "replay"` with a separate service: its duplicates must be exactly the records in its
//! offset maps.

use std::collections::{BTreeMap, BTreeSet};
use std::{error::Error, time::Duration};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::{Offset, TopicPartitionList};

use crate::instances::{Fleet, Metrics};
use crate::outcome::{Effect, Outcome};
use crate::plan::{Plan, Source, now_ms};
use crate::support::broker::{Broker, unique};
use crate::support::producer::{Outgoing, Producer};
use crate::world::{World, create_topics};
use crate::{support::generator::Random, support::reader::read_all, support::record::Identity};

const RECORDS: u64 = 6_000;
const PARTITIONS: i32 = 4;
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
const DRAIN_TIMEOUT: Duration = Duration::from_secs(90);

/// A partition and an offset.
type Position = (i32, i64);

/// Ends an instance that has delayed records, commits its offsets without their maps, and lets another instance drain
/// the source.
pub fn replay(world: &World, _: &mut Random, _: &'static str) -> Outcome {
    let plan = plan(world);
    let effect = run(world, &plan).unwrap_or_else(|error| Effect::Missing(error.to_string()));
    Outcome::new(plan.consumer_group(), (now_ms(), now_ms()), effect)
}

fn plan(world: &World) -> Plan {
    let group = unique("replay");
    Plan {
        sources: vec![Source { name: format!("{group}.source"), partitions: PARTITIONS, compacted: false }],
        target: format!("{group}.target"),
        dead_letter: format!("{group}.dead-letter"),
        append_time: true,
        capacity: 2_000,
        pace: false,
        rules: false,
        more_kafka: "on_foreign_offset = \"replay\"".to_owned(),
        group,
        ..world.plan.clone()
    }
}

fn run(world: &World, plan: &Plan) -> Result<Effect, Box<dyn Error>> {
    create_topics(plan)?;
    world.site.cluster.wait_known(&plan.target, Duration::from_secs(30))?;
    let broker = Broker { bootstrap: plan.bootstrap.clone() };
    let source = &plan.sources[0].name;
    // One record in ten belongs to a client without a backlog and overtakes the others, so the completed offsets have
    // gaps.
    let client = |n: u64| if n.is_multiple_of(10) { "trickle" } else { "flood" };
    Producer::to(&broker).send_all((0..RECORDS).map(|n| Outgoing::numbered(source, n, client(n))));
    let folder = world.dir.join(&plan.group);
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::copy(world.dir.join("watermaster"), folder.join("watermaster")))?;
    let fleet = Fleet::new(plan, &folder, &world.site.proxied(), 1, Vec::new());
    fleet.start(0);
    let admitted = |metrics: &Metrics| metrics.sum("watermaster_records_total", &["decision=\"admitted\""]);
    let enough = |metrics: Metrics| admitted(&metrics) >= 1_200.0 && metrics.backlog() > 1_000.0;
    let delayed = world.wait(DRAIN_TIMEOUT, || enough(fleet.metrics(0)));
    fleet.terminate(0, Duration::from_secs(20));
    if !delayed {
        return Err(format!("no record was delayed: {}", fleet.log_tail(0, 4)).into());
    }
    let positions = positions(&broker, source);
    let before = outputs(&broker, plan, &positions);
    let bases = forget_maps(world, plan)?;
    let recorded: BTreeSet<Position> = before.keys().filter(|(p, offset)| *offset >= bases[p]).copied().collect();
    let faster = Plan { capacity: 1_000_000, ..plan.clone() };
    let fleet = Fleet::new(&faster, &folder, &world.site.proxied(), 1, Vec::new());
    fleet.start(0);
    let drained = world.wait(DRAIN_TIMEOUT, || {
        let metrics = fleet.metrics(0);
        admitted(&metrics) > 0.0 && metrics.backlog() + metrics.sum("watermaster_consumer_lag_records", &[]) == 0.0
    });
    fleet.terminate(0, Duration::from_secs(20));
    let after = outputs(&broker, plan, &positions);
    let repeated: BTreeSet<Position> =
        after.iter().filter(|(_, times)| **times > 1).map(|(position, _)| *position).collect();
    let lost = RECORDS as usize - after.len();
    let effect = format!("{} recorded, {} repeated, {lost} lost, drained {drained}", recorded.len(), repeated.len());
    if recorded != repeated || lost > 0 || !drained {
        world.journal.anomaly("replay", format!("{}: {effect}", plan.group));
    }
    Ok(Effect::when(!recorded.is_empty(), effect))
}

/// Returns the position of each numbered record.
fn positions(broker: &Broker, source: &str) -> BTreeMap<u64, Position> {
    let records = read_all(broker, source);
    records.iter().filter_map(|record| Some((Identity::Value.of(record)?, (record.partition, record.offset)))).collect()
}

/// Returns the number of outputs of each source record.
fn outputs(broker: &Broker, plan: &Plan, positions: &BTreeMap<u64, Position>) -> BTreeMap<Position, u32> {
    let mut times = BTreeMap::new();
    for record in plan.outputs().iter().flat_map(|topic| read_all(broker, topic)) {
        if let Some(position) = Identity::Value.of(&record).and_then(|number| positions.get(&number)) {
            *times.entry(*position).or_default() += 1;
        }
    }
    times
}

/// Commits the committed offsets again, without their offset maps; returns the offsets by partition.
fn forget_maps(world: &World, plan: &Plan) -> Result<BTreeMap<i32, i64>, Box<dyn Error>> {
    let mut config = plan.client();
    config.set("group.id", plan.consumer_group()).set("isolation.level", "read_committed");
    let consumer: BaseConsumer = config.set("enable.auto.commit", "false").create()?;
    let mut list = TopicPartitionList::new();
    (0..PARTITIONS).for_each(|partition| _ = list.add_partition(&plan.sources[0].name, partition));
    let committed = consumer.committed_offsets(list, CALL_TIMEOUT)?;
    let mut bases = BTreeMap::new();
    let mut foreign = TopicPartitionList::new();
    for element in committed.elements() {
        let offset =
            element.offset().to_raw().filter(|offset| *offset >= 0).ok_or("the group has no committed offsets")?;
        bases.insert(element.partition(), offset);
        foreign.add_partition_offset(element.topic(), element.partition(), Offset::Offset(offset))?;
    }
    let done = world.wait(Duration::from_secs(30), || consumer.commit(&foreign, CommitMode::Sync).is_ok());
    if done { Ok(bases) } else { Err("the foreign commit was refused".into()) }
}
