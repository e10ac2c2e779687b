//! The partitions of a service, by their number in the core, and its sources, which come and go by reload.

use std::collections::{BTreeMap, HashMap};
use std::{cell::Cell, sync::Arc, time::Duration};

use watermaster_core::units::Time;

use super::Job;
use watermaster_kafka::consumer::{Consumer, SourcePartition};
use watermaster_kafka::producer::Producer;
use watermaster_kafka::topics::{SourceIndex, Topics};
use watermaster_kafka::{KafkaError, ask::TopicFacts, preflight};
use watermaster_settings::Source;

/// Every partition that was ever assigned. Numbers are given once, in order, and stay.
pub(super) struct Partitions {
    pub(super) sources: Sources,
    list: Vec<PartitionEntry>,
    numbers: HashMap<SourcePartition, u32>,
    /// The last partition that was found: records come in runs of one partition.
    last: Cell<Option<(SourcePartition, u32)>>,
}

pub(super) struct PartitionEntry {
    pub(super) source: SourceIndex,
    pub(super) partition: i32,
    pub(super) assigned: bool,
    /// The high watermark at the assignment.
    pub(super) high: i64,
    /// The time of the assignment, or of the last record that was read.
    pub(super) read_at: Time,
}

impl Partitions {
    pub(super) fn new(sources: Sources) -> Partitions {
        Partitions { sources, list: Vec::new(), numbers: HashMap::new(), last: Cell::default() }
    }

    /// Returns the number of a partition, a new one if it was never assigned before.
    pub(super) fn number(&mut self, at: SourcePartition) -> u32 {
        let next = self.list.len() as u32;
        let number = *self.numbers.entry(at).or_insert(next);
        if number == next {
            let (source, partition) = at;
            self.list.push(PartitionEntry { source, partition, assigned: false, high: 0, read_at: Time::ZERO });
        }
        number
    }

    /// Returns the number of a partition that was assigned before.
    pub(super) fn find(&self, at: SourcePartition) -> Option<u32> {
        match self.last.get() {
            Some((last, number)) if last == at => Some(number),
            _ => {
                let number = *self.numbers.get(&at)?;
                self.last.set(Some((at, number)));
                Some(number)
            }
        }
    }

    pub(super) fn entry(&mut self, number: u32) -> &mut PartitionEntry {
        &mut self.list[number as usize]
    }

    pub(super) fn address(&self, number: u32) -> SourcePartition {
        let entry = &self.list[number as usize];
        (entry.source, entry.partition)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (u32, &PartitionEntry)> {
        (0u32..).zip(&self.list)
    }

    pub(super) fn assigned(&self) -> impl Iterator<Item = (u32, SourcePartition)> + '_ {
        let assigned = self.all().filter(|(_, entry)| entry.assigned);
        assigned.map(|(number, entry)| (number, (entry.source, entry.partition)))
    }
}

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
