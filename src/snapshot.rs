//! What an engine shows of itself: one immutable picture after each round and at least once a second.
//!
//! The engine's thread makes it, the metrics, the HTTP API and the demo read it; nobody shares the core.

mod clients;

use std::sync::Arc;
use std::sync::RwLock;

use watermaster_core::delivery::{ErrorClass, Phase, ReplaceCause};
use watermaster_core::policy::Mode;
use watermaster_core::throttle::{self, PauseReason};

/// Why the allocator ran, in the order of [`ServiceSnapshot::allocations`].
pub const ALLOCATION_CAUSES: &[&str] = &throttle::Cause::NAMES;
/// Why a partition is not being fetched: a backlog bound of a client, one of the service, or the map's room.
pub const PAUSE_REASONS: &[&str] = &PauseReason::NAMES;
/// How a round ended.
pub const ROUND_OUTCOMES: &[&str] = &["committed", "aborted", "failed", "unknown"];
/// Why a producer was replaced.
pub const PRODUCER_CAUSES: &[&str] = &ReplaceCause::NAMES;
/// What a resync finds out about a record of a round.
pub const RESYNCED: [&str; 2] = ["committed", "uncommitted"];

/// One service at one moment. Counts are since the process started.
#[derive(Debug, Clone, Default)]
pub struct ServiceSnapshot {
    pub name: String,
    pub mode: Mode,
    pub enforce: bool,
    pub capacity: u64,
    pub cycle_seconds: f64,
    /// The number of the running cycle.
    pub cycle: u64,
    /// Anonymous and unregistered clients are in `unregistered`.
    pub clients: Clients,
    /// Rejections of records that belonged to no registered client (anonymous, unknown_client, too_many_clients).
    pub unregistered: Counts,
    /// Decisions that would have been taken, of records that belonged to no registered client (passthrough).
    pub unregistered_shadow: Counts,
    pub window_admitted: u64,
    pub window_admitted_max: u64,
    pub backlog_bytes: u64,
    pub backlog_limit_records: u64,
    pub backlog_limit_bytes: u64,
    pub oldest_held_seconds: f64,
    /// Allocations by cause, in the order of [`ALLOCATION_CAUSES`].
    pub allocations: [u64; throttle::Cause::NAMES.len()],
    pub partitions: Vec<PartitionSnapshot>,
    /// Partitions that are paused now, by reason (of [`PAUSE_REASONS`]).
    pub paused: Vec<(&'static str, u64)>,
    pub map_used_ratio: f64,
    /// The longest map.
    pub map_characters: u32,
    /// How many offsets the widest map covers.
    pub map_span: u64,
    /// Rounds by outcome (of [`ROUND_OUTCOMES`]).
    pub rounds: Vec<(&'static str, u64)>,
    /// Replaced producers by cause (of [`PRODUCER_CAUSES`]).
    pub producer_recreations: Vec<(&'static str, u64)>,
    /// Consumers that were replaced because they were in no group for too long.
    pub consumer_recreations: u64,
    /// Failed calls of transactions by phase and class, in the order of the core's names.
    pub transaction_errors: [[u64; ErrorClass::NAMES.len()]; Phase::NAMES.len()],
    pub resyncs: u64,
    /// Records by what a resync found, in the order of [`RESYNCED`].
    pub resynced: [u64; RESYNCED.len()],
    pub lost_records: u64,
    /// Stubs that were committed to the dead-letter topic.
    pub stubs: u64,
    pub rebalances: u64,
    /// Joined, producer up, not draining.
    pub ready: bool,
    /// False once a fatal error stopped the service.
    pub up: bool,
    /// The target or the dead-letter topic refuses writes.
    pub target_refusing: bool,
    /// Why the service stopped or is not ready, for people.
    pub trouble: Option<String>,
    /// Retention of each source topic, where the broker tells.
    pub source_retention_seconds: Vec<(String, f64)>,
    pub delay: HistogramSnapshot,
    pub end_to_end: HistogramSnapshot,
    pub round: HistogramSnapshot,
    /// Steps of rounds, in the order of the core's phases.
    pub round_phases: Vec<HistogramSnapshot>,
}

#[cfg(test)]
pub(crate) use clients::Page;
pub use clients::{Clients, Renewal};
pub use watermaster_core::registry::Counts;

/// One client at one moment.
#[derive(Debug, Clone, Default)]
pub struct ClientSnapshot {
    pub name: Arc<str>,
    pub configured: bool,
    pub wants: u64,
    /// Unrounded, for people and charts.
    pub default_share: f64,
    pub granted: u64,
    /// The most that its own limit lets go in one cycle; `None`: it has none.
    pub limit: Option<u64>,
    /// Records that wait now.
    pub backlog: u64,
    /// Records that would wait now (passthrough only).
    pub shadow_backlog: u64,
    /// What was really done.
    pub counts: Counts,
    /// What would have been done (passthrough only).
    pub shadow: Counts,
    /// 99th percentile of the time in backlog of its admitted records, those that did not wait included.
    pub delay_p99_seconds: f64,
}

/// One assigned partition at one moment.
#[derive(Debug, Clone, Default)]
pub struct PartitionSnapshot {
    pub topic: Arc<str>,
    pub partition: i32,
    /// Up to the end from the committable offset on.
    pub lag: u64,
    /// Up to the end from the next offset to read on.
    pub unread: u64,
    pub held: u64,
}

/// A histogram since start, over the core's [`BOUNDS`](watermaster_core::delays::BOUNDS): `counts[i]` values lie above
/// `BOUNDS[i - 1]` and up to `BOUNDS[i]`, the last one (there is one more than bounds) counts those above all. `sums[i]` is
/// the sum of the values in bucket `i`. Both are empty before the first value.
#[derive(Debug, Clone, Default)]
pub struct HistogramSnapshot {
    pub counts: Vec<u64>,
    pub sums: Vec<f64>,
}

/// Where an engine leaves its newest snapshot and others find it.
#[derive(Debug, Clone, Default)]
pub struct SnapshotCell(Arc<RwLock<Arc<ServiceSnapshot>>>);

impl SnapshotCell {
    /// Replaces the snapshot.
    pub fn set(&self, snapshot: ServiceSnapshot) {
        let snapshot = Arc::new(snapshot);
        let mut place = self.0.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        let before = std::mem::replace(&mut *place, snapshot);
        // Nobody has to wait while it is taken apart.
        drop(place);
        drop(before);
    }

    /// The newest snapshot.
    pub fn get(&self) -> Arc<ServiceSnapshot> {
        Arc::clone(&self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}
