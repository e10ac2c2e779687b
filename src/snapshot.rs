//! The figures that an engine publishes: one immutable snapshot after each round and at least once a second.
//!
//! The engine's thread makes it; the metrics, the HTTP API and the demo read it. The core itself is not shared.

mod pages;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::shared::Shared;
use strum::VariantNames;
use watermaster_api::{ClientGroupView, GroupFigures, ServiceFigures};
use watermaster_core::delays::Histogram;
use watermaster_core::delivery::{ErrorClass, Phase, ReplaceCause};
use watermaster_core::group::driver::DriverCounts;
use watermaster_core::pace::PaceView;
use watermaster_core::policy::{Mode, Policy};
use watermaster_core::scheduler::{Client, LeakyBucket, Limits};
use watermaster_core::throttle::{self, PauseReason, Throttle, Totals};
use watermaster_core::units::Time;
use watermaster_kafka::{dead_letters, headers};
use watermaster_schemas::cache::Outcome;

/// The reasons for pausing a partition: a client's backlog bound, the service's, the offset map's room, a bound of
/// the partition's only client, or, last, a schema that is not known yet.
pub const PAUSE_REASONS: &[&str] = &{
    let [queue, bytes, map, one_client] = *PauseReason::VARIANTS else { panic!("the core has four reasons") };
    [queue, bytes, map, one_client, "schema"]
};
/// The findings of a resync about a record of a round.
pub const RESYNCED: &[&str] = &["committed", "uncommitted"];

/// The end of a round, or of one attempt to commit it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum RoundOutcome {
    Committed,
    Aborted,
    Failed,
    /// Committed or not: a resync finds out.
    Unknown,
}

/// One service at one moment. Counts are since the process started.
#[derive(Debug, Clone, Default)]
pub struct ServiceSnapshot {
    pub figures: ServiceFigures,
    pub limits: ServiceLimits,
    /// The registered clients; records of all others count in the totals of the throttle.
    pub clients: Clients,
    pub throttle: ThrottleFigures,
    pub partitions: Vec<PartitionSnapshot>,
    pub sources: SourceFigures,
    pub engine: EngineTotals,
    pub group: GroupSnapshot,
    /// The number of changes of the configuration, or of its open records, that the engine has taken over; `None`
    /// before it runs.
    pub changes: Option<u64>,
    /// False once a fatal error stopped the service, or kept it from starting.
    pub up: bool,
    /// Set while the target or the dead-letter topic refuses writes.
    pub target_refusing: bool,
}

/// The configured limits of a service that metrics show.
#[derive(Debug, Clone, Default)]
pub struct ServiceLimits {
    /// The most clients that are known at a time.
    pub clients: usize,
    /// The most delayed records of one client, and the most memory for those of all.
    pub backlog_records: u64,
    pub backlog_bytes: u64,
}

/// The figures of the core that belong to no single client.
#[derive(Debug, Clone, Default)]
pub struct ThrottleFigures {
    pub totals: Totals,
    /// The number of clients that were new.
    pub new_clients: u64,
    pub groups: Vec<ClientGroupView>,
    /// The number of the last of them that no table configures: rules make them, of the names in records.
    pub made_groups: usize,
    pub backlog_bytes: u64,
    pub oldest_held_seconds: f64,
    /// Allocations by cause, in the order of the core's names.
    pub allocations: [u64; throttle::Cause::VARIANTS.len()],
}

/// The figures of the source topics and of their assigned partitions together.
#[derive(Debug, Clone, Default)]
pub struct SourceFigures {
    /// Partitions that are paused now, by reason, in the order of [`PAUSE_REASONS`].
    pub paused: [u64; PAUSE_REASONS.len()],
    pub map_used_ratio: f64,
    /// The length of the longest offset map.
    pub map_characters: u32,
    /// The number of offsets that the widest offset map covers.
    pub map_span: u64,
    /// The retention of each source topic; zero where it has no limit or the broker did not tell it.
    pub retention: Vec<(String, Duration)>,
}

/// The group that shares the capacity, as one of its instances sees it. Empty with `scope = "instance"`.
#[derive(Debug, Clone, Default)]
pub struct GroupSnapshot {
    pub figures: GroupFigures,
    pub others: OtherMembers,
    pub counts: DriverCounts,
    /// The time for which this instance has not read its own state back; zero if it has.
    pub log_behind: Duration,
}

/// The other members of a group, as the search for the capacity and the log of rules need them.
#[derive(Debug, Clone, Default)]
pub struct OtherMembers {
    /// This instance is the first live member.
    pub is_first: bool,
    /// This instance is the first live member, and all others tell their admissions: it is the one that searches.
    /// Without a search none of them tells any.
    pub searches: bool,
    /// The capacity in the state of the first of the others.
    pub limit: Option<u64>,
    /// The sum of their admissions, and the lives that it is of.
    pub admitted: u64,
    pub lives: Vec<u64>,
    /// Records wait at one of them.
    pub wait: bool,
}

/// The counts of an engine since it started. The core does not know them.
#[derive(Debug, Clone, Default)]
pub struct EngineTotals {
    pub delivery: DeliveryTotals,
    /// Consumers that were replaced because they were in no group for too long.
    pub consumer_recreations: u64,
    pub lost_records: u64,
    pub rebalances: u64,
    /// Requests to the schema registry by outcome, in the order of [`Outcome`].
    pub schema_requests: [u64; Outcome::VARIANTS.len()],
    /// The processor time of the engine's thread.
    pub busy: Duration,
}

/// The counts of the rounds.
#[derive(Debug, Clone, Default)]
pub struct DeliveryTotals {
    /// Rounds by outcome, in the order of [`RoundOutcome`].
    pub rounds: [u64; RoundOutcome::VARIANTS.len()],
    /// Replaced producers by cause, in the order of [`ReplaceCause`].
    pub producer_recreations: [u64; ReplaceCause::VARIANTS.len()],
    /// Failed calls of transactions by phase and class, in the order of the core's names.
    pub transaction_errors: [[u64; ErrorClass::VARIANTS.len()]; Phase::VARIANTS.len()],
    pub resyncs: u64,
    /// Records of interrupted rounds, in the order of [`RESYNCED`].
    pub resynced: [u64; RESYNCED.len()],
    /// Stubs that were committed to the dead-letter topic.
    pub stubs: u64,
    pub end_to_end: Histogram,
    pub round: Histogram,
    /// The time in each phase of a round, in the order of the core's phases.
    pub round_phases: [Histogram; Phase::VARIANTS.len()],
}

impl ServiceSnapshot {
    /// Returns the snapshot of a service that has read nothing yet.
    pub fn new(name: &str, policy: &Policy) -> ServiceSnapshot {
        let figures = ServiceFigures {
            name: name.to_owned(),
            mode: policy.mode.into_str().into(),
            enforce: policy.enforce,
            capacity: policy.capacity,
            cycle_seconds: policy.cycle.as_secs_f64(),
            ..ServiceFigures::default()
        };
        let limits = ServiceLimits {
            clients: policy.max_clients,
            backlog_records: policy.queue_capacity,
            backlog_bytes: policy.queue_bytes,
        };
        ServiceSnapshot { figures, limits, up: true, ..ServiceSnapshot::default() }
    }

    /// Keeps the counts, and sets what rises and falls to that of a service that does nothing. Another instance has its
    /// partitions and its part of the capacity by then, and sums over the instances would count them twice.
    fn come_to_rest(&mut self) {
        self.clients = self.clients.at_rest();
        self.partitions.clear();
        self.figures.window_admitted = 0;
        self.sources = SourceFigures { retention: std::mem::take(&mut self.sources.retention), ..Default::default() };
        (self.throttle.backlog_bytes, self.throttle.oldest_held_seconds) = (0, 0.0);
        for group in &mut self.throttle.groups {
            (group.default_share, group.granted) = (0.0, 0);
        }
        let figures = &mut self.group.figures;
        (figures.hold, figures.target, figures.ahead) = (0, 0, 0);
        // Neither does it search for the capacity, nor clean the log of the rules.
        (self.group.others.is_first, self.group.others.searches) = (false, false);
        self.group.log_behind = Duration::ZERO;
    }
}

#[cfg(test)]
pub(crate) use pages::Page;
pub use pages::{Clients, SnapshotBuilder};
pub use watermaster_core::scheduler::Counts;

/// The unread records in partitions of one client that are paused, or were until a moment ago, by the client.
pub type Unread = HashMap<String, u64>;

/// One client at one moment.
#[derive(Debug, Clone, Default)]
pub struct ClientSnapshot {
    pub name: Arc<str>,
    /// The configured group that the client is in, with `/` behind its name.
    pub group: Option<Arc<str>>,
    pub configured: bool,
    pub levels: Levels,
    /// The decisions that were carried out.
    pub counts: Counts,
    /// Shadow mode: the decisions that enforcement would have carried out.
    pub shadow: Counts,
}

/// The figures of one client, or the sums over several, that rise and fall.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Levels {
    pub wants: u64,
    /// Unrounded, for people and charts.
    pub default_share: f64,
    pub granted: u64,
    /// `None` for several clients.
    pub limit: Option<OwnLimit>,
    /// Admissions in the last full cycle, and in this one so far.
    pub admitted_last: u64,
    pub admitted_now: u64,
    /// Delayed records in the backlog, with those that wait in paused partitions of this client alone, and the memory
    /// that the former cost.
    pub backlog: u64,
    pub backlog_bytes: u64,
    /// The time in seconds that the oldest delayed record has waited for.
    pub oldest_seconds: f64,
    /// Shadow mode: records that would be in the backlog.
    pub shadow_backlog: u64,
}

/// A client's own limit: the most records that it allows in one cycle, and those in the long run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OwnLimit {
    pub most: u64,
    pub pace: f64,
}

impl Levels {
    /// Returns whether a rule holds the client: then its limit is 0.
    pub fn is_held(&self) -> bool {
        self.limit.is_some_and(|limit| limit.most == 0)
    }

    /// Returns the part of the default share that others may use.
    pub fn lent(&self) -> f64 {
        (self.default_share - self.granted as f64).max(0.0)
    }

    /// Returns the part of the grant beyond the default share.
    pub fn borrowed(&self) -> f64 {
        (self.granted as f64 - self.default_share).max(0.0)
    }

    /// Returns the admissions in this cycle and the last one.
    pub fn admitted_lately(&self) -> u64 {
        self.admitted_last + self.admitted_now
    }

    /// Returns the part of a capacity that the admissions in the last full cycle took, at most 1.
    pub fn used_ratio(&self, capacity: u64) -> f64 {
        (self.admitted_last as f64 / capacity.max(1) as f64).min(1.0)
    }
}

impl ClientSnapshot {
    fn of(client: &Client, throttle: &Throttle, now: Time, unread: &Unread) -> ClientSnapshot {
        let (policy, (waiting, bytes)) = (throttle.policy(), client.backlog());
        let unread = unread.get(&*client.name).copied().unwrap_or_default();
        let of_bucket = |bucket: &LeakyBucket| (bucket.most_in(policy.cycle), bucket.pace_in(policy.cycle));
        let limit = |limits: &Limits| {
            let buckets = limits.buckets.iter().map(of_bucket).filter(|_| !limits.held);
            let least = |one: (u64, f64), other: (u64, f64)| (one.0.min(other.0), one.1.min(other.1));
            // A client that is held has the limit 0.
            let (most, pace) = buckets.reduce(least).unwrap_or_default();
            OwnLimit { most, pace }
        };
        let group = throttle.clients().group_of(client).map(|group| &group.name);
        let (backlog, backlog_bytes, shadow_backlog) =
            if policy.enforce { (waiting + unread, bytes, 0) } else { (0, 0, waiting) };
        ClientSnapshot {
            name: client.name.clone(),
            group: group.filter(|name| !name.is_empty()).cloned(),
            configured: client.configured,
            levels: Levels {
                wants: client.wants().max(client.last_wants),
                default_share: client.grant.default_share.as_f64(),
                granted: client.grant.records,
                limit: client.limits.as_deref().map(limit),
                admitted_last: client.last_admitted,
                admitted_now: client.admitted_in_cycle(),
                backlog,
                backlog_bytes,
                oldest_seconds: throttle.oldest_of(client, now).as_secs_f64(),
                shadow_backlog,
            },
            counts: client.counts,
            shadow: client.shadow,
        }
    }

    /// Estimates the seconds after which a record that is sent now would be admitted: the backlog ahead of it, divided
    /// by the client's rate. The rate is the larger of its admissions in the last cycle and of its grant, but at most
    /// the pace of its own limit. `None` if that says nothing: in mode reject, while the service is not ready, or
    /// without any rate.
    pub fn next_admission_seconds(&self, service: &ServiceSnapshot) -> Option<f64> {
        let Levels { backlog, granted, admitted_last, limit, .. } = self.levels;
        let ServiceFigures { enforce, ready, ref mode, cycle_seconds, .. } = service.figures;
        let waits = enforce && backlog > 0;
        if !ready || enforce && *mode == Mode::Reject.into_str() {
            return None;
        }
        let rate = (admitted_last.max(granted) as f64).min(limit.map_or(f64::INFINITY, |limit| limit.pace));
        match rate {
            _ if !waits => Some(0.0),
            0.0 => None,
            _ => Some(backlog as f64 / rate * cycle_seconds),
        }
    }
}

/// One assigned partition at one moment.
#[derive(Debug, Clone, Default)]
pub struct PartitionSnapshot {
    pub topic: Arc<str>,
    pub partition: i32,
    /// Records from the committable offset to the end.
    pub lag: u64,
    /// Records from the next offset to read to the end.
    pub unread: u64,
    /// Delayed records.
    pub held: u64,
}

/// The brokers' newest answers about the topics of a service, which no engine asks for.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// The number of partitions of each source topic that a broker told it of.
    pub partitions: BTreeMap<String, usize>,
    /// The target's own consumer group and its lag; `None` while it is unknown.
    pub target_lag: Option<(String, u64)>,
    /// The dead letters that no redrive has passed; `None` while they are unknown.
    pub unread: Option<dead_letters::Unread>,
}

/// The newest dead letters of a service, which are read only for those that ask.
#[derive(Debug, Clone, Default)]
pub struct NewestLetters {
    /// The time at which they were read, in milliseconds since 1970.
    pub read_ms: u64,
    /// The last ones of each reason, the newest first.
    pub letters: Vec<NewestLetter>,
    /// There was time for all of them.
    pub is_complete: bool,
}

/// One of the newest dead letters.
#[derive(Debug, Clone)]
pub struct NewestLetter {
    pub topic: Arc<str>,
    /// `None` for one without a reason that this program gives.
    pub reason: Option<&'static str>,
    pub head: dead_letters::LetterHead,
}

impl NewestLetter {
    /// Returns the time of the rejection as RFC 3339, as its header says it.
    pub fn rejected_at(&self) -> Option<&str> {
        self.head.header(headers::REJECTED_AT)
    }
}

/// The place where an engine leaves its newest snapshot for others, the observer its newest answers, and the search for
/// the capacity its newest state.
#[derive(Debug, Clone, Default)]
pub struct SnapshotCell {
    snapshot: Arc<Shared<Arc<ServiceSnapshot>>>,
    pub observed: Arc<Shared<Arc<Observed>>>,
    /// The state of the search; `None` if it is not wanted.
    pub pace: Arc<Shared<Option<Arc<PaceView>>>>,
    letters: Arc<Shared<Option<Arc<NewestLetters>>>>,
    /// A request wants to see the newest dead letters.
    letters_wanted: Arc<AtomicBool>,
}

impl SnapshotCell {
    /// Returns whether both are the place of one engine.
    pub fn is(&self, other: &SnapshotCell) -> bool {
        Arc::ptr_eq(&self.snapshot, &other.snapshot)
    }

    /// Replaces the snapshot.
    pub fn set(&self, snapshot: ServiceSnapshot) {
        self.snapshot.set(Arc::new(snapshot));
    }

    /// Returns the newest snapshot.
    pub fn get(&self) -> Arc<ServiceSnapshot> {
        self.snapshot.get()
    }

    /// Shows why the service is not ready, with its other figures as they are.
    pub fn show_trouble(&self, trouble: String) {
        let mut snapshot = (*self.get()).clone();
        snapshot.figures.trouble = Some(trouble);
        self.set(snapshot);
    }

    /// Shows that an error stopped the service, or kept it from starting.
    pub fn show_stopped(&self, error: String) {
        let mut last = (*self.get()).clone();
        last.come_to_rest();
        (last.up, last.figures.ready, last.figures.trouble) = (false, false, Some(error));
        self.set(last);
    }

    /// Replaces the newest dead letters; `None` while they can't be read.
    pub fn set_letters(&self, letters: Option<NewestLetters>) {
        self.letters.set(letters.map(Arc::new));
    }

    /// Returns the newest dead letters as they were read last, and has them read again soon.
    pub fn ask_for_letters(&self) -> Option<Arc<NewestLetters>> {
        self.letters_wanted.store(true, Ordering::Relaxed);
        self.letters.get()
    }

    /// Returns whether the newest dead letters were asked for since the last call.
    pub fn take_wish_for_letters(&self) -> bool {
        self.letters_wanted.swap(false, Ordering::Relaxed)
    }
}
