//! Finds the records that a broker refuses. A broker refuses whole batches, so one group after another is sent, and a
//! refused one in halves, until each culprit stands alone. Exactly once sends them in transactions that are always
//! aborted.

use std::{collections::BTreeSet, time::Duration};

use super::super::outcome::{DeliveryError, Event, FatalError, Step};
use super::super::round::{Form, Rejected};
use super::{super::kafka::Kafka, Attempt, Purpose, State, StepContext};
use crate::reason::{Grounds, Reason};

/// The tags of a group that did not arrive.
#[derive(Debug, Default)]
pub(super) struct Missing {
    pub refused: Vec<(usize, DeliveryError)>,
    /// Neither refused nor known to have arrived.
    pub again: Vec<usize>,
}

impl Missing {
    pub fn is_empty(&self) -> bool {
        self.refused.is_empty() && self.again.is_empty()
    }
}

/// A stack of groups of tags that still have to be sent.
#[derive(Debug)]
pub(super) struct Bisection(Vec<Vec<usize>>);

impl Bisection {
    /// Starts with all tags in one group.
    pub fn of(tags: Vec<usize>) -> Bisection {
        Bisection(vec![tags])
    }

    /// Takes the next group to send; `None` when every group has arrived.
    pub fn next_group(&mut self) -> Option<Vec<usize>> {
        self.0.pop()
    }

    /// Sends these tags as the next group.
    pub fn push(&mut self, tags: Vec<usize>) {
        if !tags.is_empty() {
            self.0.push(tags);
        }
    }

    /// Schedules the missing tags of a group of `sent` tags. Returns a refused tag once it was sent alone or was the
    /// only one of its group that was refused.
    fn classify(&mut self, sent: usize, missing: Missing) -> Option<(usize, DeliveryError)> {
        let Missing { mut refused, again } = missing;
        self.push(again);
        if refused.len() <= 1 {
            return refused.pop();
        }
        let mut tags: Vec<usize> = refused.into_iter().map(|(tag, _)| tag).collect();
        // A part of the group was refused: send that part again by itself. All of it was: halve it. The first half goes
        // first, to keep the order.
        if tags.len() == sent {
            let second = tags.split_off(sent / 2);
            self.push(second);
        }
        self.push(tags);
        None
    }
}

impl<P, K: Kafka<P>> StepContext<'_, P, K> {
    /// Bisecting, exactly once: sends the next group in a transaction of its own, or starts with the round again.
    pub(super) fn probe_group(&mut self, mut bisection: Bisection) -> Result<Step, FatalError> {
        if let Some(step) = self.machine.ready(self.kafka, self.now)? {
            self.machine.state = State::Bisecting(bisection);
            return Ok(step);
        }
        match bisection.next_group() {
            Some(tags) => self.begin(tags, Purpose::Bisect(bisection)),
            None => Ok(Step::Again),
        }
    }

    /// Evaluates a probe that was aborted.
    pub(super) fn judge(&mut self, mut attempt: Attempt<K::Offsets>) -> Result<Step, FatalError> {
        if !attempt.landed {
            // The abort reports the records that it purged, unless the producer was replaced.
            self.kafka.flush();
            attempt.take_failures(self.kafka.failures())?;
            let refused: BTreeSet<usize> = attempt.missing.refused.iter().map(|(tag, _)| *tag).collect();
            // All other records are probed again: they may just not have been reached.
            attempt.missing.again = attempt.tags.iter().copied().filter(|tag| !refused.contains(tag)).collect();
        }
        self.conclude_group(attempt)
    }

    /// Schedules the missing outputs of a group.
    pub(super) fn conclude_group(&mut self, attempt: Attempt<K::Offsets>) -> Result<Step, FatalError> {
        let Attempt { tags, purpose, mut missing, late, .. } = attempt;
        let Purpose::Bisect(mut bisection) = purpose else { unreachable!("only groups of a bisection are concluded") };
        missing.refused.sort_by_key(|(tag, _)| *tag);
        missing.again.sort_unstable();
        missing.again.dedup();
        let step = if missing.again.is_empty() { Step::Again } else { Step::Backoff };
        if late {
            // An unchanged group would take too long again.
            let second = missing.again.split_off(missing.again.len().div_ceil(2));
            bisection.push(second);
        }
        if let Some((tag, error)) = bisection.classify(tags.len(), missing)
            && self.refuse(tag, error)?
        {
            bisection.push(vec![tag]);
        }
        self.machine.state = State::Bisecting(bisection);
        Ok(step)
    }

    /// Redirects a record that its topic refuses for good. An admitted record becomes `undeliverable`, a rejected one a
    /// stub, and a stub loses its key. Returns whether any of these still has to be sent.
    fn refuse(&mut self, tag: usize, error: DeliveryError) -> Result<bool, FatalError> {
        let output = &mut self.round.outputs[tag];
        let (partition, offset) = (output.partition, output.offset);
        let event = match (&output.rejected, output.form) {
            (None, _) => {
                let client = output.client.clone().unwrap_or_default();
                let (reason, words) = (Reason::Undeliverable, Some(error.to_string().into()));
                let (retry_after, grounds) = (Duration::ZERO, Grounds::default());
                output.rejected = Some(Box::new(Rejected { reason, retry_after, client, words, grounds }));
                self.throttle.handle_undeliverable(output.client.as_deref());
                Event::Undeliverable { partition, offset, error }
            }
            (Some(_), form @ (Form::Whole | Form::Stub)) => {
                output.form = if form == Form::Whole { Form::Stub } else { Form::KeylessStub };
                Event::Stubbed { partition, offset, error }
            }
            (Some(_), Form::KeylessStub) if self.machine.rules.discard_undeliverable => {
                output.discarded = true;
                Event::Discarded { partition, offset, error }
            }
            (Some(_), Form::KeylessStub) => {
                return Err(FatalError::Undeliverable { partition, offset, source: error });
            }
        };
        let is_sent = !output.discarded;
        self.machine.events.push(event);
        Ok(is_sent)
    }
}
