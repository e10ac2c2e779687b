//! Sources by pattern: the topics of the cluster that a service reads besides those that it names.

use std::collections::BTreeSet;

use regex::Regex;
use regex_syntax::hir::{Hir, HirKind};

use watermaster_core::policy::{Mode, Overflow};
use watermaster_core::units::Weight;

use crate::model::{Service, Settings, Source, sole_client};

/// The named group of a pattern that captures the client.
const CLIENT: &str = "client";
/// Topics that begin so are Kafka's own.
const INTERNAL: &str = "__";

/// A regular expression that has to match the whole name of a topic.
#[derive(Debug, Clone)]
pub struct TopicPattern {
    text: String,
    whole: Regex,
}

impl PartialEq for TopicPattern {
    fn eq(&self, other: &TopicPattern) -> bool {
        self.text == other.text
    }
}

impl TopicPattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// The text is no regular expression of the crate `regex`.
    pub fn new(text: &str) -> Result<TopicPattern, regex::Error> {
        // By itself first: the group around it must not balance its parentheses.
        Regex::new(text)?;
        Ok(TopicPattern { text: text.to_owned(), whole: Regex::new(&format!("^(?:{text})$"))? })
    }

    /// Returns the topic that is most like the letters of the pattern, by the pairs of letters that they share.
    fn nearest<'t>(&self, topics: &'t [String]) -> Option<&'t str> {
        let mut letters = Vec::new();
        if let Ok(pattern) = regex_syntax::parse(&self.text) {
            add_letters(&pattern, &mut letters);
        }
        let letters = String::from_utf8_lossy(&letters).to_lowercase();
        let free = topics.iter().filter(|topic| !topic.starts_with(INTERNAL));
        let likeness = |topic: &'t String| (strsim::sorensen_dice(&letters, &topic.to_lowercase()), topic.as_str());
        free.map(likeness).max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, topic)| topic)
    }

    /// Returns whether a named group captures the client.
    pub fn captures_client(&self) -> bool {
        self.whole.capture_names().flatten().any(|name| name == CLIENT)
    }

    /// Returns whether there are groups, and none of them captures the client.
    pub fn captures_something_else(&self) -> bool {
        // The first capture is the whole name.
        self.whole.captures_len() > 1 && !self.captures_client()
    }
}

/// Collects the bytes that a pattern asks for by name, in order.
fn add_letters(pattern: &Hir, letters: &mut Vec<u8>) {
    match pattern.kind() {
        HirKind::Literal(literal) => letters.extend(&literal.0),
        HirKind::Capture(capture) => add_letters(&capture.sub, letters),
        HirKind::Repetition(repetition) => add_letters(&repetition.sub, letters),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            parts.iter().for_each(|part| add_letters(part, letters))
        }
        HirKind::Empty | HirKind::Class(_) | HirKind::Look(_) => {}
    }
}

/// The sources that match one pattern.
#[derive(Debug, Clone, PartialEq)]
pub struct SourcePattern {
    pub pattern: TopicPattern,
    /// The client of every topic that matches. Without one, it is the capture `client`, or else the topic's name.
    pub client: Option<String>,
    pub allowed_clients: Option<Vec<String>>,
}

impl SourcePattern {
    fn source(&self, topic: &str) -> Option<Source> {
        let captures = self.pattern.whole.captures(topic)?;
        let captured = captures.name(CLIENT).map(|client| client.as_str()).filter(|client| !client.is_empty());
        let client = self.client.as_deref().or(captured).unwrap_or(topic).to_owned();
        let (topic, allowed_clients) = (topic.to_owned(), self.allowed_clients.clone());
        Some(Source { topic, client: Some(client), allowed_clients, by_pattern: true })
    }
}

impl Service {
    /// Returns each pattern by which the service has no source, with the topic of the cluster that is most like it.
    pub fn idle_patterns<'t>(&self, topics: &'t [String]) -> Vec<(&str, Option<&'t str>)> {
        let matches = |pattern: &SourcePattern| {
            self.sources.iter().any(|source| source.by_pattern && pattern.source(&source.topic).is_some())
        };
        let idle = self.patterns.iter().filter(|pattern| !matches(pattern)).map(|source| &source.pattern);
        idle.map(|pattern| (pattern.text.as_str(), pattern.nearest(topics))).collect()
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

    /// Returns the topics and patterns of the sources that may have records of several clients.
    fn shared_sources(&self) -> Vec<&str> {
        let is_shared = |source: &Source| source.sole_client(&self.client_from).is_none();
        let shared = self.sources.iter().filter(|source| is_shared(source)).map(|source| source.topic.as_str());
        // Each topic that matches a pattern has a client.
        let matches_are_shared = |pattern: &&SourcePattern| {
            let client = pattern.client.as_deref().unwrap_or_default();
            sole_client(Some(client), pattern.allowed_clients.as_deref(), &self.client_from).is_none()
        };
        let patterns = self.patterns.iter().filter(matches_are_shared);
        shared.chain(patterns.map(|source| source.pattern.text.as_str())).collect()
    }

    /// Returns the records per second that a client of its own source gets at least, if all other clients flood, too:
    /// its part of the capacity by weight.
    pub fn guaranteed_rate(&self, client: &str) -> f64 {
        let policy = &self.policy;
        let weight = |weight: Weight| weight.thousandths() as f64;
        let listed: f64 = policy.clients.iter().map(|client| weight(client.weight)).sum();
        let (own, all) = match policy.clients.iter().find(|known| known.name == client) {
            Some(known) => (weight(known.weight), listed + weight(policy.unlisted_weight)),
            None if policy.clients.is_empty() => (1.0, self.sources.len().max(1) as f64),
            None => (weight(policy.unlisted_weight), listed + weight(policy.unlisted_weight)),
        };
        policy.capacity as f64 / policy.cycle.as_secs_f64() * own / all
    }

    /// Returns the topics and patterns of the sources, for people.
    pub fn sources_text(&self) -> String {
        let patterns = self.patterns.iter().map(|source| source.pattern.text.as_str());
        self.sources.iter().map(|source| source.topic.as_str()).chain(patterns).collect::<Vec<_>>().join(", ")
    }
}

impl Settings {
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
            let outputs = [&service.target, &service.dead_letter, &service.control_topic].map(String::clone);
            let sources = service.sources.iter().map(|source| source.topic.clone());
            let former = service.former_control_topic(&self.kafka.group_id);
            sources.chain(outputs).chain([service.parked(), service.ledger(), former]).collect::<Vec<_>>()
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
