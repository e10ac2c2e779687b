//! Compares the retention of sources with the time to drain their records.
//!
//! A flood waits in its topic. What the topic keeps of it must outlast the time in which its client's part of the
//! capacity admits it.

use std::time::{Duration, Instant};

use watermaster_core::policy::{Mode, Overflow};
use watermaster_settings::{Kafka, Service, Source};

use super::problem::Problem;
use super::topics::TopicFacts;
use crate::assign::watermarks;
use crate::client::{self, KafkaError};
use crate::record::SourceIndex;
use crate::topics::{SourcePartition, Topics};

/// Returns each source of one client whose topic keeps more records than its client's part of the capacity admits in
/// the topic's retention.
pub(super) fn check<'s>(
    kafka: &Kafka, service: &'s Service, facts: impl Fn(&str) -> Option<TopicFacts>, timeout: Duration,
) -> Vec<(&'s str, Problem)> {
    let policy = &service.policy;
    if !policy.enforce || policy.mode != Mode::Shape || policy.overflow == Overflow::DeadLetter {
        return Vec::new();
    }
    let problem = |source: &'s Source| {
        let client = source.sole_client(&service.client_from)?;
        let facts = facts(&source.topic)?;
        let (retention, rate) = (facts.retention?, service.guaranteed_rate(client));
        let records = records(kafka, &source.topic, facts.partitions, timeout).ok()?;
        let drained = Duration::try_from_secs_f64((records as f64 / rate).ceil()).ok()?;
        let client = client.to_owned();
        (drained > retention).then(|| Problem::ShortRetention { client, records, drained, retention })
    };
    service.sources.iter().filter_map(|source| Some((source.topic.as_str(), problem(source)?))).collect()
}

/// Counts the offsets that a topic holds.
fn records(kafka: &Kafka, topic: &str, partitions: usize, timeout: Duration) -> Result<u64, KafkaError> {
    let topics = Topics::new([topic]);
    let partitions: Vec<SourcePartition> = (0..partitions as i32).map(|at| (SourceIndex(0), at)).collect();
    let reader = client::consumer(&client::reader_config(kafka, &kafka.group_id, "earliest", &[]))?;
    let found = watermarks(&reader, &topics, &partitions, Instant::now() + timeout)?;
    Ok(found.into_iter().map(|(_, (low, high))| high.abs_diff(low)).sum())
}
