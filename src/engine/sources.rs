//! The sources of a service, which come and go by reload.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use watermaster_kafka::producer::Producer;
use watermaster_kafka::topics::{SourceIndex, Topics};
use watermaster_kafka::{KafkaError, ask::TopicFacts, consumer::Consumer};
use watermaster_settings::Source;

use super::Job;

/// Every source that was ever read, by its index. A source that a reload removed keeps its place, because partitions
/// and records name their source by it until they are revoked.
pub(super) struct Sources {
    pub(super) topics: Arc<Topics>,
    list: Vec<Source>,
    facts: BTreeMap<String, TopicFacts>,
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
        Producer::new(&job.kafka, &job.service, &self.topics, job.facts.batch_bytes(&job.service))
    }

    pub(super) fn get(&self, source: SourceIndex) -> &Source {
        &self.list[source.index()]
    }

    /// Takes over other sources. Returns whether they have other topics.
    pub(super) fn change(&mut self, sources: Vec<Source>, facts: BTreeMap<String, TopicFacts>) -> bool {
        self.facts.extend(facts);
        let before = self.topics.names();
        let same = before.len() == sources.len() && sources.iter().all(|source| before.contains(&&*source.topic));
        self.topics.subscribe(&sources);
        for source in sources {
            match self.topics.find(&source.topic).map(SourceIndex::index) {
                Some(index) if index < self.list.len() => self.list[index] = source,
                Some(_) => self.list.push(source),
                None => {}
            }
        }
        !same
    }

    /// Returns the retention of each source that is read now; zero where it is unlimited or not known.
    pub(super) fn retention(&self) -> Vec<(String, Duration)> {
        let known = |topic: &str| self.facts.get(topic)?.retention;
        let retention = |topic: &str| (topic.to_owned(), known(topic).unwrap_or_default());
        self.topics.names().into_iter().map(retention).collect()
    }
}
