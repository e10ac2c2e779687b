//! A Kafka inside this process, for the demo and for wiring tests.
//!
//! librdkafka's mock: groups, commits and records work; transactions, quotas, ACLs, CreateTopics and DescribeConfigs do
//! not. A partition keeps 5 MiB or 100 000 batches, then drops the oldest. All of it is in memory.

use rdkafka::error::KafkaError as ClientError;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use super::client::KafkaError;

/// The embedded cluster; it ends when this is dropped, on the thread that made it.
pub struct Embedded {
    cluster: MockCluster<'static, DefaultProducerContext>,
}

impl Embedded {
    /// Starts a cluster of so many brokers on free loopback ports.
    pub fn start(brokers: i32) -> Result<Embedded, KafkaError> {
        let cluster = MockCluster::new(brokers).map_err(cannot("start"))?;
        Ok(Embedded { cluster })
    }

    /// What to put into `bootstrap_servers`.
    pub fn bootstrap_servers(&self) -> String {
        self.cluster.bootstrap_servers()
    }

    /// Creates a topic.
    pub fn create_topic(&self, name: &str, partitions: i32) -> Result<(), KafkaError> {
        self.cluster.create_topic(name, partitions, 1).map_err(cannot("create a topic"))
    }

    /// Refuses the next batch that is produced, as a broker does when a record in it is invalid.
    pub fn refuse_next_batch(&self) {
        let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_RECORD;
        self.cluster
            .request_errors(RDKafkaApiKey::Produce, &[error]);
    }

    /// Stops answering on all connections to a broker (they are numbered from 1).
    pub fn broker_down(&self, broker: i32) -> Result<(), KafkaError> {
        self.cluster.broker_down(broker).map_err(cannot("stop a broker"))
    }

    /// Takes connections to a broker again.
    pub fn broker_up(&self, broker: i32) -> Result<(), KafkaError> {
        self.cluster.broker_up(broker).map_err(cannot("start a broker"))
    }
}

fn cannot(what: &'static str) -> impl Fn(ClientError) -> KafkaError {
    move |error| KafkaError::Client(format!("the embedded broker can't {what}: {error}"))
}
