//! Rebalances: finds out where assigned partitions start, and gives revoked ones back.

use std::time::Instant;

use rdkafka::consumer::{BaseConsumer, Consumer as _, RebalanceProtocol};
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use super::{Membership, RESOLVE_TIMEOUT};
use crate::assign::{self, Refusal};
use crate::consumer_error::{ConsumerErrorKind, FatalConsumerError, Outage};
use crate::event::{Assignment, Event};
use crate::{ffi, topics::SourcePartition};

/// A reason not to start partitions.
enum Unresolved {
    /// The brokers do not answer now.
    Later(Outage),
    /// The service has to stop.
    Never(Event<'static>),
}

impl Membership {
    /// Finds out where the partitions start and starts them, or keeps them for a later attempt. The group waits until
    /// they start, for `max.poll.interval.ms` at most.
    pub(super) fn resolve_positions(&self, consumer: &BaseConsumer<Membership>, partitions: Vec<SourcePartition>) {
        match self.assignments(consumer, &partitions) {
            Ok(assignments) => {
                if !partitions.is_empty() {
                    self.reached();
                }
                self.begin(consumer, assignments);
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

    fn begin(&self, consumer: &BaseConsumer<Membership>, assignments: Vec<Assignment>) {
        let starts: Vec<_> = assignments.iter().map(|one| ((one.source, one.partition), one.base)).collect();
        let list = self.topics.list_at(starts.iter().map(|(partition, base)| (*partition, Offset::Offset(*base))));
        // An empty assignment is reported, too: the consumer has joined.
        if self.assign(consumer, &list) {
            let mut state = self.state();
            state.starts.extend(starts);
            state.expelled_from = None;
            drop(state);
            self.push(Event::Assigned(assignments));
        }
    }

    fn assign(&self, consumer: &BaseConsumer<Membership>, list: &TopicPartitionList) -> bool {
        let assigned = match consumer.rebalance_protocol() {
            RebalanceProtocol::Eager => consumer.assign(list),
            RebalanceProtocol::None | RebalanceProtocol::Cooperative => consumer.incremental_assign(list),
        };
        // A partition that was paused when it was revoked must not come back paused.
        let resumed = assigned.and_then(|()| if list.count() > 0 { consumer.resume(list) } else { Ok(()) });
        resumed.map_err(|error| self.push(Event::Fatal(FatalConsumerError::Assignment(error)))).is_ok()
    }

    pub(super) fn revoke(&self, consumer: &BaseConsumer<Membership>, list: &TopicPartitionList) {
        let (partitions, lost) = (self.topics.partitions(list), consumer.assignment_lost());
        let metadata = ffi::GroupMetadata::of(consumer.client()).filter(|_| lost);
        let unassigned = match consumer.rebalance_protocol() {
            RebalanceProtocol::Eager => consumer.unassign(),
            // A restart that failed half-way has given some back already, but the group still waits for an answer.
            RebalanceProtocol::None | RebalanceProtocol::Cooperative => consumer
                .incremental_unassign(list)
                .or_else(|_| consumer.incremental_unassign(&self.still_assigned(consumer, &partitions)?)),
        };
        if let Err(error) = unassigned {
            tracing::warn!(service = self.service, "giving partitions back: {error}");
        }
        let mut state = self.state();
        state.expelled_from = metadata.map(|metadata| metadata.generation());
        state.starts.retain(|partition, _| !partitions.contains(partition));
        if let Some(unresolved) = &mut state.unresolved {
            unresolved.retain(|partition| !partitions.contains(partition));
        }
        drop(state);
        if !partitions.is_empty() {
            self.push(Event::Revoked { partitions, lost });
        }
    }

    fn assignments(
        &self, consumer: &BaseConsumer<Membership>, partitions: &[SourcePartition],
    ) -> Result<Vec<Assignment>, Unresolved> {
        let deadline = Instant::now() + RESOLVE_TIMEOUT;
        let committed = assign::committed(consumer, &self.topics, partitions, assign::remaining(deadline))
            .map_err(|error| self.unresolved("committed offsets", error))?;
        let edges = assign::watermarks(consumer, &self.topics, partitions, deadline)
            .map_err(|error| self.unresolved("watermarks", error))?;
        let assignment = |(at, committed)| {
            let (source, partition) = at;
            let Some(&(low, high)) = edges.get(&at) else {
                let topic = self.topics.name(source).to_owned();
                return Err(Unresolved::Later(Outage::NoWatermarks { topic, partition }));
            };
            assign::start(at, &committed, low, high, self.rules)
                .map_err(|refusal| Unresolved::Never(self.refusal(refusal, at, low, high)))
        };
        committed.into_iter().map(assignment).collect()
    }

    fn refusal(&self, refusal: Refusal, at: SourcePartition, low: i64, high: i64) -> Event<'static> {
        match refusal {
            Refusal::Foreign { offset, why } => {
                let topic = self.topics.name(at.0).to_owned();
                Event::Refused { topic, partition: at.1, offset, why }
            }
            Refusal::OutOfRange { offset } => self.data_loss(at, offset, low, high),
        }
    }

    pub(super) fn data_loss(&self, at: SourcePartition, offset: i64, low: i64, high: i64) -> Event<'static> {
        let topic = self.topics.name(at.0).to_owned();
        Event::Fatal(FatalConsumerError::DataLoss { topic, partition: at.1, offset, low, high })
    }

    fn unresolved(&self, question: &'static str, error: ClientError) -> Unresolved {
        let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
        if ConsumerErrorKind::of(code) == ConsumerErrorKind::MissingTopic {
            self.state().missing_topic.suspect(Instant::now());
        }
        match self.denied(code) {
            Some(error) => Unresolved::Never(Event::Fatal(error)),
            None => Unresolved::Later(self.unanswered(question, error)),
        }
    }
}
