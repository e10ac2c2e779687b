//! Finds offsets without records behind the last record of a partition: markers of transactions, and records of aborted
//! ones. A consumer is not told of them, so they would never be committed past, and the lag would never be 0.
//!
//! A client of its own reads on from there. librdkafka's statistics report where it reached the end of the stable
//! records; if no record came before that, there is none. (The statistics of the group's consumer may be about an
//! earlier assignment.)
//!
//! The probe also finds offsets outside the broker's log, which the group's consumer may never report.

use std::time::{Duration, Instant};
use std::{collections::HashMap, sync::Arc, thread};

use rdkafka::consumer::Consumer as _;
use rdkafka::{ClientConfig, Message as _, Offset, statistics::Statistics};

use watermaster_settings::secrets::Secrets;

use crate::topics::{SourcePartition, Topics};
use crate::{client, consumer_error::ConsumerErrorKind, ffi};

const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_TIMEOUT: Duration = Duration::from_millis(50);

/// Offsets of a partition that hold no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holes {
    pub partition: SourcePartition,
    pub from: i64,
    pub to: i64,
}

#[derive(Debug, Default)]
pub(super) struct Found {
    pub holes: Vec<Holes>,
    /// True if one of the offsets is outside its broker's log.
    pub out_of_range: bool,
}

/// Probes the ends of partitions in a thread of its own, one probe at a time.
pub(super) struct EndProbe {
    config: ClientConfig,
    secrets: Secrets,
    topics: Arc<Topics>,
    running: Option<thread::JoinHandle<Found>>,
}

impl EndProbe {
    pub fn new(mut config: ClientConfig, secrets: Secrets, topics: Arc<Topics>) -> EndProbe {
        config.set("statistics.interval.ms", "250").set("queued.max.messages.kbytes", "1024");
        EndProbe { config, secrets, topics, running: None }
    }

    /// Starts a probe behind these offsets, unless one is running.
    pub fn start(&mut self, offsets: Vec<(SourcePartition, i64)>) {
        if self.running.is_none() && !offsets.is_empty() {
            let (mut config, topics) = (self.config.clone(), Arc::clone(&self.topics));
            config.extend(self.secrets.values());
            let probe = move || probe_ends(&config, &topics, offsets);
            self.running = thread::Builder::new().name("kafka-tail".to_owned()).spawn(probe).ok();
        }
    }

    /// Takes the result of the last probe; an empty one while it is running.
    pub fn take_found(&mut self) -> Found {
        let ended = self.running.take_if(|probe| probe.is_finished());
        ended.and_then(|probe| probe.join().ok()).unwrap_or_default()
    }
}

/// Reads behind these offsets. Partitions that take too long are left to a later probe.
fn probe_ends(config: &ClientConfig, topics: &Topics, offsets: Vec<(SourcePartition, i64)>) -> Found {
    let deadline = Instant::now() + PROBE_TIMEOUT;
    let mut found = Found::default();
    let Ok(consumer) = client::consumer(config) else { return found };
    let assignment = topics.list_at(offsets.iter().map(|(partition, from)| (*partition, Offset::Offset(*from))));
    if consumer.assign(&assignment).is_err() {
        return found;
    }
    let mut open: HashMap<SourcePartition, i64> = offsets.into_iter().collect();
    let mut ends = None;
    while !open.is_empty() && Instant::now() < deadline {
        match consumer.poll(POLL_TIMEOUT) {
            Some(Ok(record)) => {
                if let Some(source) = topics.find(record.topic()) {
                    open.remove(&(source, record.partition()));
                }
            }
            Some(Err(error)) => match error.rdkafka_error_code().map(ConsumerErrorKind::of) {
                // librdkafka connects to another broker.
                Some(ConsumerErrorKind::Down | ConsumerErrorKind::BrokerLost | ConsumerErrorKind::Nothing) => {}
                // An unreadable record is not a hole.
                kind => {
                    found.out_of_range = kind == Some(ConsumerErrorKind::OutOfRange);
                    break;
                }
            },
            // A poll that returns nothing may have served an event, so only the queue's length tells that it is empty.
            // These ends were taken before that: all records before them have come through the queue since.
            None if ffi::waiting_records(consumer.client()) == 0 => {
                found.holes.extend(ends.iter().flat_map(|ends| holes(ends, topics, &mut open)));
                ends = consumer.context().take_statistics();
            }
            None => {}
        }
    }
    found
}

/// Removes the partitions with a known end from `open`, and returns the offsets before it.
fn holes(ends: &Statistics, topics: &Topics, open: &mut HashMap<SourcePartition, i64>) -> Vec<Holes> {
    let mut holes = Vec::new();
    for (topic, of_topic) in &ends.topics {
        let Some(source) = topics.find(topic) else { continue };
        // The end that was reached last; negative before.
        for (number, to) in of_topic.partitions.values().map(|one| (one.partition, one.eof_offset)) {
            if to >= 0
                && let Some(from) = open.remove(&(source, number))
                && to > from
            {
                holes.push(Holes { partition: (source, number), from, to });
            }
        }
    }
    holes
}
