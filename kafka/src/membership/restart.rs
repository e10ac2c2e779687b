//! Restarts partitions after a position fell out of range: librdkafka stops reading the partition, but does not name
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::{sync::atomic::Ordering, time::Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError as ClientError;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use watermaster_settings::OnDataLoss;

use super::{Membership, RESOLVE_TIMEOUT};
use crate::{assign, event::Event, ffi, topics::SourcePartition};

impl Membership {
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
    pub(super) fn restart(&self, consumer: &BaseConsumer<Membership>, paused: &BTreeSet<SourcePartition>) {
        match self.try_restart(consumer, paused) {
            Ok(()) => {
                self.state().out_of_range = false;
                self.reached();
            }
            Err(error) => {
                self.attempt_later();
                self.push_down(self.unanswered("positions", error));
            }
        }
    }

    fn try_restart(
        &self, consumer: &BaseConsumer<Membership>, paused: &BTreeSet<SourcePartition>,
    ) -> Result<(), ClientError> {
        let mut positions = self.positions(consumer)?;
        let partitions: Vec<_> = positions.keys().copied().collect();
        let edges = assign::watermarks(consumer, &self.topics, &partitions, Instant::now() + RESOLVE_TIMEOUT)?;
        for (&at, position) in &mut positions {
            let Some(&(low, high)) = edges.get(&at) else { continue };
            if (low..=high).contains(position) {
                continue;
            }
            // A position beyond the end: the topic was created anew or truncated, so completed offsets mean other
            // records now. The next start deals with that.
            if self.rules.on_data_loss == OnDataLoss::Stop || *position > high {
                self.push(self.data_loss(at, *position, low, high));
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
        let (still_paused, open): (Vec<_>, Vec<_>) = partitions.iter().partition(|one| paused.contains(one));
        consumer.pause(&self.topics.list(still_paused))?;
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

#[cfg(test)]
impl Membership {
    /// Leaves partitions as after an assignment with starts that could not be resolved.
    pub fn leave_unresolved(&self, partitions: Vec<SourcePartition>) {
        self.state().unresolved = Some(partitions);
    }

    /// Drops librdkafka's error about a position, as a pause may. Returns true if there was one.
    pub fn forget_out_of_range(&self) -> bool {
        std::mem::take(&mut self.state().out_of_range)
    }
}
