//! Exactly once, the end of a transaction: it is committed, aborted, or left to the next producer.

use std::time::Duration;

use super::super::bisection::{Bisection, Missing};
use super::super::kafka::{ErrorClass, Kafka, TransactionError};
use super::super::outcome::{AttemptOutcome, DeliveryError, Event, FatalError, Phase, ReplaceCause, Step};
use super::super::round::{Round, offsets_of};
use super::{Machine, State, StepContext, Then, producers::deny};
use crate::{throttle::Throttle, units::Time};

/// The longest wait for the answer to a commit or an abort; the producer is replaced then.
const END_TIMEOUT: Duration = Duration::from_secs(15);

impl<O> Machine<O> {
    /// Committing: commits the transaction.
    pub(super) fn commit<P, K: Kafka<P, Offsets = O>>(
        &mut self, context: StepContext<'_, P, K>, since: Time, outputs: usize,
    ) -> Result<Step, FatalError> {
        let StepContext { round, throttle, kafka, now } = context;
        let Err(error) = kafka.commit() else {
            return Ok(self.committed(round, throttle, outputs, now));
        };
        if error.class == ErrorClass::Retriable && now.since(since) < END_TIMEOUT {
            self.call_failed(Phase::Commit, &error);
            self.state = State::Committing { since, outputs };
            return Ok(Step::Again);
        }
        // The coordinator may have ended the transaction for its age.
        if self.age(now) >= self.send_timeout() {
            self.send_less(outputs);
        }
        match error.class {
            ErrorClass::Retriable | ErrorClass::Fatal => {
                self.abandon_producer(kafka, Phase::Commit, error, AttemptOutcome::Unknown, now)
            }
            ErrorClass::Abortable => self.recover(kafka, Phase::Commit, error, now),
        }
    }

    fn committed<P>(&mut self, round: &mut Round<P>, throttle: &mut Throttle, outputs: usize, now: Time) -> Step {
        round.committed += outputs;
        let rest = offsets_of(&round.outputs[round.committed..]);
        let touched: Vec<u32> = throttle.touched().filter(|number| !rest.contains_key(number)).collect();
        touched.into_iter().for_each(|number| throttle.handle_committed(number));
        if self.age(now) < self.send_timeout() / 2 {
            self.most = self.most.saturating_mul(2);
        }
        // The next part follows, if there is one. The group may be served before it begins.
        if rest.is_empty() { Step::Done } else { Step::Again }
    }

    pub(super) fn end_attempt(&mut self, outcome: AttemptOutcome, error: DeliveryError) {
        self.events.push(Event::AttemptEnded { outcome, error });
    }

    /// Aborts the transaction, then resyncs.
    pub(super) fn give_up(&mut self, error: DeliveryError, now: Time) {
        self.end_attempt(AttemptOutcome::Aborted, error);
        self.state = State::Aborting { since: now, then: Then::Resync };
    }

    /// Reacts to the error of a call other than begin and abort.
    pub(super) fn recover<P, K: Kafka<P, Offsets = O>>(
        &mut self, kafka: &mut K, phase: Phase, error: TransactionError, now: Time,
    ) -> Result<Step, FatalError> {
        deny(&error)?;
        match error.class {
            // A request that was not answered may still arrive, and would join the next transaction of this epoch.
            ErrorClass::Fatal | ErrorClass::Retriable => {
                self.abandon_producer(kafka, phase, error, AttemptOutcome::Aborted, now)
            }
            ErrorClass::Abortable => {
                self.call_failed(phase, &error);
                self.give_up(error.into(), now);
                Ok(Step::Again)
            }
        }
    }

    /// Replaces the producer; its successor ends the transaction that it left open.
    pub(super) fn abandon_producer<P, K: Kafka<P, Offsets = O>>(
        &mut self, kafka: &mut K, phase: Phase, error: TransactionError, outcome: AttemptOutcome, now: Time,
    ) -> Result<Step, FatalError> {
        self.call_failed(phase, &error);
        self.end_attempt(outcome, error.clone().into());
        self.replace_after(kafka, error, now)?;
        self.state = State::Resyncing { warned: false };
        Ok(Step::Again)
    }

    /// Aborting: aborts the transaction, or replaces the producer.
    pub(super) fn abort<P, K: Kafka<P, Offsets = O>>(
        &mut self, context: StepContext<'_, P, K>, since: Time, then: Then<O>,
    ) -> Result<Step, FatalError> {
        let StepContext { round, throttle, kafka, now } = context;
        let mut replaced = true;
        if kafka.tainted() {
            // A tainted producer is replaced in any case. Brokers that were away may have forgotten the transaction.
            self.replace(kafka, ReplaceCause::Disconnect, DeliveryError::Tainted, now)?;
        } else if let Err(error) = kafka.abort() {
            self.call_failed(Phase::Abort, &error);
            if error.class == ErrorClass::Retriable && now.since(since) < END_TIMEOUT {
                self.state = State::Aborting { since, then };
                return Ok(Step::Again);
            }
            self.replace_after(kafka, error, now)?;
        } else {
            replaced = false;
        }
        match then {
            Then::Resync => self.state = State::Resyncing { warned: false },
            Then::Bisect => self.state = State::Bisecting(Bisection::of(round.next_tags(self.most))),
            Then::Judge(mut attempt) => {
                if replaced && attempt.tags.len() > 1 {
                    // The other refusals were lost with the old producer: a known one may be a neighbour of the
                    // culprit.
                    attempt.missing = Missing::default();
                    attempt.landed = false;
                    attempt.late |= self.age(now) >= self.send_timeout();
                }
                return self.judge(StepContext { round, throttle, kafka, now }, attempt);
            }
        }
        Ok(Step::Again)
    }
}
