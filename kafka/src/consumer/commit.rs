//! Commits of offsets and maps: requests, answers, errors.

use std::time::{Duration, Instant};
use std::{cell::Cell, fmt::Display, sync::Arc};

use rdkafka::client::{Client, ClientContext};
use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use watermaster_core::delivery::{ClientError, Commit, OffsetsError};

use crate::ffi::{CommitReply, GroupMetadata, ReplyQueue};
use crate::topics::{SourcePartition, Topics};

const COMMIT_TIMEOUT: Duration = Duration::from_secs(15);
/// The bytes of one request. A broker refused 1 MiB of metadata in one commit.
pub(super) const MAX_REQUEST_BYTES: usize = 768 * 1024;
/// The bytes of a partition in a request besides its topic's name and its metadata, generously.
const PARTITION_BYTES: usize = 64;

fn advice(code: Code) -> &'static str {
    match code {
        Code::OffsetMetadataTooLarge => " (lower kafka.map_budget, or give it in bytes)",
        Code::GroupAuthorizationFailed => " (the group needs the READ permission)",
        Code::TopicAuthorizationFailed => " (the source topic needs the READ permission)",
        _ => "",
    }
}

/// Says that the group moved on: after polling, the partitions that are still assigned can be committed.
pub(super) fn group_moved(text: &str) -> OffsetsError {
    OffsetsError::GroupMoved(ClientError::new(text))
}

/// The text for a consumer that is none of its group now.
pub(super) const NOT_MEMBER: &str = "not a member of the group at the moment";

/// Returns the error of a commit, or of a partition in it, for which a broker gave this code.
fn failed(subject: impl Display, code: Code) -> OffsetsError {
    let error = ClientError::new(format!("{subject}: {code}{}", advice(code)));
    match code {
        Code::IllegalGeneration
        | Code::UnknownMemberId
        | Code::AssignmentLost
        | Code::RebalanceInProgress
        | Code::StaleMemberEpoch
        | Code::FencedMemberEpoch => OffsetsError::GroupMoved(error),
        Code::OffsetMetadataTooLarge
        | Code::GroupAuthorizationFailed
        | Code::TopicAuthorizationFailed
        | Code::InvalidCommitOffsetSize
        | Code::InvalidGroupId
        | Code::FencedInstanceId
        | Code::Fatal => OffsetsError::Refused(error),
        _ => OffsetsError::Retriable(error),
    }
}

/// Offsets with their maps, ready to be committed, and the membership that fences them in a transaction.
#[derive(Clone)]
pub struct Offsets {
    /// Lists of a size that a broker accepts in one request.
    pub(crate) lists: Arc<[TopicPartitionList]>,
    pub(crate) group: Arc<GroupMetadata>,
    pub(super) partitions: Vec<SourcePartition>,
}

impl Offsets {
    pub(super) fn new(commits: &[(SourcePartition, &Commit)], topics: &Topics, group: GroupMetadata) -> Offsets {
        let partitions = commits.iter().map(|(partition, _)| *partition).collect();
        Offsets { lists: lists(commits, topics).into(), group: Arc::new(group), partitions }
    }

    /// Makes offsets of a group that nothing joins.
    pub(crate) fn of_group(list: TopicPartitionList, group: Arc<GroupMetadata>) -> Offsets {
        Offsets { lists: [list].into(), group, partitions: Vec::new() }
    }
}

/// Sends commits and waits for their answers. To be dropped before its client.
pub(crate) struct CommitRequests {
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
        check_ownership: impl Fn() -> Result<(), OffsetsError>,
    ) -> Result<bool, OffsetsError> {
        let now = Instant::now();
        let (deadline, mut sent) = self.under_way.take().unwrap_or((now + COMMIT_TIMEOUT, 0));
        let until = deadline.min(now + wait);
        // The answer to an abandoned commit comes first: the broker could otherwise apply that commit after this one.
        while self.unanswered.get() || sent < lists.len() {
            if !self.unanswered.get() {
                check_ownership()?;
                let started = self.replies.start_commit(client, &lists[sent]);
                started.map_err(|code| failed("the commit", code))?;
                self.unanswered.set(true);
                sent += 1;
            }
            let Some(reply) = self.replies.next(until.saturating_duration_since(Instant::now())) else {
                if Instant::now() >= deadline {
                    return Err(OffsetsError::Retriable(ClientError::new("no answer to the commit yet")));
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

fn check(reply: CommitReply) -> Result<(), OffsetsError> {
    if let Some(entry) = reply.entries.into_iter().find(|entry| entry.error != Code::NoError) {
        let (topic, partition, offset) = (entry.topic, entry.partition, entry.offset);
        return Err(failed(format_args!("{topic}-{partition} at {offset}"), entry.error));
    }
    match reply.error {
        Code::NoError => Ok(()),
        code => Err(failed("the commit", code)),
    }
}

/// Makes a list for each request, of a size that a broker accepts.
pub(crate) fn lists(commits: &[(SourcePartition, &Commit)], topics: &Topics) -> Vec<TopicPartitionList> {
    let mut lists: Vec<TopicPartitionList> = Vec::new();
    let mut bytes = 0;
    for ((source, partition), commit) in commits {
        let topic = topics.name(*source);
        let size = commit.metadata.len() + topic.len() + PARTITION_BYTES;
        bytes += size;
        if lists.is_empty() || bytes > MAX_REQUEST_BYTES {
            lists.push(TopicPartitionList::new());
            bytes = size;
        }
        let mut element = lists.last_mut().expect("a list was made").add_partition(topic, *partition);
        element.set_offset(Offset::Offset(commit.offset)).expect("an offset is never negative");
        // Once for each element: a second call leaks the first text.
        element.set_metadata(&commit.metadata);
    }
    lists
}
