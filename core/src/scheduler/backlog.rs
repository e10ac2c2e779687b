//! The delayed records of a service.
//!
//! Each record stands in two lists in order of arrival: its client's and that of all records. [`fair`](super::fair)
//! decides between clients.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::fair::{ClientQueue, FairQueue, Group, VirtualTime};
use crate::linked_list::{LinkedList, Links};
use crate::{allocator::Fixed, chunks::Chunks, slot::Slot, units::Time};

/// A delayed record, as the scheduler knows it.
#[derive(Debug, Clone, Copy)]
pub struct QueuedRecord {
    pub client: u32,
    pub bytes: u32,
    /// The time at which this owner read the record.
    pub since: Time,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    record: QueuedRecord,
    of_client: Links,
    of_all: Links,
}

impl Default for Entry {
    fn default() -> Entry {
        let record = QueuedRecord { client: u32::MAX, bytes: 0, since: Time::ZERO };
        Entry { record, of_client: Links::default(), of_all: Links::default() }
    }
}

/// All delayed records of a service.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    entries: Chunks<Entry>,
    arrivals: LinkedList,
    bytes: u64,
    fair: FairQueue,
    /// Clients that their own limit refused a record, by the time at which they may try again.
    parked: BinaryHeap<Reverse<(Time, u32)>>,
}

impl Backlog {
    /// The number of delayed records.
    pub fn len(&self) -> u64 {
        self.arrivals.len()
    }

    /// The sum of the records' bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The record that was read first.
    pub fn oldest(&self) -> Option<Slot> {
        self.arrivals.head()
    }

    /// All delayed records, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = Slot> + '_ {
        self.arrivals.iter(&self.entries, |entry| &entry.of_all)
    }

    /// The record in a slot that is in use.
    pub fn get(&self, slot: Slot) -> &QueuedRecord {
        &self.entries[slot.index()].record
    }

    /// Appends a record to the queue of its client.
    pub fn push(&mut self, slot: Slot, record: QueuedRecord, queue: &mut ClientQueue) {
        if queue.records.is_empty() {
            self.fair.make_head(record.client, queue);
        }
        let of_client = queue.records.push(&mut self.entries, |entry| &mut entry.of_client, slot);
        let of_all = self.arrivals.push(&mut self.entries, |entry| &mut entry.of_all, slot);
        self.entries.set(slot.index(), Entry { record, of_client, of_all });
        queue.bytes += u64::from(record.bytes);
        self.bytes += u64::from(record.bytes);
    }

    /// Removes a record that is sent: its client pays for it.
    pub fn serve(&mut self, slot: Slot, queue: &mut ClientQueue) -> QueuedRecord {
        self.fair.charge(queue);
        let record = self.remove(slot, queue);
        if !queue.records.is_empty() {
            self.fair.make_head(record.client, queue);
        }
        record
    }

    /// Removes a record that is not sent: its successor inherits its tag.
    pub fn remove(&mut self, slot: Slot, queue: &mut ClientQueue) -> QueuedRecord {
        let Entry { record, of_client, of_all } = self.entries[slot.index()];
        queue.records.remove(&mut self.entries, |entry| &mut entry.of_client, of_client);
        self.arrivals.remove(&mut self.entries, |entry| &mut entry.of_all, of_all);
        queue.bytes -= u64::from(record.bytes);
        self.bytes -= u64::from(record.bytes);
        if queue.records.is_empty() {
            queue.empty();
        }
        record
    }

    /// Charges a record that was sent at once.
    #[inline]
    pub fn serve_at_once(&mut self, queue: &mut ClientQueue) {
        self.fair.charge(queue);
    }

    /// Returns whether no client has a record that may go. Quicker than [`next_client`](Backlog::next_client), but a
    /// void entry counts as a client.
    #[inline]
    pub fn has_no_ready_client(&self) -> bool {
        self.fair.is_empty()
    }

    /// The client that is served next.
    #[inline]
    pub fn next_client(&mut self, tag_of: impl Fn(u32) -> Option<VirtualTime>) -> Option<u32> {
        self.fair.next_client(tag_of)
    }

    /// Sets the weight of a client.
    pub fn set_weight(&self, queue: &mut ClientQueue, weight: Fixed) {
        self.fair.set_weight(queue, weight);
    }

    /// Sets the weight of all unlisted clients together.
    pub fn set_group_weight(&mut self, weight: Fixed) {
        self.fair.set_group_weight(weight);
    }

    /// Removes all clients from the queues, for each to be [requeued](Backlog::requeue).
    pub fn clear_queues(&mut self) {
        self.fair.clear();
        self.parked.clear();
    }

    /// Adds a client to the queue of a group again. Records that it was served recently count as at most one record of
    /// its present weight. A parked client may try again.
    pub fn requeue(&mut self, client: u32, queue: &mut ClientQueue, group: Group) {
        self.fair.change_group(queue, group);
        queue.parked = None;
        self.fair.enter(client, queue);
    }

    /// Parks a client: none of its records is sent before `until`.
    pub fn park(&mut self, client: u32, queue: &mut ClientQueue, until: Time) {
        queue.parked = Some(until);
        self.parked.push(Reverse((until, client)));
    }

    /// Removes a client from the parked ones if its time has come; the caller passes its queue to
    /// [`unpark`](Backlog::unpark).
    #[inline]
    pub fn next_parked(&mut self, now: Time) -> Option<u32> {
        let &Reverse((until, client)) = self.parked.peek()?;
        (until <= now).then(|| {
            self.parked.pop();
            client
        })
    }

    /// The time at which the first parked client may try again.
    pub fn parked_until(&self) -> Option<Time> {
        self.parked.peek().map(|&Reverse((until, _))| until)
    }

    /// Lets a parked client try again, if its time has come.
    pub fn unpark(&mut self, now: Time, client: u32, queue: &mut ClientQueue) {
        if queue.parked.is_some_and(|until| until <= now) {
            queue.parked = None;
            self.fair.enter(client, queue);
        }
    }
}
