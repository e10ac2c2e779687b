//! Commits of offsets and maps: requests, answers, errors.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::client::{Client, ClientContext};
use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::ffi::{CommitReply, GroupMetadata, ReplyQueue};
use crate::record::SourceIndex;
use crate::topics::{SourcePartition, Topics};

/// The longest time that one commit blocks.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(15);
/// The interval at which a waiting commit asks its caller whether to go on.
const COMMIT_POLL_INTERVAL: Duration = Duration::from_millis(100);
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
    #[error("an earlier commit is still unanswered")]
    EarlierUnanswered,
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

/// Offsets to commit in a transaction, with the membership that fences them.
#[derive(Clone)]
pub struct Offsets(Arc<OffsetsInner>);

struct OffsetsInner {
    lists: Vec<TopicPartitionList>,
    group: GroupMetadata,
}

impl Offsets {
    pub(super) fn new(commits: &[PartitionCommit], topics: &Topics, group: GroupMetadata) -> Offsets {
        Offsets(Arc::new(OffsetsInner { lists: lists(commits, topics), group }))
    }

    /// Returns lists of a size that a broker accepts in one request.
    pub(crate) fn lists(&self) -> &[TopicPartitionList] {
        &self.0.lists
    }

    pub(crate) fn group(&self) -> &GroupMetadata {
        &self.0.group
    }
}

/// Sends commits and waits for their answers. To be dropped before its client.
pub(super) struct CommitRequests {
    replies: ReplyQueue,
    /// Commits that were not answered in time; their answers arrive first.
    unanswered: Cell<usize>,
}

impl CommitRequests {
    pub fn new<C: ClientContext>(client: &Client<C>) -> CommitRequests {
        CommitRequests { replies: ReplyQueue::new(client), unanswered: Cell::new(0) }
    }

    /// Commits in as many requests as it takes, in order. After an error, earlier requests may have succeeded.
    pub fn send<C: ClientContext>(
        &self,
        client: &Client<C>,
        commits: &[PartitionCommit],
        topics: &Topics,
        go_on: &mut impl FnMut() -> bool,
    ) -> Result<(), CommitError> {
        let deadline = Instant::now() + COMMIT_TIMEOUT;
        // A late answer means a late commit, which could overwrite this one.
        while self.unanswered.get() > 0 {
            self.next_reply(deadline, go_on).ok_or(CommitError::Retriable(CommitFailure::EarlierUnanswered))?;
        }
        for list in lists(commits, topics) {
            let started = self.replies.start_commit(client, &list);
            started.map_err(|code| CommitError::of(code, CommitFailure::Request { code }))?;
            self.unanswered.set(self.unanswered.get() + 1);
            let reply = self.next_reply(deadline, go_on);
            check(reply.ok_or(CommitError::Retriable(CommitFailure::Unanswered))?)?;
        }
        Ok(())
    }

    fn next_reply(&self, deadline: Instant, go_on: &mut impl FnMut() -> bool) -> Option<CommitReply> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if let Some(reply) = self.replies.next(left.min(COMMIT_POLL_INTERVAL)) {
                self.unanswered.set(self.unanswered.get() - 1);
                return Some(reply);
            }
            if left.is_zero() || !go_on() {
                return None;
            }
        }
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
