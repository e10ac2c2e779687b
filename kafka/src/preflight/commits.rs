//! Looks twice at the commits in a service's target: the search for the capacity needs frequent ones, and subtracts the
//! records of other writers.

use std::thread;
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer as _;
use watermaster_core::offset_map;
use watermaster_core::pace::Offsets;
use watermaster_settings::{Kafka, Service};

use super::problem::Problem;
use crate::ask::{AskError, Asker};
use crate::consumer::group_id;
use crate::topics::{SourcePartition, Topics, all_partitions};

/// The longest time between the two looks. A longer `interval` is not checked.
const MAX_INTERVAL: Duration = Duration::from_secs(15);
/// Other writers are reported from this many records between the looks on.
const MIN_RECORDS: i64 = 20;
/// The time between the first question of a look and its last one, and until a commit is visible.
const SKEW: Duration = Duration::from_secs(1);

/// The client that asks about one service.
struct Watch<'s> {
    service: &'s Service,
    asker: Asker,
    /// The group of its sources, and that of its target.
    groups: [String; 2],
    /// The number of the target's partitions.
    partitions: i32,
    topics: Topics,
    source_partitions: Vec<SourcePartition>,
}

struct Look {
    at: Instant,
    target: Vec<Offsets>,
    /// The records of the sources that are completed: committed, or in an offset map.
    completed: i64,
}

/// Looks at the targets of these services, whose sources have so many partitions each. Waits for as long as the longest
/// interval between two changes of the found capacity, but for 15 s at most.
pub(super) fn watch<'s>(
    kafka: &Kafka, services: impl Iterator<Item = (&'s Service, Vec<usize>)>, timeout: Duration,
) -> Vec<(&'s Service, Problem)> {
    // A group that does not answer was reported before.
    let began = services.filter_map(|(service, partitions)| {
        let watch = Watch::new(kafka, service, &partitions, timeout).ok()?;
        let first = watch.first_look(timeout).ok()?;
        Some((watch, first))
    });
    let began: Vec<(Watch<'s>, Look)> = began.filter(|(_, first)| !first.target.is_empty()).collect();
    let interval = |watch: &Watch<'_>| watch.interval().min(MAX_INTERVAL);
    thread::sleep(began.iter().map(|(watch, _)| interval(watch)).max().unwrap_or_default());
    let mut problems = Vec::new();
    for (watch, first) in &began {
        let Ok(second) = watch.second_look(timeout) else { continue };
        problems.extend(watch.compare(kafka, first, &second, timeout).into_iter().map(|one| (watch.service, one)));
    }
    problems
}

impl<'s> Watch<'s> {
    fn new(kafka: &Kafka, service: &'s Service, partitions: &[usize], timeout: Duration) -> Result<Self, AskError> {
        let groups = [group_id(kafka, service), service.consumer_group.clone().unwrap_or_default()];
        let asker = Asker::silent(kafka, &groups[0])?;
        let topics = Topics::new(service.sources.iter().map(|source| source.topic.as_str()));
        Ok(Watch {
            service,
            partitions: asker.partitions(&service.target, timeout)?,
            asker,
            groups,
            topics,
            source_partitions: all_partitions(partitions.iter().map(|count| *count as i32)),
        })
    }

    fn interval(&self) -> Duration {
        self.service.pace.as_ref().map_or(Duration::ZERO, |pace| pace.params.interval)
    }

    /// Asks for the offsets when the watch begins. The time between the two looks at the sources contains that between
    /// the two at the target, so that no record of this program looks like that of another writer.
    fn first_look(&self, timeout: Duration) -> Result<Look, AskError> {
        let at = Instant::now();
        let completed = self.completed(timeout)?;
        Ok(Look { at, target: self.target(timeout)?, completed })
    }

    fn second_look(&self, timeout: Duration) -> Result<Look, AskError> {
        let at = Instant::now();
        let target = self.target(timeout)?;
        Ok(Look { at, target, completed: self.completed(timeout)? })
    }

    fn target(&self, timeout: Duration) -> Result<Vec<Offsets>, AskError> {
        self.asker.offsets(&self.groups[1], &self.service.target, self.partitions, timeout)
    }

    fn completed(&self, timeout: Duration) -> Result<i64, AskError> {
        let committed = self.asker.committed(&self.groups[0], &self.topics, &self.source_partitions, timeout)?;
        let of_partition = |(offset, metadata): (i64, Vec<u8>)| {
            let map = offset_map::decode(offset, &metadata).unwrap_or_default();
            offset + map.completed.iter().map(|run| run.end - run.start).sum::<i64>()
        };
        Ok(committed.into_values().map(of_partition).sum())
    }

    fn compare(&self, kafka: &Kafka, first: &Look, second: &Look, timeout: Duration) -> Vec<Problem> {
        let group = self.groups[1].clone();
        let sum = |look: &Look, of: fn(&Offsets) -> i64| look.target.iter().map(of).sum::<i64>();
        let mut problems = Vec::new();
        let stood_still = sum(first, |one| one.committed) == sum(second, |one| one.committed);
        if stood_still && self.interval() <= MAX_INTERVAL && self.has_open_record(first, timeout) {
            problems.push(Problem::RareCommits { group, interval: humantime::format_duration(self.interval()) });
        }
        let time = second.at - first.at;
        let written = sum(second, |one| one.end) - sum(first, |one| one.end);
        let others = written - (second.completed - first.completed) - self.markers(kafka, time + SKEW, timeout);
        if others >= MIN_RECORDS {
            problems.push(Problem::OtherWriters { rate: (others as f64 / time.as_secs_f64()).ceil() as u64 });
        }
        problems
    }

    /// Returns whether a record, and not only markers of transactions, was open at a look.
    fn has_open_record(&self, look: &Look, timeout: Duration) -> bool {
        let mut open = look.target.iter().filter(|one| one.end > one.committed);
        open.any(|one| self.asker.has_record(&self.service.target, *one, timeout).unwrap_or(false))
    }

    /// Returns the most markers that the transactions of all instances write to the target in this time.
    fn markers(&self, kafka: &Kafka, time: Duration, timeout: Duration) -> i64 {
        let groups = self.asker.consumer.fetch_group_list(Some(&self.groups[0]), timeout);
        let instances = groups.ok().and_then(|groups| Some(groups.groups().first()?.members().len())).unwrap_or(1);
        let transactions = (time.as_secs_f64() * kafka.transactions_per_second()).ceil();
        i64::from(self.partitions) * instances.max(1) as i64 * transactions as i64
    }
}
