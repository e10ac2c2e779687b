//! At least once: commits through the consumer, and the account of sent outputs.

use std::time::Duration;

use watermaster_core::delivery::{ClientError, OffsetsError};

use super::link::{Link, Offsets};
use super::{broker::DEAD_LETTER, network::CALL_TIMEOUT, source::Record};

/// The longest wait for the answer to a commit.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(15);

impl Link<'_> {
    /// Models OffsetCommit: answered, not answered yet, lost, or applied without an answer.
    pub(super) fn commit_through_the_consumer(&mut self, offsets: &Offsets) -> Result<bool, OffsetsError> {
        self.expect(!self.cluster.exactly_once, "a commit through the consumer under exactly_once");
        let unanswered = |why: &str| Err(OffsetsError::Retriable(ClientError::new(why)));
        if self.dies(false) {
            return unanswered("the process has crashed");
        }
        let (now, slow) = (self.cluster.now, self.cluster.rates.slow);
        if self.group_away() || self.cluster.fault_occurs(slow) {
            self.take(CALL_TIMEOUT);
            let since = *self.client.committing.get_or_insert(now);
            if now.since(since) < COMMIT_TIMEOUT {
                return self.answer("commit_offsets", Ok(false));
            }
            self.client.committing = None;
            return self.answer("commit_offsets", unanswered("no answer"));
        }
        self.client.committing = None;
        let (rate, disconnect) = (self.cluster.rates.error, self.cluster.rates.disconnect);
        if self.cluster.fault_occurs(rate + disconnect / 2) {
            return self.answer("commit_offsets", unanswered("lost"));
        }
        let Offsets { commits, member, generation } = offsets;
        if let Err(why) = self.cluster.broker.group.allows(*member, *generation) {
            self.cluster.broker.coverage.refused_by_group += 1;
            return self.answer("commit_offsets", Err(OffsetsError::GroupMoved(ClientError::new(why))));
        }
        commits.iter().for_each(|commit| self.cluster.broker.store(commit.clone()));
        self.cluster.broker.checker.compare();
        self.cluster.broker.coverage.commits += 1;
        if self.dies(true) {
            return unanswered("the process has crashed");
        }
        if self.cluster.fault_occurs(disconnect / 2) {
            self.cluster.broker.coverage.unknown_applied += 1;
            return self.answer("commit_offsets", unanswered("applied, not answered"));
        }
        self.answer("commit_offsets", Ok(true))
    }

    /// Notes that the producer took an output.
    pub(super) fn note_sent(&mut self, record: Record, log: usize) {
        if !self.cluster.exactly_once
            && let Some(broken) = self.client.sent[record.partition as usize].sent(record, log != DEAD_LETTER)
        {
            self.cluster.broker.checker.breaks(|| broken);
        }
    }

    /// Notes that a batch was acknowledged.
    pub(super) fn note_arrived(&mut self, batch: &[(usize, Record, usize)]) {
        for (_, record, _) in batch {
            self.client.sent[record.partition as usize].arrived(record.offset);
        }
    }
}
