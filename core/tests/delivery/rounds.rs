//! The rounds of an instance. Each is delivered step by step; other instances run between two steps.

use std::time::Duration;

use watermaster_core::delivery::{
    AttemptOutcome, DeliveryError, Event, FatalError, Kafka, Phase, ReplaceCause, Round, Step,
};
use watermaster_core::units::Time;

use super::client::{Client, Cluster};
use super::instance::{Instance, STEP_WAIT, Turn};
use super::{planted::Planted, trace::note};

/// Duration after which a round polls the group.
const GROUP_POLL_AFTER: Duration = Duration::from_secs(20);
/// Duration after which a drain gives up.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(6);

impl Instance {
    pub(super) fn has_work(&self) -> bool {
        !self.round.is_empty() || self.throttle.touched().next().is_some()
    }

    pub(super) fn round_is_due(&self, now: Time) -> bool {
        let due = self.last_round + self.job.policy.commit_interval <= now;
        self.round.len() >= self.job.full || due && self.has_work()
    }

    pub(super) fn begin_round(&mut self, now: Time) {
        self.in_round = Some(now);
    }

    pub(super) fn step(&mut self, cluster: &mut Cluster) -> Result<Turn, FatalError> {
        let now = cluster.now;
        let began = self.in_round.unwrap_or(now);
        if self.draining.is_some_and(|since| now.since(since) > DRAIN_TIMEOUT) {
            cluster.broker.coverage.drains_given_up += 1;
            note(&self.client.name, || "abandons its round".to_owned());
            self.abandon(cluster);
            self.client.leave(cluster);
            return Ok(Turn::Left);
        }
        if self.machine.phase() == Phase::Begin {
            self.check_view(cluster);
        }
        let mut link = Planted::new(&mut self.client, cluster);
        let step = self.machine.step(&mut self.round, &mut self.throttle, &mut link, now)?;
        if self.client.crashed {
            return Ok(Turn::Died);
        }
        let wait = match step {
            Step::Done => {
                self.end_round(cluster, began);
                return Ok(Turn::Sleep(Duration::ZERO));
            }
            Step::PollGroup => {
                self.serve_group(cluster)?;
                STEP_WAIT
            }
            Step::Backoff => STEP_WAIT,
            Step::Again => Duration::ZERO,
        };
        // No poll while a transaction is open: a rebalance must not happen during one.
        if now.since(began) > GROUP_POLL_AFTER && !self.client.producer.open {
            self.serve_group(cluster)?;
        }
        Ok(Turn::Sleep(wait))
    }

    /// Ends a round that is given up. Its transaction is aborted here, by the next producer of this id, or by the
    /// coordinator's timeout.
    pub(super) fn abandon(&mut self, cluster: &mut Cluster) {
        let mut link = Planted::new(&mut self.client, cluster);
        if link.in_transaction() && !link.0.client.producer.committing && link.0.cluster.random.once_in(2) {
            let _ = link.abort();
        }
        if !link.0.cluster.exactly_once {
            link.purge();
        }
    }

    fn end_round(&mut self, cluster: &mut Cluster, began: Time) {
        cluster.broker.coverage.rejected +=
            self.round.outputs().iter().filter(|one| one.rejected.is_some()).count() as u64;
        if !cluster.exactly_once {
            cluster.broker.checker.round_ended(&self.round);
        }
        self.round = Round::default();
        (self.in_round, self.last_round, self.reading_paused) = (None, began, false);
    }

    /// Checks the machine's central claim ([`local_view`](super::checker::Checker::local_view)) where no transaction is
    /// pending.
    fn check_view(&mut self, cluster: &mut Cluster) {
        for partition in self.assigned_numbers() {
            let ours = cluster.broker.group.is_owner(self.client.member, partition);
            if ours && !cluster.broker.is_pending(partition) {
                cluster.broker.coverage.views += 1;
                cluster.broker.checker.local_view(partition, &self.throttle, &self.round);
            }
        }
    }

    pub(super) fn count_events(&mut self, cluster: &mut Cluster) {
        let Client { id, serial, .. } = self.client;
        for event in self.machine.take_events() {
            note(&self.client.name, || format!("{event:?}"));
            let applied = cluster.broker.was_committed(id, serial);
            let coverage = &mut cluster.broker.coverage;
            match event {
                Event::AttemptEnded { outcome: AttemptOutcome::Unknown, .. } if applied => {
                    coverage.unknown_applied += 1
                }
                Event::AttemptEnded { outcome: AttemptOutcome::Unknown, .. } => coverage.unknown_not_applied += 1,
                Event::AttemptEnded { error: DeliveryError::GroupMoved, .. } => coverage.opened_revoked += 1,
                Event::Compared { done, .. } => {
                    coverage.resyncs += 1;
                    coverage.resyncs_dropped += u64::from(done > 0);
                }
                Event::Divided { .. } => coverage.divided += 1,
                Event::Undeliverable { .. } => coverage.undeliverable += 1,
                Event::Stubbed { .. } => coverage.stubbed += 1,
                Event::Discarded { .. } => coverage.discarded += 1,
                Event::ProducerReplaced { cause: ReplaceCause::Disconnect, .. } => coverage.taints += 1,
                Event::ProducerReplaced { cause: ReplaceCause::Fatal, .. } => coverage.replaced_fatal += 1,
                Event::SentAgain { .. } => coverage.sent_again += 1,
                Event::CommitRetried(_) => coverage.commits_retried += 1,
                Event::GroupMoved(_) => coverage.waits_for_group += 1,
                _ => {}
            }
        }
        cluster.broker.coverage.paused_turns += u64::from(self.paused != 0);
    }
}
