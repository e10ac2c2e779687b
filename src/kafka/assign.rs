//! Where a partition starts: what was committed, what is still there, and what the owner wants when they don't fit.

use std::collections::HashMap;
use std::ffi::CString;
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use watermaster_core::offset_map::{self, DecodeError, OffsetMap};
use watermaster_core::offset_runs::OffsetRuns;

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
        names.into_iter().map(|name| Ok((name.to_owned(), CString::new(name)?))).collect::<Result<_, _>>().map(Topics)
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
    pub fn list(&self, partitions: impl IntoIterator<Item = (SourcePartition, Offset)>) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        for ((source, partition), offset) in partitions {
            let mut element = list.add_partition(self.name(source), partition);
            element.set_offset(offset).expect("an offset is never negative");
        }
        list
    }

    /// The partitions in a list that are of our sources.
    pub fn partitions(&self, list: &TopicPartitionList) -> Vec<SourcePartition> {
        ffi::entries(list).into_iter().filter_map(|entry| Some((self.find(&entry.topic)?, entry.partition))).collect()
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
    pub map: OffsetMap,
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
pub(super) fn start(committed: &Committed, low: i64, high: i64, rules: Rules) -> Result<Start, Refusal> {
    let Committed::At { offset, metadata } = committed else {
        let base = match rules.start_from {
            StartFrom::Earliest => low,
            StartFrom::Latest => high,
        };
        return Ok(Start { base, map: OffsetMap::default(), lost: 0, commit_first: true });
    };
    let offset = *offset;
    let map = match (offset_map::decode(offset, metadata), rules.on_foreign_offset) {
        (Ok(map), _) => map,
        (Err(_), OnForeignOffset::Replay) => OffsetMap::default(),
        (Err(why), OnForeignOffset::Stop) => return Err(Refusal::Foreign { offset, why }),
    };
    if (low..=high).contains(&offset) {
        return Ok(Start { base: offset, map, lost: 0, commit_first: false });
    }
    match rules.on_data_loss {
        OnDataLoss::Stop => Err(Refusal::OutOfRange { offset }),
        OnDataLoss::Continue => Ok(start_after_loss(offset, map, low)),
    }
}

/// Starts at what is left. What was admitted lately stays charged in any case.
fn start_after_loss(offset: i64, map: OffsetMap, low: i64) -> Start {
    let OffsetMap { completed, admitted } = map;
    if offset > low {
        // Beyond the end: the topic is not what it was, nor is what the map says of its offsets.
        let map = OffsetMap { completed: OffsetRuns::new(), admitted };
        return Start { base: low, map, lost: 0, commit_first: true };
    }
    let done = completed.iter().map(|run| run.end.min(low).saturating_sub(run.start).max(0)).sum::<i64>();
    let base = completed.iter().find(|run| run.contains(&low)).map_or(low, |run| run.end);
    let completed = completed.iter().filter(|run| run.start > base).collect();
    let lost = u64::try_from(low - offset - done).unwrap_or(0);
    Start { base, map: OffsetMap { completed, admitted }, lost, commit_first: true }
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
    let list = topics.list(partitions.iter().map(|partition| (*partition, Offset::Invalid)));
    let list = consumer.committed_offsets(list, timeout)?;
    by_partition(topics, &list)?
        .into_iter()
        .map(|(partition, entry)| {
            let committed = match entry.offset {
                offset if offset >= 0 => Committed::At { offset, metadata: entry.metadata },
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
    deadline: Instant,
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
        by_partition(topics, &consumer.offsets_for_times(list, remaining(deadline))?)
    };
    let (low, high) = (edge(Offset::Beginning)?, edge(Offset::End)?);
    Ok(low
        .into_iter()
        .filter_map(|(partition, low)| Some((partition, (low.offset, high.get(&partition)?.offset))))
        .filter(|(_, (low, high))| *low >= 0 && *high >= 0)
        .collect())
}

/// Never zero, which would mean not to try at all.
pub(super) fn remaining(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

/// The offset after the last (stable) record of each partition that a broker answers for.
pub(super) fn highs<C>(
    consumer: &BaseConsumer<C>,
    topics: &Topics,
    partitions: &[SourcePartition],
    timeout: Duration,
) -> HashMap<SourcePartition, i64>
where
    C: ClientContext + ConsumerContext,
{
    if partitions.is_empty() {
        return HashMap::new();
    }
    let list = topics.list(partitions.iter().map(|partition| (*partition, Offset::End)));
    let Ok(list) = consumer.offsets_for_times(list, timeout) else { return HashMap::new() };
    let known = ffi::entries(&list).into_iter().filter(|entry| entry.error == Code::NoError && entry.offset >= 0);
    known.filter_map(|entry| Some(((topics.find(&entry.topic)?, entry.partition), entry.offset))).collect()
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

#[cfg(test)]
mod tests {
    use watermaster_core::offset_map::{AdmissionSlice, MapBudget, encode};
    use watermaster_core::tracker::Tracker;

    use super::*;

    const STRICT: Rules = Rules {
        start_from: StartFrom::Earliest,
        on_foreign_offset: OnForeignOffset::Stop,
        on_data_loss: OnDataLoss::Stop,
    };
    const LENIENT: Rules = Rules {
        start_from: StartFrom::Latest,
        on_foreign_offset: OnForeignOffset::Replay,
        on_data_loss: OnDataLoss::Continue,
    };
    const LATELY: AdmissionSlice = AdmissionSlice { end_ms: 1_700_000_000_000, admitted: 7 };

    /// Committed by us at 100, with 103 to 105 and 110 to 119 completed.
    fn ours() -> Committed {
        let runs = [103..106, 110..120].into_iter().collect();
        let tracker = Tracker::restore(100, &runs);
        let metadata = encode(MapBudget::default(), &tracker, 100, &[LATELY]).unwrap();
        Committed::At { offset: 100, metadata: metadata.into_bytes() }
    }

    fn foreign() -> Committed {
        Committed::At { offset: 100, metadata: b"\xff".to_vec() }
    }

    /// What a start comes to: base, runs, lost, whether to commit first.
    fn outcome(committed: &Committed, low: i64, high: i64, rules: Rules) -> (i64, Vec<(i64, i64)>, u64, bool) {
        let start = start(committed, low, high, rules).unwrap();
        let runs = start.map.completed.iter().map(|run| (run.start, run.end)).collect();
        (start.base, runs, start.lost, start.commit_first)
    }

    #[test]
    fn without_a_commit_the_owner_says_where() {
        assert_eq!(outcome(&Committed::Nothing, 5, 9, STRICT), (5, vec![], 0, true));
        assert_eq!(outcome(&Committed::Nothing, 5, 9, LENIENT), (9, vec![], 0, true));
    }

    #[test]
    fn a_commit_of_ours_goes_on() {
        assert_eq!(outcome(&ours(), 0, 500, STRICT), (100, vec![(103, 106), (110, 120)], 0, false));
        // Also at either end of what exists.
        assert_eq!(outcome(&ours(), 100, 120, STRICT).0, 100);
        assert_eq!(outcome(&ours(), 0, 100, STRICT).0, 100);
    }

    #[test]
    fn a_foreign_commit_stops_or_replays() {
        assert!(matches!(start(&foreign(), 0, 500, STRICT), Err(Refusal::Foreign { offset: 100, .. })));
        assert_eq!(outcome(&foreign(), 0, 500, LENIENT), (100, vec![], 0, false));
    }

    #[test]
    fn what_was_deleted_stops_or_is_counted_once() {
        assert_eq!(start(&ours(), 101, 500, STRICT), Err(Refusal::OutOfRange { offset: 100 }));
        assert_eq!(start(&ours(), 0, 99, STRICT), Err(Refusal::OutOfRange { offset: 100 }));
        let continued = [
            (101, (101, vec![(103, 106), (110, 120)], 1, true)),
            // 103 to 105 were done; 100 to 102 and 106 were not.
            (103, (106, vec![(110, 120)], 3, true)),
            (107, (107, vec![(110, 120)], 4, true)),
            (110, (120, vec![], 7, true)),
            (200, (200, vec![], 87, true)),
        ];
        for (low, expected) in continued {
            assert_eq!(outcome(&ours(), low, 500, LENIENT), expected, "from {low}");
        }
        // Another topic of the same name.
        assert_eq!(outcome(&ours(), 0, 50, LENIENT), (0, vec![], 0, true));
    }

    #[test]
    fn what_was_admitted_lately_is_never_forgotten() {
        for (low, high) in [(0, 500), (110, 500), (0, 50)] {
            assert_eq!(start(&ours(), low, high, LENIENT).unwrap().map.admitted, [LATELY]);
        }
    }
}
