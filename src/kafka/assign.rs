//! Where a partition starts: what was committed, what is still there, and what the owner wants when they don't fit.

use std::collections::HashMap;
use std::ffi::CString;
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use watermaster_core::map::{self, DecodeError, Map};

use super::ffi;
use super::record::SourceIndex;
use crate::settings::{OnDataLoss, OnForeignOffset, StartFrom};

/// A source and one of its partitions.
pub type SourcePartition = (SourceIndex, i32);

/// What the owner wants when a committed offset is missing, not ours, or out of range.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub start_from: StartFrom,
    pub on_foreign_offset: OnForeignOffset,
    pub on_data_loss: OnDataLoss,
}

/// The source topics by index, as Rust and as C want them.
#[derive(Debug)]
pub(super) struct Topics(Vec<(String, CString)>);

impl Topics {
    /// Topics in the order of the service's sources; no name holds a NUL (Kafka allows none).
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Topics, std::ffi::NulError> {
        names
            .into_iter()
            .map(|name| Ok((name.to_owned(), CString::new(name)?)))
            .collect::<Result<_, _>>()
            .map(Topics)
    }

    pub fn name(&self, source: SourceIndex) -> &str {
        &self.0[source.index()].0
    }

    pub fn c_name(&self, source: SourceIndex) -> &CString {
        &self.0[source.index()].1
    }

    pub fn names(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| name.as_str()).collect()
    }

    pub fn find(&self, topic: &str) -> Option<SourceIndex> {
        let index = self.0.iter().position(|(name, _)| name == topic)?;
        u16::try_from(index).ok().map(SourceIndex)
    }

    /// A fresh list of these partitions, each with its offset.
    pub fn list(
        &self,
        partitions: impl IntoIterator<Item = (SourcePartition, Offset)>,
    ) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        for ((source, partition), offset) in partitions {
            let mut element = list.add_partition(self.name(source), partition);
            element
                .set_offset(offset)
                .expect("an offset is never negative");
        }
        list
    }

    /// The partitions in a list that are of our sources.
    pub fn partitions(&self, list: &TopicPartitionList) -> Vec<SourcePartition> {
        ffi::entries(list)
            .into_iter()
            .filter_map(|entry| Some((self.find(&entry.topic)?, entry.partition)))
            .collect()
    }
}

/// What a group has committed for a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Committed {
    Nothing,
    At { offset: i64, metadata: Vec<u8> },
}

/// Where a partition starts.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Start {
    pub base: i64,
    pub map: Map,
    /// Records deleted before they were read.
    pub lost: u64,
    /// No offset was committed.
    pub commit_first: bool,
}

/// Why a partition must not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    Foreign { offset: i64, why: DecodeError },
    OutOfRange { offset: i64 },
}

/// Decides where a partition starts, whose records from `low` to below `high` exist.
pub(super) fn start(
    committed: &Committed,
    low: i64,
    high: i64,
    rules: Rules,
) -> Result<Start, Refusal> {
    let Committed::At { offset, metadata } = committed else {
        let base = match rules.start_from {
            StartFrom::Earliest => low,
            StartFrom::Latest => high,
        };
        return Ok(Start {
            base,
            map: Map::default(),
            lost: 0,
            commit_first: true,
        });
    };
    let offset = *offset;
    let map = match (map::decode(offset, metadata), rules.on_foreign_offset) {
        (Ok(map), _) => map,
        (Err(_), OnForeignOffset::Replay) => Map::default(),
        (Err(why), OnForeignOffset::Stop) => return Err(Refusal::Foreign { offset, why }),
    };
    if (low..=high).contains(&offset) {
        return Ok(Start {
            base: offset,
            map,
            lost: 0,
            commit_first: false,
        });
    }
    match rules.on_data_loss {
        OnDataLoss::Stop => Err(Refusal::OutOfRange { offset }),
        // Beyond the end: the topic is not what it was, nor is what the map says of it.
        OnDataLoss::Continue if offset > high => Ok(Start {
            base: low,
            map: Map::default(),
            lost: 0,
            commit_first: true,
        }),
        OnDataLoss::Continue => {
            let lost = u64::try_from(low - offset).unwrap_or(0);
            Ok(Start {
                base: low,
                map,
                lost,
                commit_first: true,
            })
        }
    }
}

/// What the group has committed. With `read_committed`, pending transactions are waited for.
pub(super) fn committed<C>(
    consumer: &BaseConsumer<C>,
    topics: &Topics,
    partitions: &[SourcePartition],
    timeout: Duration,
) -> Result<Vec<(SourcePartition, Committed)>, ClientError>
where
    C: ClientContext + ConsumerContext,
{
    if partitions.is_empty() {
        return Ok(Vec::new());
    }
    // A fresh list: librdkafka leaves old metadata in place where the new is empty.
    let list = topics.list(
        partitions
            .iter()
            .map(|partition| (*partition, Offset::Invalid)),
    );
    let list = consumer.committed_offsets(list, timeout)?;
    by_partition(topics, &list)?
        .into_iter()
        .map(|(partition, entry)| {
            let committed = match entry.offset {
                offset if offset >= 0 => Committed::At {
                    offset,
                    metadata: entry.metadata,
                },
                _ => Committed::Nothing,
            };
            Ok((partition, committed))
        })
        .collect()
}

/// The first offset of each partition, and the one after its last (stable) record, in two requests a broker.
pub(super) fn watermarks<C>(
    consumer: &BaseConsumer<C>,
    topics: &Topics,
    partitions: &[SourcePartition],
    timeout: Duration,
) -> Result<HashMap<SourcePartition, (i64, i64)>, ClientError>
where
    C: ClientContext + ConsumerContext,
{
    if partitions.is_empty() {
        return Ok(HashMap::new());
    }
    // These two stand for themselves where a timestamp is looked up.
    let edge = |offset| {
        let list = topics.list(partitions.iter().map(|partition| (*partition, offset)));
        by_partition(topics, &consumer.offsets_for_times(list, timeout)?)
    };
    let (low, high) = (edge(Offset::Beginning)?, edge(Offset::End)?);
    Ok(low
        .into_iter()
        .filter_map(|(partition, low)| {
            Some((partition, (low.offset, high.get(&partition)?.offset)))
        })
        .filter(|(_, (low, high))| *low >= 0 && *high >= 0)
        .collect())
}

/// A list by partition; the first error of any partition is the error of all.
fn by_partition(
    topics: &Topics,
    list: &TopicPartitionList,
) -> Result<HashMap<SourcePartition, ffi::Entry>, ClientError> {
    let mut found = HashMap::new();
    for entry in ffi::entries(list) {
        if entry.error != Code::NoError {
            return Err(ClientError::OffsetFetch(entry.error));
        }
        if let Some(source) = topics.find(&entry.topic) {
            found.insert((source, entry.partition), entry);
        }
    }
    Ok(found)
}
