//! The oracle's reader, and its checks of end offsets and committed offsets.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::{ClientContext, Offset, Statistics, TopicPartitionList, error::KafkaError, message::Message};

use super::judge::Verdict;
use super::pass::{Pass, TopicRole};
use crate::plan::Plan;

const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Keeps the statistics that librdkafka reported last.
#[derive(Default)]
struct LastStatistics(Mutex<Option<Statistics>>);

impl ClientContext for LastStatistics {
    fn stats(&self, statistics: Statistics) {
        *self.0.lock().expect("no panic") = Some(statistics);
    }
}

impl ConsumerContext for LastStatistics {}

/// Reads topics from the beginning with `read_committed`.
pub struct Reader {
    consumer: BaseConsumer<LastStatistics>,
    topics: Vec<String>,
    /// The next offset of each partition.
    next: BTreeMap<(String, i32), i64>,
}

impl Reader {
    /// Creates a reader of all topics of a plan, which may still grow.
    pub fn new(plan: &Plan) -> Reader {
        Reader::of(plan, topics(plan), false)
    }

    fn of(plan: &Plan, topics: Vec<String>, to_the_end: bool) -> Reader {
        let mut config = plan.client();
        config.set("group.id", "reads-by-assignment").set("enable.auto.commit", "false");
        config.set("isolation.level", "read_committed").set("enable.partition.eof", to_the_end.to_string());
        config.set("fetch.queue.backoff.ms", "5").set("fetch.wait.max.ms", "100");
        config.set("fetch.message.max.bytes", "4194304").set("queued.max.messages.kbytes", "65536");
        config.set("statistics.interval.ms", "5000");
        let mut reader = Reader {
            consumer: config.create_with_context(LastStatistics::default()).expect("the configuration is valid"),
            topics,
            next: BTreeMap::new(),
        };
        reader.look_for_partitions();
        reader
    }

    /// Adds new partitions.
    pub fn look_for_partitions(&mut self) {
        let mut grew = false;
        for topic in &self.topics {
            let Ok(metadata) = self.consumer.fetch_metadata(Some(topic), CALL_TIMEOUT) else { continue };
            for partition in metadata.topics().iter().flat_map(|topic| topic.partitions()) {
                let known = self.next.contains_key(&(topic.clone(), partition.id()));
                if !known {
                    self.next.insert((topic.clone(), partition.id()), 0);
                    grew = true;
                }
            }
        }
        if grew {
            let mut list = TopicPartitionList::new();
            for ((topic, partition), offset) in &self.next {
                let offset = if *offset == 0 { Offset::Beginning } else { Offset::Offset(*offset) };
                list.add_partition_offset(topic, *partition, offset).expect("the offset is valid");
            }
            self.consumer.assign(&list).expect("partitions can be assigned");
        }
    }

    /// Reads for this time.
    pub fn read(&mut self, pass: &mut Pass, time: Duration) {
        let deadline = Instant::now() + time;
        while Instant::now() < deadline {
            // Errors are ignored: a broker that is down comes back.
            if let Some(Ok(message)) = self.consumer.poll(Duration::from_millis(20)) {
                self.next.insert((message.topic().to_owned(), message.partition()), message.offset() + 1);
                pass.take(&message);
            }
        }
    }

    /// Prints the next offset and librdkafka's state of each partition, to tell why one stands still.
    pub fn print_state(&self) {
        let statistics = self.consumer.context().0.lock().expect("no panic");
        for (name, topic) in statistics.iter().flat_map(|statistics| &statistics.topics) {
            for (id, partition) in &topic.partitions {
                eprintln!("{name}: next {:?}, {partition:?}", self.next.get(&(name.clone(), *id)));
            }
        }
    }

    /// Reads until the end of every partition. Only for readers of one topic: the event of an end does not name its
    /// topic.
    fn read_to_the_end(&mut self, pass: &mut Pass, deadline: Instant) -> Result<(), Box<dyn Error>> {
        let mut left: BTreeSet<i32> = self.next.keys().map(|(_, partition)| *partition).collect();
        while !left.is_empty() {
            if Instant::now() > deadline {
                return Err(format!("{:?}: no end of partitions {left:?}", self.topics).into());
            }
            match self.consumer.poll(Duration::from_millis(100)) {
                Some(Ok(message)) => pass.take(&message),
                Some(Err(KafkaError::PartitionEOF(partition))) => _ = left.remove(&partition),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Reads all topics to their ends.
pub fn read_all(plan: &Plan, pass: &mut Pass, timeout: Duration) -> Result<(), Box<dyn Error>> {
    let deadline = Instant::now() + timeout;
    let read = |topic: String| {
        let mut reader = Reader::of(plan, vec![topic], true);
        while reader.next.is_empty() {
            if Instant::now() > deadline {
                return Err(format!("{:?}: no metadata", reader.topics).into());
            }
            reader.look_for_partitions();
        }
        reader.read_to_the_end(pass, deadline)
    };
    topics(plan).into_iter().try_for_each(read)
}

fn topics(plan: &Plan) -> Vec<String> {
    let sources = plan.sources.iter().map(|source| source.name.clone());
    sources.chain(plan.outputs().map(str::to_owned)).collect()
}

/// Checks that no transaction is left open, and that all records are committed.
pub fn check_ends(plan: &Plan, last: &Pass, verdict: &mut Verdict) {
    let consumer = |isolation: &str, group: &str| -> BaseConsumer {
        let mut config = plan.client();
        config.set("group.id", group).set("isolation.level", isolation).set("enable.auto.commit", "false");
        config.create().expect("the consumer configuration is valid")
    };
    let [stable, all] = ["read_committed", "read_uncommitted"].map(|level| consumer(level, "asks-for-ends"));
    let mut ends = BTreeMap::new();
    for topic in &topics(plan) {
        let Ok(metadata) = all.fetch_metadata(Some(topic), CALL_TIMEOUT) else {
            verdict.add("unreadable", format!("{topic}: no metadata"));
            continue;
        };
        for partition in metadata.topics().iter().flat_map(|topic| topic.partitions()) {
            let end = |consumer: &BaseConsumer| end_of(consumer, topic, partition.id());
            match (end(&stable), end(&all)) {
                (Ok(stable), Ok(end)) if stable == end => _ = ends.insert((topic.to_owned(), partition.id()), end),
                (Ok(stable), Ok(end)) => {
                    verdict.add("hanging", format!("{topic}/{}: stable up to {stable} of {end}", partition.id()));
                }
                (a, b) => verdict.add("unreadable", format!("{topic}/{}: {a:?} {b:?}", partition.id())),
            }
        }
    }
    check_committed(plan, &consumer("read_committed", &plan.consumer_group()), &ends, last, verdict);
}

/// Returns the end offset of a partition. Errors are retried, with fresh metadata in case the leader has changed.
fn end_of(consumer: &BaseConsumer, topic: &str, partition: i32) -> Result<i64, KafkaError> {
    let mut tries = 0;
    loop {
        match consumer.fetch_watermarks(topic, partition, CALL_TIMEOUT) {
            Err(_) if tries < 30 => {
                tries += 1;
                let _ = consumer.fetch_metadata(Some(topic), CALL_TIMEOUT);
                std::thread::sleep(Duration::from_millis(300));
            }
            answer => return answer.map(|(_, end)| end),
        }
    }
}

fn check_committed(
    plan: &Plan, consumer: &BaseConsumer, ends: &BTreeMap<(String, i32), i64>, last: &Pass, verdict: &mut Verdict,
) {
    let mut list = TopicPartitionList::new();
    let sources = ends.iter().filter(|((topic, _), _)| plan.sources.iter().any(|source| source.name == *topic));
    let sources: BTreeMap<_, _> = sources.collect();
    sources.keys().for_each(|(topic, partition)| _ = list.add_partition(topic, *partition));
    let committed = match consumer.committed_offsets(list, CALL_TIMEOUT) {
        Ok(committed) => committed,
        Err(error) => return verdict.add("unreadable", format!("committed offsets: {error}")),
    };
    for element in committed.elements() {
        let place = (element.topic().to_owned(), element.partition());
        let committed = element.offset().to_raw().unwrap_or(-1);
        let end = sources.get(&place).map_or(-1, |end| **end);
        if committed == end {
            continue;
        }
        let number = plan.sources.iter().position(|source| source.name == place.0).expect("the list has only sources");
        let beyond = last.of(|place| place == TopicRole::Source(number as u8));
        let unread = beyond.filter(|(_, partition, found)| *partition == place.1 && found.offset >= committed).count();
        // Without a record beyond the committed offset, only transaction markers or aborted records follow it.
        let kind = if unread == 0 && committed >= 0 && committed < end { "trailing" } else { "silent" };
        verdict.add(
            kind,
            format!("{}/{}: committed {committed}, ends at {end}, {unread} records beyond", place.0, place.1),
        );
    }
}
