//! Mistakes planted on purpose between the machine and the model of Kafka. A checker that misses one of them proves
//! nothing.

use std::collections::BTreeMap;

use watermaster_core::delivery::{
    ClientError, Commit, Committed, Failure, Kafka, OffsetsError, Output, SendError, TransactionError,
};
use watermaster_core::{offset_map, offset_runs::OffsetRuns, tracker::Tracker};

use super::client::{Client, Cluster};
use super::link::{Link, Offsets};
use super::run::{self, Broken};
use super::source::Record;

/// Maximum number of seeds until a planted mistake is found.
const SEEDS: u64 = 20_000;

/// Number of seeds that always run, to see which other invariants find the mistake.
const SURVEY: u64 = 300;

/// Failures that do not prove that the checker found the mistake: the run did not end, or the core panicked.
const WEAK: [&str; 3] = ["silent", "endless", "panicked"];

/// A planted mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    /// The metadata says that nothing is completed beyond the offset.
    EmptyMap,
    /// Offsets are committed without a member and a generation.
    UnfencedGroupMetadata,
    /// Committed offsets are read without waiting for pending transactions.
    ReadUncommitted,
    /// The decisions about a revoked partition are kept.
    NoPurgeOnRevoke,
    /// A record that the producer refuses counts as sent.
    IgnoredSendError,
    /// Offsets are committed outside the transaction.
    OffsetsOutsideTransaction,
    /// The committed offset is one too high.
    OffsetOffByOne,
    /// Broken connections do not taint the producer.
    NoTaint,
    /// Outputs count as arrived while they are on their way.
    CommitBeforeLanding,
    /// Failed outputs are not reported.
    ForgottenFailures,
}

/// The model of Kafka, with the planted mistake.
pub struct Planted<'a>(pub Link<'a>);

impl<'a> Planted<'a> {
    pub fn new(client: &'a mut Client, cluster: &'a mut Cluster) -> Planted<'a> {
        Planted(Link { client, cluster })
    }

    fn has(&self, plant: Plant) -> bool {
        self.0.cluster.has(plant)
    }
}

impl Kafka<Record> for Planted<'_> {
    type Offsets = Offsets;

    fn offsets(&mut self, commits: &[Commit]) -> Result<Offsets, OffsetsError> {
        let commits = self.damaged(commits);
        let Client { member, generation, .. } = *self.0.client;
        if self.has(Plant::UnfencedGroupMetadata) {
            return Ok(Offsets { commits, member: 0, generation: -1 });
        }
        if self.has(Plant::NoPurgeOnRevoke) && member != 0 && generation >= 0 && !self.0.client.lost() {
            return Ok(Offsets { commits, member, generation });
        }
        self.0.offsets(&commits)
    }

    fn send(&mut self, output: &mut Output<Record>, tag: usize) -> Result<(), SendError> {
        match self.0.send(output, tag) {
            Err(SendError::Refused(_)) if self.has(Plant::IgnoredSendError) => Ok(()),
            sent => sent,
        }
    }

    fn flush(&mut self) -> bool {
        let landed = self.0.flush();
        landed || self.has(Plant::CommitBeforeLanding)
    }

    fn failures(&mut self) -> Vec<(usize, Failure)> {
        let failures = self.0.failures();
        if self.has(Plant::ForgottenFailures) { Vec::new() } else { failures }
    }

    fn send_offsets(&mut self, offsets: &Offsets) -> Result<bool, TransactionError> {
        let Offsets { commits, member, generation } = offsets;
        let broker = &mut self.0.cluster.broker;
        if self.0.cluster.plant == Some(Plant::OffsetsOutsideTransaction)
            && broker.group.allows(*member, *generation).is_ok()
        {
            commits.iter().for_each(|commit| broker.store(commit.clone()));
            return Ok(true);
        }
        self.0.send_offsets(offsets)
    }

    fn committed(&mut self, partitions: &[u32]) -> Result<Vec<Committed>, ClientError> {
        if self.has(Plant::ReadUncommitted) && !self.0.group_away() {
            return Ok(self.0.cluster.broker.group.committed_of(partitions));
        }
        self.0.committed(partitions)
    }

    fn tainted(&self) -> bool {
        self.0.tainted() && !self.has(Plant::NoTaint)
    }

    fn commit_offsets(&mut self, offsets: &Offsets) -> Result<bool, OffsetsError> {
        self.0.commit_offsets(offsets)
    }

    fn purge(&mut self) {
        self.0.purge();
    }

    fn init(&mut self) -> Result<(), TransactionError> {
        self.0.init()
    }

    fn begin(&mut self) -> Result<(), TransactionError> {
        self.0.begin()
    }

    fn commit(&mut self) -> Result<(), TransactionError> {
        self.0.commit()
    }

    fn abort(&mut self) -> Result<(), TransactionError> {
        self.0.abort()
    }

    fn replace(&mut self) -> Result<(), ClientError> {
        self.0.replace()
    }

    fn is_initialised(&self) -> bool {
        self.0.is_initialised()
    }

    fn in_transaction(&self) -> bool {
        self.0.in_transaction()
    }

    fn failing(&self) -> bool {
        self.0.failing()
    }

    fn fatal(&self) -> Option<ClientError> {
        self.0.fatal()
    }
}

impl Planted<'_> {
    /// Returns the commits with the planted mistake.
    fn damaged(&self, commits: &[Commit]) -> Vec<Commit> {
        let again = |commit: &Commit, by: i64, runs: &OffsetRuns| {
            let tracker = Tracker::restore(commit.offset + by, runs);
            let metadata =
                offset_map::encode(offset_map::MapBudget::default(), &tracker, 1, &[], None).expect("a small map");
            Commit { partition: commit.partition, offset: tracker.base(), metadata }
        };
        let mut commits = commits.to_vec();
        for commit in &mut commits {
            if self.has(Plant::EmptyMap) {
                *commit = again(commit, 0, &OffsetRuns::default());
            }
            if self.has(Plant::OffsetOffByOne) {
                let map = offset_map::decode(commit.offset, commit.metadata.as_bytes()).expect("the core's own map");
                *commit = again(commit, 1, &map.completed);
            }
        }
        commits
    }
}

/// Runs seeds until the checker finds the mistake.
fn finds(plant: Plant, exactly_once: bool) {
    let (mut first, mut kinds) = (None, BTreeMap::new());
    for seed in 0..SEEDS {
        if let Err(Broken(why)) = run::run(seed, exactly_once, Some(plant)) {
            let kind = why.split(':').next().unwrap_or_default().to_owned();
            *kinds.entry(kind.clone()).or_insert(0) += 1;
            if !WEAK.contains(&&*kind) && first.is_none() {
                first = Some((seed, why));
            }
        }
        if first.is_some() && seed >= SURVEY {
            break;
        }
    }
    let (seed, why) =
        first.unwrap_or_else(|| panic!("{plant:?} was not found in {SEEDS} seeds; failures of other kinds: {kinds:?}"));
    println!("{plant:?}: found by seed {seed}: {why}\n    seeds by broken invariant: {kinds:?}");
}

#[test]
fn an_empty_map_is_found() {
    finds(Plant::EmptyMap, true);
}

#[test]
fn unfenced_group_metadata_is_found() {
    finds(Plant::UnfencedGroupMetadata, true);
}

#[test]
fn reading_uncommitted_offsets_is_found() {
    finds(Plant::ReadUncommitted, true);
}

#[test]
fn no_purge_on_revoke_is_found() {
    finds(Plant::NoPurgeOnRevoke, true);
}

#[test]
fn an_ignored_send_error_is_found() {
    finds(Plant::IgnoredSendError, true);
}

#[test]
fn offsets_outside_the_transaction_are_found() {
    finds(Plant::OffsetsOutsideTransaction, true);
}

#[test]
fn an_offset_that_is_off_by_one_is_found() {
    finds(Plant::OffsetOffByOne, true);
}

#[test]
fn no_taint_is_found() {
    finds(Plant::NoTaint, true);
}

// ## At least once

#[test]
fn a_commit_before_landing_is_found() {
    finds(Plant::CommitBeforeLanding, false);
}

#[test]
fn forgotten_failures_are_found() {
    finds(Plant::ForgottenFailures, false);
}

#[test]
fn mistakes_of_both_deliveries_are_found_at_least_once() {
    for plant in [
        Plant::EmptyMap,
        Plant::UnfencedGroupMetadata,
        Plant::NoPurgeOnRevoke,
        Plant::IgnoredSendError,
        Plant::OffsetOffByOne,
    ] {
        finds(plant, false);
    }
}
