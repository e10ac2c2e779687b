//! Plants the consumer's mistakes for `scripts/chaos --teeth`: the oracle has to find each of them.

use std::{ops::Deref, sync::Arc, time::Duration};

use rdkafka::consumer::Consumer as _;
use watermaster_core::delivery::{Commit, OffsetsError};
use watermaster_settings as settings;

use super::commit::Offsets;
use super::{config::config, group_consumer::Consumer};
use crate::failpoint::{Fault, planted};
use crate::topics::{SourcePartition, Topics};
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
        kafka: &settings::Kafka, service: &settings::Service, topics: &Arc<Topics>, accept_foreign_offsets: bool,
    ) -> Result<PlantedConsumer, KafkaError> {
        let mut config = config(kafka, service);
        if planted(Fault::ReadUncommitted) {
            config.set("isolation.level", "read_uncommitted");
        }
        Consumer::with_config(config, kafka, service, topics, accept_foreign_offsets).map(PlantedConsumer)
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

    pub fn offsets(&self, commits: &[(SourcePartition, &Commit)]) -> Result<Offsets, OffsetsError> {
        let unfenced = planted(Fault::UnfencedGroupMetadata);
        let group = if unfenced { GroupMetadata::unfenced(self.0.base.client()) } else { None };
        let group = group.map_or_else(|| self.0.group(), Ok)?;
        let offsets = Offsets::new(commits, &self.0.topics, group);
        self.check_assignment(&offsets)?;
        Ok(offsets)
    }

    pub fn commit_offsets(&self, offsets: &Offsets, wait: Duration) -> Result<bool, OffsetsError> {
        self.0.commit_with(offsets, wait, || {
            self.0.group()?;
            self.check_assignment(offsets)
        })
    }

    fn check_assignment(&self, offsets: &Offsets) -> Result<(), OffsetsError> {
        // A consumer that keeps revoked partitions believes that it still owns them.
        if planted(Fault::NoPurgeOnRevoke) { self.0.check_not_lost() } else { self.0.check_assignment(offsets) }
    }

    pub fn close(self, timeout: Duration) -> bool {
        self.0.close(timeout)
    }
}
