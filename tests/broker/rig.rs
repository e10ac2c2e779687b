//! The set-up of every test here: source topics, a target, a dead-letter topic, and a configuration that names them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer as _};

use crate::support::broker::{Broker, Topic, Topics, unique};
use crate::support::config::{Config, Service};
use crate::support::judge::Judge;
use crate::support::reader::read_all;
use crate::support::record::{Identity, Record};

/// The number of partitions of the target. It differs from that of the sources, so that a copied number is detected.
pub const TARGET_PARTITIONS: i32 = 6;
pub const DEAD_LETTER_PARTITIONS: i32 = 3;

/// Judges numbered records with their client in a header: all are admitted once, in order, with their timestamps.
pub const NUMBERED: Judge<'static> = Judge {
    identity: Identity::Value,
    service: "kyc",
    client_of: &client_id,
    reasons: &[],
    admits_all: false,
    target_partitions: TARGET_PARTITIONS,
    dead_letter_partitions: DEAD_LETTER_PARTITIONS,
    keeps_timestamps: true,
    repeats_allowed: 0,
};

fn client_id(record: &Record) -> Option<String> {
    record.header("client-id").map(str::to_owned)
}

/// The time limit for records to be delivered.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(120);

/// The topics of one service.
pub struct Rig {
    pub broker: Broker,
    pub name: String,
    pub sources: Vec<String>,
    pub target: String,
    pub dead_letter: String,
    /// `None` if another program made the topics.
    _topics: Option<Topics>,
}

/// The origin of the timestamps in the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetTime {
    Create,
    Append,
}

impl Rig {
    /// Creates the topics.
    pub fn new(broker: &Broker, prefix: &str, sources: usize, partitions: i32, time: TargetTime) -> Rig {
        Rig::with_target(broker, prefix, sources, partitions, |topic| {
            if time == TargetTime::Append {
                *topic = topic.clone().with_append_time();
            }
        })
    }

    /// Creates the topics; `change` may first change the target. Sources and dead-letter topic accept any timestamp.
    pub fn with_target(
        broker: &Broker, prefix: &str, sources: usize, partitions: i32, change: impl FnOnce(&mut Topic),
    ) -> Rig {
        Rig::with_outputs(broker, prefix, sources, partitions, |target, _| change(target))
    }

    /// Creates the topics; `change` may first change target and dead-letter topic.
    pub fn with_outputs(
        broker: &Broker, prefix: &str, sources: usize, partitions: i32, change: impl FnOnce(&mut Topic, &mut Topic),
    ) -> Rig {
        Rig::build(broker, prefix, (sources, partitions), |topics| {
            if let [.., target, dead_letter] = topics {
                change(target, dead_letter);
            }
        })
    }

    /// Creates the topics with one source partition; `change` may first change each topic.
    pub fn with_topics(broker: &Broker, prefix: &str, change: impl FnMut(&mut Topic)) -> Rig {
        Rig::build(broker, prefix, (1, 1), |topics| topics.iter_mut().for_each(change))
    }

    /// Creates the topics; `change` may first change all of them, target and dead-letter topic last.
    fn build(
        broker: &Broker, prefix: &str, (sources, partitions): (usize, i32), change: impl FnOnce(&mut [Topic]),
    ) -> Rig {
        let name = unique(prefix);
        let sources: Vec<String> = (0..sources).map(|n| format!("{name}.source-{n}")).collect();
        let (target, dead_letter) = (format!("{name}.target"), format!("{name}.dead-letter"));
        let mut topics: Vec<Topic> = sources.iter().map(|source| Topic::new(source, partitions)).collect();
        topics.push(Topic::new(&target, TARGET_PARTITIONS));
        topics.push(Topic::new(&dead_letter, DEAD_LETTER_PARTITIONS));
        change(&mut topics);
        let topics = broker.create(&topics);
        Rig { broker: broker.clone(), name, sources, target, dead_letter, _topics: Some(topics) }
    }

    /// Returns the topics of the same names at another cluster, to which a mirror copies them.
    pub fn at(&self, broker: &Broker) -> Rig {
        let (name, sources) = (self.name.clone(), self.sources.clone());
        let (target, dead_letter) = (self.target.clone(), self.dead_letter.clone());
        Rig { broker: broker.clone(), name, sources, target, dead_letter, _topics: None }
    }

    /// Returns the service `kyc` on these topics; a source's client is `topic-N`.
    pub fn service(&self, capacity: u64, cycle: &'static str, keys: &str, tables: &str) -> Service {
        let client = |n: usize| format!("topic-{n}");
        Service {
            name: "kyc".to_owned(),
            target: self.target.clone(),
            dead_letter: self.dead_letter.clone(),
            capacity,
            cycle,
            sources: self.sources.iter().enumerate().map(|(n, topic)| (topic.clone(), client(n))).collect(),
            keys: keys.to_owned(),
            tables: tables.to_owned(),
        }
    }

    /// Returns a configuration with this one service.
    pub fn config(&self, service: Service) -> Config {
        Config::new(&self.broker.bootstrap, &self.name, vec![service])
    }

    /// Returns the client of a source topic.
    pub fn topic_client(&self, topic: &str) -> String {
        let n = self.sources.iter().position(|source| source == topic).expect("a source of this test");
        format!("topic-{n}")
    }

    /// Returns the group's lag on a source by its committed offsets; `None` until every partition has one.
    pub fn lag_of_committed(&self, source: &str, partitions: i32) -> Option<i64> {
        let consumer = self.member();
        let lag = |(partition, at)| Some(consumer.fetch_watermarks(source, partition, DRAIN_TIMEOUT).ok()?.1 - at?);
        (0..).zip(self.committed(source, partitions)?).map(lag).sum()
    }

    /// Returns the group's committed offset in each partition of a source.
    pub fn committed(&self, source: &str, partitions: i32) -> Option<Vec<Option<i64>>> {
        let mut list = TopicPartitionList::new();
        list.add_partition_range(source, 0, partitions - 1);
        let committed = self.member().committed_offsets(list, DRAIN_TIMEOUT).ok()?;
        let offset = |partition| committed.find_partition(source, partition)?.offset().to_raw().filter(|at| *at >= 0);
        Some((0..partitions).map(offset).collect())
    }

    fn member(&self) -> BaseConsumer {
        self.broker.client().set("group.id", format!("{}.kyc", self.name)).create().expect("a consumer")
    }

    /// Reads all records of the source topics.
    pub fn read_sources(&self) -> Vec<Record> {
        self.sources.iter().flat_map(|source| read_all(&self.broker, source)).collect()
    }

    pub fn read_target(&self) -> Vec<Record> {
        read_all(&self.broker, &self.target)
    }

    pub fn read_dead_letter(&self) -> Vec<Record> {
        read_all(&self.broker, &self.dead_letter)
    }
}

pub fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is later than 1970").as_millis() as i64
}

/// Returns a start for numbered timestamps: an hour ago, so that none lies in the future.
pub fn an_hour_ago() -> i64 {
    now_ms() - 3_600_000
}
