//! Compares the retention of sources with the time to drain their records.
//!
//! A flood waits in its topic. What the topic keeps of it must outlast the time in which its client's part of the
//! capacity admits it.

use std::time::{Duration, Instant};

use watermaster_core::policy::{Mode, Overflow};
use watermaster_settings::{Kafka, Service, Source};

use super::problem::Problem;
use crate::ask::TopicFacts;
use crate::assign::watermarks;
use crate::client::{self, KafkaError};
use crate::topics::{Topics, all_partitions};

/// Returns each source of one client whose topic keeps more records than its client's part of the capacity admits in
/// the topic's retention.
pub(super) fn check<'s>(
    kafka: &Kafka, service: &'s Service, facts: impl Fn(&str) -> Option<TopicFacts>, timeout: Duration,
) -> Vec<(&'s str, Problem)> {
    let policy = &service.policy;
    if !policy.enforce || policy.mode != Mode::Shape || policy.overflow == Overflow::DeadLetter {
        return Vec::new();
    }
    let candidate = |source: &'s Source| {
        let client = service.sole_client(source)?.into_owned();
        let facts = facts(&source.topic)?;
        Some((source.topic.as_str(), client, facts.partitions, facts.retention?))
    };
    let candidates: Vec<_> = service.sources.iter().filter_map(candidate).collect();
    if candidates.is_empty() {
        return Vec::new();
    }
    let topics = candidates.iter().map(|(topic, _, partitions, _)| (*topic, *partitions));
    let Ok(records) = records(kafka, &topics.collect::<Vec<_>>(), timeout) else { return Vec::new() };
    let problem = |((topic, client, _, retention), records): ((&'s str, String, usize, Duration), u64)| {
        let rate = service.guaranteed_rate(&client);
        let drained = Duration::try_from_secs_f64((records as f64 / rate).ceil()).ok()?;
        (drained > retention).then(|| (topic, Problem::ShortRetention { client, records, drained, retention }))
    };
    candidates.into_iter().zip(records).filter_map(problem).collect()
}

/// Counts the offsets that each of these topics holds, with its number of partitions.
fn records(kafka: &Kafka, of: &[(&str, usize)], timeout: Duration) -> Result<Vec<u64>, KafkaError> {
    let topics = Topics::new(of.iter().map(|(topic, _)| *topic));
    let partitions = all_partitions(of.iter().map(|(_, count)| *count as i32));
    let reader = client::consumer(&client::reader_config(kafka, &kafka.group_id, "earliest", &[]))?;
    let mut records = vec![0; of.len()];
    for ((source, _), (low, high)) in watermarks(&reader, &topics, &partitions, Instant::now() + timeout)? {
        records[source.index()] += high.abs_diff(low);
    }
    Ok(records)
}
