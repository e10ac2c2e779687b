//! Questions to the brokers, and topics that they are asked to make.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, NewTopic};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};
use rdkafka::message::BorrowedMessage;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use watermaster_core::pace::Offsets;
use watermaster_settings::Kafka;

use crate::client::{self, KafkaError, LoggingContext};
use crate::login::Login;
use crate::refusal::Explanations;
use crate::topics::{SourceIndex, SourcePartition, Topics, all_partitions};
use crate::{assign, ffi};

/// The time between two questions to a coordinator that moves.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// Bounds for the memory of records that are fetched ahead. A fetch is bounded as it comes: compressed records can take
/// twenty times as much.
const FETCH_BOUNDS: [(&str, &str); 3] =
    [("queued.max.messages.kbytes", "4096"), ("queued.min.messages", "5000"), ("fetch.message.max.bytes", "131072")];

/// A question has no answer, or the answer is that a topic or group can't be used.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("no answer from kafka.bootstrap_servers = \"{bootstrap_servers}\": {why}")]
    Unreachable { bootstrap_servers: String, why: String },
    #[error("topic {topic}: does not exist: create it")]
    MissingTopic { topic: String },
    #[error("topic {topic}: {code}")]
    RefusedTopic { topic: String, code: Code },
    #[error("consumer group {group}: {code}: grant DESCRIBE on it")]
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

impl AskError {
    /// Returns whether the brokers do not answer, or not yet. All other errors need another configuration, or other
    /// topics or permissions.
    pub fn is_silence(&self) -> bool {
        match self {
            AskError::Unreachable { .. } | AskError::Topic { .. } => true,
            AskError::Client(KafkaError::Client(why)) => why.rdkafka_error_code().is_some_and(|code| !is_final(code)),
            _ => false,
        }
    }
}

pub(crate) fn is_final(code: Code) -> bool {
    matches!(code, Code::TopicAuthorizationFailed | Code::GroupAuthorizationFailed | Code::UnknownTopicOrPartition)
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
    /// The age from which on a record is refused, by its timestamp; `None` also if any age is taken.
    pub refused_age: Option<Duration>,
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
        // Brokers say "any age" with the largest number.
        let refused = number("message.timestamp.before.max.ms").filter(|ms| *ms < i64::MAX);
        let refused = refused.filter(|_| value("message.timestamp.type").as_deref() != Some("LogAppendTime"));
        self.refused_age = refused.and_then(|ms| ms.try_into().ok()).map(Duration::from_millis);
        self.compacted = value("cleanup.policy").map(|policy| policy.contains("compact"));
    }
}

/// A client that asks about any topic and any group, and reads records only to answer. It joins no group. Each question
/// fails if a broker does not answer it within its `timeout`, or refuses.
pub struct Asker {
    pub(super) consumer: BaseConsumer<LoggingContext>,
    kafka: Kafka,
    login: Login,
}

impl Asker {
    /// Makes a client of `group`: librdkafka reads no record without a group. The caller logs the errors.
    pub fn new(kafka: &Kafka, group: &str) -> Result<Asker, KafkaError> {
        Asker::with(kafka, client::reader_config(kafka, group, "earliest", &FETCH_BOUNDS))
    }

    /// Makes a client for which a partition ends behind all of its records: those of open and of aborted transactions
    /// count.
    pub fn of_all_records(kafka: &Kafka, group: &str) -> Result<Asker, KafkaError> {
        let mut config = client::reader_config(kafka, group, "earliest", &FETCH_BOUNDS);
        config.set("isolation.level", "read_uncommitted");
        Asker::with(kafka, config)
    }

    /// Makes a client of a command. The command's name is its group, and its `client.id` unless one is configured.
    pub fn named(kafka: &Kafka, command: &str) -> Result<Asker, KafkaError> {
        Asker::with(kafka, client::reader_config(kafka, command, "earliest", &[("client.id", command)]))
    }

    fn with(kafka: &Kafka, mut config: ClientConfig) -> Result<Asker, KafkaError> {
        client::silence(&mut config);
        Ok(Asker { consumer: client::consumer(&config)?, kafka: kafka.clone(), login: Login::new(kafka) })
    }

    /// Returns true if secrets have changed that only another client takes.
    pub fn has_old_secrets(&self) -> bool {
        self.login.is_outdated()
    }

    /// Takes events, and a user and a password that were read again. A client that lives long calls it before it asks:
    /// errors of connections pile up until they are polled, and a poll renews a token of OAuth.
    pub fn prepare(&self) {
        self.login.renew(self.consumer.client());
        while self.consumer.poll(Duration::ZERO).is_some() {}
    }

    /// Returns the number of partitions of a topic.
    pub fn partitions(&self, topic: &str, timeout: Duration) -> Result<i32, AskError> {
        let metadata = self.consumer.fetch_metadata(Some(topic), timeout).map_err(|error| self.unreachable(&error))?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        let (error, count) = found.map_or((None, 0), |found| (found.error().map(Code::from), found.partitions().len()));
        let topic = topic.to_owned();
        match error {
            None if count > 0 => Ok(i32::try_from(count).unwrap_or(i32::MAX)),
            None | Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => Err(AskError::MissingTopic { topic }),
            Some(code) => Err(AskError::RefusedTopic { topic, code }),
        }
    }

    /// Tells why no broker answered: the last error of a connection says more than that of the question.
    fn unreachable(&self, error: &ClientError) -> AskError {
        if self.consumer.assignment().is_ok_and(|partitions| partitions.count() == 0) {
            self.prepare();
        }
        let last = self.consumer.context().last_error();
        let why = last.map_or_else(|| error.to_string(), |last| Explanations::default().of(&self.kafka, &last));
        AskError::Unreachable { bootstrap_servers: self.kafka.bootstrap_servers.clone(), why }
    }

    /// Returns the id of a topic, which no other topic of its name has; empty where the brokers tell none.
    pub fn topic_id(&self, topic: &str, timeout: Duration) -> Result<String, AskError> {
        let topic_of = || topic.to_owned();
        assign::topic_id(&self.consumer, topic, timeout).map_err(|source| match source {
            ClientError::MetadataFetch(code) if is_final(code) => AskError::RefusedTopic { topic: topic_of(), code },
            source => AskError::Topic { topic: topic_of(), source },
        })
    }

    /// Returns the committed offset and metadata of a group for each partition that has one. With `stable`, once no
    /// transaction with one is pending; else the offsets of such a transaction do not hold up the answer, and are not
    /// in it.
    pub fn committed(
        &self, group: &str, topics: &Topics, partitions: &[SourcePartition], stable: bool, timeout: Duration,
    ) -> Result<BTreeMap<SourcePartition, (i64, Vec<u8>)>, AskError> {
        if partitions.is_empty() {
            return Ok(BTreeMap::new());
        }
        let (list, deadline) = (topics.list(partitions), Instant::now() + timeout);
        let ask = || {
            let entries = ffi::committed_of(self.consumer.client(), group, &list, stable, assign::remaining(deadline))?;
            let refused = entries.iter().find(|entry| entry.error != Code::NoError);
            refused.map_or(Ok(entries.clone()), |entry| Err(entry.error))
        };
        let entries = loop {
            match ask() {
                Ok(entries) => break entries,
                Err(code) if passes_by(code) && Instant::now() < deadline => thread::sleep(RETRY_INTERVAL),
                Err(code @ Code::GroupAuthorizationFailed) => {
                    return Err(AskError::RefusedGroup { group: group.to_owned(), code });
                }
                Err(code) => return Err(KafkaError::Client(ClientError::OffsetFetch(code)).into()),
            }
        };
        let known = entries.into_iter().filter(|entry| entry.offset >= 0);
        Ok(known
            .filter_map(|entry| Some(((topics.find(&entry.topic)?, entry.partition), (entry.offset, entry.metadata))))
            .collect())
    }

    /// Returns the offsets of those of the first `partitions` partitions of a topic in which `group` committed: two
    /// requests.
    pub fn offsets(
        &self, group: &str, topic: &str, partitions: i32, timeout: Duration,
    ) -> Result<Vec<Offsets>, AskError> {
        let (topics, deadline) = (Topics::new([topic]), Instant::now() + timeout);
        let committed = self.committed(group, &topics, &all_partitions([partitions]), true, timeout)?;
        let asked: Vec<_> = committed.keys().copied().collect();
        let ends = assign::offsets(&self.consumer, &topics, &asked, Offset::End, deadline).map_err(KafkaError::from)?;
        let offsets = committed.into_iter().map(|(partition, (committed, _))| {
            let end = ends.get(&partition).copied().unwrap_or(0);
            Offsets { partition: partition.1, end, committed }
        });
        Ok(offsets.collect())
    }

    /// Returns the sum of the ends of these partitions of a topic.
    pub fn sum_of_ends(
        &self, topic: &str, partitions: impl Iterator<Item = i32>, timeout: Duration,
    ) -> Result<i64, AskError> {
        let (topics, deadline) = (Topics::new([topic]), Instant::now() + timeout);
        let asked: Vec<_> = partitions.map(|partition| (SourceIndex(0), partition)).collect();
        let ends = assign::offsets(&self.consumer, &topics, &asked, Offset::End, deadline).map_err(KafkaError::from)?;
        Ok(ends.values().sum())
    }

    /// Returns the number of offsets of a topic from those that `group` committed to the end of the stable records.
    /// Partitions without a committed offset do not count; `None` if there is no other.
    pub fn lag(&self, group: &str, topic: &str, timeout: Duration) -> Result<Option<u64>, AskError> {
        let offsets = self.offsets(group, topic, self.partitions(topic, timeout)?, timeout)?;
        let behind = offsets.iter().map(|one| u64::try_from(one.end - one.committed).unwrap_or(0));
        Ok((!offsets.is_empty()).then(|| behind.sum()))
    }

    /// Returns whether a record lies from the committed offset to the end of a partition; markers of transactions are
    /// none.
    pub fn has_record(&self, topic: &str, tail: Offsets, timeout: Duration) -> Result<bool, AskError> {
        let found = self.first_record(topic, (tail.partition, tail.committed), timeout, |_| ());
        Ok(found?.is_some())
    }

    /// Returns what `take` returns for the first record at an offset or behind it; `None` if the partition ends before,
    /// or does not exist.
    pub(super) fn first_record<T>(
        &self, topic: &str, (partition, offset): (i32, i64), timeout: Duration,
        take: impl FnOnce(&BorrowedMessage<'_>) -> T,
    ) -> Result<Option<T>, AskError> {
        let (topic_of, deadline) = (|| topic.to_owned(), Instant::now() + timeout);
        let failed = |source| AskError::Topic { topic: topic_of(), source };
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, partition, Offset::Offset(offset)).map_err(failed)?;
        self.consumer.assign(&list).map_err(failed)?;
        let first = loop {
            use Code::{InvalidTopic, OperationTimedOut, UnknownPartition, UnknownTopic, UnknownTopicOrPartition};
            match self.consumer.poll(assign::remaining(deadline)) {
                Some(Ok(message)) => break Ok(Some(take(&message))),
                Some(Err(ClientError::PartitionEOF(_))) => break Ok(None),
                Some(Err(ClientError::MessageConsumption(
                    UnknownTopic | UnknownPartition | UnknownTopicOrPartition | InvalidTopic,
                ))) => break Ok(None),
                Some(Err(ClientError::MessageConsumption(code))) if is_final(code) => {
                    break Err(AskError::RefusedTopic { topic: topic_of(), code });
                }
                // Errors of connections pass by.
                Some(Err(_)) | None if Instant::now() < deadline => {}
                Some(Err(_)) | None => break Err(failed(ClientError::MessageConsumption(OperationTimedOut))),
            }
        };
        self.consumer.unassign().map_err(failed)?;
        first
    }
}

/// Returns whether the coordinator of a group is moving, or a transaction pending.
fn passes_by(code: Code) -> bool {
    use Code::{CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator, UnstableOffsetCommit};
    matches!(code, CoordinatorLoadInProgress | CoordinatorNotAvailable | NotCoordinator | UnstableOffsetCommit)
}

/// Makes a topic. Returns false if it was there.
///
/// # Errors
/// No broker answers within `timeout`; or, inside, a broker refuses.
pub(super) fn create_topic(
    config: &ClientConfig, new: &NewTopic<'_>, timeout: Duration,
) -> Result<Result<bool, Code>, ClientError> {
    let admin: AdminClient<_> = client::create(config, LoggingContext::default(), AdminClient::inner)?;
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

#[cfg(test)]
mod tests;
