//! A Kafka inside this process, for the demo and for tests.
//!
//! The broker is librdkafka's mock: groups, commits and records work; transactions, quotas, ACLs, CreateTopics and
//! DescribeConfigs do not. A partition keeps 5 MiB or 100 000 batches in memory, then drops the oldest.

use std::time::Duration;

use rdkafka::producer::{BaseProducer, Producer as _};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{ClientConfig, error::KafkaError as ClientError, mocking::MockCluster};

use crate::client::{KafkaError, LoggingContext};
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
        let host: BaseProducer<LoggingContext> = config.create_with_context(LoggingContext)?;
        ffi::set_initial_rebalance_delay(host.client(), INITIAL_REBALANCE_DELAY);
        Ok(Embedded { host })
    }

    /// Returns the value for `bootstrap_servers`.
    pub fn bootstrap_servers(&self) -> String {
        self.cluster().bootstrap_servers()
    }

    /// Creates a topic.
    pub fn create_topic(&self, name: &str, partitions: i32) -> Result<(), KafkaError> {
        self.cluster().create_topic(name, partitions, 1).map_err(cannot("create a topic"))
    }

    /// Refuses the next batch that is produced, as a broker does when a record in it is invalid.
    pub fn refuse_next_batch(&self) {
        let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_RECORD;
        self.cluster().request_errors(RDKafkaApiKey::Produce, &[error]);
    }

    /// Refuses a producer id to this number of producers, which is fatal to them.
    pub fn refuse_next_producers(&self, count: usize) {
        let errors = vec![RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED; count];
        self.cluster().request_errors(RDKafkaApiKey::InitProducerId, &errors);
    }

    /// Expels the member that sends the next heartbeat from its group.
    pub fn expel_a_member(&self) {
        let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID;
        self.cluster().request_errors(RDKafkaApiKey::Heartbeat, &[error]);
    }

    /// Refuses this number of attempts to join a group, or all until [`allow_joins`](Embedded::allow_joins).
    pub fn refuse_joins(&self, count: usize) {
        let errors = vec![RDKafkaRespErr::RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS; count];
        self.cluster().request_errors(RDKafkaApiKey::JoinGroup, &errors);
    }

    /// Lets members join again.
    pub fn allow_joins(&self) {
        self.cluster().clear_request_errors(RDKafkaApiKey::JoinGroup);
    }

    /// Denies all access to this topic from now on.
    pub fn forbid_topic(&self, name: &str) -> Result<(), KafkaError> {
        let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
        self.cluster().topic_error(name, error).map_err(cannot("forbid a topic"))
    }

    /// Refuses the next commits: with a rebalance for each `true`, with an unknown error for each `false`.
    pub fn refuse_next_commits(&self, group_changes: &[bool]) {
        let error = |&changes: &bool| match changes {
            true => RDKafkaRespErr::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS,
            false => RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN,
        };
        let errors: Vec<_> = group_changes.iter().map(error).collect();
        self.cluster().request_errors(RDKafkaApiKey::OffsetCommit, &errors);
    }

    /// Stops answering on all connections to a broker (they are numbered from 1).
    pub fn broker_down(&self, broker: i32) -> Result<(), KafkaError> {
        self.cluster().broker_down(broker).map_err(cannot("stop a broker"))
    }

    /// Answers on connections to a broker again.
    pub fn broker_up(&self, broker: i32) -> Result<(), KafkaError> {
        self.cluster().broker_up(broker).map_err(cannot("start a broker"))
    }

    fn cluster(&self) -> MockCluster<'_, LoggingContext> {
        self.host.client().mock_cluster().expect("the client was configured with brokers of its own")
    }
}

fn cannot(operation: &'static str) -> impl Fn(ClientError) -> KafkaError {
    move |source| KafkaError::Embedded { operation, source }
}
