//! Partitions that wait for a schema.
//!
//! The client of a record may stand in a value that only its schema explains. The engine never waits for the registry:
//! the first record with an unknown schema parks its partition, and the others are read on. A parked partition is
//! paused, and keeps its records in order. Once the registry has answered, the partition goes on where it stopped.
//! Nothing of it is decided or committed meanwhile, so a crash or a rebalance loses nothing.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tracing::{debug, warn};
use watermaster_core::units::Time;

use super::{Engine, contact};
use watermaster_kafka::consumer::SourcePartition;
use watermaster_kafka::record::Record;
use watermaster_settings::client_id::UnknownSchema;

/// The longest time until an answer of the registry is seen.
pub(super) const ANSWER_INTERVAL: Duration = Duration::from_millis(10);

/// The parked partitions.
#[derive(Default)]
pub(super) struct Parked<'c>(BTreeMap<SourcePartition, ParkedPartition<'c>>);

struct ParkedPartition<'c> {
    schema: u32,
    since: Time,
    /// The record with this schema, and those that were fetched behind it before the partition was paused.
    records: VecDeque<Record<'c>>,
}

impl<'c> Parked<'c> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn contains(&self, partition: SourcePartition) -> bool {
        !self.is_empty() && self.0.contains_key(&partition)
    }

    fn waits_for(&self, schema: u32) -> bool {
        self.0.values().any(|parked| parked.schema == schema)
    }

    /// Keeps a record behind those of its partition, which is parked.
    pub(super) fn add(&mut self, record: Record<'c>) {
        if let Some(parked) = self.0.get_mut(&record.origin.address()) {
            parked.records.push_back(record);
        }
    }

    /// Drops the records of a revoked partition.
    pub(super) fn forget(&mut self, partition: SourcePartition) {
        self.0.remove(&partition);
    }
}

impl<'c> Engine<'c> {
    /// Parks the partition of a record until its schema is known.
    #[cold]
    pub(super) fn park(&mut self, now: Time, schema: UnknownSchema, mut record: Record<'c>) {
        let UnknownSchema(schema) = schema;
        let partition = record.origin.address();
        let (service, topic) = (&self.job.service.name, &self.link.partitions.sources.get(partition.0).topic);
        debug!(service, topic, partition = partition.1, schema, "waiting for a schema");
        // The record may wait for long, and must not pin the memory of its fetch.
        record.detach();
        self.schemas.ask(schema, now.since(Time::ZERO));
        self.intake.parked.0.insert(partition, ParkedPartition { schema, since: now, records: [record].into() });
        self.intake.pause(&[partition], self.job, self.reporter);
    }

    /// Takes the registry's answers. Partitions with a schema that is known now go on: their records are decided next.
    pub(super) fn release_parked(&mut self, now: Time) {
        let parked = &self.intake.parked;
        for trouble in self.schemas.poll(now.since(Time::ZERO), |id| parked.waits_for(id)) {
            let service = &self.job.service.name;
            self.reporter.log_limiter.warn("schema", |suppressed| warn!(service, suppressed, "{trouble}"));
        }
        if parked.is_empty() && self.reporter.parked == 0 {
            return;
        }
        let is_released = |parked: &ParkedPartition<'_>| self.schemas.knows(parked.schema);
        let released: Vec<_> = parked.0.iter().filter(|(_, parked)| is_released(parked)).map(|(at, _)| *at).collect();
        for partition in released {
            let Some(parked) = self.intake.parked.0.remove(&partition) else { continue };
            let Some(number) = self.link.partitions.find(partition) else { continue };
            self.intake.decide_next(parked.records);
            // Clients are not to blame for the records that piled up meanwhile.
            contact::end_wait(now, parked.since, (number, partition), self.throttle, &mut self.link);
            if self.throttle.ledger().paused(number).is_none() {
                self.intake.resume(&[partition], self.job, self.reporter);
            }
        }
        self.reporter.parked = self.intake.parked.0.len() as u64;
        self.reporter.counts.schema_requests = self.schemas.counts;
        self.reporter.status.schema_trouble = self.schemas.failure().map(str::to_owned);
    }
}
