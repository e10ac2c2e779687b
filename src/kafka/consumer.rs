//! Where records come from.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};
use rdkafka::message::BorrowedMessage;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use watermaster_core::map::{DecodeError, Map};

use super::assign::{self, Rules, Topics};
use super::client::{self, KafkaError};
use super::ffi::{self, ReplyQueue};
use super::membership::Membership;
use super::record::{Record, SourceIndex};
use super::tail::Tails;
use crate::failpoint::{Fault, planted};
use crate::settings::{self, GroupProtocol, OnForeignOffset};

pub use super::assign::{Committed, SourcePartition};
pub use super::tail::Holes;

/// The longest wait for the answer to a commit.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(15);
/// A broker refused 1 MiB of metadata in one commit.
const COMMIT_BYTES: usize = 768 * 1024;

/// What the user may change in a classic group; in others the brokers have it, and librdkafka refuses it.
const CLASSIC_DEFAULTS: &[(&str, &str)] = &[
    // A dead instance's partitions move after this; the default is 45 s.
    ("session.timeout.ms", "10000"),
    ("heartbeat.interval.ms", "3000"),
];

/// What a classic group allows its members for a rebalance, and librdkafka's default of it.
const MAX_POLL_INTERVAL: (&str, &str) = ("max.poll.interval.ms", "300000");
/// A coordinator that moved is found again within some seconds.
const JOIN_GRACE: Duration = Duration::from_secs(20);

/// What the user may change.
const DEFAULTS: &[(&str, &str)] = &[
    // How long fetching rests once the queue below is full; the default stalls for a second.
    ("fetch.queue.backoff.ms", "10"),
    ("fetch.wait.max.ms", "100"),
    // What is fetched ahead, over all partitions together: at most this much, and one fetch from each broker on its way.
    // librdkafka counts values only, keys and headers not; the number of records bounds these.
    ("queued.max.messages.kbytes", "16384"),
    ("queued.min.messages", "20000"),
    ("fetch.max.bytes", "16777216"),
];

/// What the protocol owns.
const OWNED: &[(&str, &str)] = &[
    // Also makes committed offsets wait for pending transactions.
    ("isolation.level", "read_committed"),
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    // Where to start is decided here, never by a default.
    ("auto.offset.reset", "error"),
    ("allow.auto.create.topics", "false"),
    // It would be an error each time that a partition is read to its end.
    ("enable.partition.eof", "false"),
];

/// What happened.
#[derive(Debug)]
pub enum Event<'c> {
    /// Nothing for the caller.
    Idle,
    /// These are ours, and will be read from their `base` on.
    Assigned(Vec<Assignment>),
    /// These are not ours any more; if `lost`, they may be somebody else's already.
    Revoked { partitions: Vec<SourcePartition>, lost: bool },
    /// A record was read.
    Record(Record<'c>),
    /// A committed offset is not ours (`on_foreign_offset = "stop"`): the service has to stop.
    Refused(ForeignOffset),
    /// Records were deleted before they were read (`on_data_loss = "continue"`): reading goes on at `to`.
    Skipped { source: SourceIndex, partition: i32, from: i64, to: i64 },
    /// Nothing can be reached.
    Down(String),
    /// The connection to one broker broke: what it leads is not read until it is back or another leads.
    BrokerLost(String),
    /// Brokers can be reached again.
    Up,
    /// The service has to stop; the text says what to do.
    Fatal(String),
}

/// A partition that became ours.
#[derive(Debug, Clone)]
pub struct Assignment {
    pub source: SourceIndex,
    pub partition: i32,
    /// The first offset that is read.
    pub base: i64,
    /// What is completed beyond it.
    pub map: Map,
    /// The first offset that exists.
    pub low: i64,
    /// The offset after the last (stable) record.
    pub high: i64,
    /// Records that were deleted before they were read.
    pub lost: u64,
    /// `base` is not what is committed: commit it before the first record.
    pub commit_first: bool,
}

/// An offset that somebody else committed.
#[derive(Debug, Clone)]
pub struct ForeignOffset {
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    pub why: DecodeError,
}

/// What to commit for a partition.
#[derive(Debug, Clone)]
pub struct PartitionCommit {
    pub source: SourceIndex,
    pub partition: i32,
    /// The first offset that is not completed.
    pub offset: i64,
    /// The map of what is completed beyond it.
    pub metadata: String,
}

/// Why a commit failed. The texts name topic and partition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// The same again may succeed; whether this one did is unknown.
    #[error("{0}")]
    Retriable(String),
    /// The group moved on: poll, then commit what is still ours.
    #[error("{0}")]
    Lost(String),
    /// It will never succeed.
    #[error("{0}")]
    Fatal(String),
}

/// Offsets that are ready to be committed.
#[derive(Clone)]
pub struct Offsets(pub(super) Arc<OffsetsInner>);

pub(super) struct OffsetsInner {
    /// Each as long as a broker takes at once.
    pub lists: Vec<TopicPartitionList>,
    pub partitions: Vec<SourcePartition>,
    pub group: ffi::GroupMetadata,
}

/// The one consumer of a service. Its group is `<group_id>.<service>`.
pub struct Consumer {
    /// Before its client.
    replies: ReplyQueue,
    /// Commits that were not answered in time; their answers come first.
    unanswered: Cell<usize>,
    /// The deadline of the commit that is under way, and the number of its requests that were sent.
    committing: Cell<Option<(Instant, usize)>>,
    paused: RefCell<BTreeSet<SourcePartition>>,
    last_source: Cell<SourceIndex>,
    tails: RefCell<Tails>,
    topics: Arc<Topics>,
    base: BaseConsumer<Membership>,
}

impl Consumer {
    /// Joins the group of the service, to read all its sources. Contacts nobody before [`poll`](Consumer::poll).
    ///
    /// `accept_foreign_offsets`: take any committed offset as it is, nothing beyond it counting as completed.
    pub fn new(
        kafka: &settings::Kafka,
        service: &settings::Service,
        accept_foreign_offsets: bool,
    ) -> Result<Consumer, KafkaError> {
        let mut config = match kafka.group_protocol {
            GroupProtocol::Classic => {
                let mut config = client::config(kafka, &[CLASSIC_DEFAULTS, DEFAULTS].concat(), OWNED);
                config.set("partition.assignment.strategy", "cooperative-sticky");
                config
            }
            GroupProtocol::Consumer => {
                let mut config = client::config(kafka, DEFAULTS, OWNED);
                config.set("group.protocol", "consumer");
                config
            }
        };
        config.set("group.id", group_id(kafka, service));
        if planted(Fault::ReadUncommitted) {
            config.set("isolation.level", "read_uncommitted");
        }
        let rules = Rules {
            start_from: kafka.start_from,
            on_foreign_offset: if accept_foreign_offsets { OnForeignOffset::Replay } else { kafka.on_foreign_offset },
            on_data_loss: kafka.on_data_loss,
        };
        let topics = Topics::new(service.sources.iter().map(|source| source.topic.as_str()));
        let topics = Arc::new(topics.map_err(|error| {
            KafkaError::Client(format!("service {}: a source topic's name: {error}", service.name))
        })?);
        let membership = Membership::new(&service.name, &group_id(kafka, service), Arc::clone(&topics), rules);
        let base: BaseConsumer<Membership> = config.create_with_context(membership)?;
        base.subscribe(&topics.names())?;
        Ok(Consumer {
            replies: ReplyQueue::new(base.client()),
            unanswered: Cell::new(0),
            committing: Cell::default(),
            paused: RefCell::default(),
            last_source: Cell::new(SourceIndex(0)),
            tails: RefCell::new(Tails::new(config, Arc::clone(&topics))),
            topics,
            base,
        })
    }

    /// The next thing that happened, in order: an assignment or revocation comes before any record polled after it.
    ///
    /// Blocks for `timeout`, or, while partitions are being assigned or brokers are away, for some seconds.
    pub fn poll(&self, timeout: Duration) -> Event<'_> {
        let membership = self.base.context();
        if membership.is_busy() {
            membership.tend(&self.base, &self.paused.borrow());
            if let Some(event) = self.next_event() {
                return event;
            }
        }
        // Errors have gone through the context by the time they are returned.
        if let Some(Ok(message)) = self.base.poll(timeout)
            && let Some(source) = self.source(&message)
        {
            return Event::Record(Record { message, source });
        }
        self.next_event().unwrap_or(Event::Idle)
    }

    fn next_event(&self) -> Option<Event<'static>> {
        let event = self.base.context().next_event()?;
        if let Event::Revoked { partitions, .. } = &event {
            let mut paused = self.paused.borrow_mut();
            for partition in partitions {
                paused.remove(partition);
            }
        }
        Some(event)
    }

    /// Records come in runs of one topic.
    fn source(&self, message: &BorrowedMessage<'_>) -> Option<SourceIndex> {
        if ffi::topic_name(message) != self.topics.c_name(self.last_source.get()).as_c_str() {
            self.last_source.set(self.topics.find(message.topic())?);
        }
        Some(self.last_source.get())
    }

    /// Prepares offsets with their maps for a commit, together with this consumer's identity in its group by now. If the group
    /// moves on before they are committed, the broker refuses them.
    pub fn offsets(&self, commits: &[PartitionCommit]) -> Result<Offsets, CommitError> {
        let partitions: Vec<_> = commits.iter().map(|commit| (commit.source, commit.partition)).collect();
        self.still_ours(&partitions)?;
        let group = ffi::GroupMetadata::of(self.base.client())
            .ok_or_else(|| CommitError::Lost("not a member of the group at the moment".to_owned()))?;
        let lists = requests(commits, &self.topics).into_iter().map(|request| self.commit_list(request)).collect();
        Ok(Offsets(Arc::new(OffsetsInner { lists, partitions, group })))
    }

    /// Commits offsets, or goes on with the commit that is under way. Returns false if `wait` is over before the answer;
    /// after 15 s in all, the commit fails as retriable.
    ///
    /// A long list takes several requests, in order; after an error those before it may have succeeded.
    pub fn commit_offsets(&self, offsets: &Offsets, wait: Duration) -> Result<bool, CommitError> {
        let now = Instant::now();
        let (deadline, mut sent) = self.committing.take().unwrap_or((now + COMMIT_TIMEOUT, 0));
        let until = deadline.min(now + wait);
        let Offsets(offsets) = offsets;
        // The answer to an abandoned commit comes first: the broker could otherwise apply that commit after this one.
        while self.unanswered.get() > 0 || sent < offsets.lists.len() {
            if self.unanswered.get() == 0 {
                self.still_ours(&offsets.partitions)?;
                let started = self.replies.start_commit(self.base.client(), &offsets.lists[sent]);
                started.map_err(|code| commit_error(code, "the commit"))?;
                self.unanswered.set(1);
                sent += 1;
            }
            let Some(reply) = self.replies.next(until.saturating_duration_since(Instant::now())) else {
                if Instant::now() >= deadline {
                    return Err(CommitError::Retriable("no answer to the commit yet".to_owned()));
                }
                self.committing.set(Some((deadline, sent)));
                return Ok(false);
            };
            self.unanswered.set(0);
            if sent > 0 {
                check(&reply)?;
            }
        }
        self.base.context().reached();
        Ok(true)
    }

    fn commit_list(&self, commits: &[PartitionCommit]) -> TopicPartitionList {
        let mut list = TopicPartitionList::with_capacity(commits.len());
        for commit in commits {
            let mut element = list.add_partition(self.topics.name(commit.source), commit.partition);
            element.set_offset(Offset::Offset(commit.offset)).expect("an offset is never negative");
            // Once an element: a second call leaks the first text.
            element.set_metadata(&commit.metadata);
        }
        list
    }

    /// A broker takes the commit of a client that is no member as long as the group is empty: it could undo what the
    /// partition's next owner did.
    fn still_ours(&self, partitions: &[SourcePartition]) -> Result<(), CommitError> {
        let name = |(source, partition): &SourcePartition| format!("{}-{partition}", self.topics.name(*source));
        if self.base.assignment_lost() || !ffi::is_member(self.base.client()) {
            let first = partitions.first().map_or_else(String::new, name);
            return Err(CommitError::Lost(format!("{first}: not a member of the group at the moment")));
        }
        let membership = self.base.context();
        match partitions.iter().find(|partition| !membership.owns(**partition)) {
            // Who keeps what was revoked believes that it is still the owner.
            Some(_) if planted(Fault::NoPurgeOnRevoke) => Ok(()),
            Some(other) => Err(CommitError::Lost(format!("{}: not assigned to this instance", name(other)))),
            None => Ok(()),
        }
    }

    /// Whether the group has this consumer, as far as it knows. Not for the hot path: librdkafka's own thread answers.
    pub fn belongs(&self) -> bool {
        let me = ffi::GroupMetadata::of(self.base.client());
        // One that was expelled keeps its old generation until it joins again.
        let expelled = self.base.context().expelled_from();
        !self.base.assignment_lost() && me.is_some_and(|me| Some(me.generation()) != expelled)
    }

    /// What the group has committed, metadata as it is. Pending transactions are waited for.
    pub fn committed(
        &self,
        partitions: &[SourcePartition],
        timeout: Duration,
    ) -> Result<Vec<(SourcePartition, Committed)>, KafkaError> {
        Ok(assign::committed(&self.base, &self.topics, partitions, timeout)?)
    }

    /// The first offset, and the one after the last stable record, as the broker says.
    pub fn watermarks(&self, source: SourceIndex, partition: i32, timeout: Duration) -> Result<(i64, i64), KafkaError> {
        Ok(self.base.fetch_watermarks(self.topics.name(source), partition, timeout)?)
    }

    /// The offset after the last stable record of each partition that a broker answers for in time.
    pub fn highs(&self, partitions: &[SourcePartition], timeout: Duration) -> HashMap<SourcePartition, i64> {
        assign::highs(&self.base, &self.topics, partitions, timeout)
    }

    /// The high watermark that the last fetch brought, without asking. Where transactions are open it lies
    /// beyond what can be read; only [`watermarks`](Consumer::watermarks) tells.
    pub fn cached_high(&self, source: SourceIndex, partition: i32) -> Option<i64> {
        ffi::cached_watermarks(self.base.client(), self.topics.c_name(source), partition).map(|(_, high)| high)
    }

    /// Begins to find out whether any record lies behind these offsets; [`holes`](Consumer::holes) tells later.
    pub fn look_behind(&self, offsets: Vec<(SourcePartition, i64)>) {
        self.tails.borrow_mut().look(offsets);
    }

    /// Offsets that hold no record, as far as was found out since the last call. What was found out of range is dealt with
    /// by [`poll`](Consumer::poll).
    pub fn holes(&self) -> Vec<Holes> {
        let found = self.tails.borrow_mut().found();
        if found.out_of_range {
            self.base.context().suspect_positions();
        }
        found.holes
    }

    /// Nothing is left to be read before this offset, though no record says so: only holes came last.
    pub fn passed(&self, partition: SourcePartition, offset: i64) {
        self.base.context().move_to(partition, offset);
    }

    /// Stops reading these. What was fetched of them is fetched again later: not for frequent use.
    pub fn pause(&self, partitions: &[SourcePartition]) -> Result<(), KafkaError> {
        self.paused.borrow_mut().extend(partitions);
        Ok(self.base.pause(&self.list(partitions))?)
    }

    /// Reads these again.
    pub fn resume(&self, partitions: &[SourcePartition]) -> Result<(), KafkaError> {
        for partition in partitions {
            self.paused.borrow_mut().remove(partition);
        }
        Ok(self.base.resume(&self.list(partitions))?)
    }

    /// Goes on reading at another offset; records polled before are the caller's to drop.
    pub fn seek(&self, source: SourceIndex, partition: i32, offset: i64, timeout: Duration) -> Result<(), KafkaError> {
        let list = self.topics.list([((source, partition), Offset::Offset(offset))]);
        let list = self.base.seek_partitions(list, timeout)?;
        match ffi::entries(&list).first() {
            Some(entry) if entry.error != Code::NoError => Err(ClientError::OffsetFetch(entry.error).into()),
            _ => {
                self.base.context().move_to((source, partition), offset);
                Ok(())
            }
        }
    }

    /// Leaves the group, so that others need not wait for the session to time out. False if it took longer than
    /// `timeout`; it goes on leaving in the background then.
    pub fn close(self, timeout: Duration) -> bool {
        let (done, closed) = mpsc::channel();
        // Dropping the client closes it, for as long as it takes.
        let closing = thread::Builder::new().name("kafka-close".to_owned()).spawn(move || {
            drop(self);
            done.send(())
        });
        closing.is_ok() && closed.recv_timeout(timeout).is_ok()
    }

    fn list(&self, partitions: &[SourcePartition]) -> TopicPartitionList {
        self.topics.list(partitions.iter().map(|partition| (*partition, Offset::Invalid)))
    }
}

/// How long joining the group takes at most where its coordinator answers, with time to spare.
pub fn joins_within(kafka: &settings::Kafka) -> Duration {
    let rebalance = match kafka.group_protocol {
        // Anybody is let in only when all members have given back what they have.
        GroupProtocol::Classic => client::time(kafka, MAX_POLL_INTERVAL),
        // The first heartbeat that is answered.
        GroupProtocol::Consumer => Duration::ZERO,
    };
    rebalance + JOIN_GRACE
}

/// The consumer group of a service.
pub fn group_id(kafka: &settings::Kafka, service: &settings::Service) -> String {
    format!("{}.{}", kafka.group_id, service.name)
}

/// Splits commits into requests that a broker takes.
fn requests<'a>(commits: &'a [PartitionCommit], topics: &Topics) -> Vec<&'a [PartitionCommit]> {
    let mut requests = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (index, commit) in commits.iter().enumerate() {
        let size = commit.metadata.len() + topics.name(commit.source).len() + 64;
        if index > start && bytes + size > COMMIT_BYTES {
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

fn check(reply: &ffi::CommitReply) -> Result<(), CommitError> {
    for entry in &reply.entries {
        if entry.error != Code::NoError {
            return Err(commit_error(entry.error, &format!("{}-{} at {}", entry.topic, entry.partition, entry.offset)));
        }
    }
    if reply.error == Code::NoError { Ok(()) } else { Err(commit_error(reply.error, "the commit")) }
}

fn commit_error(code: Code, what: &str) -> CommitError {
    let text = format!("{what}: {code}");
    match code {
        Code::IllegalGeneration
        | Code::UnknownMemberId
        | Code::AssignmentLost
        | Code::RebalanceInProgress
        | Code::StaleMemberEpoch
        | Code::FencedMemberEpoch => CommitError::Lost(text),
        Code::OffsetMetadataTooLarge => {
            CommitError::Fatal(format!("{text} (lower kafka.map_budget, or give it in bytes)"))
        }
        Code::GroupAuthorizationFailed => CommitError::Fatal(format!("{text} (the group needs the READ permission)")),
        Code::TopicAuthorizationFailed => {
            CommitError::Fatal(format!("{text} (the source topic needs the READ permission)"))
        }
        Code::InvalidCommitOffsetSize | Code::InvalidGroupId | Code::FencedInstanceId | Code::Fatal => {
            CommitError::Fatal(text)
        }
        _ => CommitError::Retriable(text),
    }
}

#[cfg(test)]
mod tests;
