//! The engine's counts, snapshots and log.

use std::time::Duration;

use strum::VariantNames;
use tracing::{debug, error, info, warn};
use watermaster_api::{ClientGroupView, ServiceFigures};
use watermaster_core::delivery::{AttemptOutcome, Event, Phase};
use watermaster_core::scheduler::ClientGroup;
use watermaster_core::throttle::{Cause, Throttle};
use watermaster_core::units::Time;

use super::{Job, link::Link};
use crate::clock;
use crate::snapshot::{
    EngineTotals, GroupSnapshot, PAUSE_REASONS, PartitionSnapshot, RoundOutcome, ServiceSnapshot, SnapshotBuilder,
    ThrottleFigures, Unread,
};
use watermaster_kafka::log_limiter::LogLimiter;

/// The interval at which the snapshot is renewed while records come.
const RENEW_INTERVAL: Duration = Duration::from_millis(100);

/// The conditions that decide whether a service is ready.
#[derive(Default)]
pub(super) struct Status {
    pub(super) joined: bool,
    pub(super) draining: bool,
    pub(super) late: bool,
    pub(super) target_refusing: bool,
    pub(super) brokers_down: bool,
    /// The reason for which the group gave this instance no part of the shared capacity.
    pub(super) group_trouble: Option<String>,
    /// The last failure of the schema registry, while partitions wait for a schema.
    pub(super) schema_trouble: Option<String>,
}

impl Status {
    /// Returns the reason why the service is not ready.
    fn trouble(&self) -> Option<String> {
        let reasons = [
            (self.draining, "draining"),
            (self.target_refusing, "the target or the dead-letter topic refuses writes"),
            (self.brokers_down, "no broker can be reached"),
            (self.late, "a round is late: waiting for the brokers"),
            (!self.joined, "joining the consumer group"),
        ];
        let reason = reasons.into_iter().find_map(|(applies, reason)| applies.then(|| reason.to_owned()));
        reason.or_else(|| self.group_trouble.clone()).or_else(|| self.schema_trouble.clone())
    }
}

/// Counts that only the shell knows, and the snapshots that it publishes.
#[derive(Default)]
pub(super) struct Reporter {
    pub(super) status: Status,
    pub(super) counts: EngineTotals,
    pub(super) group: GroupSnapshot,
    /// The number of partitions that wait for a schema.
    pub(super) suspended: u64,
    /// Limits log lines that could repeat with each record or attempt.
    pub(super) log_limiter: LogLimiter,
    /// The time in each phase of the running round.
    pub(super) spent: [Duration; Phase::VARIANTS.len()],
    /// The number of the last change that was taken over.
    pub(super) changes: u64,
    published: Option<Time>,
    clients: SnapshotBuilder,
    /// The allocations that were logged.
    allocations: [u64; Cause::VARIANTS.len()],
}

impl Reporter {
    pub(super) fn count_round(&mut self, outcome: RoundOutcome) {
        self.counts.delivery.rounds[outcome as usize] += 1;
    }

    pub(super) fn end_phases(&mut self) {
        for (phase, spent) in self.counts.delivery.round_phases.iter_mut().zip(std::mem::take(&mut self.spent)) {
            if !spent.is_zero() {
                phase.record(spent);
            }
        }
    }

    /// Logs the causes of the allocations since the last call.
    pub(super) fn log_allocations(&mut self, service: &str, throttle: &Throttle) {
        let allocations = throttle.allocations();
        let before = std::mem::replace(&mut self.allocations, allocations);
        if before == allocations {
            return;
        }
        let (cycle, clients) = (throttle.cycle(), throttle.clients().len());
        for (cause, (now, before)) in Cause::VARIANTS.iter().zip(allocations.iter().zip(before)) {
            let runs = now - before;
            if runs > 0 {
                debug!(service, cause, runs, cycle, clients, "allocated");
            }
        }
    }

    pub(super) fn is_stale(&self, now: Time) -> bool {
        self.published.is_none_or(|at| now.since(at) >= RENEW_INTERVAL)
    }

    /// Publishes new flags with the old figures of the core.
    pub(super) fn publish_flags(&self, job: &Job) {
        let mut last = (*job.handle.cell.get()).clone();
        self.set_flags(&mut last);
        job.handle.cell.set(last);
    }

    fn set_flags(&self, snapshot: &mut ServiceSnapshot) {
        let trouble = self.status.trouble();
        (snapshot.figures.ready, snapshot.figures.trouble) = (trouble.is_none(), trouble);
        snapshot.target_refusing = self.status.target_refusing;
        snapshot.engine = EngineTotals { busy: clock::thread_time(), ..self.counts.clone() };
    }

    /// Publishes everything. In the middle of a round, only flags: the decisions are not committed yet.
    pub(super) fn publish(&mut self, now: Time, job: &Job, throttle: &mut Throttle, link: &Link<'_>, whole: bool) {
        self.published = Some(now);
        if !whole {
            return self.publish_flags(job);
        }
        let mut snapshot = self.snapshot(now, job, throttle);
        let unread = add_partitions(&mut snapshot, throttle, link);
        snapshot.clients = self.clients.build(throttle, now, &unread);
        snapshot.sources.paused[PAUSE_REASONS.len() - 1] = self.suspended;
        snapshot.sources.retention = link.partitions.sources.retention();
        self.set_flags(&mut snapshot);
        job.handle.cell.set(snapshot);
    }

    fn snapshot(&self, now: Time, job: &Job, throttle: &mut Throttle) -> ServiceSnapshot {
        let (window_admitted, window_admitted_max) = throttle.window_admitted(now);
        let snapshot = ServiceSnapshot::new(&job.service.name, throttle.policy());
        let cycle = throttle.cycle();
        let figures = ServiceFigures { cycle, window_admitted, window_admitted_max, ..snapshot.figures };
        let throttle = ThrottleFigures {
            totals: throttle.totals().clone(),
            new_clients: throttle.clients().newcomers,
            groups: throttle.clients().groups().iter().map(group_view).collect(),
            made_groups: throttle.policy().made_groups,
            backlog_bytes: throttle.backlog().1,
            oldest_held_seconds: throttle.oldest_held(now).as_secs_f64(),
            allocations: throttle.allocations(),
        };
        let (group, changes) = (self.group.clone(), Some(self.changes));
        ServiceSnapshot { figures, throttle, group, changes, ..snapshot }
    }

    // ## Events of the delivery machine, for the log and the metrics

    /// Counts and logs an event.
    pub(super) fn report(&mut self, event: &Event, link: &Link<'_>) {
        self.count(event);
        let (service, log_limiter) = (&link.job.service.name, &mut self.log_limiter);
        match event {
            Event::CallFailed { .. } => {}
            Event::AttemptEnded { outcome: AttemptOutcome::Aborted, error } => {
                log_limiter.warn("aborted", |suppressed| warn!(service, suppressed, "a round is aborted: {error}"));
            }
            Event::AttemptEnded { outcome: AttemptOutcome::Unknown, error } => {
                log_limiter.warn("unknown", |suppressed| {
                    warn!(service, suppressed, "a round is committed or not, which is found out now: {error}");
                })
            }
            Event::ProducerReplaced { cause, error } => log_limiter.warn("replaced", |suppressed| {
                warn!(service, cause = cause.into_str(), suppressed, "replacing the producer: {error}");
            }),
            Event::Divided { outputs, next } => log_limiter.warn("divided", |suppressed| {
                warn!(service, outputs, next, suppressed, "a round took too long: it is committed in parts");
            }),
            Event::GroupMoved(error) => log_limiter.warn("group changes", |suppressed| {
                info!(service, suppressed, "not committed yet, the group changes: {error}");
            }),
            Event::CommitRetried(error) => {
                log_limiter
                    .warn("committing again", |suppressed| warn!(service, suppressed, "committing again: {error}"));
            }
            Event::SentAgain { records, error } => log_limiter.warn("sending again", |suppressed| {
                warn!(service, records, suppressed, "sending again what may have arrived: {error}");
            }),
            Event::CommittedUnreadable(error) => log_limiter.warn("unreadable", |suppressed| {
                warn!(service, suppressed, "can't learn what is committed yet: {error}");
            }),
            Event::Compared { done, left } => log_limiter.warn("compared", |suppressed| {
                info!(service, done, left, suppressed, "compared the round with what is committed");
            }),
            Event::Overtaken { partition, committed, known } => log_limiter.warn("overtaken", |suppressed| {
                let (topic, partition) = link.name(*partition);
                let told = "more is committed than this instance knows of";
                warn!(service, topic, partition, committed, known, suppressed, "{told}");
            }),
            Event::Undeliverable { partition, offset, error } => log_limiter.warn("undeliverable", |suppressed| {
                let (topic, partition) = link.name(*partition);
                let told = format!("undeliverable: {topic}/{partition} offset {offset}: {error}");
                warn!(service, topic, partition, offset, suppressed, "{told}");
            }),
            Event::Stubbed { partition, offset, error } => log_limiter.warn("stubbed", |suppressed| {
                let (topic, partition) = link.name(*partition);
                let place = format!("{topic}/{partition} offset {offset}");
                let told = format!("a stub goes to the dead-letter topic in place of {place}: {error}");
                warn!(service, topic, partition, offset, suppressed, "{told}");
            }),
            // Every one of them: no other line names the record that is gone.
            Event::Discarded { partition, offset, error } => {
                let (topic, partition) = link.name(*partition);
                let place = format!("{topic}/{partition} offset {offset}");
                let told = format!("discarded: the dead-letter topic refuses {place}: {error}");
                error!(service, topic, partition, offset, "{told}");
            }
        }
    }

    fn count(&mut self, event: &Event) {
        let counts = &mut self.counts.delivery;
        match *event {
            Event::CallFailed { phase, class } => counts.transaction_errors[phase as usize][class as usize] += 1,
            Event::AttemptEnded { outcome: AttemptOutcome::Aborted, .. } => self.count_round(RoundOutcome::Aborted),
            Event::AttemptEnded { outcome: AttemptOutcome::Unknown, .. } => self.count_round(RoundOutcome::Unknown),
            Event::ProducerReplaced { cause, .. } => counts.producer_recreations[cause as usize] += 1,
            Event::Compared { done, left } => {
                counts.resyncs += 1;
                counts.resynced[0] += done as u64;
                counts.resynced[1] += left as u64;
            }
            _ => {}
        }
    }
}

fn group_view(group: &ClientGroup) -> ClientGroupView {
    ClientGroupView {
        name: group.name.trim_end_matches('/').to_owned(),
        clients: group.clients,
        default_share: group.grant.default_share.as_f64(),
        granted: group.grant.records,
    }
}

/// Adds the assigned partitions. Returns the records that wait in those of one client.
fn add_partitions(snapshot: &mut ServiceSnapshot, throttle: &Throttle, link: &Link<'_>) -> Unread {
    let mut waiting = Unread::new();
    for (number, entry) in link.partitions.all() {
        let Some(view) = throttle.ledger().partition(number) else { continue };
        let sources = &mut snapshot.sources;
        sources.map_used_ratio = sources.map_used_ratio.max(view.map_used);
        sources.map_characters = sources.map_characters.max(view.map_characters);
        sources.map_span = sources.map_span.max(view.span);
        let cached = link.consumer.cached_high(entry.source, entry.partition);
        let high = cached.unwrap_or(entry.high).max(entry.high);
        let unread = u64::try_from(high - view.next).unwrap_or(0);
        snapshot.partitions.push(PartitionSnapshot {
            topic: link.name(number).0.into(),
            partition: entry.partition,
            lag: u64::try_from(high - view.base).unwrap_or(0),
            unread,
            held: view.held,
        });
        if let Some(client) = throttle.ledger().sole_client(number).filter(|_| view.is_behind && unread > 0) {
            *waiting.entry(client.to_owned()).or_default() += unread;
        }
        if let Some(reason) = throttle.ledger().paused(number) {
            let index = PAUSE_REASONS.iter().position(|name| *name == reason.into_str());
            sources.paused[index.expect("the names are those of the reasons")] += 1;
        }
    }
    waiting
}
