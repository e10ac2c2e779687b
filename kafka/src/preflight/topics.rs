//! Compares the topics of a service: targets and dead-letter topics must accept all records of their sources.

use std::collections::BTreeMap;
use std::time::Duration;

use watermaster_settings::Service;

use super::problem::{Finding, Problem};
use crate::ask::TopicFacts;

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
        find(topic, room.map(|(bytes, largest)| Problem::SmallRecords { bytes, largest, headers }));
        let fewer = below(Some(facts.replication as u64), replication);
        find(topic, fewer.map(|(replicas, sources)| Problem::FewerReplicas { replicas, sources }));
        let fewer = below(facts.min_insync_replicas, insync);
        find(topic, fewer.map(|(insync, sources)| Problem::FewerInSync { insync, sources }));
        find(topic, (facts.compacted == Some(true)).then_some(Problem::Compacted));
        let is_dead_letter = service.dead_letters().contains(&topic);
        let short = facts.retention.filter(|retention| is_dead_letter && *retention < LEAST_RETENTION);
        find(topic, short.map(|retention| Problem::ShortDeadLetters { retention }));
    }
    for topic in of(service) {
        // Such a topic may refuse every record.
        if let Some(&TopicFacts { replication: replicas, min_insync_replicas: Some(insync), .. }) = topics.get(topic) {
            find(topic, (insync > replicas as u64).then_some(Problem::TooFewReplicas { insync, replicas }));
        }
    }
    findings
}
