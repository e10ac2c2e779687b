//! Offsets of a service's sources that one consumer group takes over from another, while neither has members.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::Message as _;
use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};
use watermaster_core::delivery::{Commit, OffsetsError};
use watermaster_core::offset_runs::OffsetRuns;
use watermaster_settings::Kafka;

use crate::ask::{AskError, Asker};
use crate::assign::LEADERLESS;
use crate::client::KafkaError;
use crate::consumer::{CommitRequests, lists};
use crate::dead_letters::Reader;
use crate::topics::{SourcePartition, Topics, all_partitions};
use crate::{assign, ffi, producer::transaction_timeout};

/// The time after which the brokers have ended a transaction that has timed out.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_TIMEOUT: Duration = Duration::from_millis(100);
const COMMIT_TIMEOUT: Duration = Duration::from_secs(15);

/// The offsets can't be read or handed over.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error("{0}")]
    Failed(String),
}

impl From<ClientError> for HandoverError {
    fn from(error: ClientError) -> HandoverError {
        AskError::from(KafkaError::from(error)).into()
    }
}

/// The source partitions of a service, as a client sees them that may commit for one group. It joins no group. Its
/// questions fail as those of an [`Asker`].
pub struct Handover {
    asker: Arc<Asker>,
    group: String,
    topics: Topics,
    partitions: Vec<SourcePartition>,
    timeout: Duration,
    pending_timeout: Duration,
}

impl Handover {
    /// Makes a client that may commit offsets of these topics for `group`. Each answer may take `timeout`.
    pub fn open(kafka: &Kafka, group: &str, topics: &[&str], timeout: Duration) -> Result<Handover, HandoverError> {
        let asker = Arc::new(Asker::new(kafka, group).map_err(AskError::from)?);
        let counts = topics.iter().map(|topic| asker.partitions(topic, timeout)).collect::<Result<Vec<_>, _>>()?;
        let (group, topics) = (group.to_owned(), Topics::new(topics.iter().copied()));
        let pending_timeout = transaction_timeout(kafka) + CLEANUP_TIMEOUT;
        Ok(Handover { asker, group, topics, partitions: all_partitions(counts), timeout, pending_timeout })
    }

    /// Returns all partitions of the topics, each with its topic's name.
    pub fn partitions(&self) -> impl Iterator<Item = (SourcePartition, &str)> {
        self.partitions.iter().map(|at| (*at, self.topics.name(at.0)))
    }

    /// Returns the members of a group, each as its client's id and host.
    pub fn members(&self, group: &str) -> Result<Vec<String>, HandoverError> {
        let members = ffi::members_of(self.asker.consumer.client(), group, self.timeout);
        members.map_err(|code| HandoverError::Failed(format!("consumer group {group}: {code}: grant DESCRIBE on it")))
    }

    /// Returns the committed offsets and metadata of a group. If a transaction with some is open, waits until it has
    /// ended: an instance that was killed leaves it open for `transaction.timeout.ms` and some seconds.
    ///
    /// # Errors
    /// A transaction does not end, or the group's coordinator does not answer in time, or refuses.
    pub fn committed(&self, group: &str) -> Result<BTreeMap<SourcePartition, (i64, Vec<u8>)>, HandoverError> {
        let committed = self.asker.committed(group, &self.topics, &self.partitions, true, self.pending_timeout);
        committed.map_err(|error| match error {
            AskError::Client(KafkaError::Client(ClientError::OffsetFetch(Code::UnstableOffsetCommit))) => {
                let waited = self.pending_timeout.as_secs();
                let problem = format!("a transaction with its offsets is still open after {waited} s");
                HandoverError::Failed(format!("consumer group {group}: {problem}"))
            }
            other => other.into(),
        })
    }

    /// Returns the first offset of each partition and the end of its stable records.
    pub fn bounds(&self) -> Result<BTreeMap<SourcePartition, (i64, i64)>, HandoverError> {
        let deadline = Instant::now() + self.timeout;
        let bounds = assign::watermarks(&self.asker.consumer, &self.topics, &self.partitions, LEADERLESS, deadline)?;
        Ok(bounds.into_iter().collect())
    }

    /// Counts the records in these runs of a partition: other offsets in them hold markers of transactions, or records
    /// that were aborted or compacted away.
    pub fn count(&self, at: SourcePartition, runs: &OffsetRuns) -> Result<u64, HandoverError> {
        let (Some(first), Some(last)) = (runs.iter().next(), runs.iter().last()) else { return Ok(0) };
        let topic = self.topics.name(at.0);
        let mut reader = Reader::of(Arc::clone(&self.asker), &self.group, topic, self.timeout)?;
        reader.start(&[(at.1, first.start..last.end)].into()).map_err(AskError::from)?;
        let (mut count, mut heard) = (0, Instant::now());
        while !reader.is_done() {
            if let Some(is_in_run) = reader.next_with(POLL_TIMEOUT, |record| runs.contains(record.offset()))? {
                (count, heard) = (count + u64::from(is_in_run), Instant::now());
            } else if !reader.is_done() && heard.elapsed() > self.timeout {
                let problem = format!("{topic}-{} is not read to offset {} in time", at.1, last.end);
                return Err(HandoverError::Failed(problem));
            }
        }
        Ok(count)
    }

    /// Commits offsets with their metadata for the client's group. A group with members takes none.
    ///
    /// # Errors
    /// The group refuses. If there is no answer, or offsets need several requests, some may be committed.
    pub fn commit(&self, commits: &[(SourcePartition, Commit)]) -> Result<(), HandoverError> {
        #[cfg(feature = "failpoints")]
        crate::failpoint::reach("handover_before_commit");
        let done = self.send(&commits.iter().map(|(at, commit)| (*at, commit)).collect::<Vec<_>>());
        #[cfg(feature = "failpoints")]
        crate::failpoint::reach("handover_after_commit");
        done.map_err(|error| self.not_taken(&error))
    }

    /// Asks whether the client's group would take offsets, and changes none: brokers look at permissions first, and
    /// then find no partition with this number.
    ///
    /// # Errors
    /// A permission is missing.
    pub fn check_commit(&self) -> Result<(), HandoverError> {
        let nowhere = Commit { partition: 0, offset: 0, metadata: String::new() };
        let sources: BTreeSet<_> = self.partitions.iter().map(|at| at.0).collect();
        let commits: Vec<_> = sources.into_iter().map(|source| ((source, i32::MAX), &nowhere)).collect();
        match self.send(&commits) {
            Err(error @ OffsetsError::Refused(_)) => Err(self.not_taken(&error)),
            _ => Ok(()),
        }
    }

    fn not_taken(&self, error: &OffsetsError) -> HandoverError {
        HandoverError::Failed(format!("consumer group {} takes no offsets: {error}", self.group))
    }

    fn send(&self, commits: &[(SourcePartition, &Commit)]) -> Result<(), OffsetsError> {
        let (client, lists) = (self.asker.consumer.client(), lists(commits, &self.topics));
        let requests = CommitRequests::new(client);
        while !requests.advance(client, &lists, COMMIT_TIMEOUT, || Ok(()))? {}
        Ok(())
    }

    /// Returns the offsets of a topic that `group` has not committed; `None` if it has committed none.
    pub fn lag(&self, group: &str, topic: &str) -> Result<Option<u64>, AskError> {
        self.asker.lag(group, topic, self.timeout)
    }
}
