//! Rebalances and restarts: finds out where partitions start, gives revoked ones back, and starts all partitions again
//! after a position fell out of range.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use watermaster_settings::OnDataLoss;

use super::{BROKER_PROBE_TIMEOUT, Membership, RESOLVE_TIMEOUT};
use crate::assign::LEADERLESS_OR_GONE;
use crate::consumer_error::{ConsumerErrorKind, FatalConsumerError, Outage};
use crate::event::{Assignment, Event};
use crate::topics::{SourceIndex, SourcePartition};
use crate::{assign, ffi};

/// The time after which partitions without a leader are asked for again if no broker answered.
const LEADERLESS_INTERVAL: Duration = Duration::from_secs(5);

/// The places where partitions start.
struct Starts {
    assignments: Vec<Assignment>,
    leaderless: Vec<SourcePartition>,
    /// A mirror copied the offset of one of all these partitions.
    beside_copies: bool,
}

/// A reason not to start partitions.
enum Unresolved {
    /// The brokers do not answer now.
    Later(Outage),
    /// The service has to stop.
    Never(Event<'static>),
}

impl Membership {
    /// Finds out where the partitions start and starts them, or keeps them for a later attempt. The group waits until
    /// they start, for `max.poll.interval.ms` at most. Nothing waits for partitions without a leader.
    pub(super) fn resolve_positions(&self, consumer: &BaseConsumer<Membership>, partitions: Vec<SourcePartition>) {
        match self.assignments(consumer, &partitions) {
            Ok(Starts { assignments, leaderless, beside_copies }) => {
                if !partitions.is_empty() {
                    self.reached();
                }
                self.begin(consumer, assignments);
                self.state().leaderless_beside_copies |= beside_copies && !leaderless.is_empty();
                self.wait_for_leaders(leaderless);
            }
            Err(Unresolved::Later(outage)) => {
                self.state().unresolved = Some(partitions);
                self.attempt_later();
                self.push_down(outage);
            }
            Err(Unresolved::Never(event)) => {
                // The service stops, and the group must not wait for it.
                self.assign(consumer, &TopicPartitionList::new());
                self.push(event);
            }
        }
    }

    fn wait_for_leaders(&self, partitions: Vec<SourcePartition>) {
        let Some(&(source, partition)) = partitions.first() else { return };
        let (topic, others) = (self.topics.name(source), partitions.len() - 1);
        self.warn("leaderless", format_args!("{topic}-{partition} has no leader, nor have {others} other partitions"));
        self.state().leaderless.extend(partitions);
        self.attempt_later();
    }

    fn wait_longer_for_leaders(&self, partitions: Vec<SourcePartition>) {
        self.wait_for_leaders(partitions);
        self.state().next_attempt = Some(Instant::now() + LEADERLESS_INTERVAL);
    }

    /// Starts the partitions of one topic that have a leader by now. Other partitions are read meanwhile, so it asks
    /// one question at a time, and seldom while there are no answers.
    ///
    /// A rebalance may be in the queue that was not reported yet, and librdkafka then takes this for the answer. That
    /// does no harm: its partitions are assigned, or given back, when it is reported. Only a loss must not be taken for
    /// one that was answered.
    pub(super) fn start_leaderless(&self, consumer: &BaseConsumer<Membership>) {
        let Some(&(source, _)) = self.state().leaderless.front() else { return };
        if consumer.assignment_lost() {
            return;
        }
        let led = self.led_partitions(consumer, source);
        let waiting = std::mem::take(&mut self.state().leaderless);
        let (of_topic, others): (VecDeque<_>, VecDeque<_>) = waiting.into_iter().partition(|one| one.0 == source);
        self.state().leaderless = others;
        let (ready, of_topic): (Vec<_>, Vec<_>) =
            of_topic.into_iter().partition(|one| led.iter().flatten().any(|led| led == one));
        match led {
            Some(_) => self.wait_for_leaders(of_topic),
            None => self.wait_longer_for_leaders(of_topic),
        }
        if ready.is_empty() {
            return;
        }
        match self.assignments(consumer, &ready) {
            Ok(_) if consumer.assignment_lost() => self.wait_for_leaders(ready),
            Ok(Starts { mut assignments, leaderless, .. }) => {
                if self.state().leaderless_beside_copies {
                    assign::distrust(&mut assignments);
                }
                if !assignments.is_empty() {
                    self.begin(consumer, assignments);
                }
                self.wait_for_leaders(leaderless);
                let mut state = self.state();
                state.leaderless_beside_copies &= !state.leaderless.is_empty();
            }
            Err(Unresolved::Later(_)) => self.wait_longer_for_leaders(ready),
            Err(Unresolved::Never(event)) => self.push(event),
        }
    }

    /// Asks the brokers for the partitions of a topic that have a leader, since librdkafka would answer from its
    /// memory. Returns `None` without an answer.
    fn led_partitions(&self, consumer: &BaseConsumer<Membership>, source: SourceIndex) -> Option<Vec<SourcePartition>> {
        let metadata = consumer.fetch_metadata(Some(self.topics.name(source)), BROKER_PROBE_TIMEOUT).ok()?;
        let led = metadata.topics().first()?.partitions().iter().filter(|one| one.leader() >= 0);
        Some(led.map(|one| (source, one.id())).collect())
    }

    fn begin(&self, consumer: &BaseConsumer<Membership>, assignments: Vec<Assignment>) {
        let starts: Vec<_> = assignments.iter().map(|one| ((one.source, one.partition), one.base)).collect();
        let list = self.topics.list_at(starts.iter().map(|(partition, base)| (*partition, Offset::Offset(*base))));
        // An empty assignment is reported, too: the consumer has joined.
        if self.assign(consumer, &list) {
            let mut state = self.state();
            starts.iter().for_each(|(partition, _)| _ = state.paused.remove(partition));
            state.starts.extend(starts);
            state.expelled_from = None;
            drop(state);
            self.push(Event::Assigned(assignments));
        }
    }

    fn assign(&self, consumer: &BaseConsumer<Membership>, list: &TopicPartitionList) -> bool {
        let assigned = consumer.incremental_assign(list);
        // A partition that was paused when it was revoked must not come back paused.
        let resumed = assigned.and_then(|()| if list.count() > 0 { consumer.resume(list) } else { Ok(()) });
        resumed.map_err(|error| self.push(FatalConsumerError::Assignment(error))).is_ok()
    }

    pub(super) fn revoke(&self, consumer: &BaseConsumer<Membership>, list: &TopicPartitionList) {
        let (partitions, lost) = (self.topics.partitions(list), consumer.assignment_lost());
        let metadata = ffi::GroupMetadata::of(consumer.client()).filter(|_| lost);
        // A restart that failed half-way has given some back already, but the group still waits for an answer.
        let unassigned = consumer
            .incremental_unassign(list)
            .or_else(|_| consumer.incremental_unassign(&self.still_assigned(consumer, &partitions)?));
        if let Err(error) = unassigned {
            tracing::warn!(service = self.service, "giving partitions back: {error}");
        }
        let mut state = self.state();
        state.expelled_from = metadata.map(|metadata| metadata.generation());
        state.starts.retain(|partition, _| !partitions.contains(partition));
        if let Some(unresolved) = &mut state.unresolved {
            unresolved.retain(|partition| !partitions.contains(partition));
        }
        state.leaderless.retain(|partition| !partitions.contains(partition));
        drop(state);
        if !partitions.is_empty() {
            self.push(Event::Revoked { partitions, lost });
        }
    }

    /// Decides where partitions start. Returns those without a leader apart.
    fn assignments(
        &self, consumer: &BaseConsumer<Membership>, partitions: &[SourcePartition],
    ) -> Result<Starts, Unresolved> {
        let deadline = Instant::now() + RESOLVE_TIMEOUT;
        let committed = assign::committed(consumer, &self.topics, partitions, assign::remaining(deadline))
            .map_err(|error| self.unresolved("committed offsets", error))?;
        let edges = match assign::watermarks(consumer, &self.topics, partitions, LEADERLESS_OR_GONE, deadline) {
            // None of them has a leader, or the topics are gone.
            Err(error) if error.rdkafka_error_code() == Some(Code::UnknownPartition) => HashMap::new(),
            edges => edges.map_err(|error| self.unresolved("watermarks", error))?,
        };
        if edges.len() < partitions.len() {
            // The topic of one may be gone. Others must not wait for it: while they do, the group takes none away.
            self.state().missing_since.get_or_insert_with(Instant::now);
        }
        let led: Vec<SourcePartition> = edges.keys().copied().collect();
        let tags = match assign::tags(consumer, &self.topics, &led, assign::remaining(deadline)) {
            // Without the tag of its topic, the offset of a former one would count.
            Err(error) if committed.iter().any(|(_, committed)| assign::is_tagged(committed)) => {
                return Err(self.unresolved("topic ids", error));
            }
            tags => tags.unwrap_or_default(),
        };
        let tag_of = |at: &SourcePartition| tags.get(&at.0).copied();
        let (mut assignments, mut leaderless) = (Vec::new(), Vec::new());
        let beside_copies = committed.iter().any(|(at, committed)| assign::is_copied(committed, tag_of(at)));
        for (at, committed) in committed {
            let Some(&edges) = edges.get(&at) else {
                leaderless.push(at);
                continue;
            };
            let start = assign::start(self.topics.name(at.0), at, &committed, edges, tag_of(&at), self.rules);
            assignments.push(start.map_err(Unresolved::Never)?);
        }
        if beside_copies {
            assign::distrust(&mut assignments);
        }
        Ok(Starts { assignments, leaderless, beside_copies })
    }

    fn unresolved(&self, question: &'static str, error: ClientError) -> Unresolved {
        let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
        if ConsumerErrorKind::of(code) == ConsumerErrorKind::MissingTopic {
            self.state().missing_since.get_or_insert_with(Instant::now);
        }
        match self.denied(code) {
            Some(error) => Unresolved::Never(error.into()),
            None => Unresolved::Later(self.unanswered(question, error)),
        }
    }

    /// Notes that no record of a partition is left to read before this offset.
    pub fn move_to(&self, partition: SourcePartition, offset: i64) {
        if let Some(start) = self.state().starts.get_mut(&partition) {
            *start = offset;
        }
    }

    /// Notes that a partition was found out of range by other means than librdkafka's error: a pause may have dropped
    /// that error together with the records in the partition's queue.
    pub fn suspect_positions(&self) {
        let known = std::mem::replace(&mut self.state().out_of_range, true);
        if !known {
            self.warn("stands still", "a partition stands still at an offset outside its broker's log");
        }
        self.busy.store(true, Ordering::Release);
    }

    /// Returns the next offset of each partition.
    pub(super) fn positions(
        &self, consumer: &BaseConsumer<Membership>,
    ) -> Result<BTreeMap<SourcePartition, i64>, ClientError> {
        let mut positions = self.state().starts.clone();
        for entry in ffi::entries(&consumer.position()?) {
            if let Some(source) = self.topics.find(&entry.topic)
                && let Some(position) = positions.get_mut(&(source, entry.partition))
            {
                // librdkafka's position is negative before the first record, and lags behind offsets without records.
                *position = entry.offset.max(*position);
            }
        }
        Ok(positions)
    }

    /// Returns true if partitions can be restarted now. Not while the group waits for an answer, since librdkafka would
    /// take the restart for it. A rebalance that was not reported yet is in the queue, so the queue has to be empty.
    pub(crate) fn may_restart(&self, consumer: &BaseConsumer<Membership>) -> bool {
        let lost = consumer.assignment_lost();
        let mut state = self.state();
        state.out_of_range &= !state.starts.is_empty();
        if !state.out_of_range || state.unresolved.is_some() || lost {
            return false;
        }
        if ffi::waiting_records(consumer.client()) == 0 {
            return true;
        }
        let all = self.topics.list(state.starts.keys());
        drop(state);
        // Lets the queue run empty; its records are fetched again.
        if let Err(error) = consumer.pause(&all) {
            self.warn("pausing", format_args!("pausing before a restart: {error}"));
        }
        self.attempt_later();
        false
    }

    /// Restarts all partitions at their positions; those out of range at the first record that is left.
    ///
    /// librdkafka has stopped reading a partition that fell out of range, but does not name it.
    pub(super) fn restart(&self, consumer: &BaseConsumer<Membership>) -> Result<(), ClientError> {
        let mut positions = self.positions(consumer)?;
        let partitions: Vec<_> = positions.keys().copied().collect();
        let deadline = Instant::now() + RESOLVE_TIMEOUT;
        let edges = assign::watermarks(consumer, &self.topics, &partitions, LEADERLESS_OR_GONE, deadline)?;
        for (&at, position) in &mut positions {
            let Some(&(low, high)) = edges.get(&at) else { continue };
            if (low..=high).contains(position) {
                continue;
            }
            if self.rules.on_data_loss == OnDataLoss::Stop {
                let (topic, partition, offset) = (self.topics.name(at.0).to_owned(), at.1, *position);
                self.push(FatalConsumerError::DataLoss { topic, partition, offset, low, high });
                return Ok(());
            }
            // A position beyond the end: the topic was created anew or truncated, so completed offsets mean other
            // records now. The start of another consumer deals with that.
            if *position > high {
                self.push(Event::Beyond { source: at.0, partition: at.1, offset: *position, high });
                return Ok(());
            }
            self.push(Event::Skipped { source: at.0, partition: at.1, from: *position, to: low });
            *position = low;
        }
        // Kept even if the rest fails: the next attempt goes on from here.
        self.state().starts.clone_from(&positions);
        let starts = positions.iter().map(|(partition, position)| (*partition, Offset::Offset(*position)));
        consumer.incremental_unassign(&self.still_assigned(consumer, &partitions)?)?;
        consumer.incremental_assign(&self.topics.list_at(starts))?;
        let (paused, open): (Vec<_>, Vec<_>) = {
            let state = self.state();
            partitions.iter().partition(|one| state.paused.contains(one))
        };
        consumer.pause(&self.topics.list(paused))?;
        consumer.resume(&self.topics.list(open))
    }

    /// Returns the partitions among these that librdkafka considers assigned.
    pub(super) fn still_assigned(
        &self, consumer: &BaseConsumer<Membership>, partitions: &[SourcePartition],
    ) -> Result<TopicPartitionList, ClientError> {
        let mut assigned = self.topics.partitions(&consumer.assignment()?);
        assigned.retain(|partition| partitions.contains(partition));
        Ok(self.topics.list(&assigned))
    }
}
