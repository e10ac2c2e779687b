//! Decisions: a record goes into the core, and its verdict, at once or later as an action, puts it into the round.

use std::sync::Arc;

use tracing::{debug, warn};
use watermaster_core::throttle::{Action, Arrival, Rejection, Sender, Verdict};
use watermaster_core::{delivery::Form, units::Time};

use super::Engine;
use watermaster_kafka::record::{MAX_HEADERS, Origin, Record};
use watermaster_kafka::redrive;
use watermaster_settings::client_id::{NamedSender, sender_of};

impl<'c> Engine<'c> {
    /// Decides on a record. Returns its cost in bytes.
    pub(super) fn decide(&mut self, now: Time, record: Record<'c>) -> usize {
        let Origin { source, partition, offset, .. } = record.origin;
        let written_ms = record.origin.written_ms();
        let Some(number) = self.link.partitions.find((source, partition)) else { return 0 };
        if self.intake.suspended.contains((source, partition)) {
            self.intake.suspended.add(record);
            return 0;
        }
        self.contact.end_silence(now, number, self.throttle, &mut self.link);
        let source = self.link.partitions.sources.get(source);
        let Some(contents) = record.contents() else {
            return self.decide_oversized(now, number, record);
        };
        if redrive::is_redriven(&contents, record.origin, &self.job.service, source) {
            return self.decide_redriven(now, number, record);
        }
        let service = &self.job.service;
        let found = sender_of(service, &contents, source, self.intake.schemas);
        let full_name;
        let (sender, name) = match &found {
            NamedSender::Client(name) => (Sender::Client(name), &**name),
            NamedSender::InGroup { group, client } => {
                if self.throttle.policy().would_make_group(group) {
                    self.policy.meet_group(group);
                }
                full_name = self.throttle.policy().full_name(group, client);
                (Sender::Client(&full_name), &*full_name)
            }
            NamedSender::NotAllowed(name) => (Sender::NotAllowed(name), &**name),
            NamedSender::Unknown(schema) => {
                let schema = *schema;
                self.suspend(now, schema, record);
                return 0;
            }
            NamedSender::Anonymous(why) => {
                let (service, topic) = (&self.job.service.name, &source.topic);
                self.reporter.log_limiter.warn("anonymous", |suppressed| {
                    warn!(service, topic, partition, offset, suppressed, "a record names no client: {why}");
                });
                (Sender::Anonymous, "")
            }
        };
        let cost = contents.cost();
        let bytes = u32::try_from(cost).unwrap_or(u32::MAX);
        let verdict =
            self.throttle.handle_record(now, &Arrival { partition: number, offset, bytes, sender, written_ms });
        // A client that the core does not know is named by its record.
        let name = match &verdict {
            Verdict::Reject(rejection) if rejection.client.is_none() => Some(Arc::from(name)),
            _ => None,
        };
        self.apply_verdict(verdict, number, (record, Form::Whole), cost, name);
        cost
    }

    /// Decides on a record that `dlq redrive` sent. It counts for the service's `redrive_client`, and the header that
    /// says so is taken off: a service that copies headers into another source must not send in this client's name.
    #[cold]
    fn decide_redriven(&mut self, now: Time, number: u32, record: Record<'c>) -> usize {
        let source = self.link.partitions.sources.get(record.origin.source);
        let (record, name) = (record.without_last_header(), &self.job.service.redrive_client);
        let sender = if source.allows(name) { Sender::Redriven(name) } else { Sender::NotAllowed(name) };
        let (offset, written_ms, cost) = (record.origin.offset, record.origin.written_ms(), record.cost());
        let bytes = u32::try_from(cost).unwrap_or(u32::MAX);
        let verdict =
            self.throttle.handle_record(now, &Arrival { partition: number, offset, bytes, sender, written_ms });
        let name = Some(Arc::from(name.as_str()));
        self.apply_verdict(verdict, number, (record, Form::Whole), cost, name);
        cost
    }

    /// Puts a record where its verdict sends it. `unknown` is the name of a client that the core does not know.
    #[inline(always)]
    fn apply_verdict(
        &mut self, verdict: Verdict, number: u32, (record, form): (Record<'c>, Form), cost: usize,
        unknown: Option<Arc<str>>,
    ) {
        let place = (number, record.origin.offset);
        match verdict {
            Verdict::Skip => {}
            Verdict::Admit(client) => {
                let client = client.and_then(|client| self.throttle.clients().name_of(client));
                self.rounds.fresh = true;
                self.rounds.round.admit(place, record, cost, client);
            }
            Verdict::Delay(slot) => self.delayed.insert(slot, record),
            Verdict::Reject(rejection) => {
                let unknown = unknown.filter(|_| rejection.client.is_none());
                let name = unknown.unwrap_or_else(|| self.client_name(&rejection));
                let grounds = self.throttle.take_grounds();
                self.rounds.round.reject(place, (record, form), cost, (rejection, grounds), name);
            }
        }
    }

    /// Rejects, or delays, a record with too many headers to be read. Only its key is kept.
    #[cold]
    fn decide_oversized(&mut self, now: Time, number: u32, record: Record<'c>) -> usize {
        let (offset, stub) = (record.origin.offset, record.into_stub());
        let cost = stub.cost();
        let bytes = u32::try_from(cost).unwrap_or(u32::MAX);
        let arrival = Arrival { partition: number, offset, bytes, sender: Sender::Oversized, written_ms: None };
        match self.throttle.handle_record(now, &arrival) {
            Verdict::Skip => return cost,
            Verdict::Admit(_) => unreachable!("the core never admits an oversized record"),
            verdict => self.apply_verdict(verdict, number, (stub, Form::Stub), cost, None),
        }
        let ((topic, partition), service) = (self.link.name(number), &self.job.service.name);
        self.reporter.log_limiter.warn("oversized", |suppressed| {
            let told = "headers: a stub goes to the dead-letter topic in its place";
            warn!(service, topic, partition, offset, suppressed, "a record has more than {MAX_HEADERS} {told}");
        });
        cost
    }

    // ## Delayed records

    /// Applies the core's actions on delayed records and partitions, until there are none or the round is full.
    pub(super) fn apply_actions(&mut self, now: Time) {
        while !self.rounds.is_full()
            && let Some(action) = self.throttle.poll_action(now)
        {
            self.apply(action);
        }
    }

    fn apply(&mut self, action: Action) {
        match action {
            Action::Admit { slot, partition, offset, bytes, client, waited } => {
                let client = self.throttle.clients().name_of(client);
                self.rounds.fresh |= waited < self.job.kafka.commit_interval;
                self.rounds.round.admit((partition, offset), self.delayed.take(slot), bytes as usize, client);
            }
            Action::Reject { slot, partition, offset, bytes, rejection, name } => {
                let (record, name) = (self.delayed.take(slot), name.unwrap_or_else(|| Arc::from("")));
                let form = if record.is_stub() { Form::Stub } else { Form::Whole };
                let (place, rejection) = ((partition, offset), (rejection, self.throttle.take_grounds()));
                self.rounds.round.reject(place, (record, form), bytes as usize, rejection, name);
            }
            Action::Pause { partition: number } => {
                let (topic, partition) = self.link.name(number);
                let reason = self.throttle.ledger().paused(number).map(|reason| reason.into_str());
                debug!(service = self.job.service.name, topic, partition, reason, "paused");
                self.intake.pause(&[self.link.partitions.address(number)], self.job, self.reporter);
            }
            Action::Resume { partition: number } => {
                let (topic, partition) = self.link.name(number);
                debug!(service = self.job.service.name, topic, partition, "resumed");
                self.intake.resume(&[self.link.partitions.address(number)], self.job, self.reporter);
            }
        }
    }

    fn client_name(&self, rejection: &Rejection) -> Arc<str> {
        rejection.client.and_then(|client| self.throttle.clients().name_of(client)).unwrap_or_else(|| Arc::from(""))
    }
}
