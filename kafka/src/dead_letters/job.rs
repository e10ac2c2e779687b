//! A job that sends dead letters again, exactly once: records, the entries of the ledger and the job's positions go
//! into one transaction.
//!
//! The positions are the committed offsets of a consumer group of the job's own, which nothing ever joins. All
//! processes of a service's jobs fence each other by their common `transactional.id`. After every error the job takes a
//! new producer, which ends the transaction of the former one, and the owner reads the ledger again: so it does not
//! matter whether the last commit succeeded.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::admin::{NewTopic, TopicReplication};
use rdkafka::consumer::Consumer as _;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use watermaster_core::delivery::{ClientError, ErrorClass, ErrorKind, Failure, SendError, TransactionError};
use watermaster_settings::{Kafka, Service};

use super::reader::{Header, Reader, bytes_of};
use crate::ask::{self, AskError};
use crate::client::{self, KafkaError};
use crate::consumer::Offsets;
use crate::ffi::{self, GroupMetadata, HeaderList, TopicHandle};
use crate::producer::{self, TaintedStarts, Transactions, transaction_timeout};

/// The longest wait of one call.
const CALL_TIMEOUT: Duration = Duration::from_millis(500);
/// The pause before another producer after one that could not start.
const RESTART_PAUSE: Duration = Duration::from_millis(200);

/// The offset of each partition up to which the job has decided, and the metadata to commit with it.
pub type Positions = BTreeMap<i32, (i64, String)>;

/// A record to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    pub topic: String,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<Header>,
    /// Milliseconds since 1970, or -1 for the time of sending.
    pub timestamp_ms: i64,
}

impl Outgoing {
    /// Returns the bytes of key, value and headers.
    pub fn bytes(&self) -> usize {
        bytes_of(self.key.as_deref(), self.value.as_deref(), &self.headers)
    }
}

/// The reason for which a transaction of a job did not, or perhaps did not, succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// The transaction may have succeeded, or another process took over: the ledger tells.
    #[error(transparent)]
    Unknown(ClientError),
    /// A topic refuses one of these records, by index, for good. None was sent.
    #[error("{} records are refused: {error}", refused.len())]
    Refused { refused: Vec<usize>, error: ClientError },
    /// Nothing can be sent or committed at all: permissions, a topic that is gone.
    #[error(transparent)]
    Final(ClientError),
}

/// A job's producer.
pub struct Job {
    /// Dropped before their client.
    topics: HashMap<String, TopicHandle>,
    transactions: Transactions,
    config: ClientConfig,
    timeout: Duration,
    group: Arc<GroupMetadata>,
    topic: String,
}

impl Job {
    /// Returns the name of the job's consumer group.
    pub fn group(kafka: &Kafka, service: &Service, id: &str) -> String {
        format!("{}.{}.redrive.{id}", kafka.group_id, service.name)
    }

    /// Makes the producer of a job with this `transactional.id` for the records of `reader`, which was opened with the
    /// job's group. No broker is contacted yet.
    pub fn new(kafka: &Kafka, transactional_id: &str, reader: &Reader) -> Result<Job, AskError> {
        let (config, timeout) = (producer::transactional_config(kafka, transactional_id), transaction_timeout(kafka));
        let transactions = Transactions::new(&config, timeout)?;
        let metadata = GroupMetadata::unfenced(reader.asker.consumer.client()).ok_or(KafkaError::NoGroup)?;
        let (topics, topic) = (HashMap::new(), reader.topic().to_owned());
        Ok(Job { topics, transactions, config, timeout, group: Arc::new(metadata), topic })
    }

    /// Gets an epoch, which ends a transaction that is still open and fences other processes with this id. Tries again
    /// until `go_on` returns false.
    ///
    /// # Errors
    /// The brokers refuse the job, or do not answer until `go_on` returns false.
    pub fn start(&mut self, mut go_on: impl FnMut(&ClientError) -> bool) -> Result<(), JobError> {
        let mut tainted_starts = TaintedStarts::default();
        loop {
            match self.transactions.init(CALL_TIMEOUT) {
                Ok(()) if tainted_starts.accept(&self.transactions) => return Ok(()),
                Ok(()) => {}
                Err(error) if error.kind == ErrorKind::Denied => return Err(JobError::Final(error.source)),
                Err(error) if !go_on(&error.source) => return Err(JobError::Unknown(error.source)),
                Err(error) if error.class == ErrorClass::Retriable => continue,
                Err(_) => std::thread::sleep(RESTART_PAUSE),
            }
            self.replace().map_err(JobError::Final)?;
        }
    }

    /// Replaces the producer: to be called after an error, before [`start`](Job::start).
    pub fn replace(&mut self) -> Result<(), ClientError> {
        self.topics.clear();
        self.transactions = Transactions::new(&self.config, self.timeout).map_err(ClientError::new)?;
        Ok(())
    }

    /// Sends records and commits positions in one transaction. An iterator that takes long delays the commit; the
    /// transaction ends by itself after `transaction.timeout.ms` (10 s by default).
    ///
    /// # Errors
    /// After any error this producer is to be replaced.
    pub fn deliver(&mut self, positions: &Positions, records: impl Iterator<Item = Outgoing>) -> Result<(), JobError> {
        if self.transactions.tainted() {
            return Err(unknown("a connection broke"));
        }
        let deadline = Instant::now() + self.timeout;
        self.transactions.begin().map_err(failed)?;
        let mut refused = Vec::new();
        for (tag, record) in records.enumerate() {
            if let Err(error) = self.send(record, tag, deadline)? {
                refused.push((tag, error));
            }
            if self.transactions.failing() {
                break;
            }
        }
        while !self.transactions.flush(CALL_TIMEOUT) && !self.transactions.failing() {
            in_time(deadline)?;
        }
        self.judge(refused)?;
        // After a commit, the brokers refuse further calls for some 20 ms. The records wait for that in librdkafka's
        // queue, while more of them come. If the positions were sent first, the caller would have to wait.
        let offsets = Offsets::of_group(self.list(positions), Arc::clone(&self.group));
        while !positions.is_empty() && !self.transactions.send_offsets(&offsets, CALL_TIMEOUT).map_err(failed)? {
            in_time(deadline)?;
        }
        loop {
            match self.transactions.commit(CALL_TIMEOUT) {
                Ok(()) => return Ok(()),
                Err(error) if error.class == ErrorClass::Retriable => in_time(deadline)?,
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Hands a record over. The inner error refuses this record alone.
    fn send(&mut self, record: Outgoing, tag: usize, deadline: Instant) -> Result<Result<(), ClientError>, JobError> {
        if !self.topics.contains_key(&record.topic) {
            let handle =
                self.transactions.topic(&record.topic).map_err(|error| JobError::Final(ClientError::new(error)))?;
            self.topics.insert(record.topic.clone(), handle);
        }
        loop {
            let mut headers = HeaderList::with_capacity(record.headers.len());
            record.headers.iter().for_each(|(name, value)| headers.add(name, value.as_deref()));
            let produced = ffi::ProducedRecord {
                key: record.key.as_deref(),
                value: record.value.as_deref(),
                timestamp_ms: record.timestamp_ms,
                headers: Some(headers),
                tag,
            };
            match self.transactions.send(&self.topics[&record.topic], produced) {
                Ok(()) => return Ok(Ok(())),
                Err(SendError::QueueFull) => {
                    self.transactions.flush(CALL_TIMEOUT);
                    in_time(deadline)?;
                }
                Err(SendError::Refused(error)) => return Ok(Err(error)),
                Err(SendError::Denied(error)) => return Err(JobError::Final(error)),
                Err(SendError::Fatal(error)) => return Err(JobError::Unknown(error)),
            }
        }
    }

    /// Returns the error of the transaction before its commit, if there is one.
    fn judge(&self, mut refused: Vec<(usize, ClientError)>) -> Result<(), JobError> {
        let mut lost = None;
        for (tag, failure) in self.transactions.take_failures() {
            match failure {
                Failure::Refused(error) => refused.push((tag, error)),
                Failure::Denied(error) => return Err(JobError::Final(error)),
                Failure::Unknown(error) | Failure::Fatal(error) => lost = Some(error),
            }
        }
        if let Some((_, error)) = refused.first() {
            let error = error.clone();
            return Err(JobError::Refused { refused: refused.into_iter().map(|(tag, _)| tag).collect(), error });
        }
        // The records of a transaction that fails for a lack of permission are lost for no reason of their own.
        if let Some(error) = self.transactions.denial() {
            return Err(failed(error));
        }
        match lost.or_else(|| self.transactions.fatal()) {
            Some(error) => Err(JobError::Unknown(error)),
            None if self.transactions.failing() => Err(unknown("the transaction failed")),
            None => Ok(()),
        }
    }

    fn list(&self, positions: &Positions) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        for (partition, (offset, metadata)) in positions {
            let mut element = list.add_partition(&self.topic, *partition);
            element.set_offset(Offset::Offset(*offset)).expect("an offset is never negative");
            element.set_metadata(metadata);
        }
        list
    }
}

fn in_time(deadline: Instant) -> Result<(), JobError> {
    if Instant::now() < deadline { Ok(()) } else { Err(unknown("the transaction took too long")) }
}

fn unknown(text: &str) -> JobError {
    JobError::Unknown(ClientError::new(text))
}

fn failed(error: TransactionError) -> JobError {
    match error.kind {
        ErrorKind::Group | ErrorKind::Denied => JobError::Final(error.source),
        // A transaction that the coordinator ended for its age looks like one of a producer that was fenced.
        ErrorKind::Fenced | ErrorKind::Other => JobError::Unknown(error.source),
    }
}

/// The brokers' default number of replicas.
const REPLICATION: TopicReplication<'_> = TopicReplication::Fixed(-1);

/// Makes the topic for dead letters that are not sent again, with as many partitions as that of `reader`, unless it is
/// there. Returns whether it was made.
///
/// # Errors
/// The topic is missing and can't be made.
pub fn ensure_parking(kafka: &Kafka, topic: &str, reader: &Reader, timeout: Duration) -> Result<bool, AskError> {
    ensure(kafka, NewTopic::new(topic, reader.partition_count(), REPLICATION), reader, timeout).map(|(made, _)| made)
}

/// Makes the topic of the ledger unless it is there, with one partition: only that one is read. Returns whether it was
/// made.
///
/// # Errors
/// The topic is missing and can't be made, or has several partitions.
pub fn ensure_ledger(kafka: &Kafka, topic: &str, reader: &Reader, timeout: Duration) -> Result<bool, AskError> {
    // Without compaction, retention would forget what is done.
    let new = NewTopic::new(topic, 1, REPLICATION).set("cleanup.policy", "compact");
    match ensure(kafka, new, reader, timeout)? {
        (made, 1) => Ok(made),
        (_, partitions) => Err(AskError::Partitions { topic: topic.to_owned(), partitions }),
    }
}

/// Makes the topic unless it is there. Returns whether it was made, and the number of its partitions.
fn ensure(kafka: &Kafka, new: NewTopic<'_>, reader: &Reader, timeout: Duration) -> Result<(bool, i32), AskError> {
    let topic = new.name;
    match reader.asker.partitions(topic, timeout) {
        Err(AskError::MissingTopic { .. }) => {}
        other => return other.map(|partitions| (false, partitions)),
    }
    match ask::create_topic(&client::config(kafka, &[], &[]), &new, timeout) {
        Ok(Ok(_)) => Ok((true, new.num_partitions)),
        Ok(Err(_)) => Err(AskError::MissingTopic { topic: topic.to_owned() }),
        Err(source) => Err(AskError::Topic { topic: topic.to_owned(), source }),
    }
}
