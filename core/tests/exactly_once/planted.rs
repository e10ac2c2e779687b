//! Faults that are planted on purpose, in what stands between the core and the brokers. A checker that misses one of them
//! proves nothing.

use std::collections::BTreeMap;

use watermaster_core::offset_map;
use watermaster_core::offset_runs::OffsetRuns;
use watermaster_core::round::Commit;
use watermaster_core::tracker::Tracker;

use super::client::Cluster;
use super::run::{self, Broken};

/// The most seeds that a planted fault may take to be found.
const SEEDS: u64 = 20_000;

/// As many seeds are run in any case, to see what else finds it.
const SURVEY: u64 = 300;

/// It is not enough that nothing comes to rest or that something panics.
const WEAK: [&str; 3] = ["silent", "endless", "panicked"];

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    /// The metadata says that nothing is completed beyond the offset.
    EmptyMap,
    /// Offsets are committed by nobody in particular.
    UnfencedGroupMetadata,
    /// Committed offsets are read without waiting for pending transactions.
    ReadUncommitted,
    /// What was decided of a revoked partition is kept.
    NoPurgeOnRevoke,
    /// A record that the producer does not take counts as sent.
    IgnoredSendError,
    /// Offsets are committed beside the transaction.
    OffsetsOutsideTransaction,
    /// The committed offset is one too high.
    OffsetOffByOne,
    /// Broken connections go unnoticed.
    NoTaint,
}

/// What is really committed.
pub fn commits(cluster: &Cluster, commits: &[Commit]) -> Vec<Commit> {
    let again = |commit: &Commit, by: i64, runs: &OffsetRuns| {
        let tracker = Tracker::restore(commit.offset + by, runs);
        let metadata = offset_map::encode(offset_map::MapBudget::default(), &tracker, 1, &[]).expect("a small map");
        Commit { partition: commit.partition, offset: tracker.base(), metadata }
    };
    let mut commits = commits.to_vec();
    for commit in &mut commits {
        if cluster.has(Plant::EmptyMap) {
            *commit = again(commit, 0, &OffsetRuns::default());
        }
        if cluster.has(Plant::OffsetOffByOne) {
            let map = offset_map::decode(commit.offset, commit.metadata.as_bytes()).expect("the core's own map");
            *commit = again(commit, 1, &map.completed);
        }
    }
    commits
}

/// Runs seeds until the checker finds the fault.
fn finds(plant: Plant) {
    let (mut first, mut kinds) = (None, BTreeMap::new());
    for seed in 0..SEEDS {
        if let Err(Broken(why)) = run::run(seed, Some(plant)) {
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
    let (seed, why) = first.unwrap_or_else(|| panic!("{plant:?} was not found in {SEEDS} seeds, only {kinds:?}"));
    println!("{plant:?}: found by seed {seed}: {why}\n    seeds by what they broke: {kinds:?}");
}

#[test]
fn an_empty_map_is_found() {
    finds(Plant::EmptyMap);
}

#[test]
fn unfenced_group_metadata_is_found() {
    finds(Plant::UnfencedGroupMetadata);
}

#[test]
fn reading_uncommitted_offsets_is_found() {
    finds(Plant::ReadUncommitted);
}

#[test]
fn no_purge_on_revoke_is_found() {
    finds(Plant::NoPurgeOnRevoke);
}

#[test]
fn an_ignored_send_error_is_found() {
    finds(Plant::IgnoredSendError);
}

#[test]
fn offsets_outside_the_transaction_are_found() {
    finds(Plant::OffsetsOutsideTransaction);
}

#[test]
fn an_offset_that_is_off_by_one_is_found() {
    finds(Plant::OffsetOffByOne);
}

#[test]
fn no_taint_is_found() {
    finds(Plant::NoTaint);
}
