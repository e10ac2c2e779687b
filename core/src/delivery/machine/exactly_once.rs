//! Exactly once: a round, or a part of one, in a transaction. It is committed, aborted, or left to the next producer.

use std::time::Duration;

use super::super::kafka::{Commit, ErrorClass, Kafka, OffsetsError, TransactionError};
use super::super::outcome::{AttemptOutcome, DeliveryError, Event, FatalError, Phase, ReplaceCause, Step};
use super::super::round::{commits_without, offsets_of};
use super::{Attempt, Bisection, Missing, Purpose, State, StepContext, Then, producers::deny};
use crate::units::Time;

/// The longest wait for the answer to a commit or an abort; the producer is replaced then.
const END_TIMEOUT: Duration = Duration::from_secs(15);

/// The tags and the offsets of the next attempt, or the step that follows without them: nothing is left to commit, or
/// the group has moved on.
type NextOffsets<O> = Result<(Vec<usize>, O), Step>;

impl<P, K: Kafka<P>> StepContext<'_, P, K> {
    /// Starting: prepares the producer and the offsets, then begins the transaction.
    pub(super) fn start_transaction(&mut self) -> Result<Step, FatalError> {
        // A probe commits nothing, so it may go on with a producer in doubt.
        if self.machine.producers.in_doubt {
            self.machine.replace(self.kafka, ReplaceCause::Timeout, DeliveryError::InDoubt, self.now)?;
        }
        if let Some(step) = self.machine.ready(self.kafka, self.now)? {
            return Ok(step);
        }
        match self.next_offsets()? {
            Ok((tags, offsets)) => self.begin(tags, Purpose::Commit(offsets)),
            Err(step) => Ok(step),
        }
    }

    /// Takes the outputs of the next attempt, and the offsets that cover exactly them.
    pub(super) fn next_offsets(&mut self) -> Result<NextOffsets<K::Offsets>, FatalError> {
        self.round.drop_orphans(self.throttle);
        let (tags, commits) = self.next_part()?;
        if commits.is_empty() {
            debug_assert!(tags.is_empty(), "a partition with outputs has completed something");
            return Ok(Err(Step::Done));
        }
        match self.kafka.offsets(&commits) {
            Ok(offsets) => Ok(Ok((tags, offsets))),
            Err(OffsetsError::Refused(error)) => Err(FatalError::Commit(error.into())),
            Err(OffsetsError::GroupMoved(error) | OffsetsError::Retriable(error)) => {
                self.machine.events.push(Event::GroupMoved(error));
                Ok(Err(Step::PollGroup))
            }
        }
    }

    /// Returns the outputs of the next attempt and the commits that cover exactly them: the whole round, or as many of
    /// its first decisions as can be sent in time.
    fn next_part(&mut self) -> Result<(Vec<usize>, Vec<Commit>), FatalError> {
        let tags = self.round.next_tags(self.machine.most);
        let rest = &self.round.outputs[tags.last().map_or(self.round.len(), |last| last + 1)..];
        if let Ok(commits) = commits_without(self.throttle, self.now, rest) {
            return Ok((tags, commits));
        }
        // Holes behind the rest make the map of a part larger than that of the whole round, which fits.
        Ok((self.round.next_tags(usize::MAX), commits_without::<P>(self.throttle, self.now, &[])?))
    }

    /// Returns how long outputs and offsets may take, so that time is left for the commit.
    pub(super) fn send_timeout(&self) -> Duration {
        self.machine.transaction_timeout() * 8 / 10
    }

    /// Halves the next attempt, because one with this many outputs took too long.
    fn send_less(&mut self, outputs: usize) {
        if outputs > 1 {
            self.machine.most = outputs / 2;
            self.machine.events.push(Event::Divided { outputs, next: self.machine.most });
        }
    }

    pub(super) fn begin(&mut self, tags: Vec<usize>, purpose: Purpose<K::Offsets>) -> Result<Step, FatalError> {
        let Err(error) = self.kafka.begin() else {
            self.machine.began = Some(self.now);
            let attempt = Attempt::new(tags, purpose, self.now + self.send_timeout());
            return self.go_on(State::Filling { attempt, next: 0, emptied: false });
        };
        let Purpose::Bisect(mut bisection) = purpose else {
            return self.abandon_producer(Phase::Begin, error, AttemptOutcome::Aborted);
        };
        self.machine.call_failed(Phase::Begin, &error);
        self.machine.replace_after(self.kafka, error, self.now)?;
        bisection.push(tags);
        self.machine.state = State::Bisecting(bisection);
        Ok(Step::Backoff)
    }

    /// Offsets: adds the offsets to the transaction while its records are on their way. One after the other would add a
    /// fifth to the time of a round.
    pub(super) fn send_offsets(&mut self, mut attempt: Attempt<K::Offsets>) -> Result<Step, FatalError> {
        let Purpose::Commit(offsets) = &attempt.purpose else { unreachable!("a probe is aborted without offsets") };
        match self.kafka.send_offsets(offsets) {
            Ok(true) => self.go_on(State::Landing(attempt)),
            // On a connection to a broker they wait behind records that are not stored yet.
            Ok(false) if self.now < attempt.deadline => self.go_on(State::Offsets(attempt)),
            Ok(false) => {
                self.send_less(attempt.tags.len());
                let error = TransactionError::other(ErrorClass::Retriable, DeliveryError::OffsetsTimeout);
                self.recover(Phase::Offsets, error)
            }
            Err(error) if error.class == ErrorClass::Abortable => {
                // A refused record may be the cause; it is known once all records have landed or failed.
                attempt.offsets_error = Some(error);
                self.go_on(State::Landing(attempt))
            }
            Err(error) => self.recover(Phase::Offsets, error),
        }
    }

    /// Landing: waits until all outputs have landed, one has failed, or the deadline has passed.
    pub(super) fn land(&mut self, mut attempt: Attempt<K::Offsets>) -> Result<Step, FatalError> {
        attempt.landed = self.kafka.flush();
        // After a failure, the other records stay where they are until the abort.
        let failing = attempt.offsets_error.is_some() || self.kafka.failing();
        if !attempt.landed && !failing && self.now < attempt.deadline {
            return self.go_on(State::Landing(attempt));
        }
        attempt.take_failures(self.kafka.failures())?;
        let complete = attempt.is_complete();
        self.machine.producers.in_doubt |= !complete;
        attempt.late = !failing && self.now >= attempt.deadline && !complete;
        if matches!(attempt.purpose, Purpose::Bisect(_)) {
            return self.go_on(State::Aborting { since: self.now, then: Then::Judge(attempt) });
        }
        if attempt.late {
            self.send_less(attempt.tags.len());
        }
        if !attempt.missing.refused.is_empty() {
            self.give_up(DeliveryError::RecordRefused, Then::Bisect)
        } else if let Some(error) = attempt.offsets_error {
            self.recover(Phase::Offsets, error)
        } else if !attempt.landed && !failing {
            self.give_up(DeliveryError::LandingTimeout, Then::Resync)
        } else if !complete {
            // The cause is reported with the abort, if that fails as well.
            self.give_up(DeliveryError::NotLanded, Then::Resync)
        } else {
            self.go_on(State::Committing { since: self.now, outputs: attempt.tags.len() })
        }
    }

    /// Committing: commits the transaction.
    pub(super) fn commit(&mut self, since: Time, outputs: usize) -> Result<Step, FatalError> {
        let Err(error) = self.kafka.commit() else {
            return Ok(self.conclude(outputs));
        };
        if error.class == ErrorClass::Retriable && self.now.since(since) < END_TIMEOUT {
            self.machine.call_failed(Phase::Commit, &error);
            return self.go_on(State::Committing { since, outputs });
        }
        // The coordinator may have ended the transaction for its age.
        if self.machine.age(self.now) >= self.send_timeout() {
            self.send_less(outputs);
        }
        match error.class {
            ErrorClass::Retriable | ErrorClass::Fatal => {
                self.abandon_producer(Phase::Commit, error, AttemptOutcome::Unknown)
            }
            ErrorClass::Abortable => self.recover(Phase::Commit, error),
        }
    }

    /// Counts the outputs of a transaction as committed.
    fn conclude(&mut self, outputs: usize) -> Step {
        self.round.committed += outputs;
        let rest = offsets_of(&self.round.outputs[self.round.committed..]);
        let touched: Vec<u32> = self.throttle.touched().filter(|number| !rest.contains_key(number)).collect();
        touched.into_iter().for_each(|number| self.throttle.handle_committed(number));
        if self.machine.age(self.now) < self.send_timeout() / 2 {
            self.machine.most = self.machine.most.saturating_mul(2);
        }
        // The next part follows, if there is one. The group may be served before it begins.
        if rest.is_empty() { Step::Done } else { Step::Again }
    }

    fn end_attempt(&mut self, outcome: AttemptOutcome, error: DeliveryError) {
        self.machine.events.push(Event::AttemptEnded { outcome, error });
    }

    pub(super) fn give_up(&mut self, error: DeliveryError, then: Then<K::Offsets>) -> Result<Step, FatalError> {
        self.end_attempt(AttemptOutcome::Aborted, error);
        self.go_on(State::Aborting { since: self.now, then })
    }

    /// Reacts to the error of a call other than begin and abort.
    fn recover(&mut self, phase: Phase, error: TransactionError) -> Result<Step, FatalError> {
        deny(&error)?;
        match error.class {
            // A request that was not answered may still arrive, and would join the next transaction of this epoch.
            ErrorClass::Fatal | ErrorClass::Retriable => self.abandon_producer(phase, error, AttemptOutcome::Aborted),
            ErrorClass::Abortable => {
                self.machine.call_failed(phase, &error);
                self.give_up(error.into(), Then::Resync)
            }
        }
    }

    /// Replaces the producer; its successor ends the transaction that it left open.
    fn abandon_producer(
        &mut self, phase: Phase, error: TransactionError, outcome: AttemptOutcome,
    ) -> Result<Step, FatalError> {
        self.machine.call_failed(phase, &error);
        self.end_attempt(outcome, error.clone().into());
        self.machine.replace_after(self.kafka, error, self.now)?;
        self.go_on(State::Resyncing { warned: false })
    }

    /// Aborting: aborts the transaction, or replaces the producer.
    pub(super) fn abort(&mut self, since: Time, then: Then<K::Offsets>) -> Result<Step, FatalError> {
        let mut replaced = true;
        if self.kafka.tainted() {
            // A tainted producer is replaced in any case. Brokers that were away may have forgotten the transaction.
            self.machine.replace(self.kafka, ReplaceCause::Disconnect, DeliveryError::Tainted, self.now)?;
        } else if let Err(error) = self.kafka.abort() {
            self.machine.call_failed(Phase::Abort, &error);
            if error.class == ErrorClass::Retriable && self.now.since(since) < END_TIMEOUT {
                return self.go_on(State::Aborting { since, then });
            }
            self.machine.replace_after(self.kafka, error, self.now)?;
        } else {
            replaced = false;
        }
        match then {
            Then::Resync => self.go_on(State::Resyncing { warned: false }),
            Then::Bisect => {
                let tags = self.round.next_tags(self.machine.most);
                self.go_on(State::Bisecting(Bisection::of(tags)))
            }
            Then::Judge(mut attempt) => {
                if replaced && attempt.tags.len() > 1 {
                    // The other refusals were lost with the old producer: a known one may be a neighbour of the
                    // culprit.
                    attempt.missing = Missing::default();
                    attempt.landed = false;
                    attempt.late |= self.machine.age(self.now) >= self.send_timeout();
                }
                self.judge(attempt)
            }
        }
    }
}
