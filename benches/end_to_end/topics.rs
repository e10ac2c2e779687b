//! Creates and removes topics, and reads their end offsets.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{Offset, TopicPartitionList, client::DefaultClientContext, config::ClientConfig};

use crate::workload::{self, Workload};

/// Timeout of requests; one request may concern thousands of partitions.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

pub struct Topics {
    admin: AdminClient<DefaultClientContext>,
    broker: String,
    runtime: tokio::runtime::Runtime,
    partitions: i32,
}

/// Topics that are removed when this is dropped.
pub struct CreatedTopics<'a> {
    topics: &'a Topics,
    pub names: Vec<String>,
}

/// The source and the outputs of one service.
#[derive(Debug, Clone)]
pub struct Route {
    pub source: String,
    pub target: String,
    pub dead_letter: String,
}

impl Route {
    /// Returns the consumer group of this route's service in a Watermaster process with `first` as its first route.
    pub fn group(&self, first: &Route) -> String {
        format!("{}.{}", first.target, self.target)
    }
}

impl Topics {
    /// Connects to a broker, for topics with this number of partitions.
    pub fn new(broker: &str, partitions: i32) -> Topics {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be started");
        let admin = config(broker).create().expect("the client configuration is valid");
        Topics { admin, broker: broker.to_owned(), runtime, partitions }
    }

    pub fn broker(&self) -> &str {
        &self.broker
    }

    /// Returns a probe for end offsets.
    pub fn probe(&self) -> Probe {
        // librdkafka requires a group id, though the probe joins no group.
        self.probe_of("unused")
    }

    /// Returns a probe that also reads the committed offsets of this group.
    pub fn probe_of(&self, group: &str) -> Probe {
        let mut config = config(&self.broker);
        config.set("group.id", group);
        Probe { consumer: RefCell::new(client(&config)), config, partitions: self.partitions }
    }

    /// Creates empty sources, one for each service.
    pub fn sources(&self, services: u64) -> CreatedTopics<'_> {
        self.create((0..services).map(|_| name("source")).collect())
    }

    /// Creates sources and fills them with all records of the workload.
    pub fn filled(&self, workload: &Workload) -> CreatedTopics<'_> {
        let sources = self.sources(workload.services);
        eprintln!("filling: {workload}");
        for source in &sources.names {
            workload::send(&self.broker, source, workload, Instant::now());
        }
        sources
    }

    /// Creates a target and a dead-letter topic for each source. Dropping the returned guard removes them.
    pub fn outputs_for(&self, sources: &CreatedTopics<'_>) -> (CreatedTopics<'_>, Vec<Route>) {
        let route =
            |source: &String| Route { source: source.clone(), target: name("target"), dead_letter: name("dead") };
        let routes: Vec<Route> = sources.names.iter().map(route).collect();
        let outputs = routes.iter().flat_map(|route| [route.target.clone(), route.dead_letter.clone()]);
        (self.create(outputs.collect()), routes)
    }

    fn create(&self, names: Vec<String>) -> CreatedTopics<'_> {
        let new: Vec<NewTopic<'_>> =
            names.iter().map(|name| NewTopic::new(name, self.partitions, TopicReplication::Fixed(1))).collect();
        let options =
            AdminOptions::new().request_timeout(Some(REQUEST_TIMEOUT)).operation_timeout(Some(REQUEST_TIMEOUT));
        let created = self.runtime.block_on(self.admin.create_topics(&new, &options)).expect("topics can be created");
        created.into_iter().for_each(|topic| drop(topic.expect("the topic can be created")));
        for name in &names {
            while !self.has_leaders(name) {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        CreatedTopics { topics: self, names }
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

impl Drop for CreatedTopics<'_> {
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
    config.create().expect("the consumer configuration is valid")
}

/// Reads end offsets and committed offsets of topics.
pub struct Probe {
    consumer: RefCell<BaseConsumer>,
    config: ClientConfig,
    partitions: i32,
}

impl Probe {
    /// Returns the number of partitions of each topic.
    pub fn partitions(&self) -> u64 {
        self.partitions.unsigned_abs().into()
    }

    /// Returns the end offset of each partition, which counts readable records and transaction markers.
    pub fn ends(&self, topic: &str) -> Vec<u64> {
        let mut partitions = TopicPartitionList::new();
        // The end as a "time" to look up: one request answers for all partitions.
        partitions.add_partition_range(topic, 0, self.partitions - 1);
        partitions.set_all_offsets(Offset::End).expect("Offset::End is valid for all partitions");
        let answer = self.consumer.borrow().offsets_for_times(partitions, Duration::from_secs(5));
        match answer {
            Ok(answer) if answer.elements().iter().all(|partition| partition.error().is_ok()) => offsets(&answer),
            _ => {
                // A new topic may not have had a leader yet, and the client would remember that for long.
                self.consumer.replace(client(&self.config));
                vec![0; usize::try_from(self.partitions).unwrap_or(0)]
            }
        }
    }

    /// Returns the committed offset of each partition.
    pub fn committed(&self, topic: &str) -> Vec<u64> {
        let mut partitions = TopicPartitionList::new();
        partitions.add_partition_range(topic, 0, self.partitions - 1);
        let committed =
            self.consumer.borrow().committed_offsets(partitions, REQUEST_TIMEOUT).expect("the coordinator answers");
        offsets(&committed)
    }
}

/// Returns the offset of each partition; 0 where there is none.
fn offsets(list: &TopicPartitionList) -> Vec<u64> {
    let raw = |offset: Offset| offset.to_raw().and_then(|offset| u64::try_from(offset).ok()).unwrap_or(0);
    list.elements().iter().map(|partition| raw(partition.offset())).collect()
}
