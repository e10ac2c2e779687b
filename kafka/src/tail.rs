//! What lies behind the last record of a partition: markers of transactions, records of aborted ones. A consumer is not told
//! of them, so nobody would ever commit past them, and the lag would never be 0.
//!
//! A client of its own reads on from there. Librdkafka's statistics say where it came to the end of what is stable; if no
//! record came before that, there is none. (The statistics of the engine's own consumer would do, but they may speak of an earlier
//! assignment.)
//!
//! It also learns what the engine's own consumer may never tell: that there is nothing to read at such an offset any more.

use std::collections::HashMap;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::message::Message as _;
use rdkafka::topic_partition_list::Offset;
use serde::Deserialize;

use super::assign::{SourcePartition, Topics};
use super::trouble::Trouble;
use super::{client, ffi};

/// The longest look.
const LOOK: Duration = Duration::from_secs(5);
/// One wait for a record.
const STEP: Duration = Duration::from_millis(50);

/// Offsets of a partition that hold no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holes {
    pub partition: SourcePartition,
    pub from: i64,
    pub to: i64,
}

/// What a look found.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub holes: Vec<Holes>,
    /// One of the offsets is not in what its broker keeps.
    pub out_of_range: bool,
}

/// Looks for holes at the ends of partitions, in a thread of its own, one look at a time.
pub(super) struct Tails {
    config: ClientConfig,
    topics: Arc<Topics>,
    looking: Option<Receiver<Found>>,
}

impl Tails {
    pub fn new(mut config: ClientConfig, topics: Arc<Topics>) -> Tails {
        config.set("statistics.interval.ms", "250").set("queued.max.messages.kbytes", "1024");
        Tails { config, topics, looking: None }
    }

    /// Begins to look behind these offsets, unless a look is under way.
    pub fn look(&mut self, behind: Vec<(SourcePartition, i64)>) {
        if self.looking.is_some() || behind.is_empty() {
            return;
        }
        let (done, looking) = mpsc::channel();
        let (config, topics) = (self.config.clone(), Arc::clone(&self.topics));
        let look = move || {
            // Whoever waited is gone if the service stopped.
            let _ = done.send(find(&config, &topics, &behind));
        };
        if thread::Builder::new().name("kafka-tail".to_owned()).spawn(look).is_ok() {
            self.looking = Some(looking);
        }
    }

    /// What the last look found, once.
    pub fn found(&mut self) -> Found {
        match self.looking.as_ref().map(Receiver::try_recv) {
            None | Some(Err(mpsc::TryRecvError::Empty)) => Found::default(),
            Some(result) => {
                self.looking = None;
                result.unwrap_or_default()
            }
        }
    }
}

/// Reads behind these offsets. What can't be learnt in time is asked again some other time.
fn find(config: &ClientConfig, topics: &Topics, behind: &[(SourcePartition, i64)]) -> Found {
    let deadline = Instant::now() + LOOK;
    let mut found = Found::default();
    let Ok(consumer) = config.create_with_context::<_, BaseConsumer<Ends>>(Ends::default()) else { return found };
    let assignment = topics.list(behind.iter().map(|(partition, from)| (*partition, Offset::Offset(*from))));
    if consumer.assign(&assignment).is_err() {
        return found;
    }
    let mut open: HashMap<SourcePartition, i64> = behind.iter().copied().collect();
    while !open.is_empty() && Instant::now() < deadline {
        let ends = consumer.context().take();
        // Whatever came before those ends is in the queue by now. An empty poll says little: it may have served an event.
        loop {
            match consumer.poll(STEP) {
                Some(Ok(record)) => {
                    if let Some(source) = topics.find(record.topic()) {
                        open.remove(&(source, record.partition()));
                    }
                }
                // What could not be read is not known to be nothing.
                Some(Err(error)) => {
                    let code = error.rdkafka_error_code();
                    found.out_of_range = code.is_some_and(|code| Trouble::of(code) == Trouble::OutOfRange);
                    return found;
                }
                None if ffi::waiting_records(consumer.client()) == 0 => break,
                None => {}
            }
            if Instant::now() >= deadline {
                return found;
            }
        }
        for (topic, partition, to) in ends {
            let Some(place) = topics.find(&topic).map(|source| (source, partition)) else { continue };
            if let Some(from) = open.get(&place).copied().filter(|_| to >= 0) {
                open.remove(&place);
                if to > from {
                    found.holes.push(Holes { partition: place, from, to });
                }
            }
        }
    }
    found
}

/// Where partitions end, by topic and number, as the statistics say.
#[derive(Default)]
struct Ends(Mutex<Vec<(String, i32, i64)>>);

impl Ends {
    fn take(&self) -> Vec<(String, i32, i64)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

/// As much of librdkafka's statistics as is needed.
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
    /// Where it last came to the end of what is stable; negative if it did not.
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

    fn error(&self, error: rdkafka::error::KafkaError, reason: &str) {
        // The engine's own consumer says what is wrong.
        tracing::debug!("looking behind the last record: {error}: {reason}");
    }
}

impl ConsumerContext for Ends {}
