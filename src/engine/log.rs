//! Events of the delivery machine, for the log and the metrics.

use std::time::{Duration, Instant};

use tracing::{error, info, warn};
use watermaster_core::delivery::{AttemptOutcome, Event};

use super::link::Link;
use super::report::Reporter;

impl Reporter {
    /// Counts and logs an event.
    pub(super) fn report(&mut self, event: &Event, link: &Link<'_>) {
        self.count(event);
        match event {
            Event::Overtaken { partition, .. }
            | Event::Undeliverable { partition, .. }
            | Event::Stubbed { partition, .. }
            | Event::Discarded { partition, .. } => self.log_record(event, link.name(*partition), link),
            _ => self.log_round(event, link),
        }
    }

    fn count(&mut self, event: &Event) {
        match event {
            Event::CallFailed { phase, class } => self.call_failed(*phase, *class),
            Event::AttemptEnded { outcome: AttemptOutcome::Aborted, .. } => self.round("aborted", Duration::ZERO),
            Event::AttemptEnded { outcome: AttemptOutcome::Unknown, .. } => self.round("unknown", Duration::ZERO),
            Event::ProducerReplaced { cause, .. } => self.producer_replaced(*cause),
            Event::Compared { done, left } => self.resynced(*done, *left),
            _ => {}
        }
    }

    /// Logs an event that concerns a whole round.
    fn log_round(&mut self, event: &Event, link: &Link<'_>) {
        let (service, seldom, now) = (&link.job.service.name, &mut self.seldom, Instant::now());
        match event {
            Event::AttemptEnded { outcome: AttemptOutcome::Aborted, error } => {
                seldom.tell("aborted", now, |left_out| warn!(service, left_out, "a round is aborted: {error}"));
            }
            Event::AttemptEnded { outcome: AttemptOutcome::Unknown, error } => {
                seldom.tell("unknown", now, |left_out| {
                    warn!(service, left_out, "a round is committed or not, which is found out now: {error}");
                })
            }
            Event::ProducerReplaced { cause, error } => seldom.tell("replaced", now, |left_out| {
                warn!(service, cause = cause.as_str(), left_out, "replacing the producer: {error}");
            }),
            Event::Divided { outputs, next } => seldom.tell("divided", now, |left_out| {
                warn!(service, outputs, next, left_out, "a round took too long: it is committed in parts");
            }),
            Event::GroupMoved(error) => seldom.tell("group changes", now, |left_out| {
                info!(service, left_out, "not committed yet, the group changes: {error}");
            }),
            Event::CommitRetried(error) => {
                seldom.tell("committing again", now, |left_out| warn!(service, left_out, "committing again: {error}"));
            }
            Event::SentAgain { records, error } => seldom.tell("sending again", now, |left_out| {
                warn!(service, records, left_out, "sending again what may have arrived: {error}");
            }),
            Event::CommittedUnreadable(error) => seldom.tell("unreadable", now, |left_out| {
                warn!(service, left_out, "can't learn what is committed yet: {error}");
            }),
            Event::Compared { done, left } => seldom.tell("compared", now, |left_out| {
                info!(service, done, left, left_out, "compared the round with what is committed");
            }),
            _ => {}
        }
    }

    /// Logs an event that concerns a record or an offset of one partition.
    fn log_record(&mut self, event: &Event, (topic, partition): (&str, i32), link: &Link<'_>) {
        let (service, seldom, now) = (&link.job.service.name, &mut self.seldom, Instant::now());
        match event {
            Event::Overtaken { committed, known, .. } => seldom.tell("overtaken", now, |left_out| {
                let told = "more is committed than this instance knows of";
                warn!(service, topic, partition, committed, known, left_out, "{told}");
            }),
            Event::Undeliverable { offset, error, .. } => seldom.tell("undeliverable", now, |left_out| {
                let told = format!("undeliverable: {topic}/{partition} offset {offset}: {error}");
                warn!(service, topic, partition, offset, left_out, "{told}");
            }),
            Event::Stubbed { offset, error, .. } => seldom.tell("stubbed", now, |left_out| {
                let place = format!("{topic}/{partition} offset {offset}");
                let told = format!("a stub goes to the dead-letter topic in place of {place}: {error}");
                warn!(service, topic, partition, offset, left_out, "{told}");
            }),
            // Every one of them: no other line names the record that is gone.
            Event::Discarded { offset, error, .. } => {
                let place = format!("{topic}/{partition} offset {offset}");
                let told = format!("discarded: the dead-letter topic refuses {place}: {error}");
                error!(service, topic, partition, offset, "{told}");
            }
            _ => {}
        }
    }
}
