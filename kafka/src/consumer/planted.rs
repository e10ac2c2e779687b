//! Plants the consumer's mistakes for `scripts/chaos --teeth`: the oracle has to find each of them.

use std::ops::Deref;
use std::time::Duration;

use watermaster_core::offset_map::{self, MapBudget};
use watermaster_core::offset_runs::OffsetRuns;
use watermaster_core::tracker::Tracker;
use watermaster_settings as settings;

use super::commit::{CommitError, CommitFailure, Offsets, PartitionCommit};
use super::config::config;
use super::group_consumer::Consumer;
use crate::client::KafkaError;
use crate::failpoint::{Fault, planted};
use crate::ffi::GroupMetadata;
use rdkafka::consumer::Consumer as _;

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
        kafka: &settings::Kafka,
        service: &settings::Service,
        accept_foreign_offsets: bool,
    ) -> Result<PlantedConsumer, KafkaError> {
        let mut config = config(kafka, service);
        if planted(Fault::ReadUncommitted) {
            config.set("isolation.level", "read_uncommitted");
        }
        Consumer::with_config(config, kafka, service, accept_foreign_offsets).map(PlantedConsumer)
    }

    pub fn commit(&self, commits: &[PartitionCommit], go_on: impl FnMut() -> bool) -> Result<(), CommitError> {
        let commits = damaged(commits);
        if planted(Fault::NoPurgeOnRevoke) {
            return self.0.commit_unchecked(&commits, go_on);
        }
        self.0.commit(&commits, go_on)
    }

    pub fn transaction_offsets(&self, commits: &[PartitionCommit]) -> Result<Offsets, CommitError> {
        let commits = damaged(commits);
        if planted(Fault::OffsetsOutsideTransaction) {
            self.0.commit(&commits, || true)?;
            return self.0.transaction_offsets(&[]);
        }
        let group = if planted(Fault::UnfencedGroupMetadata) {
            self.0.check_ownership(&commits)?;
            GroupMetadata::unfenced(self.0.base.client())
        } else if planted(Fault::NoPurgeOnRevoke) {
            // A consumer that keeps revoked partitions believes that it still owns them.
            GroupMetadata::of(self.0.base.client())
        } else {
            return self.0.transaction_offsets(&commits);
        };
        Ok(Offsets::new(&commits, &self.0.topics, group.ok_or(CommitError::Lost(CommitFailure::NotMember))?))
    }

    pub fn close(self, timeout: Duration) -> bool {
        self.0.close(timeout)
    }
}

fn damaged(commits: &[PartitionCommit]) -> Vec<PartitionCommit> {
    let is_planted = planted(Fault::EmptyMap) || planted(Fault::OffsetOffByOne);
    let damage = |commit: &PartitionCommit| if is_planted { damage(commit) } else { None };
    commits.iter().map(|commit| damage(commit).unwrap_or_else(|| commit.clone())).collect()
}

/// Commits another map or offset; `None` if the map can't be decoded.
fn damage(commit: &PartitionCommit) -> Option<PartitionCommit> {
    let mut base = commit.offset;
    let mut map = offset_map::decode(base, commit.metadata.as_bytes()).ok()?;
    if planted(Fault::EmptyMap) {
        map.completed = OffsetRuns::new();
    } else if !map.completed.is_empty() {
        // Only where the next record exists: an offset beyond the end would be found at the next start.
        base += 1;
        map.completed = map.completed.iter().filter(|run| run.end > base).collect();
    }
    let tracker = Tracker::restore(base, &map.completed);
    // One slice a second: the oracle does not look at the width of slices.
    let metadata = offset_map::encode(MapBudget::default(), &tracker, 1_000, &map.admitted).unwrap_or_default();
    Some(PartitionCommit { offset: tracker.base(), metadata, ..commit.clone() })
}
