//! Sources by pattern: the topics of the cluster that a service reads besides those that it names.

use std::collections::BTreeSet;
use std::time::Duration;

use watermaster_core::policy::{GroupPolicy, Limit, Mode, Overflow, Policy};
use watermaster_core::units::Weight;

use crate::model::{Service, Settings, Source, SourcePattern};
use crate::pattern::INTERNAL;

/// The memory of the program itself.
const MEMORY_OF_PROGRAM: u64 = 40 << 20;
/// The memory of a service beside its backlogs: a round and its copy in the producer, values fetched ahead, and a fetch
/// from each of three brokers, 16 MiB each.
const MEMORY_BESIDE_BACKLOGS: u64 = 6 * (16 << 20);

impl SourcePattern {
    fn source(&self, topic: &str) -> Option<Source> {
        let captured = self.pattern.client_of(topic)?;
        let client = self.source.client.clone().unwrap_or_else(|| captured.to_owned());
        Some(Source { topic: topic.to_owned(), client: Some(client), ..self.source.clone() })
    }
}

impl Service {
    /// Returns each pattern by which the service has no source, with the topic of the cluster that is most like it.
    pub fn idle_patterns<'t>(&self, topics: &'t [String]) -> Vec<(&str, Option<&'t str>)> {
        let matches = |pattern: &SourcePattern| {
            self.sources.iter().any(|source| source.by_pattern && pattern.source(&source.topic).is_some())
        };
        let idle = self.patterns.iter().filter(|pattern| !matches(pattern)).map(|source| &source.pattern);
        idle.map(|pattern| (pattern.as_str(), pattern.nearest(topics))).collect()
    }

    /// Returns a sentence that tells what happens to the records of a client that floods, for people.
    pub fn flood_text(&self) -> String {
        let policy = &self.policy;
        let rejected = format!("rejected as queue_full once {} wait", policy.queue_capacity);
        let fate = match (policy.enforce, policy.mode, policy.overflow) {
            (false, ..) => "its records are admitted like all others: shadow mode only counts".to_owned(),
            (_, Mode::Reject, _) => "its records beyond its grant are rejected".to_owned(),
            (_, _, Overflow::DeadLetter) => format!("its oldest records are {rejected}"),
            (_, _, Overflow::Pause) => {
                format!("its partitions are paused once {} records wait, for other clients, too", policy.queue_capacity)
            }
            (_, _, Overflow::Auto) => match &*self.shared_sources() {
                [] => "its records wait in Kafka, and none is rejected".to_owned(),
                shared if shared.len() == self.sources.len() + self.patterns.len() => {
                    format!("its oldest records are {rejected}: every source has records of several clients")
                }
                shared => format!(
                    "its records wait in Kafka, but those of sources with several clients ({}) are {rejected}",
                    shared.join(", ")
                ),
            },
        };
        let shaped = policy.enforce && policy.mode == Mode::Shape;
        let expiry = policy.max_delay.filter(|_| shaped).map(humantime::format_duration);
        let expiry = expiry.map(|delay| format!(". Records that waited for {delay} are rejected as expired"));
        format!("when a client floods, {fate}{}", expiry.unwrap_or_default())
    }

    /// Returns a sentence that tells how many records of one client may wait in memory, and for how long; `None` in
    /// shadow mode, where none waits.
    pub fn backlog_text(&self) -> Option<String> {
        let Policy { enforce, queue_capacity, capacity, cycle, .. } = self.policy;
        let seconds = queue_capacity as f64 / capacity as f64 * cycle.as_secs_f64();
        let time = humantime::format_duration(Duration::from_secs(seconds.round() as u64));
        let text = format!("up to {queue_capacity} records of one client wait in memory: {time} of the whole capacity");
        enforce.then_some(text)
    }

    /// Returns the most memory that the service needs, in bytes.
    fn memory(&self) -> u64 {
        self.policy.queue_bytes + MEMORY_BESIDE_BACKLOGS
    }

    /// Returns the topics and patterns of the sources that may have records of several clients.
    fn shared_sources(&self) -> Vec<&str> {
        let shared = self.sources.iter().filter(|source| self.sole_client(source).is_none());
        // Each topic that matches a pattern has a client.
        let a_match = |pattern: &SourcePattern| {
            let client = Some(pattern.source.client.clone().unwrap_or_default());
            Source { client, ..pattern.source.clone() }
        };
        let patterns = self.patterns.iter().filter(|pattern| self.sole_client(&a_match(pattern)).is_none());
        shared.map(|source| &*source.topic).chain(patterns.map(|source| source.pattern.as_str())).collect()
    }

    /// Returns the records per second that a client of its own source gets at least, if all other clients flood, too:
    /// its part of the capacity by weight.
    pub fn guaranteed_rate(&self, client: &str) -> f64 {
        let policy = &self.policy;
        let own = policy.clients.iter().find(|known| known.name == client).map(|known| weight(known.weight));
        let upper = self.upper_weight();
        let part = match (policy.group_of(client), own) {
            (Some(group), own) => {
                let inside = policy.clients.iter().filter(|known| policy.group_of(&known.name) == Some(group));
                let listed: f64 = inside.map(|known| weight(known.weight)).sum();
                // Other clients of the group weigh 1 each; one more of them is assumed.
                let own = own.unwrap_or(1.0);
                weight(policy.groups[group].weight) / upper * own / (listed + 1.0).max(own)
            }
            (None, Some(own)) => own / upper,
            (None, None) if !policy.lists_any() => 1.0 / self.sources.len().max(1) as f64,
            (None, None) => weight(policy.unlisted_weight) / upper,
        };
        policy.capacity as f64 / policy.cycle.as_secs_f64() * part
    }

    /// Returns the weight of all groups and of all clients that stand alone, if unlisted clients weigh the most.
    fn upper_weight(&self) -> f64 {
        let policy = &self.policy;
        let alone = policy.clients.iter().filter(|known| policy.group_of(&known.name).is_none());
        alone.map(|known| weight(known.weight)).sum::<f64>()
            + policy.groups.iter().map(|group| weight(group.weight)).sum::<f64>()
            + weight(policy.unlisted_weight)
    }

    /// Returns a line for each group of clients that tells its default share, for people.
    pub fn group_texts(&self) -> Vec<String> {
        let (upper, cycle) = (self.upper_weight(), humantime::format_duration(self.policy.cycle));
        let line = |group: &GroupPolicy| {
            let share = (self.policy.capacity as f64 * weight(group.weight) / upper).floor();
            let text = format!("group {}: a default share of at least {share} records per {cycle}", group.name);
            let limit =
                |limit: &Limit| format!(", a limit of {} per {}", limit.rate, humantime::format_duration(limit.per));
            group.limits.iter().map(limit).fold(text, |text, limit| text + &limit)
        };
        self.policy.groups.iter().map(line).collect()
    }

    /// Returns the topics and patterns of the sources, for people.
    pub fn sources_text(&self) -> String {
        let patterns = self.patterns.iter().map(|source| source.pattern.as_str());
        self.sources.iter().map(|source| source.topic.as_str()).chain(patterns).collect::<Vec<_>>().join(", ")
    }
}

fn weight(weight: Weight) -> f64 {
    weight.thousandths() as f64
}

impl Settings {
    /// Returns the most memory that an instance needs, in bytes, with three brokers and records that compress little.
    pub fn memory(&self) -> u64 {
        MEMORY_OF_PROGRAM + self.services.iter().map(Service::memory).sum::<u64>()
    }

    /// Returns whether the sources of any service depend on the topics of the cluster.
    pub fn has_patterns(&self) -> bool {
        self.services.iter().any(|service| !service.patterns.is_empty())
    }

    /// Returns the settings with a source for each of these topics that matches a pattern.
    ///
    /// A topic belongs to the first pattern in the file that matches. No pattern gets a topic that any service names: a
    /// source stays what it is, and from a target, a dead-letter topic or a control topic records would go round in a
    /// loop.
    pub fn with_matches(&self, topics: &[String]) -> Settings {
        let named = |service: &'_ Service| {
            let mut topics: Vec<String> = service.sources.iter().map(|source| source.topic.clone()).collect();
            topics.extend(service.targets().into_iter().map(str::to_owned));
            for dead_letter in service.dead_letters() {
                topics.extend([dead_letter.to_owned(), Service::parked(dead_letter)]);
            }
            let former = service.former_control_topic(&self.kafka.group_id);
            topics.extend([service.control_topic.clone(), service.ledger(), former]);
            topics.extend(service.rules_topic.clone());
            topics
        };
        let named: BTreeSet<String> = self.services.iter().flat_map(named).collect();
        let free = |topic: &&String| !topic.starts_with(INTERNAL) && !named.contains(*topic);
        let mut left: BTreeSet<&String> = topics.iter().filter(free).collect();
        let mut settings = self.clone();
        for service in &mut settings.services {
            for pattern in &service.patterns {
                let sources: Vec<Source> = left.iter().filter_map(|topic| pattern.source(topic)).collect();
                left.retain(|topic| sources.iter().all(|source| source.topic != **topic));
                service.sources.extend(sources);
            }
        }
        settings
    }
}

#[cfg(test)]
mod tests;
