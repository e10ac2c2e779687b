//! A Kafka inside this process, for the demo and for tests.
//!
//! The broker is librdkafka's mock: groups, commits and records work; transactions, quotas, ACLs, CreateTopics and
//! DescribeConfigs do not. A partition keeps 5 MiB or 100 000 batches in memory, then drops the oldest.

use std::time::Duration;

use rdkafka::producer::{BaseProducer, Producer as _};
use rdkafka::{ClientConfig, mocking::MockCluster};

use crate::client::{KafkaError, LoggingContext, create};
use crate::ffi;

/// The time that a new group waits for more members; in real brokers, and by default in the embedded one, 3 s.
const INITIAL_REBALANCE_DELAY: Duration = Duration::from_millis(100);

/// The embedded cluster; it ends when this is dropped.
pub struct Embedded {
    /// The client in which the cluster runs. It sends nothing.
    host: BaseProducer<LoggingContext>,
}

impl Embedded {
    /// Starts a cluster of this number of brokers on free loopback ports.
    pub fn start(brokers: u16) -> Result<Embedded, KafkaError> {
        let mut config = ClientConfig::new();
        config.set("test.mock.num.brokers", brokers.to_string());
        let host: BaseProducer<LoggingContext> = create(&config, LoggingContext::default(), BaseProducer::client)?;
        ffi::set_initial_rebalance_delay(host.client(), INITIAL_REBALANCE_DELAY);
        Ok(Embedded { host })
    }

    /// Returns the value for `bootstrap_servers`.
    pub fn bootstrap_servers(&self) -> String {
        self.cluster().bootstrap_servers()
    }

    /// Creates a topic.
    pub fn create_topic(&self, name: &str, partitions: i32) -> Result<(), KafkaError> {
        self.cluster().create_topic(name, partitions, 1).map_err(KafkaError::EmbeddedTopic)
    }

    /// Returns the cluster, for tests that make it fail.
    pub fn cluster(&self) -> MockCluster<'_, LoggingContext> {
        self.host.client().mock_cluster().expect("the client was configured with brokers of its own")
    }
}
