//! Commits of offsets and maps: requests, answers, errors.

use std::time::{Duration, Instant};
use std::{cell::Cell, sync::Arc};

use rdkafka::client::{Client, ClientContext};
use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::ffi::{CommitReply, GroupMetadata, ReplyQueue};
use crate::record::SourceIndex;
use crate::topics::{SourcePartition, Topics};

/// The longest wait for the answer to a commit.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(15);
/// The bytes of one request. A broker refused 1 MiB of metadata in one commit.
pub(super) const MAX_REQUEST_BYTES: usize = 768 * 1024;
/// The bytes of a partition in a request besides its topic's name and its metadata, generously.
const PARTITION_BYTES: usize = 64;

/// The offset and map to commit for a partition.
#[derive(Debug, Clone)]
pub struct PartitionCommit {
    pub source: SourceIndex,
    pub partition: i32,
    /// The first offset that is not completed.
    pub offset: i64,
    /// The map of offsets completed beyond it.
    pub metadata: String,
}

impl PartitionCommit {
    pub(super) fn address(&self) -> SourcePartition {
        (self.source, self.partition)
    }
}

/// An error of a commit, by what the caller can do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// A retry may succeed; this commit may have succeeded, too.
    #[error(transparent)]
    Retriable(CommitFailure),
    /// The group moved on: poll, then commit the partitions that are still assigned.
    #[error(transparent)]
    Lost(CommitFailure),
    /// A retry will never succeed.
    #[error(transparent)]
    Fatal(CommitFailure),
}

/// The cause of a [`CommitError`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommitFailure {
    #[error("{topic}-{partition} at {offset}: {code}{}", advice(*.code))]
    Partition { topic: String, partition: i32, offset: i64, code: Code },
    #[error("the commit: {code}{}", advice(*.code))]
    Request { code: Code },
    #[error("no answer to the commit yet")]
    Unanswered,
    #[error("not a member of the group at the moment")]
    NotMember,
    #[error("{topic}-{partition}: not assigned to this instance")]
    NotAssigned { topic: String, partition: i32 },
}

fn advice(code: Code) -> &'static str {
    match code {
        Code::OffsetMetadataTooLarge => " (lower kafka.map_budget, or give it in bytes)",
        Code::GroupAuthorizationFailed => " (the group needs the READ permission)",
        Code::TopicAuthorizationFailed => " (the source topic needs the READ permission)",
        _ => "",
    }
}

impl CommitError {
    fn of(code: Code, failure: CommitFailure) -> CommitError {
        match code {
            Code::IllegalGeneration
            | Code::UnknownMemberId
            | Code::AssignmentLost
            | Code::RebalanceInProgress
            | Code::StaleMemberEpoch
            | Code::FencedMemberEpoch => CommitError::Lost(failure),
            Code::OffsetMetadataTooLarge
            | Code::GroupAuthorizationFailed
            | Code::TopicAuthorizationFailed
            | Code::InvalidCommitOffsetSize
            | Code::InvalidGroupId
            | Code::FencedInstanceId
            | Code::Fatal => CommitError::Fatal(failure),
            _ => CommitError::Retriable(failure),
        }
    }
}

/// Offsets with their maps, ready to be committed, and the membership that fences them in a transaction.
#[derive(Clone)]
pub struct Offsets(Arc<OffsetsInner>);

struct OffsetsInner {
    lists: Vec<TopicPartitionList>,
    partitions: Vec<SourcePartition>,
    group: GroupMetadata,
}

impl Offsets {
    pub(super) fn new(commits: &[PartitionCommit], topics: &Topics, group: GroupMetadata) -> Offsets {
        let partitions = commits.iter().map(PartitionCommit::address).collect();
        Offsets(Arc::new(OffsetsInner { lists: lists(commits, topics), partitions, group }))
    }

    /// Returns lists of a size that a broker accepts in one request.
    pub(crate) fn lists(&self) -> &[TopicPartitionList] {
        &self.0.lists
    }

    pub(super) fn partitions(&self) -> &[SourcePartition] {
        &self.0.partitions
    }

    pub(crate) fn group(&self) -> &GroupMetadata {
        &self.0.group
    }
}

/// Sends commits and waits for their answers. To be dropped before its client.
pub(super) struct CommitRequests {
    replies: ReplyQueue,
    /// True while a request has no answer.
    unanswered: Cell<bool>,
    /// The deadline of the commit that is under way, and the number of its requests that were sent.
    under_way: Cell<Option<(Instant, usize)>>,
}

impl CommitRequests {
    pub fn new<C: ClientContext>(client: &Client<C>) -> CommitRequests {
        CommitRequests { replies: ReplyQueue::new(client), unanswered: Cell::default(), under_way: Cell::default() }
    }

    /// Commits in as many requests as it takes, in order, or continues the commit that is under way. Returns false if
    /// `wait` passes before the last answer; after 15 s in all, the commit fails as retriable. After an error, earlier
    /// requests may have succeeded. Before each request, `check_ownership` tells whether it may be sent.
    pub fn advance<C: ClientContext>(
        &self, client: &Client<C>, lists: &[TopicPartitionList], wait: Duration,
        check_ownership: impl Fn() -> Result<(), CommitError>,
    ) -> Result<bool, CommitError> {
        let now = Instant::now();
        let (deadline, mut sent) = self.under_way.take().unwrap_or((now + COMMIT_TIMEOUT, 0));
        let until = deadline.min(now + wait);
        // The answer to an abandoned commit comes first: the broker could otherwise apply that commit after this one.
        while self.unanswered.get() || sent < lists.len() {
            if !self.unanswered.get() {
                check_ownership()?;
                let started = self.replies.start_commit(client, &lists[sent]);
                started.map_err(|code| CommitError::of(code, CommitFailure::Request { code }))?;
                self.unanswered.set(true);
                sent += 1;
            }
            let Some(reply) = self.replies.next(until.saturating_duration_since(Instant::now())) else {
                if Instant::now() >= deadline {
                    return Err(CommitError::Retriable(CommitFailure::Unanswered));
                }
                self.under_way.set(Some((deadline, sent)));
                return Ok(false);
            };
            self.unanswered.set(false);
            if sent > 0 {
                check(reply)?;
            }
        }
        Ok(true)
    }
}

fn check(reply: CommitReply) -> Result<(), CommitError> {
    for entry in reply.entries {
        if entry.error != Code::NoError {
            let (topic, partition, offset, code) = (entry.topic, entry.partition, entry.offset, entry.error);
            return Err(CommitError::of(code, CommitFailure::Partition { topic, partition, offset, code }));
        }
    }
    match reply.error {
        Code::NoError => Ok(()),
        code => Err(CommitError::of(code, CommitFailure::Request { code })),
    }
}

/// Makes a list for each request.
fn lists(commits: &[PartitionCommit], topics: &Topics) -> Vec<TopicPartitionList> {
    requests(commits, topics).into_iter().map(|request| list(request, topics)).collect()
}

fn list(commits: &[PartitionCommit], topics: &Topics) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(commits.len());
    for commit in commits {
        let mut element = list.add_partition(topics.name(commit.source), commit.partition);
        element.set_offset(Offset::Offset(commit.offset)).expect("an offset is never negative");
        // Once for each element: a second call leaks the first text.
        element.set_metadata(&commit.metadata);
    }
    list
}

/// Splits commits into requests that a broker accepts.
pub(super) fn requests<'a>(commits: &'a [PartitionCommit], topics: &Topics) -> Vec<&'a [PartitionCommit]> {
    let mut requests = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (index, commit) in commits.iter().enumerate() {
        let size = commit.metadata.len() + topics.name(commit.source).len() + PARTITION_BYTES;
        if index > start && bytes + size > MAX_REQUEST_BYTES {
            requests.push(&commits[start..index]);
            (start, bytes) = (index, 0);
        }
        bytes += size;
    }
    if start < commits.len() {
        requests.push(&commits[start..]);
    }
    requests
}
