//! Exactly once, from the start of a transaction until its outputs have landed.

use std::time::Duration;

use super::super::kafka::{Commit, ErrorClass, Kafka, OffsetsError, TransactionError};
use super::super::outcome::{AttemptOutcome, DeliveryError, Event, FatalError, Phase, ReplaceCause, Step};
use super::super::round::{Round, commits_without};
use super::{super::bisection::Missing, Attempt, Machine, Purpose, State, StepContext, Strategy, Then};
use crate::{throttle::Throttle, units::Time};

impl<O> Machine<O> {
    /// Starting: prepares the producer and the offsets, then begins the transaction.
    pub(super) fn start_transaction<P, K: Kafka<P, Offsets = O>>(
        &mut self, context: StepContext<'_, P, K>,
    ) -> Result<Step, FatalError> {
        let StepContext { round, throttle, kafka, now } = context;
        // A probe commits nothing, so it may go on with a producer in doubt.
        if self.producers.in_doubt {
            self.replace(kafka, ReplaceCause::Timeout, DeliveryError::InDoubt, now)?;
        }
        if let Some(step) = self.ready(kafka, now)? {
            return Ok(step);
        }
        round.drop_orphans(throttle);
        let (tags, commits) = self.next_part(round, throttle, now)?;
        if commits.is_empty() {
            debug_assert!(tags.is_empty(), "a partition with outputs has completed something");
            return Ok(Step::Done);
        }
        let offsets = match kafka.offsets(&commits) {
            Ok(offsets) => offsets,
            Err(OffsetsError::Refused(error)) => return Err(FatalError::Commit(error.into())),
            Err(OffsetsError::GroupMoved(error) | OffsetsError::Retriable(error)) => {
                self.events.push(Event::GroupMoved(error));
                return Ok(Step::PollGroup);
            }
        };
        self.begin(StepContext { round, throttle, kafka, now }, tags, Purpose::Commit(offsets))
    }

    /// Returns the outputs of the next attempt and the commits that cover exactly them: the whole round, or as many of
    /// its first decisions as can be sent in time.
    fn next_part<P>(
        &self, round: &Round<P>, throttle: &mut Throttle, now: Time,
    ) -> Result<(Vec<usize>, Vec<Commit>), FatalError> {
        let tags = round.next_tags(self.most);
        let rest = &round.outputs[tags.last().map_or(round.len(), |last| last + 1)..];
        if let Ok(commits) = commits_without(throttle, now, rest) {
            return Ok((tags, commits));
        }
        // Holes behind the rest make the map of a part larger than that of the whole round, which fits.
        Ok((round.next_tags(usize::MAX), commits_without::<P>(throttle, now, &[])?))
    }

    /// Returns how long the coordinator leaves a transaction open.
    pub(super) fn transaction_timeout(&self) -> Duration {
        match self.rules.strategy {
            Strategy::ExactlyOnce { timeout } => timeout,
            Strategy::AtLeastOnce => Duration::ZERO,
        }
    }

    /// Returns how long outputs and offsets may take, so that time is left for the commit.
    pub(super) fn send_timeout(&self) -> Duration {
        self.transaction_timeout() * 8 / 10
    }

    /// Returns the age of the last transaction.
    pub(super) fn age(&self, now: Time) -> Duration {
        self.began.map_or(Duration::ZERO, |began| now.since(began))
    }

    /// Halves the next attempt, because one with this many outputs took too long.
    pub(super) fn send_less(&mut self, outputs: usize) {
        if outputs > 1 {
            self.most = outputs / 2;
            self.events.push(Event::Divided { outputs, next: self.most });
        }
    }

    pub(super) fn begin<P, K: Kafka<P, Offsets = O>>(
        &mut self, context: StepContext<'_, P, K>, tags: Vec<usize>, purpose: Purpose<O>,
    ) -> Result<Step, FatalError> {
        let StepContext { kafka, now, .. } = context;
        let Err(error) = kafka.begin() else {
            self.began = Some(now);
            let attempt = Attempt::new(tags, purpose, now + self.send_timeout());
            self.state = State::Filling { attempt, next: 0, emptied: false };
            return Ok(Step::Again);
        };
        let Purpose::Probe(mut bisection) = purpose else {
            return self.abandon_producer(kafka, Phase::Begin, error, AttemptOutcome::Aborted, now);
        };
        self.call_failed(Phase::Begin, &error);
        self.replace_after(kafka, error, now)?;
        let sent = tags.len();
        bisection.classify(sent, Missing { again: tags, ..Missing::default() });
        self.state = State::Bisecting(bisection);
        Ok(Step::Backoff)
    }

    /// Offsets: adds the offsets to the transaction while its records are on their way. One after the other would add a
    /// fifth to the time of a round.
    pub(super) fn send_offsets<P, K: Kafka<P, Offsets = O>>(
        &mut self, context: StepContext<'_, P, K>, mut attempt: Attempt<O>,
    ) -> Result<Step, FatalError> {
        let StepContext { kafka, now, .. } = context;
        let Purpose::Commit(offsets) = &attempt.purpose else { unreachable!("a probe is aborted without offsets") };
        self.state = match kafka.send_offsets(offsets) {
            Ok(true) => State::Landing(attempt),
            // On a connection to a broker they wait behind records that are not stored yet.
            Ok(false) if now < attempt.deadline => State::Offsets(attempt),
            Ok(false) => {
                self.send_less(attempt.tags.len());
                let error = TransactionError::other(ErrorClass::Retriable, DeliveryError::OffsetsTimeout);
                return self.recover(kafka, Phase::Offsets, error, now);
            }
            Err(error) if error.class == ErrorClass::Abortable => {
                // A refused record may be the cause; it is known once all records have landed or failed.
                attempt.offsets_error = Some(error);
                State::Landing(attempt)
            }
            Err(error) => return self.recover(kafka, Phase::Offsets, error, now),
        };
        Ok(Step::Again)
    }

    /// Landing: waits until all outputs have landed, one has failed, or the deadline has passed.
    pub(super) fn land<P, K: Kafka<P, Offsets = O>>(
        &mut self, context: StepContext<'_, P, K>, mut attempt: Attempt<O>,
    ) -> Result<Step, FatalError> {
        let StepContext { kafka, now, .. } = context;
        attempt.landed = kafka.flush();
        // After a failure, the other records stay where they are until the abort.
        let failing = attempt.offsets_error.is_some() || kafka.failing();
        if !attempt.landed && !failing && now < attempt.deadline {
            self.state = State::Landing(attempt);
            return Ok(Step::Again);
        }
        attempt.take_failures(kafka.failures())?;
        let complete = attempt.is_complete();
        self.producers.in_doubt |= !complete;
        attempt.late = !failing && now >= attempt.deadline && !complete;
        if matches!(attempt.purpose, Purpose::Probe(_)) {
            self.state = State::Aborting { since: now, then: Then::Judge(attempt) };
            return Ok(Step::Again);
        }
        if attempt.late {
            self.send_less(attempt.tags.len());
        }
        if !attempt.missing.refused.is_empty() {
            self.end_attempt(AttemptOutcome::Aborted, DeliveryError::RecordRefused);
            self.state = State::Aborting { since: now, then: Then::Bisect };
        } else if let Some(error) = attempt.offsets_error {
            return self.recover(kafka, Phase::Offsets, error, now);
        } else if !attempt.landed && !failing {
            self.give_up(DeliveryError::LandingTimeout, now);
        } else if !complete {
            // The cause is reported with the abort, if that fails as well.
            self.give_up(DeliveryError::NotLanded, now);
        } else {
            self.state = State::Committing { since: now, outputs: attempt.tags.len() };
        }
        Ok(Step::Again)
    }
}
