//! Decides where a partition starts: from its committed offset, the offsets that exist, and the configuration.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use watermaster_core::offset_map::{self, DecodeError, OffsetMap, TopicTag};
use watermaster_core::offset_runs::OffsetRuns;
use watermaster_settings::{OnDataLoss, OnForeignOffset, StartFrom};

use crate::event::{Assignment, Event, ForeignOffset};
use crate::topics::{SourceIndex, SourcePartition, Topics};
use crate::{consumer_error::FatalConsumerError, ffi};

/// The configured reactions to a committed offset that is missing, foreign or out of range.
#[derive(Debug, Clone, Copy)]
pub(super) struct StartRules {
    pub start_from: StartFrom,
    pub on_foreign_offset: OnForeignOffset,
    pub on_data_loss: OnDataLoss,
}

/// The committed offset of a partition and its metadata, if there is one.
pub type Committed = Option<(i64, Vec<u8>)>;

/// Decides where a partition starts that holds the offsets from `low` to below `high`, or returns the event that stops
/// the service. Its topic has this tag, if the brokers tell ids.
pub(super) fn start(
    topic: &str, at: SourcePartition, committed: &Committed, (low, high): (i64, i64), tag: Option<TopicTag>,
    rules: StartRules,
) -> Result<Assignment, Event<'static>> {
    let (source, partition) = at;
    let topic = || topic.to_owned();
    let read = read(committed, tag);
    let copied = matches!(read, Some((_, Err(DecodeError::Copied { .. }))));
    let start = |base, map, lost, commit_first| {
        let map = OffsetMap { tag, ..map };
        Assignment { source, partition, base, map, high, lost, commit_first, copied }
    };
    let Some((offset, map)) = read else {
        let base = match rules.start_from {
            StartFrom::Earliest => low,
            StartFrom::Latest => high,
        };
        return Ok(start(base, OffsetMap::default(), 0, true));
    };
    // A foreign offset is committed again at once, with an offset map: it is accepted once, not at every start until a
    // record comes.
    let (map, foreign) = match (map, rules.on_foreign_offset) {
        (Ok(map), _) => (map, false),
        // The service moved here from another cluster. Offsets of that cluster mean nothing here: a mirror does not
        // tell how far its translation lags behind. The protected service did take the recent admissions.
        (Err(DecodeError::Copied { admitted }), _) => (OffsetMap { admitted, ..OffsetMap::default() }, true),
        (Err(why), OnForeignOffset::Replay) => {
            tracing::warn!("{}/{partition} goes on at offset {offset}, as it may: {why}", topic());
            (if let DecodeError::HandedOver(map) = why { map } else { OffsetMap::default() }, true)
        }
        (Err(source), OnForeignOffset::Stop) => {
            return Err(Event::Refused(ForeignOffset { topic: topic(), partition, offset, source }));
        }
    };
    // A round was under way while the topic was made anew, and the brokers took its offset for one of the new topic.
    let of_former = |of_map: TopicTag| tag.is_some_and(|tag| tag != of_map && tag.is_in_cluster_of(of_map));
    if map.tag.is_some_and(of_former) {
        let why = FatalConsumerError::MadeAnew { topic: topic(), partition, offset, low };
        if offset > low && rules.on_data_loss == OnDataLoss::Stop {
            return Err(why.into());
        }
        tracing::warn!("{why}");
        return Ok(start(low, OffsetMap { admitted: map.admitted, ..OffsetMap::default() }, 0, true));
    }
    if (low..=high).contains(&offset) {
        return Ok(start(offset, map, 0, foreign));
    }
    let why = FatalConsumerError::DataLoss { topic: topic(), partition, offset, low, high };
    if rules.on_data_loss == OnDataLoss::Stop {
        return Err(why.into());
    }
    tracing::error!("{why}");
    // Reading starts at the first record that is left. Recent admissions stay charged.
    let OffsetMap { completed, admitted, .. } = map;
    if offset > low {
        // An offset beyond the end: the topic was created anew or truncated, and the map is not about its offsets.
        return Ok(start(low, OffsetMap { admitted, ..OffsetMap::default() }, 0, true));
    }
    let done = completed.iter().map(|run| run.end.min(low).saturating_sub(run.start).max(0)).sum::<i64>();
    let base = completed.iter().find(|run| run.contains(&low)).map_or(low, |run| run.end);
    let completed = completed.iter().filter(|run| run.start > base).collect();
    let lost = u64::try_from(low - offset - done).unwrap_or(0);
    Ok(start(base, OffsetMap { completed, admitted, tag }, lost, true))
}

/// Reads a commit. A map about a topic of another cluster is a copy by a mirror, also beside the offset that it was
/// written for.
fn read(committed: &Committed, tag: Option<TopicTag>) -> Option<(i64, Result<OffsetMap, DecodeError>)> {
    let (offset, metadata) = committed.as_ref()?;
    let is_elsewhere = |of_map: TopicTag| tag.is_some_and(|tag| !tag.is_in_cluster_of(of_map));
    let map = match offset_map::decode(*offset, metadata) {
        Ok(map) if map.tag.is_some_and(is_elsewhere) => Err(DecodeError::Copied { admitted: map.admitted }),
        map => map,
    };
    Some((*offset, map))
}

/// Returns whether a mirror copied this commit.
pub(super) fn is_copied(committed: &Committed, tag: Option<TopicTag>) -> bool {
    matches!(read(committed, tag), Some((_, Err(DecodeError::Copied { .. }))))
}

/// Takes the sets of all partitions away, since a mirror copied the offset of one: a mirror copies whole groups. A
/// translated offset may happen to equal the original one. Its map then looks right, but is about other records, and
/// these would be lost.
pub(super) fn distrust(assignments: &mut [Assignment]) {
    for one in assignments.iter_mut().filter(|one| one.map.completed.iter().next().is_some()) {
        one.map.completed = OffsetRuns::new();
        (one.commit_first, one.copied) = (true, true);
    }
}

/// Returns the group's committed offsets. With `read_committed`, the broker answers after pending transactions have
/// ended.
pub(super) fn committed<C: ConsumerContext>(
    consumer: &BaseConsumer<C>, topics: &Topics, partitions: &[SourcePartition], timeout: Duration,
) -> Result<Vec<(SourcePartition, Committed)>, ClientError> {
    if partitions.is_empty() {
        return Ok(Vec::new());
    }
    // A new list: librdkafka leaves old metadata in place where the new is empty.
    let list = by_partition(topics, ffi::entries(&consumer.committed_offsets(topics.list(partitions), timeout)?))?;
    let committed = |entry: ffi::Entry| (entry.offset >= 0).then_some((entry.offset, entry.metadata));
    Ok(list.into_iter().map(|(partition, entry)| (partition, committed(entry))).collect())
}

/// The errors of partitions without a leader, and of those that do not exist, too.
pub(super) const LEADERLESS: &[Code] = &[Code::LeaderNotAvailable];
pub(super) const LEADERLESS_OR_GONE: &[Code] =
    &[Code::LeaderNotAvailable, Code::UnknownTopicOrPartition, Code::UnknownTopic, Code::UnknownPartition];

/// Returns the first offset of each partition and the one after its last (stable) record, in two requests a broker.
/// Partitions with one of the errors `passed` are left out.
pub(super) fn watermarks<C: ConsumerContext>(
    consumer: &BaseConsumer<C>, topics: &Topics, partitions: &[SourcePartition], passed: &[Code], deadline: Instant,
) -> Result<HashMap<SourcePartition, (i64, i64)>, ClientError> {
    if partitions.is_empty() {
        return Ok(HashMap::new());
    }
    let edge = |edge| {
        let found = look_up(consumer, topics, partitions, edge, remaining(deadline))?;
        let led = ffi::entries(&found).into_iter().filter(|entry| !passed.contains(&entry.error));
        by_partition(topics, led)
    };
    let (low, high) = (edge(Offset::Beginning)?, edge(Offset::End)?);
    Ok(low
        .into_iter()
        .filter_map(|(partition, low)| Some((partition, (low.offset, high.get(&partition)?.offset))))
        .filter(|(_, (low, high))| *low >= 0 && *high >= 0)
        .collect())
}

/// Returns the offset after the last (stable) record of each partition for which a broker answers.
pub(super) fn highs<C: ConsumerContext>(
    consumer: &BaseConsumer<C>, topics: &Topics, partitions: &[SourcePartition], timeout: Duration,
) -> HashMap<SourcePartition, i64> {
    if partitions.is_empty() {
        return HashMap::new();
    }
    let Ok(list) = look_up(consumer, topics, partitions, Offset::End, timeout) else { return HashMap::new() };
    let known = ffi::entries(&list).into_iter().filter(|entry| entry.error == Code::NoError && entry.offset >= 0);
    known.filter_map(|entry| Some(((topics.find(&entry.topic)?, entry.partition), entry.offset))).collect()
}

/// Returns the offset of each partition at a time, in milliseconds as an [`Offset::Offset`], or at one of its ends. It
/// is below zero if all records are older.
pub(super) fn offsets<C: ConsumerContext>(
    consumer: &BaseConsumer<C>, topics: &Topics, partitions: &[SourcePartition], at: Offset, deadline: Instant,
) -> Result<HashMap<SourcePartition, i64>, ClientError> {
    if partitions.is_empty() {
        return Ok(HashMap::new());
    }
    let found = by_partition(topics, ffi::entries(&look_up(consumer, topics, partitions, at, remaining(deadline))?))?;
    Ok(found.into_iter().map(|(partition, entry)| (partition, entry.offset)).collect())
}

/// Looks up one end of each partition. Where a timestamp is expected, [`Offset::Beginning`] and [`Offset::End`] stand
/// for themselves.
fn look_up<C: ConsumerContext>(
    consumer: &BaseConsumer<C>, topics: &Topics, partitions: &[SourcePartition], edge: Offset, timeout: Duration,
) -> Result<TopicPartitionList, ClientError> {
    consumer.offsets_for_times(topics.list_at(partitions.iter().map(|partition| (*partition, edge))), timeout)
}

/// Returns the id of a topic, which another topic of the same name does not have; empty where the brokers tell none.
pub(super) fn topic_id<C: ConsumerContext>(
    consumer: &BaseConsumer<C>, topic: &str, timeout: Duration,
) -> Result<String, ClientError> {
    let id = topic_ids(consumer, &[topic], timeout)?.pop().map_or(Ok(String::new()), |(_, id)| id);
    id.map_err(ClientError::MetadataFetch)
}

/// Returns whether a commit tells the topic that it is about.
pub(super) fn is_tagged(committed: &Committed) -> bool {
    matches!(read(committed, None), Some((_, Ok(OffsetMap { tag: Some(_), .. }))))
}

/// Returns the tags of the topics of partitions, except where the brokers tell no id.
///
/// # Errors
/// No broker answers within `timeout`, or one that was just started does not know a topic yet.
pub(super) fn tags<C: ConsumerContext>(
    consumer: &BaseConsumer<C>, topics: &Topics, partitions: &[SourcePartition], timeout: Duration,
) -> Result<HashMap<SourceIndex, TopicTag>, ClientError> {
    let sources: BTreeSet<SourceIndex> = partitions.iter().map(|(source, _)| *source).collect();
    let names: Vec<&str> = sources.into_iter().map(|source| topics.name(source)).collect();
    let deadline = Instant::now() + timeout;
    let ids = topic_ids(consumer, &names, timeout)?;
    let Some(cluster) = consumer.client().fetch_cluster_id(remaining(deadline)) else { return Ok(HashMap::new()) };
    let mut tags = HashMap::new();
    for (name, id) in ids {
        // A topic without an answer must not look like one of brokers that tell no ids.
        let id = id.map_err(ClientError::MetadataFetch)?;
        if let Some(source) = topics.find(&name).filter(|_| !id.is_empty()) {
            tags.insert(source, TopicTag::of(&cluster, &id));
        }
    }
    Ok(tags)
}

/// Returns topics with their ids, in two requests.
fn topic_ids<C: ConsumerContext>(
    consumer: &BaseConsumer<C>, topics: &[&str], timeout: Duration,
) -> Result<Vec<ffi::TopicId>, ClientError> {
    let deadline = Instant::now() + timeout;
    let Some(first) = topics.first() else { return Ok(Vec::new()) };
    let broker = consumer.fetch_metadata(Some(first), timeout)?.orig_broker_id();
    ffi::topic_ids(consumer.client(), broker, topics, remaining(deadline)).map_err(ClientError::MetadataFetch)
}

/// Returns the time left, never zero: librdkafka takes zero as "do not try".
pub(super) fn remaining(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

/// Returns the entries of a list by partition, or the first error of any partition.
fn by_partition(
    topics: &Topics, entries: impl IntoIterator<Item = ffi::Entry>,
) -> Result<HashMap<SourcePartition, ffi::Entry>, ClientError> {
    let mut found = HashMap::new();
    for entry in entries {
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
    use crate::topics::SourceIndex;

    const STRICT: StartRules = StartRules {
        start_from: StartFrom::Earliest,
        on_foreign_offset: OnForeignOffset::Stop,
        on_data_loss: OnDataLoss::Stop,
    };
    const LENIENT: StartRules = StartRules {
        start_from: StartFrom::Latest,
        on_foreign_offset: OnForeignOffset::Replay,
        on_data_loss: OnDataLoss::Continue,
    };
    const AT: SourcePartition = (SourceIndex(0), 0);
    const RECENT: AdmissionSlice = AdmissionSlice { end_ms: 1_700_000_000_000, admitted: 7 };

    /// A commit by Watermaster at 100, with 103 to 105 and 110 to 119 completed.
    fn ours() -> Committed {
        ours_in(None)
    }

    /// The same commit for a topic with this tag.
    fn ours_in(tag: Option<TopicTag>) -> Committed {
        let runs = [103..106, 110..120].into_iter().collect();
        let tracker = Tracker::restore(100, &runs);
        let metadata = encode(MapBudget::default(), &tracker, 100, &[RECENT], tag).unwrap();
        Some((100, metadata.into_bytes()))
    }

    fn foreign() -> Committed {
        Some((100, b"\xff".to_vec()))
    }

    /// Returns base, runs, lost and `commit_first` of a start.
    fn outcome(committed: &Committed, low: i64, high: i64, rules: StartRules) -> (i64, Vec<(i64, i64)>, u64, bool) {
        let start = start("loans", AT, committed, (low, high), None, rules).unwrap();
        let runs = start.map.completed.iter().map(|run| (run.start, run.end)).collect();
        (start.base, runs, start.lost, start.commit_first)
    }

    #[test]
    fn without_a_commit_the_configuration_decides() {
        assert_eq!(outcome(&None, 5, 9, STRICT), (5, vec![], 0, true));
        assert_eq!(outcome(&None, 5, 9, LENIENT), (9, vec![], 0, true));
    }

    #[test]
    fn an_own_commit_is_continued() {
        assert_eq!(outcome(&ours(), 0, 500, STRICT), (100, vec![(103, 106), (110, 120)], 0, false));
        // Both ends of the log are valid starts.
        assert_eq!(outcome(&ours(), 100, 120, STRICT).0, 100);
        assert_eq!(outcome(&ours(), 0, 100, STRICT).0, 100);
    }

    #[test]
    fn a_foreign_commit_stops_or_replays() {
        assert!(matches!(
            start("loans", AT, &foreign(), (0, 500), None, STRICT),
            Err(Event::Refused(ForeignOffset { offset: 100, .. }))
        ));
        assert_eq!(outcome(&foreign(), 0, 500, LENIENT), (100, vec![], 0, true));
    }

    /// After a failover to a cluster that MirrorMaker 2 filled, this used to be a foreign commit, which stops the
    /// service.
    #[test]
    fn a_copied_commit_starts_without_its_set_and_with_its_admissions() {
        let (_, metadata) = ours().unwrap();
        for rules in [STRICT, LENIENT] {
            let start = start("loans", AT, &Some((90, metadata.clone())), (0, 500), None, rules).unwrap();
            assert!(start.copied && start.commit_first && start.map.completed.iter().next().is_none());
            assert_eq!((start.base, &start.map.admitted[..]), (90, &[RECENT][..]));
        }
    }

    #[test]
    fn a_copied_commit_makes_the_other_sets_of_its_assignment_doubtful() {
        let start_at = |committed: &Committed| start("loans", AT, committed, (0, 500), None, STRICT).unwrap();
        let (_, metadata) = ours().unwrap();
        let copy = Some((90, metadata));
        let copied = |committed: &Committed| is_copied(committed, None);
        assert!(![ours(), foreign(), None].iter().any(copied) && copied(&copy));
        let mut same = vec![start_at(&ours()), start_at(&None), start_at(&copy)];
        assert_eq!(same[0].map.completed.iter().count(), 2);
        distrust(&mut same);
        assert!(same.iter().all(|one| one.map.completed.iter().next().is_none() && one.commit_first));
        assert_eq!(
            same.iter().map(|one| (one.base, one.copied)).collect::<Vec<_>>(),
            [(100, true), (0, false), (90, true)]
        );
        assert_eq!(same[0].map.admitted, [RECENT]);
    }

    #[test]
    fn deleted_records_stop_the_service_or_are_counted_once() {
        assert!(matches!(
            start("loans", AT, &ours(), (101, 500), None, STRICT),
            Err(Event::Fatal(FatalConsumerError::DataLoss { offset: 100, .. }))
        ));
        assert!(matches!(
            start("loans", AT, &ours(), (0, 99), None, STRICT),
            Err(Event::Fatal(FatalConsumerError::DataLoss { offset: 100, .. }))
        ));
        let continued = [
            (101, (101, vec![(103, 106), (110, 120)], 1, true)),
            // 103 to 105 are completed; 100 to 102 and 106 are not.
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

    /// The offset used to count in the new topic, if this had as many records: those before it were skipped.
    #[test]
    fn the_offset_of_a_former_topic_of_this_name_does_not_count() {
        let [former, new] = ["former", "new"].map(|id| TopicTag::of("cluster", id));
        let start_in = |tag, rules| start("loans", AT, &ours_in(Some(former)), (3, 500), tag, rules);
        assert!(matches!(
            start_in(Some(new), STRICT),
            Err(Event::Fatal(FatalConsumerError::MadeAnew { offset: 100, low: 3, .. }))
        ));
        let anew = start_in(Some(new), LENIENT).unwrap();
        let OffsetMap { completed, admitted, tag } = anew.map;
        assert_eq!((anew.base, completed.iter().count(), anew.lost, anew.commit_first), (3, 0, 0, true));
        assert_eq!((admitted, tag), (vec![RECENT], Some(new)));
        // No record comes before the offset, but the set is about others.
        let first = start("loans", AT, &ours_in(Some(former)), (100, 500), Some(new), STRICT).unwrap();
        assert_eq!((first.base, first.map.completed.iter().count(), first.commit_first), (100, 0, true));
        // The same topic, or one of which the brokers tell no id.
        for tag in [Some(former), None] {
            let start = start_in(tag, STRICT).unwrap();
            assert_eq!((start.base, start.map.completed.iter().count(), start.map.tag), (100, 2, tag));
        }
        let unknown = start("loans", AT, &ours(), (3, 500), Some(new), STRICT).unwrap();
        assert_eq!((unknown.base, unknown.map.completed.iter().count(), unknown.map.tag), (100, 2, Some(new)));
    }

    #[test]
    fn a_map_about_a_topic_of_another_cluster_is_a_copy() {
        let [here, there] = ["here", "there"].map(|id| Some(TopicTag::of(id, "topic")));
        assert!(is_copied(&ours_in(there), here) && !is_copied(&ours_in(here), here));
        let start = start("loans", AT, &ours_in(there), (0, 500), here, STRICT).unwrap();
        assert!(start.copied && start.commit_first && start.map.completed.iter().next().is_none());
        assert_eq!((start.base, start.map.admitted), (100, vec![RECENT]));
    }

    #[test]
    fn recent_admissions_are_never_forgotten() {
        for (low, high) in [(0, 500), (110, 500), (0, 50)] {
            assert_eq!(start("loans", AT, &ours(), (low, high), None, LENIENT).unwrap().map.admitted, [RECENT]);
        }
    }
}
