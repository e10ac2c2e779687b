//! The sources of a service, which come and go by reload.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use watermaster_kafka::{KafkaError, consumer::Consumer, preflight::TopicFacts};
use watermaster_kafka::{producer::Producer, record::SourceIndex, topics::Topics};
use watermaster_settings::Source;

use super::Job;

/// Every source that was ever read, by its index. A source that a reload removed keeps its place, because partitions
/// and records name their source by it until they are revoked.
pub(super) struct Sources {
    pub(super) topics: Arc<Topics>,
    list: Vec<Source>,
    /// The sources that are read now.
    current: Vec<Source>,
    facts: BTreeMap<String, TopicFacts>,
}

impl Sources {
    pub(super) fn new(job: &Job) -> Sources {
        let sources = &job.service.sources;
        let (list, current, facts) = (sources.clone(), sources.clone(), job.facts.topics.clone());
        Sources { topics: Topics::of(sources), list, current, facts }
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
        let before = self.topics.names().len();
        let same = before == sources.len() && sources.iter().all(|source| self.reads(&source.topic));
        self.topics.subscribe(&sources);
        for source in &sources {
            match self.topics.find(&source.topic).map(SourceIndex::index) {
                Some(index) if index < self.list.len() => self.list[index].clone_from(source),
                Some(_) => self.list.push(source.clone()),
                None => {}
            }
        }
        self.current = sources;
        !same
    }

    fn reads(&self, topic: &str) -> bool {
        self.current.iter().any(|source| source.topic == topic)
    }

    /// Returns the retention of each source that is read now; zero where it is unlimited or not known.
    pub(super) fn retention(&self) -> Vec<(String, Duration)> {
        let known = |topic: &str| self.facts.get(topic)?.retention;
        let retention = |source: &Source| (source.topic.clone(), known(&source.topic).unwrap_or_default());
        self.current.iter().map(retention).collect()
    }
}
