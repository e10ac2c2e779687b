//! Questions to the brokers, and topics that they are asked to make.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, NewTopic};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};
use watermaster_settings::Kafka;

use crate::assign;
use crate::client::{self, KafkaError, LoggingContext};
use crate::topics::{SourcePartition, Topics};

/// The time between two questions to a coordinator that moves.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// A question has no answer, or the answer is that a topic or group can't be used.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("no answer from kafka.bootstrap_servers = \"{bootstrap_servers}\": {source}")]
    Unreachable { bootstrap_servers: String, source: ClientError },
    #[error("topic {topic}: does not exist: create it")]
    MissingTopic { topic: String },
    #[error("topic {topic}: {code}")]
    RefusedTopic { topic: String, code: Code },
    #[error("consumer group {group}: {code}: grant READ on it")]
    RefusedGroup { group: String, code: Code },
    #[error("topic {topic} has {partitions} partitions; it needs exactly one")]
    Partitions { topic: String, partitions: i32 },
    #[error("topic {topic}: the record at offset {offset} is of another program or of a later version: use that one")]
    ForeignRecord { topic: String, offset: i64 },
    #[error("topic {topic}: {source}")]
    Topic { topic: String, source: ClientError },
    #[error(transparent)]
    Client(#[from] KafkaError),
}

/// Properties of a topic; `None` where the broker does not tell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopicFacts {
    pub partitions: usize,
    pub replication: usize,
    pub max_message_bytes: Option<u64>,
    pub min_insync_replicas: Option<u64>,
    /// `None` also if unlimited.
    pub retention: Option<Duration>,
    pub compacted: Option<bool>,
}

impl TopicFacts {
    /// Returns the number of replicas that hold each record before it counts as written.
    pub(super) fn in_sync(&self) -> Option<u64> {
        Some(self.min_insync_replicas?.min(self.replication as u64))
    }

    pub(super) fn apply(&mut self, config: &ConfigResource) {
        let value = |name: &str| config.get(name)?.value.clone();
        let number = |name: &str| value(name)?.parse::<i64>().ok();
        self.max_message_bytes = number("max.message.bytes").and_then(|bytes| bytes.try_into().ok());
        self.min_insync_replicas = number("min.insync.replicas").and_then(|count| count.try_into().ok());
        self.retention = number("retention.ms").and_then(|ms| ms.try_into().ok()).map(Duration::from_millis);
        self.compacted = value("cleanup.policy").map(|policy| policy.contains("compact"));
    }
}

/// Checks that topics exist.
///
/// # Errors
/// Fails when no broker answers within `timeout`, or a topic can't be used.
pub fn find_topics(kafka: &Kafka, topics: &[&str], timeout: Duration) -> Result<(), AskError> {
    let consumer = client::consumer(&client::load_config(kafka, &[], &[]))?;
    topics.iter().try_for_each(|topic| partitions(&consumer, kafka, topic, timeout).map(drop))
}

/// Returns the committed offset and metadata of a group for each partition (an index into `topics`, a partition) that
/// has one, after pending transactions have ended.
///
/// # Errors
/// Fails when the group's coordinator does not answer in time, or refuses.
pub fn committed(
    kafka: &Kafka, group: &str, topics: &[String], partitions: &[SourcePartition], timeout: Duration,
) -> Result<Vec<(SourcePartition, i64, Vec<u8>)>, KafkaError> {
    let forced = [("group.id", group), ("enable.auto.commit", "false"), ("isolation.level", "read_committed")];
    let consumer = client::consumer(&client::load_config(kafka, &[], &forced))?;
    let names = Topics::new(topics.iter().map(String::as_str));
    let deadline = Instant::now() + timeout;
    let found = loop {
        match assign::committed(&consumer, &names, partitions, timeout) {
            // The coordinator may be moving, or a transaction pending.
            Err(_) if Instant::now() < deadline => std::thread::sleep(RETRY_INTERVAL),
            result => break result?,
        }
    };
    let at = |(partition, committed): (_, Option<(i64, Vec<u8>)>)| {
        committed.map(|(offset, metadata)| (partition, offset, metadata))
    };
    Ok(found.into_iter().filter_map(at).collect())
}

/// Returns the number of partitions of a topic.
pub(super) fn partitions(
    consumer: &BaseConsumer<LoggingContext>, kafka: &Kafka, topic: &str, timeout: Duration,
) -> Result<i32, AskError> {
    let metadata = consumer
        .fetch_metadata(Some(topic), timeout)
        .map_err(|error| AskError::Unreachable { bootstrap_servers: kafka.bootstrap_servers.clone(), source: error })?;
    let found = metadata.topics().iter().find(|found| found.name() == topic);
    let (error, count) = found.map_or((None, 0), |found| (found.error().map(Code::from), found.partitions().len()));
    let topic = topic.to_owned();
    match error {
        None if count > 0 => Ok(i32::try_from(count).unwrap_or(i32::MAX)),
        None | Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => Err(AskError::MissingTopic { topic }),
        Some(code) => Err(AskError::RefusedTopic { topic, code }),
    }
}

/// Makes a topic. Returns false if it was there.
///
/// # Errors
/// No broker answers within `timeout`; or, inside, a broker refuses.
pub(super) fn create_topic(
    config: &ClientConfig, new: &NewTopic<'_>, timeout: Duration,
) -> Result<Result<bool, Code>, ClientError> {
    let admin: AdminClient<_> = client::create(config, LoggingContext::default())?;
    let options = AdminOptions::new().request_timeout(Some(timeout)).operation_timeout(Some(timeout));
    let created = block_on(admin.create_topics([new], &options))?;
    Ok(match created.into_iter().next() {
        None | Some(Ok(_)) => Ok(true),
        Some(Err((_, Code::TopicAlreadyExists))) => Ok(false),
        Some(Err((_, code))) => Err(code),
    })
}

/// Runs a future that another thread completes, with or without a runtime around it.
pub(super) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
