//! Reads source topics once, from one time to another: without a group, without a commit, each partition in order.
//!
//! Each partition has a queue of its own, so that a reader can merge partitions by time: a queue that is full stops the
//! fetching of its partition, and no other.

use std::time::{Duration, Instant};
use std::{cell::Cell, collections::HashMap, sync::Arc};

use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError as ClientError;
use rdkafka::message::Message as _;
use rdkafka::topic_partition_list::Offset;
use watermaster_settings::Kafka;

use crate::ask::{AskError, Asker};
use crate::client::{self, KafkaError, LoggingContext};
use crate::record::Record;
use crate::topics::{SourcePartition, Topics, all_partitions};
use crate::{assign, topics::SourceIndex};

/// Memory for records that were fetched ahead, over all partitions, and the least and the most for each.
const FETCHED_KIB: usize = 256 << 10;
const PARTITION_KIB: (usize, usize) = (256, 16 << 10);
/// The number of offsets after which waiting events of the client are served.
const SERVE_EVERY: i64 = 4_096;
/// librdkafka requires a group, which is never joined; nothing is committed.
const GROUP: &str = "watermaster-trace";

/// A partition can't be read.
#[derive(Debug, thiserror::Error)]
#[error("{topic}/{partition}: {source}")]
pub struct LogError {
    pub topic: String,
    pub partition: i32,
    pub source: ClientError,
}

/// The partitions of some topics between two times.
pub struct SourceLog {
    consumer: Arc<BaseConsumer<LoggingContext>>,
    partitions: Vec<LogPartition>,
}

/// A partition between two offsets.
pub struct LogPartition {
    pub source: SourceIndex,
    pub topic: String,
    pub number: i32,
    /// The first offset to read.
    pub start: i64,
    /// The offset behind the last one.
    pub end: i64,
    position: Cell<i64>,
    queue: Option<PartitionQueue<LoggingContext>>,
}

impl LogPartition {
    /// Returns the number of offsets that were read.
    pub fn done(&self) -> u64 {
        u64::try_from(self.position.get() - self.start).unwrap_or(0)
    }
}

/// The next event of a partition.
pub enum LogEvent<'r> {
    Record(Record<'r>),
    /// No record is left.
    End,
    /// Nothing came in time.
    Idle,
}

impl SourceLog {
    /// Finds the offsets of two times, in milliseconds since 1970, in all partitions of the topics; `None` stands for
    /// the first record and for the end that a partition has now.
    pub fn open(
        kafka: &Kafka, topics: &[&str], (from, to): (Option<i64>, Option<i64>), timeout: Duration,
    ) -> Result<SourceLog, AskError> {
        let asker = Asker::named(kafka, GROUP)?;
        let names = Topics::new(topics.iter().copied());
        let counts = topics.iter().map(|topic| asker.partitions(topic, timeout));
        let addresses = all_partitions(counts.collect::<Result<Vec<_>, _>>()?);
        let deadline = Instant::now() + timeout;
        let at = |time: Option<i64>, edge| {
            let offset = time.map_or(edge, Offset::Offset);
            assign::offsets(&asker.consumer, &names, &addresses, offset, deadline).map_err(KafkaError::from)
        };
        let (starts, ends) = (at(from, Offset::Beginning)?, at(to, Offset::End)?);
        let highs = if to.is_some() { at(None, Offset::End)? } else { ends.clone() };
        let mut partitions = Vec::new();
        for (source, number) in addresses {
            let offset = |of: &HashMap<SourcePartition, i64>| of.get(&(source, number)).copied();
            // A time beyond the last record has no offset.
            let high = offset(&highs).unwrap_or(0).max(0);
            let known =
                |found: Option<i64>| found.filter(|offset| *offset >= 0).map_or(high, |offset| offset.min(high));
            let (start, end) = (known(offset(&starts)), known(offset(&ends)));
            let (topic, position) = (names.name(source).to_owned(), Cell::new(start));
            partitions.push(LogPartition { source, topic, number, start, end: end.max(start), position, queue: None });
        }
        SourceLog::assigned(kafka, &names, partitions)
    }

    /// Begins to fetch.
    fn assigned(kafka: &Kafka, names: &Topics, mut partitions: Vec<LogPartition>) -> Result<SourceLog, AskError> {
        let kib = (FETCHED_KIB / partitions.len().max(1)).clamp(PARTITION_KIB.0, PARTITION_KIB.1);
        let consumer = Arc::new(consumer(kafka, kib)?);
        let filled = partitions.iter().filter(|log| log.end > log.start);
        let starts = filled.map(|log| ((log.source, log.number), Offset::Offset(log.start)));
        consumer.assign(&names.list_at(starts)).map_err(KafkaError::from)?;
        for log in partitions.iter_mut().filter(|log| log.end > log.start) {
            log.queue = consumer.split_partition_queue(&log.topic, log.number);
        }
        // Records that were fetched before the queues were split are fetched again.
        while let Some(stray) = consumer.poll(Duration::ZERO) {
            let Ok(stray) = stray else { continue };
            let (topic, number) = (stray.topic(), stray.partition());
            let log = partitions.iter().find(|log| log.topic == topic && log.number == number);
            let start = log.map_or(0, |log| log.start);
            consumer.seek(topic, number, Offset::Offset(start), Duration::from_secs(10)).map_err(KafkaError::from)?;
        }
        Ok(SourceLog { consumer, partitions })
    }

    /// Returns the partitions, in the order of topics and numbers.
    pub fn partitions(&self) -> &[LogPartition] {
        &self.partitions
    }

    /// Waits for the next event of a partition.
    pub fn next(&self, index: usize, timeout: Duration) -> Result<LogEvent<'_>, LogError> {
        let log = &self.partitions[index];
        let Some(queue) = log.queue.as_ref().filter(|_| log.position.get() < log.end) else { return Ok(LogEvent::End) };
        match queue.poll(timeout) {
            Some(Ok(message)) if message.offset() < log.end => {
                log.position.set(message.offset() + 1);
                if message.offset() % SERVE_EVERY == 0 {
                    self.serve();
                }
                Ok(LogEvent::Record(Record::new(message, log.source)))
            }
            // Behind the last records there may be markers of transactions.
            Some(Ok(_) | Err(ClientError::PartitionEOF(_))) => {
                log.position.set(log.end);
                Ok(LogEvent::End)
            }
            Some(Err(source)) => Err(LogError { topic: log.topic.clone(), partition: log.number, source }),
            None => {
                self.serve();
                Ok(LogEvent::Idle)
            }
        }
    }

    /// Takes errors of connections, which librdkafka makes again by itself, and renews tokens.
    fn serve(&self) {
        while self.consumer.poll(Duration::ZERO).is_some() {}
    }

    /// Returns the last error of a connection, for people.
    pub fn last_error(&self) -> Option<String> {
        self.consumer.context().last_error().map(|error| error.reason)
    }
}

fn consumer(kafka: &Kafka, kib: usize) -> Result<BaseConsumer<LoggingContext>, KafkaError> {
    let mut config = client::reader_config(kafka, GROUP, "error", &[("client.id", GROUP)]);
    config.set("queued.max.messages.kbytes", kib.to_string());
    client::consumer(&config)
}
