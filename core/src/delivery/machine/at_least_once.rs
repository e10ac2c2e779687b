//! At least once: outputs are sent for good, then their offsets are committed through the consumer.

use super::super::kafka::{Kafka, OffsetsError};
use super::super::outcome::{Event, FatalError, ReplaceCause, Step};
use super::{super::round::commits_without, Attempt, Bisection, Purpose, State, StepContext};
use crate::units::Time;

/// A commit that was not answered yet.
#[derive(Debug)]
pub(super) struct PendingCommit<O> {
    offsets: O,
    partitions: Vec<u32>,
}

impl<P, K: Kafka<P>> StepContext<'_, P, K> {
    /// Starting: sends all outputs, except those of revoked partitions.
    pub(super) fn send_all(&mut self) -> Result<Step, FatalError> {
        self.round.drop_orphans(self.throttle);
        let tags = self.round.next_tags(usize::MAX);
        self.go_on(State::Bisecting(Bisection::of(tags)))
    }

    /// Bisecting: sends the next group, or goes on to the commit.
    pub(super) fn send_group(&mut self, mut bisection: Bisection) -> Result<Step, FatalError> {
        let Some(tags) = bisection.next_group() else { return self.go_on(State::CommittingOffsets(None)) };
        let attempt = Attempt::new(tags, Purpose::Bisect(bisection), Time::NEVER);
        self.go_on(State::Filling { attempt, next: 0, emptied: false })
    }

    /// Landing: waits until each output has arrived or failed. A broken producer is purged, because it would wait
    /// forever, and replaced.
    pub(super) fn await_all(&mut self, mut attempt: Attempt<K::Offsets>) -> Result<Step, FatalError> {
        if attempt.broken.is_some() || self.kafka.fatal().is_some() {
            self.kafka.purge();
        }
        if !self.kafka.flush() {
            return self.go_on(State::Landing(attempt));
        }
        attempt.take_failures(self.kafka.failures())?;
        if let Some(error) = attempt.unknown.take() {
            let records = attempt.missing.again.len();
            self.machine.events.push(Event::SentAgain { records, error });
        }
        if let Some(error) = attempt.broken.take().or_else(|| self.kafka.fatal()) {
            self.machine.replace(self.kafka, ReplaceCause::Fatal, error.into(), self.now)?;
        }
        self.conclude_group(attempt)
    }

    /// CommittingOffsets: commits offset and map of every partition in which a record completed. A rebalance leaves
    /// what was sent as it is: partitions that stay here are committed again, the next owner of the others repeats this
    /// round.
    pub(super) fn commit_offsets(&mut self, pending: Option<PendingCommit<K::Offsets>>) -> Result<Step, FatalError> {
        let pending = match pending {
            Some(pending) => Ok(pending),
            None => {
                let commits = commits_without::<P>(self.throttle, self.now, &[])?;
                if commits.is_empty() {
                    return Ok(Step::Done);
                }
                let partitions = commits.iter().map(|commit| commit.partition).collect();
                self.kafka.offsets(&commits).map(|offsets| PendingCommit { offsets, partitions })
            }
        };
        let event = match pending.and_then(|pending| Ok((self.kafka.commit_offsets(&pending.offsets)?, pending))) {
            Ok((true, pending)) => {
                pending.partitions.into_iter().for_each(|partition| self.throttle.handle_committed(partition));
                return Ok(Step::Done);
            }
            Ok((false, pending)) => return self.go_on(State::CommittingOffsets(Some(pending))),
            Err(OffsetsError::Refused(error)) => return Err(FatalError::Commit(error.into())),
            Err(OffsetsError::GroupMoved(error)) => Event::GroupMoved(error),
            Err(OffsetsError::Retriable(error)) => Event::CommitRetried(error),
        };
        self.machine.events.push(event);
        self.machine.state = State::CommittingOffsets(None);
        Ok(Step::PollGroup)
    }
}
