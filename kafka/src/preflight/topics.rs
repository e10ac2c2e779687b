//! Compares the topics of a service: targets and dead-letter topics must accept all records of their sources, and the
//! retention of sources must leave the time to drain their records.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use watermaster_core::policy::{Mode, Overflow};
use watermaster_settings::{Kafka, Service, Source};

use super::problem::{Finding, Problem};
use crate::ask::TopicFacts;
use crate::assign::{LEADERLESS, watermarks};
use crate::client::{self, KafkaError};
use crate::topics::{Topics, all_partitions};

/// Room for the headers that a rejected record gains, with names of the greatest length.
pub(super) const HEADER_ROOM: u64 = 2048;
/// Dead letters that are deleted sooner can hardly be looked at before.
const LEAST_RETENTION: Duration = Duration::from_secs(86_400);

pub(super) fn of(service: &Service) -> impl Iterator<Item = &str> {
    let outputs = service.targets().into_iter().chain(service.dead_letters());
    service.sources.iter().map(|source| source.topic.as_str()).chain(outputs)
}

/// Compares each target and dead-letter topic with its sources, and each topic with its own replicas.
pub(super) fn compare(service: &Service, topics: &BTreeMap<String, TopicFacts>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |topic: &str, problem: Option<Problem>| {
        findings.extend(problem.map(|problem| problem.of_topic(&service.name, topic)));
    };
    let targets = service.targets().into_iter().map(|topic| (topic, 0));
    let dead_letters = service.dead_letters().into_iter().map(|topic| (topic, HEADER_ROOM));
    for (topic, headers) in targets.chain(dead_letters) {
        let Some(facts) = topics.get(topic) else { continue };
        let sources = service.sources.iter().filter(|source| source.target == topic || source.dead_letter == topic);
        let sources: Vec<_> = sources.filter_map(|source| topics.get(&source.topic)).collect();
        let most = |of: fn(&TopicFacts) -> Option<u64>| sources.iter().filter_map(|facts| of(facts)).max();
        let largest = most(|facts| facts.max_message_bytes);
        let replication = most(|facts| u64::try_from(facts.replication).ok());
        let insync = most(|facts| facts.min_insync_replicas);
        let below = |own: Option<u64>, sources: Option<u64>| Some((own?, sources?)).filter(|(own, most)| own < most);
        let room = facts.max_message_bytes.zip(largest);
        let room = room.filter(|(bytes, largest)| *bytes < largest.saturating_add(headers));
        let small = |(bytes, largest): (u64, u64)| {
            let (wanted, added) =
                (largest.saturating_add(headers), if headers > 0 { " and the throttle headers" } else { "" });
            Problem::warning(format!(
                "max.message.bytes is {bytes}, too little for the sources' records of up to {largest}{added}: set it \
                 to {wanted}"
            ))
        };
        find(topic, room.map(small));
        let fewer = below(Some(facts.replication as u64), replication);
        find(topic, fewer.map(|(own, most)| Problem::warning(format!("has {own} replicas, the sources have {most}"))));
        let fewer = below(facts.min_insync_replicas, insync);
        let text = |(own, most)| format!("min.insync.replicas is {own}, the sources' is {most}");
        find(topic, fewer.map(|fewer| Problem::warning(text(fewer))));
        let text = "is compacted: it refuses records without a key, and drops older ones of the same key";
        find(topic, (facts.compacted == Some(true)).then(|| Problem::warning(text)));
        let keeps_longer = |age| sources.iter().any(|source| source.retention.is_none_or(|kept| kept > age));
        let text = |age| {
            format!(
                "refuses records that are {} old by their timestamp, and the sources keep records for longer: set \
                 message.timestamp.before.max.ms to the sources' retention.ms or more",
                humantime::format_duration(age)
            )
        };
        let refused = facts.refused_age.filter(|age| keeps_longer(*age));
        find(topic, refused.map(|age| Problem::warning(text(age))));
        let is_dead_letter = service.dead_letters().contains(&topic);
        let short = facts.retention.filter(|retention| is_dead_letter && *retention < LEAST_RETENTION);
        let text = |retention| {
            format!(
                "deletes dead letters after {}, before a person can look at them: set retention.ms to 604800000 (a \
                 week) or more",
                humantime::format_duration(retention)
            )
        };
        find(topic, short.map(|retention| Problem::warning(text(retention))));
    }
    for topic in of(service) {
        // Such a topic may refuse every record.
        if let Some(&TopicFacts { replication: replicas, min_insync_replicas: Some(insync), .. }) = topics.get(topic) {
            let many = format!("min.insync.replicas is {insync}, more than its {replicas} replicas");
            let text = format!("{many}: brokers may refuse every record");
            find(topic, (insync > replicas as u64).then(|| Problem::warning(text)));
        }
    }
    findings
}

/// Returns each source of one client whose topic keeps more records than its client's part of the capacity admits in
/// the topic's retention: a flood waits in its topic.
pub(super) fn check_retention<'s>(
    kafka: &Kafka, service: &'s Service, facts: &BTreeMap<String, TopicFacts>, timeout: Duration,
) -> Vec<(&'s str, Problem)> {
    let policy = &service.policy;
    if !policy.enforce || policy.mode != Mode::Shape || policy.overflow == Overflow::DeadLetter {
        return Vec::new();
    }
    let candidate = |source: &'s Source| {
        let client = service.sole_client(source)?.into_owned();
        let facts = facts.get(&source.topic)?;
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
        let text = || {
            format!(
                "holds {records} records, which take {} at the part of the capacity that {client} always has, and \
                 deletes them after {}: set retention.ms to {} or more",
                humantime::format_duration(drained),
                humantime::format_duration(retention),
                drained.as_millis()
            )
        };
        (drained > retention).then(|| (topic, Problem::warning(text())))
    };
    candidates.into_iter().zip(records).filter_map(problem).collect()
}

/// Counts the offsets that each of these topics holds, with its number of partitions.
fn records(kafka: &Kafka, of: &[(&str, usize)], timeout: Duration) -> Result<Vec<u64>, KafkaError> {
    let topics = Topics::new(of.iter().map(|(topic, _)| *topic));
    let partitions = all_partitions(of.iter().map(|(_, count)| *count as i32));
    let reader = client::consumer(&client::reader_config(kafka, &kafka.group_id, "earliest", &[]))?;
    let (mut records, deadline) = (vec![0; of.len()], Instant::now() + timeout);
    for ((source, _), (low, high)) in watermarks(&reader, &topics, &partitions, LEADERLESS, deadline)? {
        records[source.index()] += high.abs_diff(low);
    }
    Ok(records)
}
