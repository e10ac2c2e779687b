//! A Kafka inside this process, for the demo and for wiring tests.
//!
//! librdkafka's mock: groups, commits and records work; transactions, quotas, ACLs, CreateTopics and DescribeConfigs do
//! not. A partition keeps 5 MiB or 100 000 batches, then drops the oldest. All of it is in memory.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError as ClientError;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, DeliveryResult, Producer as _, ProducerContext};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use super::client::{self, KafkaError};
use super::ffi;

/// How long a new group waits for more members; real brokers, and the embedded one by default, take 3 s.
const INITIAL_REBALANCE_DELAY: Duration = Duration::from_millis(100);

/// The embedded cluster; it ends when this is dropped.
pub struct Embedded {
    /// The client that the cluster runs in. It sends nothing.
    host: BaseProducer<Host>,
}

impl Embedded {
    /// Starts a cluster of so many brokers on free loopback ports.
    pub fn start(brokers: u16) -> Result<Embedded, KafkaError> {
        let mut config = ClientConfig::new();
        config.set("test.mock.num.brokers", brokers.to_string());
        let host: BaseProducer<Host> = config.create_with_context(Host)?;
        ffi::set_initial_rebalance_delay(host.client(), INITIAL_REBALANCE_DELAY);
        Ok(Embedded { host })
    }

    /// What to put into `bootstrap_servers`.
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

    /// Makes so many producers useless: each may not have a producer id, which is fatal to it.
    pub fn refuse_next_producers(&self, count: usize) {
        let errors = vec![RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED; count];
        self.cluster().request_errors(RDKafkaApiKey::InitProducerId, &errors);
    }

    /// Throws the next member that shows a sign of life out of its group.
    pub fn expel_a_member(&self) {
        let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID;
        self.cluster().request_errors(RDKafkaApiKey::Heartbeat, &[error]);
    }

    /// Lets nobody into a group until [`let_join`](Embedded::let_join), or until so many asked.
    pub fn refuse_joins(&self, count: usize) {
        let errors = vec![RDKafkaRespErr::RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS; count];
        self.cluster().request_errors(RDKafkaApiKey::JoinGroup, &errors);
    }

    /// Lets members join again.
    pub fn let_join(&self) {
        self.cluster().clear_request_errors(RDKafkaApiKey::JoinGroup);
    }

    /// From now on nobody may know or write to this topic.
    pub fn forbid_topic(&self, name: &str) -> Result<(), KafkaError> {
        let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
        self.cluster().topic_error(name, error).map_err(cannot("forbid a topic"))
    }

    /// Answers the next commits with these, one each: that the group changes, or an error that nobody knows.
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

    /// Takes connections to a broker again.
    pub fn broker_up(&self, broker: i32) -> Result<(), KafkaError> {
        self.cluster().broker_up(broker).map_err(cannot("start a broker"))
    }

    fn cluster(&self) -> MockCluster<'_, Host> {
        self.host.client().mock_cluster().expect("the client was configured with brokers of its own")
    }
}

fn cannot(what: &'static str) -> impl Fn(ClientError) -> KafkaError {
    move |error| KafkaError::Client(format!("the embedded broker can't {what}: {error}"))
}

struct Host;

impl ClientContext for Host {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        client::log(level, facility, message);
    }
}

impl ProducerContext for Host {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}
