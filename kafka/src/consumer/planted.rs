//! Plants the consumer's mistakes for `scripts/chaos --teeth`: the oracle has to find each of them.

use std::{ops::Deref, time::Duration};

use rdkafka::consumer::Consumer as _;
use watermaster_settings as settings;

use super::commit::{CommitError, CommitFailure, Offsets, PartitionCommit};
use super::{config::config, group_consumer::Consumer};
use crate::failpoint::{Fault, planted};
use crate::{client::KafkaError, ffi::GroupMetadata};

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

    pub fn offsets(&self, commits: &[PartitionCommit]) -> Result<Offsets, CommitError> {
        if !planted(Fault::UnfencedGroupMetadata) {
            return self.0.offsets(commits);
        }
        let group = GroupMetadata::unfenced(self.0.base.client());
        let offsets = Offsets::new(commits, &self.0.topics, group.ok_or(CommitError::Lost(CommitFailure::NotMember))?);
        // Without the check of membership: an expelled consumer goes on committing.
        self.0.check_assignment(&offsets)?;
        Ok(offsets)
    }

    pub fn close(self, timeout: Duration) -> bool {
        self.0.close(timeout)
    }
}
