//! Bisecting: sends one group after another until each refused record stands alone. Exactly once sends them in
//! transactions that are always aborted.

use std::collections::BTreeSet;

use super::super::bisection::{Bisection, Missing};
use super::super::outcome::{DeliveryError, Event, FatalError, Step};
use super::super::round::{Refused, Round};
use super::{super::kafka::Kafka, Attempt, Machine, Purpose, State, StepContext, Strategy};
use crate::{throttle::Throttle, units::Time};

impl<O> Machine<O> {
    pub(super) fn bisect<P, K: Kafka<P, Offsets = O>>(
        &mut self, context: StepContext<'_, P, K>, mut bisection: Bisection,
    ) -> Result<Step, FatalError> {
        if self.rules.strategy == Strategy::AtLeastOnce {
            self.state = match bisection.next_group() {
                Some(tags) => {
                    let attempt = Attempt::new(tags, Purpose::Deliver(bisection), Time::NEVER);
                    State::Filling { attempt, next: 0, emptied: false }
                }
                None => State::CommittingOffsets(None),
            };
            return Ok(Step::Again);
        }
        if let Some(step) = self.ready(context.kafka, context.now)? {
            self.state = State::Bisecting(bisection);
            return Ok(step);
        }
        match bisection.next_group() {
            Some(tags) => self.begin(context, tags, Purpose::Probe(bisection)),
            None => Ok(Step::Again),
        }
    }

    /// Evaluates a probe that was aborted.
    pub(super) fn judge<P, K: Kafka<P, Offsets = O>>(
        &mut self, context: StepContext<'_, P, K>, mut attempt: Attempt<O>,
    ) -> Result<Step, FatalError> {
        let StepContext { round, throttle, kafka, .. } = context;
        if !attempt.landed {
            // The abort reports the records that it purged, unless the producer was replaced.
            kafka.flush();
            attempt.take_failures(kafka.failures())?;
            let refused: BTreeSet<usize> = attempt.missing.refused.iter().map(|(tag, _)| *tag).collect();
            // All other records are probed again: they may just not have been reached.
            attempt.missing.again = attempt.tags.iter().copied().filter(|tag| !refused.contains(tag)).collect();
        }
        let Attempt { tags, purpose, mut missing, late, .. } = attempt;
        let Purpose::Probe(mut bisection) = purpose else { unreachable!("only probes are judged") };
        missing.sort();
        if late {
            // An unchanged group would take too long again.
            bisection.divide(&mut missing.again);
        }
        self.conclude_group(round, throttle, tags.len(), missing, bisection)
    }

    /// Schedules the missing outputs of a group of `sent` outputs.
    pub(super) fn conclude_group<P>(
        &mut self, round: &mut Round<P>, throttle: &mut Throttle, sent: usize, missing: Missing,
        mut bisection: Bisection,
    ) -> Result<Step, FatalError> {
        let step = if missing.again.is_empty() { Step::Again } else { Step::Backoff };
        if let Some((tag, error)) = bisection.classify(sent, missing)
            && self.refuse(round, throttle, tag, error)?
        {
            bisection.push(tag);
        }
        self.state = State::Bisecting(bisection);
        Ok(step)
    }

    /// Redirects a record that its topic refuses for good. Returns whether it, or a stub of it, still has to be sent.
    fn refuse<P>(
        &mut self, round: &mut Round<P>, throttle: &mut Throttle, tag: usize, error: DeliveryError,
    ) -> Result<bool, FatalError> {
        let (partition, offset) = (round.outputs[tag].partition, round.outputs[tag].offset);
        let refused = round.refuse(tag, throttle);
        self.events.push(match refused {
            Refused::DeadLettered => Event::Undeliverable { partition, offset, error },
            Refused::Stubbed => Event::Stubbed { partition, offset, error },
            Refused::Exhausted if self.rules.discard_undeliverable => {
                round.outputs[tag].discarded = true;
                Event::Discarded { partition, offset, error }
            }
            Refused::Exhausted => return Err(FatalError::Undeliverable { partition, offset, source: error }),
        });
        Ok(refused != Refused::Exhausted)
    }
}
