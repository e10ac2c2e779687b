//! The Kafka broker of this test run, and its topics.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList, client::DefaultClientContext};

use super::wait::wait_until;

/// The longest wait until a broker has taken over changed settings.
const ALTER_TIMEOUT: Duration = Duration::from_secs(10);

/// A Kafka broker that tests use.
#[derive(Debug, Clone)]
pub struct Broker {
    pub bootstrap: String,
}

/// A topic to create.
#[derive(Debug, Clone, Default)]
pub struct Topic {
    pub name: String,
    pub partitions: i32,
    pub settings: Vec<(&'static str, &'static str)>,
}

/// Topics that are deleted when the test is done with them.
#[derive(Debug)]
pub struct Topics {
    broker: Broker,
    names: Vec<String>,
}

impl Broker {
    /// Returns the broker that `scripts/test` started or was given.
    pub fn of_this_run() -> Broker {
        let bootstrap = std::env::var("WATERMASTER_TEST_BROKER")
            .expect("WATERMASTER_TEST_BROKER is not set: run scripts/test, or set it to host:port");
        Broker { bootstrap }
    }

    /// Returns a client configuration with this broker's address only.
    pub fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.bootstrap);
        config.set("broker.address.family", "v4");
        config
    }

    /// Returns whether the broker answers.
    pub fn answers(&self) -> bool {
        let Ok(consumer) = self.client().create::<BaseConsumer>() else { return false };
        consumer.fetch_metadata(None, Duration::from_secs(1)).is_ok_and(|metadata| !metadata.brokers().is_empty())
    }

    /// Creates topics and waits until their leaders are known.
    pub fn create(&self, topics: &[Topic]) -> Topics {
        let new: Vec<NewTopic> = topics.iter().map(new_topic).collect();
        let results = run(self.admin().create_topics(&new, &options())).expect("the broker creates topics");
        for result in results {
            result.unwrap_or_else(|(name, error)| panic!("topic {name}: {error}"));
        }
        let consumer: BaseConsumer = self.client().create().expect("a consumer");
        for topic in topics {
            wait_until(&format!("the leaders of {}", topic.name), Duration::from_secs(20), || {
                let metadata = consumer.fetch_metadata(Some(&topic.name), Duration::from_secs(5));
                metadata.is_ok_and(|metadata| {
                    let partitions = metadata.topics()[0].partitions();
                    partitions.len() == topic.partitions as usize && partitions.iter().all(|p| p.leader() >= 0)
                })
            });
        }
        Topics { broker: self.clone(), names: topics.iter().map(|topic| topic.name.clone()).collect() }
    }

    fn admin(&self) -> AdminClient<DefaultClientContext> {
        self.client().create().expect("an admin client")
    }
}

impl Broker {
    /// Deletes topics. It fails if the broker has already ended, which is no error.
    pub fn delete(&self, names: &[String]) {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let _ = run(self.admin().delete_topics(&names, &options()));
    }

    /// Gives a topic these settings, and no others.
    pub fn alter(&self, topic: &Topic) {
        let config = AlterConfig::new(ResourceSpecifier::Topic(&topic.name));
        let config = topic.settings.iter().fold(config, |config, (name, value)| config.set(name, value));
        let altered = run(self.admin().alter_configs([&config], &options())).expect("the broker alters a topic");
        altered.into_iter().for_each(|topic| drop(topic.expect("the broker takes the settings")));
    }

    /// Deletes the offsets of a group without members.
    pub fn delete_group(&self, group: &str) {
        let deleted = run(self.admin().delete_groups(&[group], &options())).expect("the broker answers");
        assert!(deleted.iter().all(Result::is_ok), "{deleted:?}");
    }

    /// Deletes all records of a topic with one partition, as `kafka-delete-records.sh` does.
    pub fn delete_records(&self, topic: &str) {
        let mut all = TopicPartitionList::new();
        all.add_partition_offset(topic, 0, Offset::End).expect("a valid offset");
        // A broker takes over changed settings of a topic a moment after it has answered.
        wait_until("the topic to allow deletion", ALTER_TIMEOUT, || {
            let deleted = run(self.admin().delete_records(&all, &options())).expect("the broker deletes records");
            deleted.elements().iter().all(|partition| partition.error().is_ok())
        });
    }
}

impl Drop for Topics {
    fn drop(&mut self) {
        self.broker.delete(&self.names);
    }
}

impl Topic {
    /// Returns a topic without retention limit that accepts any timestamp and records of up to 4 MiB.
    pub fn new(name: impl Into<String>, partitions: i32) -> Topic {
        let any_time = ("message.timestamp.after.max.ms", "9223372036854775807");
        let settings = vec![("max.message.bytes", "4194304"), ("retention.ms", "-1"), any_time];
        Topic { name: name.into(), partitions, settings }
    }

    /// Sets or replaces a setting.
    pub fn set(&mut self, name: &'static str, value: &'static str) {
        self.settings.retain(|(known, _)| *known != name);
        self.settings.push((name, value));
    }

    /// Makes the broker set each record's timestamp when it appends the record.
    pub fn with_append_time(mut self) -> Topic {
        self.settings.push(("message.timestamp.type", "LogAppendTime"));
        self
    }
}

/// Returns a name that is unique among all tests and runs on a broker.
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is later than 1970");
    format!("{prefix}-{:x}-{}", since_1970.as_micros(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn new_topic(topic: &Topic) -> NewTopic<'_> {
    let new = NewTopic::new(&topic.name, topic.partitions, TopicReplication::Fixed(1));
    topic.settings.iter().fold(new, |new, (name, value)| new.set(name, value))
}

fn options() -> AdminOptions {
    AdminOptions::new().operation_timeout(Some(Duration::from_secs(15))).request_timeout(Some(Duration::from_secs(15)))
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}
