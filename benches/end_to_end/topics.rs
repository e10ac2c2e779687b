//! Makes and removes topics, and tells how much is in them.

use std::cell::RefCell;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};

pub struct Topics {
    admin: AdminClient<DefaultClientContext>,
    config: ClientConfig,
    runtime: tokio::runtime::Runtime,
    partitions: i32,
}

impl Topics {
    /// For topics of so many partitions.
    pub fn new(broker: &str, partitions: i32) -> Topics {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let config = || {
            let mut config = ClientConfig::new();
            config.set("bootstrap.servers", broker);
            config
        };
        Topics { admin: config().create().expect("an admin client"), config: config(), runtime, partitions }
    }

    /// Tells how much is in topics.
    pub fn probe(&self) -> Probe {
        Probe { consumer: RefCell::new(client(&self.config)), config: self.config.clone(), partitions: self.partitions }
    }

    pub fn create(&self, topic: &str) {
        let new = NewTopic::new(topic, self.partitions, TopicReplication::Fixed(1));
        let made = self.runtime.block_on(self.admin.create_topics([&new], &AdminOptions::new()));
        made.expect("topics are made").into_iter().for_each(|topic| drop(topic.expect("the topic is made")));
        while !self.has_leaders(topic) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn has_leaders(&self, topic: &str) -> bool {
        let metadata = self.admin.inner().fetch_metadata(Some(topic), Duration::from_secs(5));
        metadata.is_ok_and(|metadata| {
            let partitions = metadata.topics().iter().flat_map(|topic| topic.partitions());
            partitions.filter(|partition| partition.leader() >= 0 && partition.error().is_none()).count()
                == usize::try_from(self.partitions).unwrap_or(0)
        })
    }

    pub fn delete(&self, topic: &str) {
        let _ = self.runtime.block_on(self.admin.delete_topics(&[topic], &AdminOptions::new()));
    }
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
    /// How many offsets of a partition are taken: records, and the markers of transactions.
    pub fn end(&self, topic: &str, partition: i32) -> u64 {
        let ends = self.consumer.borrow().fetch_watermarks(topic, partition, Duration::from_secs(5));
        match ends {
            Ok((_, high)) => u64::try_from(high).unwrap_or(0),
            Err(_) => {
                // A topic this young may have had no leader yet, which a client remembers for long.
                self.consumer.replace(client(&self.config));
                0
            }
        }
    }

    pub fn partitions(&self) -> impl Iterator<Item = i32> {
        0..self.partitions
    }
}
