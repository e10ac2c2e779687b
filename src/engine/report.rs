//! The engine's counts and snapshots.

use std::time::Duration;
use strum::VariantNames;

use tracing::debug;
use watermaster_core::delivery::{ErrorClass, Phase, ReplaceCause};
use watermaster_core::throttle::{Cause, PauseReason, Throttle};
use watermaster_core::{delays::Histogram, units::Time};

use super::{Job, link::Link};
use crate::snapshot::{
    HistogramSnapshot, PRODUCER_CAUSES, PartitionSnapshot, ROUND_OUTCOMES, ServiceSnapshot, SnapshotBuilder,
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
}

impl Status {
    /// Returns the reason why the service is not ready.
    fn trouble(&self) -> Option<&'static str> {
        let reasons = [
            (self.draining, "draining"),
            (self.target_refusing, "the target or the dead-letter topic refuses writes"),
            (self.brokers_down, "no broker can be reached"),
            (self.late, "a round is late: waiting for the brokers"),
            (!self.joined, "joining the consumer group"),
        ];
        reasons.into_iter().find_map(|(applies, reason)| applies.then_some(reason))
    }
}

/// Counts that only the shell knows, and the snapshots that it publishes.
#[derive(Default)]
pub(super) struct Reporter {
    pub(super) status: Status,
    pub(super) rebalances: u64,
    pub(super) lost_records: u64,
    pub(super) stubs: u64,
    pub(super) consumer_recreations: u64,
    pub(super) end_to_end: Histogram,
    /// Limits log lines that could repeat with each record or attempt.
    pub(super) log_limiter: LogLimiter,
    round_time: Histogram,
    rounds: [u64; ROUND_OUTCOMES.len()],
    recreations: [u64; PRODUCER_CAUSES.len()],
    phases: [Histogram; Phase::VARIANTS.len()],
    /// The phases of the running round.
    spent: [Duration; Phase::VARIANTS.len()],
    errors: [[u64; ErrorClass::VARIANTS.len()]; Phase::VARIANTS.len()],
    resyncs: u64,
    resynced: [u64; 2],
    published: Option<Time>,
    clients: SnapshotBuilder,
    /// The allocations that were logged.
    allocations: [u64; Cause::VARIANTS.len()],
}

impl Reporter {
    /// Counts a round by its outcome, one of [`ROUND_OUTCOMES`].
    pub(super) fn round(&mut self, outcome: &str, took: Duration) {
        let index = ROUND_OUTCOMES.iter().position(|known| *known == outcome).expect("outcomes come from their table");
        self.rounds[index] += 1;
        if outcome == "committed" {
            self.round_time.record(took);
        }
    }

    /// Adds the time of a step to its phase.
    pub(super) fn phase(&mut self, phase: Phase, took: Duration) {
        self.spent[phase as usize] += took;
    }

    /// Records the phases of a round that has ended.
    pub(super) fn end_phases(&mut self) {
        for (phase, spent) in self.phases.iter_mut().zip(std::mem::take(&mut self.spent)) {
            if !spent.is_zero() {
                phase.record(spent);
            }
        }
    }

    pub(super) fn call_failed(&mut self, phase: Phase, class: ErrorClass) {
        self.errors[phase as usize][class as usize] += 1;
    }

    pub(super) fn resynced(&mut self, done: usize, left: usize) {
        self.resyncs += 1;
        self.resynced[0] += done as u64;
        self.resynced[1] += left as u64;
    }

    pub(super) fn producer_replaced(&mut self, cause: ReplaceCause) {
        self.recreations[cause as usize] += 1;
    }

    fn named<const N: usize>(names: &[&'static str], counts: [u64; N]) -> Vec<(&'static str, u64)> {
        names.iter().copied().zip(counts).collect()
    }

    /// Logs the causes of the allocations since the last call.
    pub(super) fn log_allocations(&mut self, service: &str, throttle: &Throttle) {
        let allocations = throttle.allocations();
        let before = std::mem::replace(&mut self.allocations, allocations);
        if before == allocations {
            return;
        }
        let (cycle, clients) = (throttle.cycle(), throttle.clients().len());
        for (cause, runs) in
            Cause::VARIANTS.iter().zip(allocations.iter().zip(before).map(|(now, before)| now - before))
        {
            if runs > 0 {
                debug!(service, cause, runs, cycle, clients, "allocated");
            }
        }
    }

    pub(super) fn is_stale(&self, now: Time) -> bool {
        self.published.is_none_or(|at| now.since(at) >= RENEW_INTERVAL)
    }

    /// Publishes new flags with old counts.
    pub(super) fn publish_flags(&self, job: &Job) {
        let mut last = (*job.cell.get()).clone();
        self.set_flags(&mut last);
        job.cell.set(last);
    }

    fn set_flags(&self, snapshot: &mut ServiceSnapshot) {
        let trouble = self.status.trouble();
        (snapshot.ready, snapshot.trouble) = (trouble.is_none(), trouble.map(str::to_owned));
        snapshot.target_refusing = self.status.target_refusing;
        snapshot.rounds = Self::named(ROUND_OUTCOMES, self.rounds);
        snapshot.producer_recreations = Self::named(PRODUCER_CAUSES, self.recreations);
        (snapshot.resyncs, snapshot.resynced) = (self.resyncs, self.resynced);
        snapshot.transaction_errors = self.errors;
    }

    /// Publishes everything. In the middle of a round, only flags: the decisions are not committed yet.
    pub(super) fn publish(&mut self, now: Time, job: &Job, throttle: &mut Throttle, link: &Link<'_>, whole: bool) {
        self.published = Some(now);
        if !whole {
            return self.publish_flags(job);
        }
        let mut snapshot = self.snapshot(now, job, throttle, link);
        self.set_flags(&mut snapshot);
        job.cell.set(snapshot);
    }

    fn snapshot(&mut self, now: Time, job: &Job, throttle: &mut Throttle, link: &Link<'_>) -> ServiceSnapshot {
        let service = &job.service;
        let (window_admitted, window_admitted_max) = throttle.window_admitted(now);
        let policy = throttle.policy();
        let (unregistered, unregistered_shadow) = throttle.of_no_client();
        let clients = self.clients.build(throttle);
        let (mut map_used_ratio, mut map_characters, mut map_span) = (0.0_f64, 0, 0);
        let mut partitions = Vec::new();
        let mut paused = Self::named(PauseReason::VARIANTS, [0; PauseReason::VARIANTS.len()]);
        for (number, entry) in link.partitions.all() {
            let Some(view) = throttle.ledger().partition(number) else { continue };
            map_used_ratio = map_used_ratio.max(view.map_used);
            map_characters = map_characters.max(view.map_characters);
            map_span = map_span.max(view.span);
            let cached = link.consumer.cached_high(entry.source, entry.partition);
            let high = cached.unwrap_or(entry.high).max(entry.high);
            partitions.push(PartitionSnapshot {
                topic: service.sources[entry.source.index()].topic.as_str().into(),
                partition: entry.partition,
                lag: u64::try_from(high - view.base).unwrap_or(0),
                unread: u64::try_from(high - view.next).unwrap_or(0),
                held: view.held,
            });
            if let Some(reason) = throttle.ledger().paused(number)
                && let Some(count) = paused.iter_mut().find(|(name, _)| *name == reason.into_str())
            {
                count.1 += 1;
            }
        }
        ServiceSnapshot {
            name: service.name.clone(),
            mode: policy.mode,
            enforce: policy.enforce,
            capacity: policy.capacity,
            cycle_seconds: policy.cycle.as_secs_f64(),
            cycle: throttle.cycle(),
            clients,
            unregistered,
            unregistered_shadow,
            window_admitted,
            window_admitted_max,
            backlog_bytes: throttle.backlog().1,
            backlog_limit_records: policy.queue_capacity,
            backlog_limit_bytes: policy.queue_bytes,
            oldest_held_seconds: throttle.oldest_held(now).as_secs_f64(),
            allocations: throttle.allocations(),
            partitions,
            paused,
            map_used_ratio,
            map_characters,
            map_span,
            consumer_recreations: self.consumer_recreations,
            lost_records: self.lost_records,
            stubs: self.stubs,
            rebalances: self.rebalances,
            up: true,
            source_retention_seconds: job
                .facts
                .source_retention(service)
                .into_iter()
                .map(|(topic, time)| (topic, time.as_secs_f64()))
                .collect(),
            delay: histogram(throttle.delays()),
            end_to_end: histogram(&self.end_to_end),
            round: histogram(&self.round_time),
            round_phases: self.phases.iter().map(histogram).collect(),
            ..ServiceSnapshot::default()
        }
    }
}

fn histogram(histogram: &Histogram) -> HistogramSnapshot {
    HistogramSnapshot { counts: histogram.counts.to_vec(), sums: histogram.sums.to_vec() }
}
