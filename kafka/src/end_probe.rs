//! Finds offsets without records behind the last record of a partition: markers of transactions, and records of aborted
//! ones. A consumer is not told of them, so they would never be committed past, and the lag would never be 0.
//!
//! A client of its own reads on from there. librdkafka's statistics report where it reached the end of the stable
//! records; if no record came before that, there is none. (The statistics of the group's consumer may be about an
//! earlier assignment.)
//!
//! The probe also finds offsets outside the broker's log, which the group's consumer may never report.

use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{collections::HashMap, thread};

use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::{
    client::ClientContext, error::KafkaError as ClientError, message::Message as _, topic_partition_list::Offset,
};
use serde::Deserialize;

use crate::topics::{SourcePartition, Topics};
use crate::{client, consumer_error::ConsumerErrorKind, ffi};

/// The longest time that one probe takes.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_TIMEOUT: Duration = Duration::from_millis(50);

/// Offsets of a partition that hold no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holes {
    pub partition: SourcePartition,
    pub from: i64,
    pub to: i64,
}

/// The result of a probe.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub holes: Vec<Holes>,
    /// True if one of the offsets is outside its broker's log.
    pub out_of_range: bool,
}

/// Probes the ends of partitions in a thread of its own, one probe at a time.
pub(super) struct EndProbe {
    config: ClientConfig,
    topics: Arc<Topics>,
    running: Option<Receiver<Found>>,
}

impl EndProbe {
    pub fn new(mut config: ClientConfig, topics: Arc<Topics>) -> EndProbe {
        config.set("statistics.interval.ms", "250").set("queued.max.messages.kbytes", "1024");
        EndProbe { config, topics, running: None }
    }

    /// Starts a probe behind these offsets, unless one is running.
    pub fn start(&mut self, offsets: Vec<(SourcePartition, i64)>) {
        if self.running.is_some() || offsets.is_empty() {
            return;
        }
        let (done, running) = mpsc::channel();
        let (config, topics) = (self.config.clone(), Arc::clone(&self.topics));
        let probe = move || {
            // The receiver is gone if the service has stopped.
            let _ = done.send(probe_ends(&config, &topics, &offsets));
        };
        if thread::Builder::new().name("kafka-tail".to_owned()).spawn(probe).is_ok() {
            self.running = Some(running);
        }
    }

    /// Takes the result of the last probe; an empty one while it is running.
    pub fn take_found(&mut self) -> Found {
        match self.running.as_ref().map(Receiver::try_recv) {
            None | Some(Err(mpsc::TryRecvError::Empty)) => Found::default(),
            Some(result) => {
                self.running = None;
                result.unwrap_or_default()
            }
        }
    }
}

/// Reads behind these offsets. Partitions that take too long are left to a later probe.
fn probe_ends(config: &ClientConfig, topics: &Topics, offsets: &[(SourcePartition, i64)]) -> Found {
    let deadline = Instant::now() + PROBE_TIMEOUT;
    let mut found = Found::default();
    let Ok(consumer) = config.create_with_context::<_, BaseConsumer<Ends>>(Ends::default()) else { return found };
    let assignment = topics.list_at(offsets.iter().map(|(partition, from)| (*partition, Offset::Offset(*from))));
    if consumer.assign(&assignment).is_err() {
        return found;
    }
    let mut open: HashMap<SourcePartition, i64> = offsets.iter().copied().collect();
    while !open.is_empty() && Instant::now() < deadline {
        let ends = consumer.context().take();
        // All records before these ends are in the queue by now.
        match remove_read(&consumer, topics, &mut open, deadline) {
            Queue::Empty => {}
            Queue::Late => return found,
            // An unreadable record is not a hole.
            Queue::Failed { out_of_range } => {
                found.out_of_range = out_of_range;
                return found;
            }
        }
        for (topic, partition, to) in ends {
            let Some(partition) = topics.find(&topic).map(|source| (source, partition)) else { continue };
            if to >= 0
                && let Some(from) = open.remove(&partition)
                && to > from
            {
                found.holes.push(Holes { partition, from, to });
            }
        }
    }
    found
}

/// The state in which the queue of a probe was left.
enum Queue {
    Empty,
    Late,
    Failed { out_of_range: bool },
}

/// Empties the queue, and removes partitions with a record from `open`.
fn remove_read(
    consumer: &BaseConsumer<Ends>, topics: &Topics, open: &mut HashMap<SourcePartition, i64>, deadline: Instant,
) -> Queue {
    loop {
        match consumer.poll(POLL_TIMEOUT) {
            Some(Ok(record)) => {
                if let Some(source) = topics.find(record.topic()) {
                    open.remove(&(source, record.partition()));
                }
            }
            Some(Err(error)) => {
                let kind = error.rdkafka_error_code().map(ConsumerErrorKind::of);
                return Queue::Failed { out_of_range: kind == Some(ConsumerErrorKind::OutOfRange) };
            }
            // A poll that returns nothing may have served an event, so only the queue's length tells that it is empty.
            None if ffi::waiting_records(consumer.client()) == 0 => return Queue::Empty,
            None => {}
        }
        if Instant::now() >= deadline {
            return Queue::Late;
        }
    }
}

/// The ends of partitions, by topic and number, from librdkafka's statistics.
#[derive(Default)]
struct Ends(Mutex<Vec<(String, i32, i64)>>);

impl Ends {
    fn take(&self) -> Vec<(String, i32, i64)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

/// The used part of librdkafka's statistics.
#[derive(Deserialize)]
struct Statistics {
    topics: HashMap<String, TopicStatistics>,
}

#[derive(Deserialize)]
struct TopicStatistics {
    partitions: HashMap<String, PartitionStatistics>,
}

#[derive(Deserialize)]
struct PartitionStatistics {
    partition: i32,
    /// The last end of the stable records that was reached; negative before.
    eof_offset: i64,
}

impl ClientContext for Ends {
    fn stats_raw(&self, statistics: &[u8]) {
        let Ok(statistics) = serde_json::from_slice::<Statistics>(statistics) else { return };
        let mut ends = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for (topic, of_topic) in statistics.topics {
            let partitions = of_topic.partitions.into_values().filter(|one| one.partition >= 0);
            ends.extend(partitions.map(|one| (topic.clone(), one.partition, one.eof_offset)));
        }
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        client::log(level, facility, message);
    }

    fn error(&self, error: ClientError, reason: &str) {
        // The group's consumer reports the same error.
        tracing::debug!("probing the end of a partition: {error}: {reason}");
    }
}

impl ConsumerContext for Ends {}
