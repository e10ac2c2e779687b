//! The services of the process, which come and go by reload, and the way to the engine of each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use watermaster_api::ClientGroupView;
use watermaster_core::policy::Policy;
use watermaster_core::throttle::OpenRoom;
use watermaster_kafka::ask::TopicFacts;
use watermaster_settings::{PaceSettings, Service, Source};

use crate::heartbeat::Heartbeat;
use crate::rules::{RulesCell, RulesToTake};
use crate::shared::Shared;
use crate::snapshot::{ClientSnapshot, ServiceSnapshot, SnapshotCell};

/// The longest silence of an engine that works. The longest of its calls take far less together: offsets of a
/// transaction (6 s), resolved positions (3 s), high watermarks (2 s), a replaced producer (1 s), leaving a group (2
/// s).
const MAX_SILENCE: Duration = Duration::from_secs(60);

/// The longest time that a reload waits for the snapshot of a service. An engine that works takes a change over within
/// half a second.
const SHOW_TIMEOUT: Duration = Duration::from_secs(2);
const SHOW_INTERVAL: Duration = Duration::from_millis(5);

/// The reason why a service is not ready before its engine says more.
pub const STARTING: &str = "starting";

/// The parts of a service's configuration that its engine takes over while it runs.
#[derive(Debug, Default)]
pub struct Change {
    pub policy: Option<Policy>,
    /// The rules of run time.
    pub rules: Option<RulesToTake>,
    /// The limit of the search for the capacity.
    pub capacity: Option<u64>,
    /// The room for open records; the inner `None` is no bound.
    pub open_room: Option<Option<OpenRoom>>,
    pub sources: Option<Vec<Source>>,
    /// The topic of a source was made anew: only another consumer reads it.
    pub read_anew: bool,
    /// The brokers' answers about new source topics.
    pub facts: BTreeMap<String, TopicFacts>,
    /// The number of changes that were left until this one, which [`Inbox::leave`] sets.
    pub number: u64,
}

/// The place where an engine finds its next change.
#[derive(Debug, Default)]
pub struct Inbox(Shared<InboxState>);

#[derive(Debug, Default)]
struct InboxState {
    waiting: Option<Change>,
    /// The number of changes that were left.
    left: u64,
}

impl Inbox {
    /// Leaves a change, over a former change that was not taken yet.
    pub fn leave(&self, change: Change) {
        let mut state = self.0.lock();
        state.left += 1;
        let number = state.left;
        let waiting = state.waiting.get_or_insert_default();
        waiting.number = number;
        // A policy comes with the limit that holds under it, or with none.
        if change.policy.is_some() {
            waiting.capacity = None;
        }
        waiting.policy = change.policy.or(waiting.policy.take());
        waiting.rules = change.rules.or(waiting.rules.take());
        waiting.capacity = change.capacity.or(waiting.capacity.take());
        waiting.open_room = change.open_room.or(waiting.open_room.take());
        waiting.sources = change.sources.or(waiting.sources.take());
        waiting.read_anew |= change.read_anew;
        waiting.facts.extend(change.facts);
    }

    /// Takes the change that was left, if any.
    pub fn take(&self) -> Option<Change> {
        self.0.lock().waiting.take()
    }

    /// Returns the topics of the sources that wait to be taken over, if any do.
    pub fn waiting_topics(&self) -> Option<BTreeSet<String>> {
        let state = self.0.lock();
        let sources = state.waiting.as_ref()?.sources.as_ref()?;
        Some(sources.iter().map(|source| source.topic.clone()).collect())
    }

    /// Returns whether a change waits after which another consumer reads.
    pub fn reads_anew(&self) -> bool {
        self.0.lock().waiting.as_ref().is_some_and(|waiting| waiting.read_anew)
    }

    /// Returns the number of changes that were left.
    fn left(&self) -> u64 {
        self.0.lock().left
    }
}

/// The search for the capacity of one service.
#[derive(Debug, Default)]
pub struct PaceSearch {
    pub settings: Option<PaceSettings>,
    /// The limit that the service has now; `None` for the configured capacity, and while nothing searches.
    pub limit: Option<u64>,
}

impl PaceSearch {
    /// Takes over the settings of a service that is configured anew. Returns the limit in force, if the service follows
    /// the search.
    pub fn change(&mut self, service: &Service) -> Option<u64> {
        self.settings.clone_from(&service.pace);
        let pace = service.pace.as_ref().filter(|pace| pace.applies())?;
        self.limit.map(|limit| limit.clamp(pace.params.floor, pace.params.ceiling))
    }
}

/// The open records of one service: those that were admitted, and that its consumer group has not committed.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenRecords {
    /// The most that the service may have, if they are bounded.
    pub max: Option<u64>,
    /// The admissions of this instance that have arrived in the target. A count that begins later contains them.
    pub delivered: u64,
    /// The number that was counted last; `None` while it is unknown.
    pub counted: Option<u64>,
}

/// The parts of one service's engine that others use.
#[derive(Debug, Clone)]
pub struct ServiceHandle {
    pub name: String,
    pub cell: SnapshotCell,
    pub heartbeat: Arc<Heartbeat>,
    pub inbox: Arc<Inbox>,
    pub pace: Arc<Shared<PaceSearch>>,
    pub open: Arc<Shared<OpenRecords>>,
    pub rules: Arc<RulesCell>,
    /// Set when the engine is to finish its round and leave.
    pub stop: Arc<AtomicBool>,
}

impl ServiceHandle {
    /// Makes the handle of an engine that is about to start. Its snapshot has every client, every group and every
    /// source, at 0, so that their metrics exist from the start on.
    pub fn new(service: &Service) -> ServiceHandle {
        let client =
            |name: &String| ClientSnapshot { name: name.as_str().into(), configured: true, ..Default::default() };
        let cell = SnapshotCell::default();
        let mut snapshot = ServiceSnapshot::new(&service.name, &service.policy);
        snapshot.figures.trouble = Some(STARTING.to_owned());
        snapshot.clients = service.policy.clients.iter().map(|configured| client(&configured.name)).collect();
        let group = |name: &str| ClientGroupView { name: name.to_owned(), ..ClientGroupView::default() };
        let named = service.policy.groups.iter().map(|group| group.name.as_str());
        let unlisted = service.policy.lists_any().then_some("");
        snapshot.throttle.groups = unlisted.into_iter().chain(named).map(group).collect();
        let retention = service.sources.iter().map(|source| (source.topic.clone(), Duration::ZERO));
        snapshot.sources.retention = retention.collect();
        cell.set(snapshot);
        let heartbeat = Arc::new(Heartbeat::new(Instant::now(), MAX_SILENCE));
        let pace = Arc::new(Shared::new(PaceSearch { settings: service.pace.clone(), limit: None }));
        let open = Arc::new(Shared::new(OpenRecords { max: service.max_open, ..OpenRecords::default() }));
        let (name, inbox, stop) = (service.name.clone(), Arc::default(), Arc::default());
        let rules = Arc::<RulesCell>::default();
        rules.known().max_capacity = service.rules_max_capacity;
        ServiceHandle { name, cell, heartbeat, inbox, pace, open, rules, stop }
    }

    /// Waits until the snapshot shows the changes that were left so far; not for an engine that does not run, and not
    /// longer than [`SHOW_TIMEOUT`], such as during a late round.
    pub fn wait_until_shown(&self) {
        let (left, until) = (self.inbox.left(), Instant::now() + SHOW_TIMEOUT);
        let is_shown = |snapshot: &ServiceSnapshot| {
            snapshot.changes.is_none_or(|changes| changes >= left) || !snapshot.up || self.is_stopped()
        };
        while !is_shown(&self.cell.get()) && Instant::now() < until {
            thread::sleep(SHOW_INTERVAL);
        }
    }

    /// Tells the engine to finish its round and leave.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The bug: a limit of the search that still waited joined a policy under which the search only observes.
    #[test]
    fn a_policy_replaces_a_limit_that_was_not_taken_yet() {
        let inbox = Inbox::default();
        let limit = |capacity| Change { capacity: Some(capacity), ..Change::default() };
        let policy = || Change { policy: Some(Policy::new(100, Duration::from_secs(1))), ..Change::default() };
        inbox.leave(limit(5_000));
        inbox.leave(policy());
        assert_eq!(inbox.take().and_then(|change| change.capacity), None);
        inbox.leave(policy());
        inbox.leave(limit(50));
        assert_eq!(inbox.take().and_then(|change| change.capacity), Some(50));
    }

    #[test]
    fn a_change_of_the_sources_is_seen_while_it_waits() {
        let inbox = Inbox::default();
        inbox.leave(Change { read_anew: true, ..Change::default() });
        assert_eq!((inbox.waiting_topics(), inbox.reads_anew()), (None, true));
        inbox.leave(Change { sources: Some(vec![Source::new("loans")]), ..Change::default() });
        inbox.leave(Change::default());
        assert_eq!(inbox.waiting_topics(), Some(BTreeSet::from(["loans".to_owned()])));
        inbox.take();
        assert_eq!((inbox.waiting_topics(), inbox.reads_anew()), (None, false));
    }
}
