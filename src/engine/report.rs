//! What the engine shows of itself.

use std::time::Duration;

use tracing::debug;
use watermaster_core::delays::Histogram;
use watermaster_core::round::{ErrorClass, Phase};
use watermaster_core::throttle::{Cause, PauseReason};
use watermaster_core::units::Time;

use super::Engine;
use crate::snapshot::{
    HistogramSnapshot, PRODUCER_CAUSES, PartitionSnapshot, ROUND_OUTCOMES, ServiceSnapshot, SnapshotBuilder,
};
use watermaster_kafka::log_limiter::LogLimiter;

/// A snapshot is renewed at least this often while records come.
const RENEW: Duration = Duration::from_millis(100);

/// What only the shell knows.
#[derive(Default)]
pub(super) struct Report {
    pub(super) joined: bool,
    pub(super) draining: bool,
    pub(super) late: bool,
    pub(super) target_refusing: bool,
    pub(super) rebalances: u64,
    pub(super) lost_records: u64,
    pub(super) stubs: u64,
    pub(super) end_to_end: Histogram,
    round_time: Histogram,
    rounds: [u64; ROUND_OUTCOMES.len()],
    recreations: [u64; PRODUCER_CAUSES.len()],
    pub(super) consumer_recreations: u64,
    phases: [Histogram; Phase::NAMES.len()],
    /// Of the round that is under way.
    spent: [Duration; Phase::NAMES.len()],
    errors: [[u64; ErrorClass::NAMES.len()]; Phase::NAMES.len()],
    resyncs: u64,
    resynced: [u64; 2],
    published: Option<Time>,
    clients: SnapshotBuilder,
    /// Lines of the log that could repeat with each record or attempt.
    pub(super) seldom: LogLimiter,
    /// Allocations that were logged.
    allocations: [u64; Cause::NAMES.len()],
}

impl Report {
    pub(super) fn round(&mut self, outcome: &str, took: Duration) {
        count(&mut self.rounds, ROUND_OUTCOMES, outcome);
        if outcome == "committed" {
            self.round_time.record(took);
        }
    }

    fn rounds(&self) -> Vec<(&'static str, u64)> {
        ROUND_OUTCOMES.iter().copied().zip(self.rounds).collect()
    }

    fn recreations(&self) -> Vec<(&'static str, u64)> {
        PRODUCER_CAUSES.iter().copied().zip(self.recreations).collect()
    }

    /// A step of a round took so long.
    pub(super) fn phase(&mut self, phase: Phase, took: Duration) {
        self.spent[phase as usize] += took;
    }

    /// The round is over, however it ended.
    pub(super) fn end_phases(&mut self) {
        for (phase, spent) in self.phases.iter_mut().zip(std::mem::take(&mut self.spent)) {
            if !spent.is_zero() {
                phase.record(spent);
            }
        }
    }

    pub(super) fn failed(&mut self, phase: Phase, class: ErrorClass) {
        self.errors[phase as usize][class as usize] += 1;
    }

    pub(super) fn resynced(&mut self, done: usize, left: usize) {
        self.resyncs += 1;
        self.resynced[0] += done as u64;
        self.resynced[1] += left as u64;
    }

    pub(super) fn recreated(&mut self, cause: &str) {
        count(&mut self.recreations, PRODUCER_CAUSES, cause);
    }
}

fn count(counts: &mut [u64], names: &[&str], name: &str) {
    let index = names.iter().position(|known| *known == name).expect("outcomes and causes come from their tables");
    counts[index] += 1;
}

impl Engine<'_> {
    /// Logs what the allocator ran for since the last time.
    pub(super) fn tell_allocations(&mut self) {
        let allocations = self.throttle.allocations();
        let before = std::mem::replace(&mut self.report.allocations, allocations);
        if before == allocations {
            return;
        }
        let (service, cycle) = (&self.job.service.name, self.throttle.cycle());
        for (cause, runs) in Cause::NAMES.iter().zip(allocations.iter().zip(before).map(|(now, before)| now - before)) {
            if runs > 0 {
                debug!(service, cause, runs, cycle, clients = self.throttle.known(), "allocated");
            }
        }
    }

    pub(super) fn publish_if_old(&mut self, now: Time) {
        if self.report.published.is_none_or(|at| now.since(at) >= RENEW) {
            self.publish(now);
        }
    }

    /// Shows what is true by now.
    pub(super) fn show(&mut self) {
        self.publish(self.clock.now());
    }

    /// New flags with old counts.
    pub(super) fn publish_flags(&mut self) {
        let mut last = (*self.job.cell.get()).clone();
        (last.ready, last.trouble) = (self.ready(), self.trouble());
        last.target_refusing = self.report.target_refusing;
        (last.rounds, last.producer_recreations) = (self.report.rounds(), self.report.recreations());
        (last.resyncs, last.resynced) = (self.report.resyncs, self.report.resynced);
        last.transaction_errors = self.report.errors;
        self.job.cell.set(last);
    }

    /// Shows everything; in the middle of a round only flags, because what was decided is not committed yet.
    pub(super) fn publish(&mut self, now: Time) {
        self.report.published = Some(now);
        if !self.round_is_empty() {
            return self.publish_flags();
        }
        let snapshot = self.snapshot(now);
        self.job.cell.set(snapshot);
    }

    fn ready(&self) -> bool {
        let report = &self.report;
        report.joined && !report.draining && !report.late && !report.target_refusing && !self.brokers_down
    }

    fn trouble(&self) -> Option<String> {
        let report = &self.report;
        let text = if report.draining {
            "draining"
        } else if report.target_refusing {
            "the target or the dead-letter topic refuses writes"
        } else if self.brokers_down {
            "no broker can be reached"
        } else if report.late {
            "a round is late: waiting for the brokers"
        } else if !report.joined {
            "joining the consumer group"
        } else {
            return None;
        };
        Some(text.to_string())
    }

    fn snapshot(&mut self, now: Time) -> ServiceSnapshot {
        let service = &self.job.service;
        let (window_admitted, window_admitted_max) = self.throttle.window_admitted(now);
        let throttle = &self.throttle;
        let policy = throttle.policy();
        let (unregistered, unregistered_shadow) = throttle.of_no_client();
        let clients = self.report.clients.build(throttle);
        let (mut map_used_ratio, mut map_characters, mut map_span) = (0.0_f64, 0, 0);
        let mut partitions = Vec::new();
        let mut paused = PauseReason::NAMES.map(|name| (name, 0));
        for (number, place) in self.link.places.all() {
            let Some(view) = throttle.partition(number) else { continue };
            map_used_ratio = map_used_ratio.max(view.map_used);
            map_characters = map_characters.max(view.map_characters);
            map_span = map_span.max(view.span);
            let high =
                self.link.consumer.cached_high(place.source, place.partition).unwrap_or(place.high).max(place.high);
            partitions.push(PartitionSnapshot {
                topic: service.sources[place.source.index()].topic.as_str().into(),
                partition: place.partition,
                lag: u64::try_from(high - view.base).unwrap_or(0),
                unread: u64::try_from(high - view.next).unwrap_or(0),
                held: view.held,
            });
            if let Some(reason) = throttle.paused(number)
                && let Some(entry) = paused.iter_mut().find(|(name, _)| *name == reason.as_str())
            {
                entry.1 += 1;
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
            paused: paused.to_vec(),
            map_used_ratio,
            map_characters,
            map_span,
            rounds: self.report.rounds(),
            producer_recreations: self.report.recreations(),
            consumer_recreations: self.report.consumer_recreations,
            transaction_errors: self.report.errors,
            resyncs: self.report.resyncs,
            resynced: self.report.resynced,
            lost_records: self.report.lost_records,
            stubs: self.report.stubs,
            rebalances: self.report.rebalances,
            ready: self.ready(),
            up: true,
            target_refusing: self.report.target_refusing,
            trouble: self.trouble(),
            source_retention_seconds: self
                .job
                .facts
                .source_retention(service)
                .into_iter()
                .map(|(topic, time)| (topic, time.as_secs_f64()))
                .collect(),
            delay: histogram(throttle.delays()),
            end_to_end: histogram(&self.report.end_to_end),
            round: histogram(&self.report.round_time),
            round_phases: self.report.phases.iter().map(histogram).collect(),
        }
    }
}

fn histogram(histogram: &Histogram) -> HistogramSnapshot {
    HistogramSnapshot { counts: histogram.counts.to_vec(), sums: histogram.sums.to_vec() }
}
