//! Partitions that wait for a schema.
//!
//! The client of a record may stand in a value that only its schema explains. The engine never waits for the registry:
//! the first record with an unknown schema suspends its partition, and the others are read on. A suspended partition is
//! paused, and keeps its records in order. Once the registry has answered, the partition goes on where it stopped.
//! Nothing of it is decided or committed meanwhile, so a crash or a rebalance loses nothing.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tracing::{debug, warn};
use watermaster_core::units::Time;

use super::{Engine, contact};
use watermaster_kafka::consumer::SourcePartition;
use watermaster_kafka::record::Record;
use watermaster_settings::client_id::{SchemaId, UnknownSchema};

/// The longest time until an answer of the registry is seen.
pub(super) const ANSWER_INTERVAL: Duration = Duration::from_millis(10);

/// The suspended partitions.
#[derive(Default)]
pub(super) struct Suspended<'c>(BTreeMap<SourcePartition, SuspendedPartition<'c>>);

struct SuspendedPartition<'c> {
    schema: SchemaId,
    since: Time,
    /// The record with this schema, and those that were fetched behind it before the partition was paused.
    records: VecDeque<Record<'c>>,
}

impl<'c> Suspended<'c> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn contains(&self, partition: SourcePartition) -> bool {
        !self.is_empty() && self.0.contains_key(&partition)
    }

    fn waits_for(&self, schema: SchemaId) -> bool {
        self.0.values().any(|suspended| suspended.schema == schema)
    }

    /// Keeps a record behind those of its partition, which is suspended.
    pub(super) fn add(&mut self, record: Record<'c>) {
        if let Some(suspended) = self.0.get_mut(&record.origin.address()) {
            suspended.records.push_back(record);
        }
    }

    /// Drops the records of a revoked partition.
    pub(super) fn forget(&mut self, partition: SourcePartition) {
        self.0.remove(&partition);
    }
}

impl<'c> Engine<'c> {
    /// Suspends the partition of a record until its schema is known.
    #[cold]
    pub(super) fn suspend(&mut self, now: Time, schema: UnknownSchema, mut record: Record<'c>) {
        let UnknownSchema(schema) = schema;
        let partition = record.origin.address();
        let (service, topic) = (&self.job.service.name, &self.link.partitions.sources.get(partition.0).topic);
        debug!(service, topic, partition = partition.1, %schema, "waiting for a schema");
        // The record may wait for long, and must not pin the memory of its fetch.
        record.detach();
        self.intake.schemas.ask(schema, now.since(Time::ZERO));
        self.intake.suspended.0.insert(partition, SuspendedPartition { schema, since: now, records: [record].into() });
        self.intake.pause(&[partition], self.job, self.reporter);
    }

    /// Takes the registry's answers. Partitions with a schema that is known now go on: their records are decided next.
    pub(super) fn release_suspended(&mut self, now: Time) {
        let suspended = &self.intake.suspended;
        for trouble in self.intake.schemas.poll(now.since(Time::ZERO), |id| suspended.waits_for(id)) {
            let service = &self.job.service.name;
            self.reporter.log_limiter.warn("schema", |suppressed| warn!(service, suppressed, "{trouble}"));
        }
        if suspended.is_empty() && self.reporter.suspended == 0 {
            return;
        }
        let is_released = |suspended: &SuspendedPartition<'_>| self.intake.schemas.knows(suspended.schema);
        let released: Vec<_> =
            suspended.0.iter().filter(|(_, suspended)| is_released(suspended)).map(|(at, _)| *at).collect();
        for partition in released {
            let Some(suspended) = self.intake.suspended.0.remove(&partition) else { continue };
            let Some(number) = self.link.partitions.find(partition) else { continue };
            self.intake.decide_next(suspended.records);
            // Clients are not to blame for the records that piled up meanwhile.
            contact::end_wait(now, suspended.since, (number, partition), self.throttle, &mut self.link);
            if self.throttle.ledger().paused(number).is_none() {
                self.intake.resume(&[partition], self.job, self.reporter);
            }
        }
        self.reporter.suspended = self.intake.suspended.0.len() as u64;
        self.reporter.counts.schema_requests = self.intake.schemas.counts;
        self.reporter.status.schema_trouble = self.intake.schemas.failure().map(str::to_owned);
    }
}
