//! Positions out of range: librdkafka stops reading such a partition, and does not say which it is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError as ClientError;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use super::{Membership, SETTLE_TIMEOUT};
use crate::assign::{self, SourcePartition};
use crate::consumer::Event;
use crate::{ffi, trouble};
use watermaster_settings::OnDataLoss;

impl Membership {
    /// Nothing before this offset of a partition is to be read any more.
    pub fn move_to(&self, partition: SourcePartition, offset: i64) {
        if let Some(start) = self.state().starts.get_mut(&partition) {
            *start = offset;
        }
    }

    /// Somebody found a partition out of range without being told: librdkafka's own word on it may have been thrown away, by
    /// a pause, with the records in its queue.
    pub fn suspect_positions(&self) {
        let mut state = self.state();
        let news = !std::mem::replace(&mut state.out_of_range, true);
        drop(state);
        if news {
            self.warn_seldom("stands still", "a partition that stood still is not in what its broker keeps");
        }
        self.busy.store(true, std::sync::atomic::Ordering::Release);
    }

    /// What is read next of each partition.
    pub(super) fn positions(
        &self,
        consumer: &BaseConsumer<Membership>,
    ) -> Result<BTreeMap<SourcePartition, i64>, ClientError> {
        let mut positions = self.state().starts.clone();
        for entry in ffi::entries(&consumer.position()?) {
            if let Some(source) = self.topics.find(&entry.topic)
                && let Some(position) = positions.get_mut(&(source, entry.partition))
            {
                // Unknown (negative) before the first record, and behind what holds no record.
                *position = entry.offset.max(*position);
            }
        }
        Ok(positions)
    }

    /// Whether partitions can be started anew now. Not while the group waits to be answered: librdkafka would take the restart
    /// for the answer. A rebalance that we have not been told of yet lies in the queue, so that has to be empty.
    pub(crate) fn may_restart(&self, consumer: &BaseConsumer<Membership>) -> bool {
        let lost = consumer.assignment_lost();
        let mut state = self.state();
        state.out_of_range &= !state.starts.is_empty();
        if !state.out_of_range || state.unsettled.is_some() || lost {
            return false;
        }
        if ffi::waiting_records(consumer.client()) == 0 {
            return true;
        }
        let all = list(self, state.starts.keys());
        drop(state);
        // Lets the queue run empty: what is in it is fetched again.
        if let Err(error) = consumer.pause(&all) {
            self.warn_seldom("pausing", &format!("pausing before a restart: {error}"));
        }
        self.attempt_later();
        false
    }

    /// Starts all partitions anew where they are, those out of range at the first record that is left.
    pub(super) fn restart(&self, consumer: &BaseConsumer<Membership>, paused: &BTreeSet<SourcePartition>) {
        match self.try_restart(consumer, paused) {
            Ok(()) => {
                self.state().out_of_range = false;
                self.reached();
            }
            Err(error) => {
                self.attempt_later();
                self.tell_down(format!("positions of group {}: {error}", self.group));
            }
        }
    }

    fn try_restart(
        &self,
        consumer: &BaseConsumer<Membership>,
        paused: &BTreeSet<SourcePartition>,
    ) -> Result<(), ClientError> {
        let mut positions = self.positions(consumer)?;
        let partitions: Vec<_> = positions.keys().copied().collect();
        let edges = assign::watermarks(consumer, &self.topics, &partitions, Instant::now() + SETTLE_TIMEOUT)?;
        for (&at, position) in &mut positions {
            let Some(&(low, high)) = edges.get(&at) else { continue };
            if (low..=high).contains(position) {
                continue;
            }
            let (source, partition) = at;
            // Beyond the end, the topic is not what it was: what is completed of it says nothing about its records. Who starts
            // afresh goes by that.
            if self.rules.on_data_loss == OnDataLoss::Stop || *position > high {
                self.tell(Event::Fatal(trouble::data_loss(self.topics.name(source), partition, *position, low, high)));
                return Ok(());
            }
            self.tell(Event::Skipped { source, partition, from: *position, to: low });
            *position = low;
        }
        // Remembered whatever happens now: the next attempt goes on from here.
        self.state().starts.clone_from(&positions);
        let starts = positions.iter().map(|(partition, position)| (*partition, Offset::Offset(*position)));
        consumer.incremental_unassign(&self.still_assigned(consumer, &partitions)?)?;
        consumer.incremental_assign(&self.topics.list(starts))?;
        let (still_paused, open): (Vec<_>, Vec<_>) = partitions.iter().partition(|one| paused.contains(one));
        consumer.pause(&list(self, still_paused))?;
        consumer.resume(&list(self, open))
    }

    /// Those of our partitions that librdkafka knows to be assigned.
    pub(super) fn still_assigned(
        &self,
        consumer: &BaseConsumer<Membership>,
        partitions: &[SourcePartition],
    ) -> Result<TopicPartitionList, ClientError> {
        let mut assigned = self.topics.partitions(&consumer.assignment()?);
        assigned.retain(|partition| partitions.contains(partition));
        Ok(list(self, &assigned))
    }
}

#[cfg(test)]
impl Membership {
    /// As after an assignment whose starts could not be found out.
    pub fn leave_unsettled(&self, partitions: Vec<SourcePartition>) {
        self.state().unsettled = Some(partitions);
    }

    /// As if librdkafka's word on it had been thrown away; whether it was there.
    pub fn forget_out_of_range(&self) -> bool {
        std::mem::take(&mut self.state().out_of_range)
    }
}

fn list<'a>(membership: &Membership, partitions: impl IntoIterator<Item = &'a SourcePartition>) -> TopicPartitionList {
    membership.topics.list(partitions.into_iter().map(|partition| (*partition, Offset::Invalid)))
}
