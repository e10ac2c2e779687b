//! Reads ranges of a topic's partitions, `read_committed`, without joining a group.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::Message as _;
use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};
use rdkafka::message::BorrowedMessage;
use rdkafka::topic_partition_list::Offset;
use watermaster_settings::Kafka;

use super::Positions;
use crate::ask::{AskError, Asker, is_final};
use crate::assign::LEADERLESS;
use crate::record::{Headers, NO_TIMESTAMP};
use crate::topics::{SourceIndex, SourcePartition, Topics, all_partitions};
use crate::{assign, client::KafkaError};

/// The longest time in which no record and no end of a range comes: brokers that are away for longer end the reading.
const PATIENCE: Duration = Duration::from_secs(60);

/// Name and value of a header.
pub type Header = (Vec<u8>, Option<Vec<u8>>);

/// The offsets to read, by partition.
pub type Ranges = BTreeMap<i32, Range<i64>>;

/// A record of a dead-letter topic, or an original in its source topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    pub partition: i32,
    pub offset: i64,
    /// Milliseconds since 1970, or [`NO_TIMESTAMP`].
    pub timestamp_ms: i64,
    /// The key; null and empty differ.
    pub key: Option<Vec<u8>>,
    /// The value; null is a tombstone.
    pub value: Option<Vec<u8>>,
    /// The headers, in order.
    pub headers: Vec<Header>,
}

impl Letter {
    fn new(message: &BorrowedMessage<'_>) -> Letter {
        let header = |(name, value): (&[u8], Option<&[u8]>)| (name.to_vec(), value.map(<[u8]>::to_vec));
        Letter {
            partition: message.partition(),
            offset: message.offset(),
            timestamp_ms: message.timestamp().to_millis().unwrap_or(NO_TIMESTAMP),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            headers: Headers::of(message).map(header).collect(),
        }
    }

    /// Returns the bytes of key, value and headers.
    pub fn bytes(&self) -> usize {
        bytes_of(self.key.as_deref(), self.value.as_deref(), &self.headers)
    }
}

/// Returns the bytes of a key, a value and headers.
pub(super) fn bytes_of(key: Option<&[u8]>, value: Option<&[u8]>, headers: &[Header]) -> usize {
    let headers = headers.iter().map(|(name, value)| name.len() + value.as_ref().map_or(0, Vec::len));
    key.map_or(0, <[u8]>::len) + value.map_or(0, <[u8]>::len) + headers.sum::<usize>()
}

/// Reads one topic, by a client that may also ask and read for others, one after the other. Its questions fail as those
/// of an [`Asker`].
pub struct Reader {
    pub(super) asker: Arc<Asker>,
    group: String,
    topics: Topics,
    partitions: Vec<SourcePartition>,
    /// The end of each partition that is not read up to it.
    open: BTreeMap<i32, i64>,
    /// The partitions that are paused, because their ranges have ended.
    paused: BTreeSet<i32>,
    /// The time that was waited since the last record or end of a range. The time between two calls does not count.
    waited: Duration,
}

impl Reader {
    /// Makes a client of `group` that reads `topic`.
    pub fn open(kafka: &Kafka, group: &str, topic: &str, timeout: Duration) -> Result<Reader, AskError> {
        Reader::of(Arc::new(Asker::new(kafka, group)?), group, topic, timeout)
    }

    /// Reads `topic` by a client, and asks for the positions of `group`.
    pub fn of(asker: Arc<Asker>, group: &str, topic: &str, timeout: Duration) -> Result<Reader, AskError> {
        let partitions = all_partitions([asker.partitions(topic, timeout)?]);
        let (group, topics) = (group.to_owned(), Topics::new([topic]));
        let (open, paused) = (BTreeMap::new(), BTreeSet::new());
        Ok(Reader { asker, group, topics, partitions, open, paused, waited: Duration::ZERO })
    }

    /// Checks that other topics exist.
    pub fn find_topics(&self, topics: &[&str], timeout: Duration) -> Result<(), AskError> {
        topics.iter().try_for_each(|topic| self.asker.partitions(topic, timeout).map(drop))
    }

    /// Returns a reader of another topic by the same client. This one reads nothing until it is started again.
    pub(super) fn beside(&mut self, topic: &str, timeout: Duration) -> Result<Reader, AskError> {
        self.start(&Ranges::new())?;
        Reader::of(Arc::clone(&self.asker), &self.group, topic, timeout)
    }

    /// Returns the number of the topic's partitions.
    pub fn partition_count(&self) -> i32 {
        self.partitions.len() as i32
    }

    /// Returns the name of the topic.
    pub fn topic(&self) -> &str {
        self.topics.name(SourceIndex(0))
    }

    /// Returns the first offset of each partition and the end of its stable records.
    pub fn bounds(&self, timeout: Duration) -> Result<Ranges, AskError> {
        let (client, deadline) = (&self.asker.consumer, Instant::now() + timeout);
        let found = assign::watermarks(client, &self.topics, &self.partitions, LEADERLESS, deadline);
        let found = found.map_err(|source| self.failed(source))?;
        Ok(found.into_iter().map(|((_, partition), (low, high))| (partition, low..high)).collect())
    }

    /// Returns, for each partition with a record of this time (milliseconds since 1970) or later, the first one's
    /// offset.
    pub fn first_since(&self, time_ms: i64, timeout: Duration) -> Result<BTreeMap<i32, i64>, AskError> {
        let (at, deadline) = (Offset::Offset(time_ms), Instant::now() + timeout);
        let found = assign::offsets(&self.asker.consumer, &self.topics, &self.partitions, at, deadline);
        let found = found.map_err(|source| self.failed(source))?.into_iter();
        // Where all records of a partition are older, its offset is negative.
        Ok(found.filter(|(_, offset)| *offset >= 0).map(|((_, partition), offset)| (partition, offset)).collect())
    }

    /// Returns the offsets with their metadata that a group has committed. With `stable`, once no transaction with one
    /// is pending; else such a transaction does not hold up the answer.
    pub fn positions(&self, group: &str, stable: bool, timeout: Duration) -> Result<Positions, AskError> {
        let found = self.asker.committed(group, &self.topics, &self.partitions, stable, timeout)?;
        let text = |metadata: Vec<u8>| String::from_utf8_lossy(&metadata).into_owned();
        let position = |((_, partition), (offset, metadata)): (SourcePartition, (i64, Vec<u8>))| {
            (partition, (offset, text(metadata)))
        };
        Ok(found.into_iter().map(position).collect())
    }

    /// Starts to read these offsets instead of others.
    pub fn start(&mut self, ranges: &Ranges) -> Result<(), KafkaError> {
        self.waited = Duration::ZERO;
        if !self.paused.is_empty() {
            // A partition stays paused when it is assigned again.
            self.asker.consumer.unassign()?;
            let paused: Vec<_> = self.paused.iter().map(|partition| (SourceIndex(0), *partition)).collect();
            self.asker.consumer.resume(&self.topics.list(&paused))?;
            self.paused.clear();
        }
        let ranges = ranges.iter().filter(|(_, range)| !range.is_empty());
        self.open = ranges.clone().map(|(partition, range)| (*partition, range.end)).collect();
        let at = ranges.map(|(partition, range)| ((SourceIndex(0), *partition), Offset::Offset(range.start)));
        Ok(self.asker.consumer.assign(&self.topics.list_at(at))?)
    }

    /// Returns true once all ranges have been read.
    pub fn is_done(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns true if records of this partition may be left to read.
    pub fn is_open(&self, partition: i32) -> bool {
        self.open.contains_key(&partition)
    }

    /// Returns the next record of the ranges, or `None` if none comes within `wait` or a range has ended.
    ///
    /// # Errors
    /// The topic is refused for good, or nothing comes for a minute. Connections that break are not errors.
    pub fn next(&mut self, wait: Duration) -> Result<Option<Letter>, AskError> {
        self.next_with(wait, Letter::new)
    }

    /// Returns what `take` returns for the next record, as [`next`](Reader::next) returns the record.
    pub(crate) fn next_with<T>(
        &mut self, wait: Duration, take: impl FnOnce(&BorrowedMessage<'_>) -> T,
    ) -> Result<Option<T>, AskError> {
        let begun = Instant::now();
        let (taken, ended) = match self.asker.consumer.poll(wait) {
            Some(Ok(message)) => {
                self.waited = Duration::ZERO;
                let (partition, offset) = (message.partition(), message.offset());
                let Some(&end) = self.open.get(&partition) else { return Ok(None) };
                let ended = (offset + 1 >= end).then_some(partition);
                ((offset < end).then(|| take(&message)), ended)
            }
            // All stable records were read, and the end was one of them.
            Some(Err(ClientError::PartitionEOF(partition))) => {
                self.waited = Duration::ZERO;
                (None, Some(partition))
            }
            // librdkafka reports only once that the group is refused, with the topic that is read first.
            Some(Err(ClientError::MessageConsumption(code @ Code::GroupAuthorizationFailed))) => {
                return Err(AskError::RefusedGroup { group: self.group.clone(), code });
            }
            Some(Err(ClientError::MessageConsumption(code))) if is_final(code) => {
                return Err(AskError::RefusedTopic { topic: self.topic().to_owned(), code });
            }
            Some(Err(_)) | None => {
                self.waited += begun.elapsed();
                if self.waited > PATIENCE {
                    return Err(self.failed(ClientError::MessageConsumption(Code::OperationTimedOut)));
                }
                (None, None)
            }
        };
        ended.into_iter().for_each(|partition| self.close(partition));
        Ok(taken)
    }

    /// Ends the range of a partition.
    pub(super) fn close(&mut self, partition: i32) {
        if self.open.remove(&partition).is_some() {
            // A partition that stays open is only fetched in vain.
            let _ = self.asker.consumer.pause(&self.topics.list([&(SourceIndex(0), partition)]));
            self.paused.insert(partition);
        }
    }

    pub(super) fn failed(&self, source: ClientError) -> AskError {
        AskError::Topic { topic: self.topic().to_owned(), source }
    }
}

/// Leaves the client without partitions to read: others use it, too.
impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.start(&Ranges::new());
    }
}

/// Reads single records of source topics: the originals of stubs.
pub struct Originals {
    pub(super) asker: Asker,
}

impl Originals {
    /// Makes a client. No broker is contacted yet.
    pub fn new(kafka: &Kafka, group: &str) -> Result<Originals, KafkaError> {
        Ok(Originals { asker: Asker::new(kafka, group)? })
    }

    /// Returns the record at this offset, or `None` if the topic does not keep it any more.
    pub fn read(
        &self, topic: &str, partition: i32, offset: i64, timeout: Duration,
    ) -> Result<Option<Letter>, AskError> {
        // Headers name the place, and anybody may have written them.
        if partition < 0 || offset < 0 || topic.contains('\0') {
            return Ok(None);
        }
        let of_message = |message: &BorrowedMessage<'_>| (message.offset() == offset).then(|| Letter::new(message));
        Ok(self.asker.first_record(topic, (partition, offset), timeout, of_message)?.flatten())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use watermaster_settings::config::Config;

    use super::*;

    /// The bug: a job waited for the brokers at such a stub, gave up after a minute, and never came past it.
    #[test]
    fn no_topic_keeps_a_record_at_a_place_that_can_not_be() {
        let text = include_str!("../../../config/watermaster.minimal.toml");
        let config = Config::parse(text, Path::new("test.toml"), [], crate::PROPERTY_RULES);
        let kafka = config.expect("the configuration is valid").settings.kafka;
        let originals = Originals::new(&kafka, "test").unwrap();
        for (topic, partition, offset) in [("loans", -1, 7), ("loans", 0, -1), ("lo\0ans", 0, 7)] {
            assert_eq!(originals.read(topic, partition, offset, Duration::from_secs(10)).unwrap(), None);
        }
    }
}
