//! The sources of a service, which come and go by reload.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use watermaster_kafka::producer::Producer;
use watermaster_kafka::topics::{SourceIndex, Topics};
use watermaster_kafka::{KafkaError, ask::TopicFacts, consumer::Consumer, preflight};
use watermaster_settings::Source;

use super::Job;

/// Every source that was ever read, by its index. A source that a reload removed keeps its place, because partitions
/// and records name their source by it until they are revoked.
pub(super) struct Sources {
    pub(super) topics: Arc<Topics>,
    list: Vec<Source>,
    facts: BTreeMap<String, TopicFacts>,
}

/// The difference that other sources make.
pub(super) struct SourcesChange {
    /// Other topics are read.
    pub(super) topics: bool,
    /// A source is new, or has other outputs.
    pub(super) outputs: bool,
}

impl Sources {
    pub(super) fn new(job: &Job) -> Sources {
        let sources = &job.service.sources;
        Sources { topics: Topics::of(sources), list: sources.clone(), facts: job.facts.topics.clone() }
    }

    pub(super) fn consumer(&self, job: &Job) -> Result<Consumer, KafkaError> {
        Consumer::new(&job.kafka, &job.service, &self.topics, job.accept_foreign_offsets)
    }

    pub(super) fn producer(&self, job: &Job) -> Result<Producer, KafkaError> {
        let batch_bytes = preflight::batch_bytes(&self.list, &self.facts);
        Producer::new(&job.kafka, &job.service, &self.list, &self.topics, batch_bytes)
    }

    pub(super) fn get(&self, source: SourceIndex) -> &Source {
        &self.list[source.index()]
    }

    /// Takes over other sources.
    pub(super) fn change(&mut self, sources: Vec<Source>, facts: BTreeMap<String, TopicFacts>) -> SourcesChange {
        self.facts.extend(facts);
        let before = self.topics.names();
        let same = before.len() == sources.len() && sources.iter().all(|source| before.contains(&&*source.topic));
        let mut change = SourcesChange { topics: !same, outputs: false };
        self.topics.subscribe(&sources);
        for source in sources {
            let Some(index) = self.topics.find(&source.topic).map(SourceIndex::index) else { continue };
            let outputs = |source: &Source| (source.target.clone(), source.dead_letter.clone());
            change.outputs |= self.list.get(index).map(outputs) != Some(outputs(&source));
            if index < self.list.len() {
                self.list[index] = source;
            } else {
                self.list.push(source);
            }
        }
        change
    }

    /// Returns the retention of each source that is read now; zero where it is unlimited or not known.
    pub(super) fn retention(&self) -> Vec<(String, Duration)> {
        let known = |topic: &str| self.facts.get(topic)?.retention;
        let retention = |topic: &str| (topic.to_owned(), known(topic).unwrap_or_default());
        self.topics.names().into_iter().map(retention).collect()
    }
}
