//! An independent reader with `read_committed` and without a group, from the first record to the last.

use std::time::{Duration, Instant};
use std::{collections::HashSet, sync::Arc};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::{Offset, TopicPartitionList, error::KafkaError};

use super::broker::Broker;
use super::record::{Identity, Record};

const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Reads all present records of a topic, partition by partition in order of offset.
pub fn read_all(broker: &Broker, topic: &str) -> Vec<Record> {
    let mut records = Vec::new();
    read_each(broker, topic, |record| records.push(record));
    records.sort_by_key(|record| (record.partition, record.offset));
    records
}

/// Passes all present records of a topic to `take`, each partition in order of offset, without keeping them.
pub fn read_each(broker: &Broker, topic: &str, mut take: impl FnMut(Record)) {
    let consumer = assigned(broker, &[topic]);
    let mut unfinished: HashSet<i32> = (0..partitions(&consumer, topic)).collect();
    let name: Arc<str> = topic.into();
    let mut last_progress = Instant::now();
    while !unfinished.is_empty() {
        assert!(
            last_progress.elapsed() < READ_TIMEOUT,
            "{topic}: partitions {unfinished:?} were not read to their end"
        );
        let Some(polled) = consumer.poll(Duration::from_millis(100)) else { continue };
        last_progress = Instant::now();
        match polled {
            Ok(message) => take(to_record(&name, &message)),
            Err(KafkaError::PartitionEOF(partition)) => _ = unfinished.remove(&partition),
            Err(error) => panic!("reading {topic}: {error}"),
        }
    }
}

/// A reader of growing topics that remembers the records that it has seen.
pub struct Follower {
    consumer: BaseConsumer,
    identity: Identity,
    seen: HashSet<u64>,
}

impl Follower {
    pub fn of(broker: &Broker, topics: &[&str], identity: Identity) -> Follower {
        Follower { consumer: assigned(broker, topics), identity, seen: HashSet::new() }
    }

    /// Returns the number of distinct records seen so far.
    pub fn seen(&self) -> usize {
        self.seen.len()
    }

    /// Reads for this long.
    pub fn read_on(&mut self, time: Duration) {
        let deadline = Instant::now() + time;
        while Instant::now() < deadline {
            self.poll();
        }
    }

    /// Reads until `count` distinct records have been seen.
    pub fn wait_for(&mut self, count: u64, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        while (self.seen.len() as u64) < count {
            assert!(Instant::now() < deadline, "{} within {timeout:?}", self.progress(count));
            self.poll();
        }
    }

    /// Tells how many of `count` records were seen, and the first of those that were not. Most tests number theirs
    /// from 0.
    fn progress(&self, count: u64) -> String {
        let missing: Vec<u64> = (0..count).filter(|number| !self.seen.contains(number)).take(10).collect();
        format!("{} of {count} records were delivered, without {missing:?} …", self.seen.len())
    }

    fn poll(&mut self) {
        // Errors are ignored: the end of a partition moves while the topic grows, and a broker that is down returns.
        if let Some(Ok(message)) = self.consumer.poll(Duration::from_millis(20)) {
            let record = to_record(&Arc::from(message.topic()), &message);
            self.seen.extend(self.identity.of(&record));
        }
    }
}

fn assigned(broker: &Broker, topics: &[&str]) -> BaseConsumer {
    let mut config = broker.client();
    config.set("group.id", "reads-by-assignment").set("enable.auto.commit", "false");
    config.set("isolation.level", "read_committed").set("enable.partition.eof", "true");
    config.set("fetch.queue.backoff.ms", "5").set("queued.max.messages.kbytes", "32768");
    config.set("fetch.wait.max.ms", "50").set("reconnect.backoff.max.ms", "500");
    let consumer: BaseConsumer = config.create().expect("a consumer");
    let mut list = TopicPartitionList::new();
    for topic in topics {
        for partition in 0..partitions(&consumer, topic) {
            list.add_partition_offset(topic, partition, Offset::Beginning).expect("a valid offset");
        }
    }
    consumer.assign(&list).expect("the partitions exist");
    consumer
}

fn partitions(consumer: &BaseConsumer, topic: &str) -> i32 {
    let metadata = consumer.fetch_metadata(Some(topic), READ_TIMEOUT).expect("the broker answers");
    metadata.topics()[0].partitions().len() as i32
}

fn to_record(topic: &Arc<str>, message: &BorrowedMessage<'_>) -> Record {
    let headers = message.headers().map(|headers| {
        let owned = headers.iter().map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)));
        owned.collect()
    });
    Record {
        topic: Arc::clone(topic),
        partition: message.partition(),
        offset: message.offset(),
        timestamp: message.timestamp().to_millis().unwrap_or(-1),
        key: message.key().map(<[u8]>::to_vec),
        value: message.payload().map(<[u8]>::to_vec),
        headers: headers.unwrap_or_default(),
    }
}
