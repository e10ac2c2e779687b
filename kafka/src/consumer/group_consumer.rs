//! The consumer: polls events and records, commits, pauses and resumes.

use std::cell::RefCell;
use std::time::{Duration, Instant};
use std::{collections::HashMap, sync::Arc, sync::mpsc, thread};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{ClientConfig, Message as _, error::KafkaError as ClientError};
use watermaster_core::delivery::{Commit, OffsetsError};
use watermaster_core::offset_map::{self, DecodeError, OffsetMap};
use watermaster_settings::{self as settings, OnForeignOffset};

use super::commit::{CommitRequests, NOT_MEMBER, Offsets, group_moved};
use super::config::{config, group_id};
use crate::assign::{self, Committed, StartRules};
use crate::client::{KafkaError, create};
use crate::end_probe::{EndProbe, Holes};
use crate::ffi::{self, GroupMetadata};
use crate::record::Record;
use crate::topics::{SourceIndex, SourcePartition, Topics};
use crate::{event::Event, login::Login, membership::Membership};

/// The one consumer of a service. Its group is `<group_id>.<service>`.
pub struct Consumer {
    /// Dropped before its client.
    commits: CommitRequests,
    end_probe: RefCell<EndProbe>,
    login: Login,
    pub(super) topics: Arc<Topics>,
    pub(super) base: BaseConsumer<Membership>,
}

impl Consumer {
    /// Makes a member of the service's group that reads these topics. No broker is contacted before
    /// [`poll`](Consumer::poll).
    ///
    /// With `accept_foreign_offsets`, reading starts at any committed offset, and nothing beyond it counts as
    /// completed.
    pub fn new(
        kafka: &settings::Kafka, service: &settings::Service, topics: &Arc<Topics>, accept_foreign_offsets: bool,
    ) -> Result<Consumer, KafkaError> {
        Consumer::with_config(config(kafka, service), kafka, service, topics, accept_foreign_offsets)
    }

    pub(super) fn with_config(
        config: ClientConfig, kafka: &settings::Kafka, service: &settings::Service, topics: &Arc<Topics>,
        accept_foreign_offsets: bool,
    ) -> Result<Consumer, KafkaError> {
        let rules = StartRules {
            start_from: kafka.start_from,
            on_foreign_offset: if accept_foreign_offsets { OnForeignOffset::Replay } else { kafka.on_foreign_offset },
            on_data_loss: kafka.on_data_loss,
        };
        let membership = Membership::new(&service.name, &group_id(kafka, service), Arc::clone(topics), rules);
        let login = Login::new(kafka);
        let base: BaseConsumer<Membership> = create(&config, membership, BaseConsumer::client)?;
        let consumer = Consumer {
            commits: CommitRequests::new(base.client()),
            end_probe: RefCell::new(EndProbe::new(config, kafka.secrets.clone(), Arc::clone(topics))),
            login,
            topics: Arc::clone(topics),
            base,
        };
        consumer.subscribe()?;
        Ok(consumer)
    }

    /// Asks the group for partitions of the topics that are to be read now. Partitions of other topics are revoked, in
    /// an event; those of the topics that stay are read on meanwhile.
    pub fn subscribe(&self) -> Result<(), KafkaError> {
        match self.topics.names().as_slice() {
            [] => self.base.unsubscribe(),
            names => self.base.subscribe(names)?,
        }
        Ok(())
    }

    /// Returns true if there is no topic to read: the consumer is in no group then.
    pub fn reads_nothing(&self) -> bool {
        self.topics.names().is_empty()
    }

    /// Takes a user and a password that were read again.
    pub fn renew_login(&self) {
        self.login.renew(self.base.client());
    }

    /// Returns true if secrets have changed that a living client does not take.
    pub fn has_old_secrets(&self) -> bool {
        self.login.is_outdated()
    }

    /// Returns the next event, in order: an assignment or revocation comes before any record polled after it.
    ///
    /// Blocks for `timeout`, or for some seconds while partitions are being assigned or brokers are away.
    pub fn poll(&self, timeout: Duration) -> Event<'_> {
        let membership = self.base.context();
        if membership.is_busy() {
            membership.poll_pending(&self.base);
            if let Some(event) = membership.next_event() {
                return event;
            }
        }
        // An error that is returned here has been reported to the context before.
        if let Some(Ok(message)) = self.base.poll(timeout)
            && let Some(source) = self.topics.find(message.topic())
        {
            return Event::Record(Record::new(message, source));
        }
        membership.next_event().unwrap_or(Event::Idle)
    }

    /// Prepares offsets with their maps for a commit, fenced by the current membership: if the group moves on before
    /// they are committed, the broker refuses them.
    pub fn offsets(&self, commits: &[(SourcePartition, &Commit)]) -> Result<Offsets, OffsetsError> {
        let group = self.group()?;
        let offsets = Offsets::new(commits, &self.topics, group);
        self.check_assignment(&offsets)?;
        Ok(offsets)
    }

    pub(super) fn group(&self) -> Result<GroupMetadata, OffsetsError> {
        GroupMetadata::of(self.base.client()).ok_or_else(|| group_moved(NOT_MEMBER))
    }

    /// Commits offsets, or continues the commit that is under way. Returns false if `wait` passes before the answer;
    /// after 15 s in all, the commit fails as retriable.
    ///
    /// A long list takes several requests, in order; after an error those before it may have succeeded.
    pub fn commit_offsets(&self, offsets: &Offsets, wait: Duration) -> Result<bool, OffsetsError> {
        self.commit_with(offsets, wait, || self.check_ownership(offsets))
    }

    pub(super) fn commit_with(
        &self, offsets: &Offsets, wait: Duration, check: impl Fn() -> Result<(), OffsetsError>,
    ) -> Result<bool, OffsetsError> {
        let committed = self.commits.advance(self.base.client(), &offsets.lists, wait, check)?;
        if committed {
            self.base.context().reached();
        }
        Ok(committed)
    }

    /// Checks that the partitions belong to this consumer. A broker accepts commits of a client that is no member as
    /// long as the group is empty: such a commit could undo one by the partition's next owner.
    pub(super) fn check_ownership(&self, offsets: &Offsets) -> Result<(), OffsetsError> {
        self.group()?;
        self.check_assignment(offsets)
    }

    pub(super) fn check_not_lost(&self) -> Result<(), OffsetsError> {
        if self.base.assignment_lost() { Err(group_moved(NOT_MEMBER)) } else { Ok(()) }
    }

    pub(super) fn check_assignment(&self, offsets: &Offsets) -> Result<(), OffsetsError> {
        self.check_not_lost()?;
        let membership = self.base.context().state();
        match offsets.partitions.iter().find(|partition| !membership.starts.contains_key(partition)) {
            Some(&(source, partition)) => {
                let topic = self.topics.name(source);
                Err(group_moved(&format!("{topic}-{partition}: not assigned to this instance")))
            }
            None => Ok(()),
        }
    }

    /// Returns true if the consumer is a member of its group, as far as it knows. Not for the hot path: librdkafka's
    /// own thread answers.
    pub fn belongs(&self) -> bool {
        let metadata = GroupMetadata::of(self.base.client());
        // An expelled consumer keeps its old generation until it joins again.
        let expelled = self.base.context().state().expelled_from;
        !self.base.assignment_lost() && metadata.is_some_and(|metadata| Some(metadata.generation()) != expelled)
    }

    /// Returns the group's committed offsets with their unchanged metadata, after pending transactions have ended.
    pub fn committed(
        &self, partitions: &[SourcePartition], timeout: Duration,
    ) -> Result<Vec<(SourcePartition, Committed)>, KafkaError> {
        Ok(assign::committed(&self.base, &self.topics, partitions, timeout)?)
    }

    /// Returns the number of records, in all partitions of all sources, that the offset maps remember as admitted
    /// lately.
    pub fn admitted_lately(&self, timeout: Duration) -> Result<u64, KafkaError> {
        // For all questions together: the engine does nothing else meanwhile, and there may be thousands of topics.
        let (mut partitions, deadline) = (Vec::new(), Instant::now() + timeout);
        for topic in self.topics.names() {
            let metadata = self.base.fetch_metadata(Some(topic), assign::remaining(deadline))?;
            // A broker that has just started may not know the topic yet: what was admitted from it must not be missed.
            if let Some(error) = metadata.topics().iter().find_map(|topic| topic.error()) {
                return Err(KafkaError::Client(ClientError::MetadataFetch(error.into())));
            }
            let found = metadata.topics().iter().flat_map(|topic| topic.partitions());
            let source = self.topics.find(topic).expect("the name of a source");
            partitions.extend(found.map(|partition| (source, partition.id())));
        }
        let committed = self.committed(&partitions, assign::remaining(deadline))?.into_iter();
        let committed = committed.filter_map(|(_, committed)| committed);
        let admitted = committed.flat_map(|(offset, metadata)| match offset_map::decode(offset, &metadata) {
            Ok(OffsetMap { admitted, .. })
            | Err(DecodeError::HandedOver(OffsetMap { admitted, .. }) | DecodeError::Copied { admitted }) => admitted,
            Err(_) => Vec::new(),
        });
        Ok(admitted.map(|slice| slice.admitted).sum())
    }

    /// Returns the offset after the last stable record of each partition for which a broker answers in time.
    pub fn highs(&self, partitions: &[SourcePartition], timeout: Duration) -> HashMap<SourcePartition, i64> {
        assign::highs(&self.base, &self.topics, partitions, timeout)
    }

    /// Returns the high watermark that came with the last fetch, without asking a broker. While transactions are open
    /// it lies beyond the last stable record; only [`highs`](Consumer::highs) tells that.
    pub fn cached_high(&self, source: SourceIndex, partition: i32) -> Option<i64> {
        ffi::cached_high(self.base.client(), self.topics.name(source), partition)
    }

    /// Starts to look for records behind these offsets; [`holes`](Consumer::holes) returns the result later.
    pub fn probe_ends(&self, offsets: Vec<(SourcePartition, i64)>) {
        self.end_probe.borrow_mut().start(offsets);
    }

    /// Returns offsets without records, found since the last call. Positions out of range are left to
    /// [`poll`](Consumer::poll).
    pub fn holes(&self) -> Vec<Holes> {
        let found = self.end_probe.borrow_mut().take_found();
        if found.out_of_range {
            self.base.context().suspect_positions();
        }
        found.holes
    }

    /// Notes that no record is left before this offset, although none was read up to it: only holes came last.
    pub fn passed(&self, partition: SourcePartition, offset: i64) {
        self.base.context().move_to(partition, offset);
    }

    /// Stops reading these partitions. librdkafka drops the records fetched ahead: not for frequent use.
    pub fn pause(&self, partitions: &[SourcePartition]) -> Result<(), KafkaError> {
        self.base.context().state().paused.extend(partitions);
        Ok(self.base.pause(&self.topics.list(partitions))?)
    }

    /// Reads these partitions again.
    pub fn resume(&self, partitions: &[SourcePartition]) -> Result<(), KafkaError> {
        let mut membership = self.base.context().state();
        partitions.iter().for_each(|partition| _ = membership.paused.remove(partition));
        drop(membership);
        Ok(self.base.resume(&self.topics.list(partitions))?)
    }

    /// Leaves the group, so that other members need not wait for the session to time out. Returns false if leaving took
    /// longer than `timeout`; it goes on in the background then.
    pub fn close(self, timeout: Duration) -> bool {
        let (done, closed) = mpsc::channel();
        // Dropping the client closes it, which may take any time.
        let closing = thread::Builder::new().name("kafka-close".to_owned()).spawn(move || {
            drop(self);
            done.send(())
        });
        closing.is_ok() && closed.recv_timeout(timeout).is_ok()
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // The client leaves the group when it is dropped, after this.
        self.base.context().begin_closing();
    }
}
