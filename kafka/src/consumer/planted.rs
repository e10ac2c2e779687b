//! Plants the consumer's mistakes for `scripts/chaos --teeth`: the oracle has to find each of them.

use std::{ops::Deref, time::Duration};

use rdkafka::consumer::Consumer as _;
use watermaster_settings as settings;

use super::commit::{CommitError, CommitFailure, Offsets, PartitionCommit};
use super::{config::config, group_consumer::Consumer};
use crate::failpoint::{Fault, planted};
use crate::{client::KafkaError, event::Event, ffi::GroupMetadata};

/// A [`Consumer`] that makes the planted mistake, if it is one of the consumer's.
pub struct PlantedConsumer(Consumer);

impl Deref for PlantedConsumer {
    type Target = Consumer;

    fn deref(&self) -> &Consumer {
        &self.0
    }
}

impl PlantedConsumer {
    pub fn new(
        kafka: &settings::Kafka, service: &settings::Service, accept_foreign_offsets: bool,
    ) -> Result<PlantedConsumer, KafkaError> {
        let mut config = config(kafka, service);
        if planted(Fault::ReadUncommitted) {
            config.set("isolation.level", "read_uncommitted");
        }
        Consumer::with_config(config, kafka, service, accept_foreign_offsets).map(PlantedConsumer)
    }

    pub fn poll(&self, timeout: Duration) -> Event<'_> {
        match self.0.poll(timeout) {
            // The engine goes on with the records of all its partitions.
            Event::Revoked { lost, .. } if planted(Fault::NoPurgeOnRevoke) => {
                Event::Revoked { partitions: Vec::new(), lost }
            }
            event => event,
        }
    }

    pub fn offsets(&self, commits: &[PartitionCommit]) -> Result<Offsets, CommitError> {
        let client = self.0.base.client();
        let unfenced = planted(Fault::UnfencedGroupMetadata);
        let group = if unfenced { GroupMetadata::unfenced(client) } else { GroupMetadata::of(client) };
        let offsets = Offsets::new(commits, &self.0.topics, group.ok_or(CommitError::Lost(CommitFailure::NotMember))?);
        keep_revoked(self.0.check_assignment(&offsets))?;
        Ok(offsets)
    }

    pub fn commit_offsets(&self, offsets: &Offsets, wait: Duration) -> Result<bool, CommitError> {
        self.0.commit_with(offsets, wait, || keep_revoked(self.0.check_ownership(offsets)))
    }

    pub fn close(self, timeout: Duration) -> bool {
        self.0.close(timeout)
    }
}

/// A consumer that keeps revoked partitions believes that it still owns them.
fn keep_revoked(checked: Result<(), CommitError>) -> Result<(), CommitError> {
    match checked {
        Err(CommitError::Lost(CommitFailure::NotAssigned { .. })) if planted(Fault::NoPurgeOnRevoke) => Ok(()),
        checked => checked,
    }
}
