//! Events of the delivery machine, for the log and the metrics.

use tracing::{error, info, warn};
use watermaster_core::delivery::{AttemptOutcome, Event};

use super::{link::Link, report::Reporter};
use crate::snapshot::RoundOutcome;

impl Reporter {
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
