//! Events of the delivery machine, for the log and the metrics.

use tracing::{error, info, warn};
use watermaster_core::delivery::{AttemptOutcome, Event};

use super::{link::Link, report::Reporter};
use crate::snapshot::RoundOutcome;

impl Reporter {
    pub(super) fn report(&mut self, event: &Event, link: &Link<'_>) {
        self.count(event);
        let at = match *event {
            Event::Overtaken { partition, known, .. } => Some((link.name(partition), known)),
            Event::Undeliverable { partition, offset, .. }
            | Event::Stubbed { partition, offset, .. }
            | Event::Discarded { partition, offset, .. } => Some((link.name(partition), offset)),
            _ => None,
        };
        let place = at.map(|((topic, partition), offset)| format!("{topic}/{partition} offset {offset}"));
        let Some((kind, text)) = describe(event, &place.unwrap_or_default()) else { return };
        let (service, (address, offset)) = (&link.job.service.name, at.unzip());
        let (topic, partition) = address.unzip();
        let log = |suppressed| match event {
            Event::GroupMoved(_) | Event::Compared { .. } => info!(service, suppressed, "{text}"),
            Event::Discarded { .. } => error!(service, topic, partition, offset, "{text}"),
            _ => warn!(service, topic, partition, offset, suppressed, "{text}"),
        };
        match event {
            // Every one of them: no other line names the record that is gone.
            Event::Discarded { .. } => log(None),
            _ => self.log_limiter.warn(kind, log),
        }
    }

    fn count(&mut self, event: &Event) {
        let counts = &mut self.counts;
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

/// Returns the kind of an event, which limits its lines, and the line. `place` is that of its record.
fn describe(event: &Event, place: &str) -> Option<(&'static str, String)> {
    Some(match event {
        Event::CallFailed { .. } => return None,
        Event::AttemptEnded { outcome: AttemptOutcome::Aborted, error } => {
            ("aborted", format!("a round is aborted: {error}"))
        }
        Event::AttemptEnded { outcome: AttemptOutcome::Unknown, error } => {
            ("unknown", format!("a round is committed or not, which is found out now: {error}"))
        }
        Event::ProducerReplaced { cause, error } => {
            ("replaced", format!("replacing the producer: {error} (cause {})", cause.into_str()))
        }
        Event::Divided { outputs, next } => {
            ("divided", format!("a round of {outputs} outputs took too long: the next part has {next}"))
        }
        Event::GroupMoved(error) => ("group changes", format!("not committed yet, the group changes: {error}")),
        Event::CommitRetried(error) => ("committing again", format!("committing again: {error}")),
        Event::SentAgain { records, error } => {
            ("sending again", format!("sending {records} records again, which may have arrived: {error}"))
        }
        Event::CommittedUnreadable(error) => ("unreadable", format!("can't learn what is committed yet: {error}")),
        Event::Compared { done, left } => {
            ("compared", format!("compared the round with what is committed: done {done}, left {left}"))
        }
        Event::Overtaken { committed, known, .. } => {
            ("overtaken", format!("more is committed ({committed}) than this instance knows of ({known})"))
        }
        Event::Undeliverable { error, .. } => ("undeliverable", format!("undeliverable: {place}: {error}")),
        Event::Stubbed { error, .. } => {
            ("stubbed", format!("a stub goes to the dead-letter topic in place of {place}: {error}"))
        }
        Event::Discarded { error, .. } => {
            ("discarded", format!("discarded: the dead-letter topic refuses {place}: {error}"))
        }
    })
}
