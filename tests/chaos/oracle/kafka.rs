//! How the oracle reads, and what it asks the brokers at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::Message;
use rdkafka::{Offset, TopicPartitionList};

use super::judge::Verdict;
use super::pass::{Pass, Where};
use crate::plan::Plan;

const CALL: Duration = Duration::from_secs(10);

/// Reads topics, `read_committed`, from the beginning.
pub struct Reader {
    consumer: BaseConsumer,
    topics: Vec<String>,
    /// Where it reads on.
    next: BTreeMap<(String, i32), i64>,
}

impl Reader {
    /// Reads all topics of a plan while they grow.
    pub fn new(plan: &Plan) -> Reader {
        Reader::of(plan, topics(plan), false)
    }

    fn of(plan: &Plan, topics: Vec<String>, to_the_end: bool) -> Reader {
        let mut config = plan.client();
        config.set("group.id", "reads-by-assignment").set("enable.auto.commit", "false");
        config.set("isolation.level", "read_committed").set("enable.partition.eof", to_the_end.to_string());
        config.set("fetch.queue.backoff.ms", "5").set("fetch.wait.max.ms", "100");
        config.set("fetch.message.max.bytes", "4194304").set("queued.max.messages.kbytes", "65536");
        let mut reader = Reader { consumer: config.create().expect("a consumer"), topics, next: BTreeMap::new() };
        reader.look_for_partitions();
        reader
    }

    /// Takes partitions up that it did not know.
    pub fn look_for_partitions(&mut self) {
        let mut grew = false;
        for topic in &self.topics {
            let Ok(metadata) = self.consumer.fetch_metadata(Some(topic), CALL) else { continue };
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
                list.add_partition_offset(topic, *partition, offset).expect("a valid offset");
            }
            self.consumer.assign(&list).expect("partitions can be assigned");
        }
    }

    /// Reads for so long.
    pub fn read(&mut self, pass: &mut Pass, time: Duration) {
        let deadline = Instant::now() + time;
        while Instant::now() < deadline {
            // Errors are passed over: a broker that is away comes back.
            if let Some(Ok(message)) = self.consumer.poll(Duration::from_millis(20)) {
                self.next.insert((message.topic().to_owned(), message.partition()), message.offset() + 1);
                pass.take(&message);
            }
        }
    }

    /// Reads until the end of every partition; for readers of one topic, as an end is told without its topic.
    fn read_to_the_end(&mut self, pass: &mut Pass, deadline: Instant) -> Result<(), String> {
        let mut left: BTreeSet<i32> = self.next.keys().map(|(_, partition)| *partition).collect();
        while !left.is_empty() {
            if Instant::now() > deadline {
                return Err(format!("{:?}: no end of partitions {left:?}", self.topics));
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

/// Reads everything that is there.
pub fn read_all(plan: &Plan, pass: &mut Pass, patience: Duration) -> Result<(), String> {
    let deadline = Instant::now() + patience;
    let read = |topic: String| {
        let mut reader = Reader::of(plan, vec![topic], true);
        while reader.next.is_empty() {
            if Instant::now() > deadline {
                return Err(format!("{:?}: nobody tells its partitions", reader.topics));
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

/// No transaction is open for ever, and everything is committed.
pub fn check_ends(plan: &Plan, last: &Pass, verdict: &mut Verdict) {
    let consumer = |isolation: &str, group: &str| -> BaseConsumer {
        let mut config = plan.client();
        config.set("group.id", group).set("isolation.level", isolation).set("enable.auto.commit", "false");
        config.create().expect("a consumer")
    };
    let [stable, all] = ["read_committed", "read_uncommitted"].map(|level| consumer(level, "asks-for-ends"));
    let mut ends = BTreeMap::new();
    for topic in &topics(plan) {
        let Ok(metadata) = all.fetch_metadata(Some(topic), CALL) else {
            verdict.wrong("unreadable", format!("{topic}: no metadata"));
            continue;
        };
        for partition in metadata.topics().iter().flat_map(|topic| topic.partitions()) {
            let end = |consumer: &BaseConsumer| end_of(consumer, topic, partition.id());
            match (end(&stable), end(&all)) {
                (Ok(stable), Ok(end)) if stable == end => _ = ends.insert((topic.to_owned(), partition.id()), end),
                (Ok(stable), Ok(end)) => {
                    verdict.wrong("hanging", format!("{topic}/{}: stable up to {stable} of {end}", partition.id()));
                }
                (a, b) => verdict.wrong("unreadable", format!("{topic}/{}: {a:?} {b:?}", partition.id())),
            }
        }
    }
    check_committed(plan, &consumer("read_committed", &plan.consumer_group()), &ends, last, verdict);
}

/// The offset after the last record. A leader that has just changed is asked for again.
fn end_of(consumer: &BaseConsumer, topic: &str, partition: i32) -> Result<i64, KafkaError> {
    let mut tries = 0;
    loop {
        match consumer.fetch_watermarks(topic, partition, CALL) {
            Err(_) if tries < 30 => {
                tries += 1;
                let _ = consumer.fetch_metadata(Some(topic), CALL);
                std::thread::sleep(Duration::from_millis(300));
            }
            answer => return answer.map(|(_, end)| end),
        }
    }
}

fn check_committed(
    plan: &Plan,
    consumer: &BaseConsumer,
    ends: &BTreeMap<(String, i32), i64>,
    last: &Pass,
    verdict: &mut Verdict,
) {
    let mut list = TopicPartitionList::new();
    let sources = ends.iter().filter(|((topic, _), _)| plan.sources.iter().any(|source| source.name == *topic));
    let sources: BTreeMap<_, _> = sources.collect();
    sources.keys().for_each(|(topic, partition)| _ = list.add_partition(topic, *partition));
    let committed = match consumer.committed_offsets(list, CALL) {
        Ok(committed) => committed,
        Err(error) => return verdict.wrong("unreadable", format!("committed offsets: {error}")),
    };
    for element in committed.elements() {
        let place = (element.topic().to_owned(), element.partition());
        let committed = element.offset().to_raw().unwrap_or(-1);
        let end = sources.get(&place).map_or(-1, |end| **end);
        if committed == end {
            continue;
        }
        let number = plan.sources.iter().position(|source| source.name == place.0).expect("only sources are asked for");
        let beyond = last.of(|place| place == Where::Source(number as u8));
        let unread = beyond.filter(|(_, partition, found)| *partition == place.1 && found.offset >= committed).count();
        // With no record beyond it, only markers of transactions (or aborted records) are left out.
        let kind = if unread == 0 && committed >= 0 && committed < end { "trailing" } else { "silent" };
        verdict.wrong(
            kind,
            format!("{}/{}: committed {committed}, ends at {end}, {unread} records beyond", place.0, place.1),
        );
    }
}
