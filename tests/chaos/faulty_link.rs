//! Deaths and mistakes on demand, for `scripts/chaos`: a decorator of the link, compiled with the feature `failpoints`
//! only.

use watermaster_core::delivery::{
    ClientError, Commit, Committed, Failure, Kafka, OffsetsError, Output, SendError, TransactionError,
};
use watermaster_core::offset_map::{self, MapBudget};
use watermaster_core::{offset_runs::OffsetRuns, tracker::Tracker, units::Time};

use super::link::Link;
use watermaster_kafka::failpoint::{Fault, planted, reach};
use watermaster_kafka::{consumer::Offsets, record::Record};

/// A link that makes the planted mistake, and dies at the step that it is told.
pub(super) struct FaultyLink<'a, 'c>(pub(super) &'a mut Link<'c>);

/// Makes a call between two places at which the process can be told to die; the second one is reached if the call
/// succeeded.
fn around<T, E>(before: &str, after: &str, call: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    reach(before);
    let answer = call()?;
    reach(after);
    Ok(answer)
}

/// Returns the commit with the planted mistake in its offset or its map.
fn damaged(commit: &Commit) -> Commit {
    let (mut base, mut commit) = (commit.offset, commit.clone());
    let Ok(mut map) = offset_map::decode(base, commit.metadata.as_bytes()) else { return commit };
    if planted(Fault::EmptyMap) {
        map.completed = OffsetRuns::new();
    } else if planted(Fault::OffsetOffByOne) && !map.completed.is_empty() {
        // An offset beyond the end of the log would be noticed at the next start.
        base += 1;
        map.completed = map.completed.iter().filter(|run| run.end > base).collect();
    } else {
        return commit;
    }
    let tracker = Tracker::restore(base, &map.completed);
    // One slice a second: the exact width matters to no test.
    commit.metadata =
        offset_map::encode(MapBudget::default(), &tracker, 1_000, &map.admitted, map.tag).unwrap_or_default();
    commit.offset = tracker.base();
    commit
}

impl Kafka<Record<'_>> for FaultyLink<'_, '_> {
    type Offsets = Offsets;

    fn offsets(&mut self, commits: &[Commit]) -> Result<Offsets, OffsetsError> {
        let commits: Vec<Commit> = commits.iter().map(damaged).collect();
        let offsets = self.0.offsets(&commits)?;
        if !planted(Fault::OffsetsOutsideTransaction) {
            return Ok(offsets);
        }
        while !self.0.commit_offsets(&offsets)? {}
        self.0.offsets(&[])
    }

    fn send(&mut self, output: &mut Output<Record<'_>>, tag: usize) -> Result<(), SendError> {
        match self.0.send(output, tag) {
            Err(_) if planted(Fault::IgnoredSendError) => Ok(()),
            sent => sent,
        }
    }

    fn flush(&mut self) -> bool {
        let landed = self.0.flush();
        if landed {
            reach("after_send");
        }
        landed
    }

    fn failures(&mut self) -> Vec<(usize, Failure)> {
        let failures = self.0.failures();
        if planted(Fault::IgnoredSendError) { Vec::new() } else { failures }
    }

    fn replace(&mut self) -> Result<(), ClientError> {
        self.0.replace()
    }

    fn fatal(&self) -> Option<ClientError> {
        self.0.fatal()
    }

    fn now(&self, step: Time) -> Time {
        self.0.now(step)
    }

    fn commit_offsets(&mut self, offsets: &Offsets) -> Result<bool, OffsetsError> {
        self.0.commit_offsets(offsets)
    }

    fn purge(&mut self) {
        self.0.purge();
    }

    fn init(&mut self) -> Result<(), TransactionError> {
        self.0.init()
    }

    fn begin(&mut self) -> Result<(), TransactionError> {
        around("before_begin", "after_begin", || self.0.begin())
    }

    fn send_offsets(&mut self, offsets: &Offsets) -> Result<bool, TransactionError> {
        reach("before_offsets");
        let answered = self.0.send_offsets(offsets)?;
        if answered {
            reach("after_offsets");
        }
        Ok(answered)
    }

    fn commit(&mut self) -> Result<(), TransactionError> {
        around("before_commit", "after_commit", || self.0.commit())
    }

    fn abort(&mut self) -> Result<(), TransactionError> {
        self.0.abort()
    }

    fn committed(&mut self, partitions: &[u32]) -> Result<Vec<Committed>, ClientError> {
        self.0.committed(partitions)
    }

    fn is_initialised(&self) -> bool {
        self.0.is_initialised()
    }

    fn in_transaction(&self) -> bool {
        self.0.in_transaction()
    }

    fn failing(&self) -> bool {
        self.0.failing()
    }

    fn tainted(&self) -> bool {
        self.0.tainted() && !planted(Fault::NoTaint)
    }
}
