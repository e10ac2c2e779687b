//! Checks the consumer group of a service's target, which the search for the capacity follows. Looks twice at its
//! commits: the search needs frequent ones, and subtracts the records of other writers.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer as _;
use watermaster_core::offset_map;
use watermaster_core::pace::Offsets;
use watermaster_settings::{Kafka, Service};

use super::problem::Problem;
use crate::ask::{AskError, Asker};
use crate::consumer::group_id;
use crate::dead_letters::{Ranges, Reader};
use crate::topics::{SourcePartition, Topics};

/// The longest time between the two looks. A longer `interval` is not checked.
const MAX_INTERVAL: Duration = Duration::from_secs(15);
/// Other writers are reported from this many records between the looks on.
const MIN_RECORDS: f64 = 20.0;
/// The records between the looks are counted up to this many offsets.
const MAX_COUNTED: i64 = 10_000;
/// The time between the first question of a look and its last one, and until a commit is visible.
const SKEW: Duration = Duration::from_secs(1);

/// Looks for offsets that the group committed in the target.
pub(super) fn check(kafka: &Kafka, service: &Service, timeout: Duration) -> Option<Problem> {
    let group = service.consumer_group.clone().filter(|_| service.pace.is_some())?;
    let count = || -> Result<usize, AskError> {
        let asker = Asker::new(kafka, &group_id(kafka, service))?;
        let partitions = asker.partitions(&service.target, timeout)?;
        Ok(asker.offsets(&group, &service.target, partitions, timeout)?.len())
    };
    match count() {
        Ok(0) => Some(Problem::warning(format!(
            "the consumer group {group} has committed nothing in it: until it does, no capacity is found"
        ))),
        Ok(_) => None,
        Err(why) => Some(Problem::warning(format!(
            "nothing tells how far the consumer group {group} is: grant DESCRIBE on the group ({why})"
        ))),
    }
}

/// The client that asks about one service.
struct Watch<'s> {
    service: &'s Service,
    asker: Arc<Asker>,
    /// Reads the target by the same client.
    reader: Reader,
    /// The group of its sources, and that of its target.
    groups: [String; 2],
    topics: Topics,
    source_partitions: Vec<SourcePartition>,
}

struct CommitLook {
    at: Instant,
    target: Vec<Offsets>,
    /// The records of the sources that are completed: committed, or in an offset map.
    completed: i64,
}

/// Looks at the targets of these services, with the partitions of their sources. Waits for as long as the longest
/// interval between two changes of the found capacity, but for 15 s at most.
pub(super) fn watch<'s>(
    kafka: &Kafka, services: Vec<(&'s Service, Vec<SourcePartition>)>, timeout: Duration,
) -> Vec<(&'s Service, Problem)> {
    // A group that does not answer was reported before.
    let began = services.into_iter().filter_map(|(service, partitions)| {
        let watch = Watch::new(kafka, service, partitions, timeout).ok()?;
        let first = watch.first_look(timeout).ok()?;
        Some((watch, first))
    });
    let began: Vec<(Watch<'s>, CommitLook)> = began.filter(|(_, first)| !first.target.is_empty()).collect();
    let interval = |watch: &Watch<'_>| watch.interval().min(MAX_INTERVAL);
    thread::sleep(began.iter().map(|(watch, _)| interval(watch)).max().unwrap_or_default());
    let mut problems = Vec::new();
    for (mut watch, first) in began {
        let Ok(second) = watch.second_look(timeout) else { continue };
        problems.extend(watch.compare(kafka, &first, &second, timeout).into_iter().map(|one| (watch.service, one)));
    }
    problems
}

impl<'s> Watch<'s> {
    fn new(
        kafka: &Kafka, service: &'s Service, source_partitions: Vec<SourcePartition>, timeout: Duration,
    ) -> Result<Self, AskError> {
        let groups = [group_id(kafka, service), service.consumer_group.clone().unwrap_or_default()];
        let asker = Arc::new(Asker::new(kafka, &groups[0])?);
        let topics = Topics::new(service.sources.iter().map(|source| source.topic.as_str()));
        Ok(Watch {
            service,
            reader: Reader::of(Arc::clone(&asker), &groups[0], &service.target, timeout)?,
            asker,
            groups,
            topics,
            source_partitions,
        })
    }

    fn interval(&self) -> Duration {
        self.service.pace.as_ref().map_or(Duration::ZERO, |pace| pace.params.interval)
    }

    /// Asks for the offsets when the watch begins. The time between the two looks at the sources contains that between
    /// the two at the target, so that no record of this program looks like that of another writer.
    fn first_look(&self, timeout: Duration) -> Result<CommitLook, AskError> {
        let at = Instant::now();
        let completed = self.completed(timeout)?;
        Ok(CommitLook { at, target: self.target(timeout)?, completed })
    }

    fn second_look(&self, timeout: Duration) -> Result<CommitLook, AskError> {
        let at = Instant::now();
        let target = self.target(timeout)?;
        Ok(CommitLook { at, target, completed: self.completed(timeout)? })
    }

    fn target(&self, timeout: Duration) -> Result<Vec<Offsets>, AskError> {
        self.asker.offsets(&self.groups[1], &self.service.target, self.reader.partition_count(), timeout)
    }

    fn completed(&self, timeout: Duration) -> Result<i64, AskError> {
        let committed = self.asker.committed(&self.groups[0], &self.topics, &self.source_partitions, true, timeout)?;
        let of_partition = |(offset, metadata): (i64, Vec<u8>)| {
            let map = offset_map::decode(offset, &metadata).unwrap_or_default();
            offset + map.completed.iter().map(|run| run.end - run.start).sum::<i64>()
        };
        Ok(committed.into_values().map(of_partition).sum())
    }

    fn compare(&mut self, kafka: &Kafka, first: &CommitLook, second: &CommitLook, timeout: Duration) -> Vec<Problem> {
        let committed = |look: &CommitLook| look.target.iter().map(|one| one.committed).sum::<i64>();
        let mut problems = Vec::new();
        let stood_still = committed(first) == committed(second);
        let open = first.target.iter().map(|one| (one.partition, one.committed..one.end)).collect();
        if stood_still && self.interval() <= MAX_INTERVAL && self.count(&open, 1, timeout) == Some(1) {
            let interval = humantime::format_duration(self.interval());
            problems.push(Problem::warning(format!(
                "the consumer group {} committed nothing in it for {interval} while records waited: no capacity is \
                 found from rarer commits. Have the service commit more often, or set pace.interval to more than its \
                 time between two commits",
                self.groups[1]
            )));
        }
        let time = (second.at - first.at).as_secs_f64();
        let completed = (second.completed - first.completed) as f64;
        // The rounds that were open at the first look: their records can lie behind other instances' committed ones.
        let in_rounds = completed * 2.0 * kafka.commit_interval.as_secs_f64() / time;
        let others = self.written(kafka, first, second, timeout) as f64 - completed - in_rounds;
        if others >= MIN_RECORDS {
            problems.push(Problem::warning(format!(
                "other programs write about {} records a second to it: the capacity that is found is the part that \
                 they leave",
                (others / time).ceil()
            )));
        }
        problems
    }

    /// Returns the number of records that were written between two looks. Markers of transactions take offsets like
    /// records: if there are too many offsets to count the records, the most markers that can be among them are
    /// subtracted.
    fn written(&mut self, kafka: &Kafka, first: &CommitLook, second: &CommitLook, timeout: Duration) -> i64 {
        let mut ranges: Ranges = first.target.iter().map(|one| (one.partition, one.end..one.end)).collect();
        for one in &second.target {
            ranges.entry(one.partition).and_modify(|range| range.end = one.end);
        }
        let offsets = ranges.values().map(|range| range.end - range.start).sum::<i64>();
        let counted = (offsets <= MAX_COUNTED).then(|| self.count(&ranges, i64::MAX, timeout)).flatten();
        counted.unwrap_or_else(|| offsets - self.markers(kafka, second.at - first.at + SKEW, timeout))
    }

    /// Counts the records in ranges of the target, up to `most`; markers of transactions are none. Returns `None` if
    /// they can't be read in time.
    fn count(&mut self, ranges: &Ranges, most: i64, timeout: Duration) -> Option<i64> {
        let deadline = Instant::now() + timeout;
        let mut count = 0;
        self.reader.start(ranges).ok()?;
        while count < most && !self.reader.is_done() {
            let wait = deadline.checked_duration_since(Instant::now())?;
            count += i64::from(self.reader.next_with(wait, |_| ()).ok()?.is_some());
        }
        Some(count)
    }

    /// Returns the most markers that the transactions of all instances write to the target in this time.
    fn markers(&self, kafka: &Kafka, time: Duration, timeout: Duration) -> i64 {
        let groups = self.asker.consumer.fetch_group_list(Some(&self.groups[0]), timeout);
        let instances = groups.ok().and_then(|groups| Some(groups.groups().first()?.members().len())).unwrap_or(1);
        let transactions = (time.as_secs_f64() * kafka.transactions_per_second()).ceil();
        i64::from(self.reader.partition_count()) * instances.max(1) as i64 * transactions as i64
    }
}
