//! At least once: outputs are sent for good, then their offsets are committed through the consumer.

use super::super::kafka::{Kafka, OffsetsError};
use super::super::outcome::{Event, FatalError, ReplaceCause, Step};
use super::{
    super::bisection::Bisection, super::round::commits_without, Attempt, Machine, Purpose, State, StepContext,
};

/// A commit that was not answered yet.
#[derive(Debug)]
pub(super) struct PendingCommit<O> {
    offsets: O,
    partitions: Vec<u32>,
}

impl<O> Machine<O> {
    /// Starting: sends all outputs, except those of revoked partitions.
    pub(super) fn send_all<P, K>(&mut self, context: StepContext<'_, P, K>) -> Step {
        let StepContext { round, throttle, .. } = context;
        round.drop_orphans(throttle);
        self.state = State::Bisecting(Bisection::of(round.next_tags(usize::MAX)));
        Step::Again
    }

    /// Landing: waits until each output has arrived or failed. A broken producer is purged, because it would wait
    /// forever, and replaced.
    pub(super) fn await_all<P, K: Kafka<P, Offsets = O>>(
        &mut self, context: StepContext<'_, P, K>, mut attempt: Attempt<O>,
    ) -> Result<Step, FatalError> {
        let StepContext { round, throttle, kafka, now } = context;
        if attempt.broken.is_some() || kafka.fatal().is_some() {
            kafka.purge();
        }
        if !kafka.flush() {
            self.state = State::Landing(attempt);
            return Ok(Step::Again);
        }
        attempt.take_failures(kafka.failures())?;
        let Attempt { tags, purpose, mut missing, broken, unknown, .. } = attempt;
        if let Some(error) = unknown {
            self.events.push(Event::SentAgain { records: missing.again.len(), error });
        }
        if let Some(error) = broken.or_else(|| kafka.fatal()) {
            self.replace(kafka, ReplaceCause::Fatal, error.into(), now)?;
        }
        missing.sort();
        let Purpose::Deliver(bisection) = purpose else { unreachable!("a transaction lands elsewhere") };
        self.conclude_group(round, throttle, tags.len(), missing, bisection)
    }

    /// CommittingOffsets: commits offset and map of every partition in which a record completed. A rebalance leaves
    /// what was sent as it is: partitions that stay here are committed again, the next owner of the others repeats this
    /// round.
    pub(super) fn commit_offsets<P, K: Kafka<P, Offsets = O>>(
        &mut self, context: StepContext<'_, P, K>, pending: Option<PendingCommit<O>>,
    ) -> Result<Step, FatalError> {
        let StepContext { throttle, kafka, now, .. } = context;
        let pending = match pending {
            Some(pending) => Ok(pending),
            None => {
                let commits = commits_without::<P>(throttle, now, &[])?;
                if commits.is_empty() {
                    return Ok(Step::Done);
                }
                let partitions = commits.iter().map(|commit| commit.partition).collect();
                kafka.offsets(&commits).map(|offsets| PendingCommit { offsets, partitions })
            }
        };
        let event = match pending.and_then(|pending| Ok((kafka.commit_offsets(&pending.offsets)?, pending))) {
            Ok((true, pending)) => {
                pending.partitions.into_iter().for_each(|partition| throttle.handle_committed(partition));
                return Ok(Step::Done);
            }
            Ok((false, pending)) => {
                self.state = State::CommittingOffsets(Some(pending));
                return Ok(Step::Again);
            }
            Err(OffsetsError::Refused(error)) => return Err(FatalError::Commit(error.into())),
            Err(OffsetsError::GroupMoved(error)) => Event::GroupMoved(error),
            Err(OffsetsError::Retriable(error)) => Event::CommitRetried(error),
        };
        self.events.push(event);
        self.state = State::CommittingOffsets(None);
        Ok(Step::PollGroup)
    }
}
