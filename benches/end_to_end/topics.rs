//! Makes and removes topics, and tells how much is in them.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{Offset, TopicPartitionList};

use crate::workload::{self, Workload};

/// Room for the thousands of partitions that one request may ask for.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Topics {
    admin: AdminClient<DefaultClientContext>,
    broker: String,
    runtime: tokio::runtime::Runtime,
    partitions: i32,
}

/// Topics that are removed with this.
pub struct Made<'a> {
    topics: &'a Topics,
    pub names: Vec<String>,
}

/// The topics of one service.
#[derive(Debug, Clone)]
pub struct Lane {
    pub source: String,
    pub target: String,
    pub dead_letter: String,
}

impl Lane {
    /// Who reads its source for watermaster, in a process that begins with this lane.
    pub fn group(&self, first: &Lane) -> String {
        format!("{}.{}", first.target, self.target)
    }
}

impl Topics {
    /// For topics of so many partitions.
    pub fn new(broker: &str, partitions: i32) -> Topics {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let admin = config(broker).create().expect("an admin client");
        Topics { admin, broker: broker.to_owned(), runtime, partitions }
    }

    pub fn broker(&self) -> &str {
        &self.broker
    }

    /// Tells how much is in topics.
    pub fn probe(&self) -> Probe {
        // It joins none.
        self.probe_of("nobody")
    }

    /// The same, and what this group has committed of them.
    pub fn probe_of(&self, group: &str) -> Probe {
        let mut config = config(&self.broker);
        config.set("group.id", group);
        Probe { consumer: RefCell::new(client(&config)), config, partitions: self.partitions }
    }

    /// Sources, one for each service, with nothing in them.
    pub fn sources(&self, services: u64) -> Made<'_> {
        self.make((0..services).map(|_| name("source")).collect())
    }

    /// Sources with all records in them.
    pub fn filled(&self, workload: &Workload) -> Made<'_> {
        let sources = self.sources(workload.services);
        eprintln!("filling: {workload}");
        for source in &sources.names {
            workload::send(&self.broker, source, workload, Instant::now());
        }
        sources
    }

    /// New targets and dead-letter topics behind these sources. They are removed with the first that is returned.
    pub fn behind(&self, sources: &Made<'_>) -> (Made<'_>, Vec<Lane>) {
        let lane = |source: &String| Lane { source: source.clone(), target: name("target"), dead_letter: name("dead") };
        let lanes: Vec<Lane> = sources.names.iter().map(lane).collect();
        let made = lanes.iter().flat_map(|lane| [lane.target.clone(), lane.dead_letter.clone()]);
        (self.make(made.collect()), lanes)
    }

    fn make(&self, names: Vec<String>) -> Made<'_> {
        let new: Vec<NewTopic<'_>> =
            names.iter().map(|name| NewTopic::new(name, self.partitions, TopicReplication::Fixed(1))).collect();
        let options = AdminOptions::new().request_timeout(Some(PATIENCE)).operation_timeout(Some(PATIENCE));
        let made = self.runtime.block_on(self.admin.create_topics(&new, &options)).expect("topics are made");
        made.into_iter().for_each(|topic| drop(topic.expect("the topic is made")));
        for name in &names {
            while !self.has_leaders(name) {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Made { topics: self, names }
    }

    fn has_leaders(&self, topic: &str) -> bool {
        let metadata = self.admin.inner().fetch_metadata(Some(topic), Duration::from_secs(5));
        metadata.is_ok_and(|metadata| {
            let partitions = metadata.topics().iter().flat_map(|topic| topic.partitions());
            partitions.filter(|partition| partition.leader() >= 0 && partition.error().is_none()).count()
                == usize::try_from(self.partitions).unwrap_or(0)
        })
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        let _ = self.topics.runtime.block_on(self.topics.admin.delete_topics(&names, &AdminOptions::new()));
    }
}

fn name(role: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("bench-{}-{}-{role}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn config(broker: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", broker);
    config
}

fn client(config: &ClientConfig) -> BaseConsumer {
    config.create().expect("a consumer")
}

/// Tells how much is in topics.
pub struct Probe {
    consumer: RefCell<BaseConsumer>,
    config: ClientConfig,
    partitions: i32,
}

impl Probe {
    /// Of each topic.
    pub fn partitions(&self) -> u64 {
        self.partitions.unsigned_abs().into()
    }

    /// How many offsets of each partition are taken: records that can be read, and the markers of transactions.
    pub fn ends(&self, topic: &str) -> Vec<u64> {
        let mut asked = TopicPartitionList::new();
        // A time beyond all: one request answers for all partitions.
        asked.add_partition_range(topic, 0, self.partitions - 1);
        asked.set_all_offsets(Offset::End).expect("a special offset");
        let told = self.consumer.borrow().offsets_for_times(asked, Duration::from_secs(5));
        match told {
            Ok(told) if told.elements().iter().all(|partition| partition.error().is_ok()) => offsets(&told),
            _ => {
                // A topic this young may have had no leader yet, which a client remembers for long.
                self.consumer.replace(client(&self.config));
                vec![0; usize::try_from(self.partitions).unwrap_or(0)]
            }
        }
    }

    /// How far its group has committed each partition.
    pub fn committed(&self, topic: &str) -> Vec<u64> {
        let mut asked = TopicPartitionList::new();
        asked.add_partition_range(topic, 0, self.partitions - 1);
        let told = self.consumer.borrow().committed_offsets(asked, PATIENCE).expect("the coordinator answers");
        offsets(&told)
    }
}

/// 0 where there is none.
fn offsets(told: &TopicPartitionList) -> Vec<u64> {
    let raw = |offset: Offset| offset.to_raw().and_then(|offset| u64::try_from(offset).ok()).unwrap_or(0);
    told.elements().iter().map(|partition| raw(partition.offset())).collect()
}
