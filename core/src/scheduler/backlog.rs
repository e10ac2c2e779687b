//! The delayed records of a service.
//!
//! Each record stands in two lists in order of arrival: its client's, and one of all records. [`fair`](super::fair)
//! decides between clients. In reject mode the records within their client's share, which wait for room in the window,
//! go first, in the order of their arrival. In both modes those that clients are owed since a takeover do so, each at
//! the time at which its client's share lets it through. In its client's list, such a record never stands behind
//! another one.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use super::fair::{ClientQueue, FairQueue, GROUPS};
use crate::linked_list::{LinkedList, Links};
use crate::{chunks::Chunks, slot::Slot, units::Time};

/// The most different times that records may wait for, beside the service's: more than rules may have at two times.
const MAX_DELAYS: usize = 64;

/// The times of blocked clients are searched for those of forgotten clients only if there are more of them than twice
/// the known clients and this number.
const FEW_BLOCKED: usize = 1_024;

/// A delayed record, as the scheduler knows it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct QueuedRecord {
    pub client: u32,
    pub bytes: u32,
    /// The time at which this owner read the record.
    pub since: Time,
    /// The record is within its client's share and goes before others (reject mode).
    pub first: bool,
    /// Goes first because its client is owed it: it was not charged.
    pub owed: bool,
    /// The longest that it may wait: the service's if this is 0, or else that of
    /// [the other list](Backlog::others) before this number.
    pub delays: u8,
    /// The milliseconds for which it waited in its topic before, at most 49 days.
    pub age_ms: u32,
}

impl QueuedRecord {
    /// A record that waits for its turn since it was read.
    pub fn new(client: u32, bytes: u32, since: Time) -> QueuedRecord {
        QueuedRecord { client, bytes, since, first: false, owed: false, delays: 0, age_ms: 0 }
    }

    /// The time for which the record has waited.
    #[inline]
    pub(crate) fn waited(&self, now: Time) -> Duration {
        now.since(self.since) + Duration::from_millis(u64::from(self.age_ms))
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct BacklogEntry {
    record: QueuedRecord,
    of_client: Links,
    of_all: Links,
}

/// All delayed records of a service.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    entries: Chunks<BacklogEntry>,
    /// The records that fair queueing serves, and that may wait for as long as the service allows.
    arrivals: LinkedList,
    /// The records that may wait for another time, by that time.
    others: Vec<(Duration, LinkedList)>,
    /// The records that go first, and their clients by a time that is not later than that of the client's next one.
    pub(super) first: LinkedList,
    pub(super) first_clients: BinaryHeap<Reverse<(Time, u32)>>,
    /// The records that go first wait until this time for the own limit of a record that has to go before them.
    pub(super) first_after: Time,
    /// Records that a client was owed joined those that go first, which have not all gone since.
    pub(super) owes: bool,
    pub(crate) bytes: u64,
    /// The clients whose records are kept, and the bytes of these records.
    pub(super) kept_clients: u32,
    pub(super) kept_bytes: u64,
    pub(super) fair: FairQueue,
    /// Clients and groups that their own limit refused a record, by the time at which they may try again.
    pub(super) blocked: BinaryHeap<Reverse<(Time, u32)>>,
}

/// Returns whether a tenth of the wait is saved. Each block that becomes shorter leaves an entry in the heap until its
/// former end.
fn is_clearly_earlier(now: Time, open: Time, until: Time) -> bool {
    until.nanos_since(open) > until.nanos_since(now) / 10
}

impl Backlog {
    /// All delayed records.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Slot> + '_ {
        self.first().chain(self.in_turn().flat_map(|list| self.in_list(list)))
    }

    /// The records that go first, in the order of their arrival.
    pub(super) fn first(&self) -> impl Iterator<Item = Slot> + '_ {
        self.in_list(&self.first)
    }

    pub(crate) fn len(&self) -> u64 {
        self.arrivals.len() + self.first.len() + self.others.iter().map(|(_, list)| list.len()).sum::<u64>()
    }

    #[inline]
    pub(crate) fn oldest(&self) -> Option<Slot> {
        self.in_turn().map(LinkedList::head).fold(self.first.head(), |oldest, other| self.older(oldest, other))
    }

    /// The lists of records that fair queueing serves: those that may wait for as long as the service allows, and those
    /// of each other longest wait.
    pub(super) fn in_turn(&self) -> impl Iterator<Item = &LinkedList> {
        [&self.arrivals].into_iter().chain(self.others.iter().map(|(_, list)| list))
    }

    /// The records of a list of all delayed records, in the order of their arrival.
    pub(super) fn in_list(&self, list: &LinkedList) -> impl Iterator<Item = Slot> {
        list.iter(&self.entries, |entry| &entry.of_all)
    }

    /// The records of a client, in the order of their arrival.
    pub(super) fn records_of(&self, queue: &ClientQueue) -> impl Iterator<Item = Slot> {
        queue.records.iter(&self.entries, |entry| &entry.of_client)
    }

    #[inline]
    fn older(&self, one: Option<Slot>, other: Option<Slot>) -> Option<Slot> {
        match (one, other) {
            (Some(one), Some(other)) if self.get(other).since < self.get(one).since => Some(other),
            (one, other) => one.or(other),
        }
    }

    /// The longest that a record may wait, if that is not the service's longest wait.
    pub(super) fn own_delay(&self, record: &QueuedRecord) -> Option<Duration> {
        let place = usize::from(record.delays).checked_sub(1)?;
        Some(self.others[place].0)
    }

    /// The number of the list for records that may wait this long. Lists without a record are used again. If all are in
    /// use, which takes more times than rules may have, it is the one with the next longer time.
    #[cold]
    pub(super) fn list_of(&mut self, delay: Duration) -> u8 {
        let known = self.others.iter().position(|(known, _)| *known == delay);
        let place = match known.or_else(|| self.others.iter().position(|(_, list)| list.is_empty())) {
            Some(place) => {
                self.others[place].0 = delay;
                place
            }
            None if self.others.len() < MAX_DELAYS => {
                self.others.push((delay, LinkedList::default()));
                self.others.len() - 1
            }
            None => {
                let by_time = |(_, (known, _)): &(usize, &(Duration, LinkedList))| *known;
                let lists = || self.others.iter().enumerate();
                let longer = lists().filter(|(_, (known, _))| *known > delay).min_by_key(by_time);
                longer.or_else(|| lists().max_by_key(by_time)).map_or(0, |(place, _)| place)
            }
        };
        place as u8 + 1
    }

    /// The record in a slot that is in use.
    pub(crate) fn get(&self, slot: Slot) -> &QueuedRecord {
        &self.entries[slot.index()].record
    }

    /// Appends a record to the queue of its client.
    pub(super) fn push(&mut self, slot: Slot, record: QueuedRecord, queue: &mut ClientQueue) {
        if record.first {
            debug_assert!(!queue.has_others());
            if queue.first == 0 {
                self.first_clients.push(Reverse((Time::ZERO, record.client)));
            }
            queue.first += 1;
            queue.owed += u64::from(record.owed);
            self.owes = record.owed || self.owes && !self.first.is_empty();
        } else if !queue.has_others() {
            self.fair.make_head(record.client, queue);
        }
        let of_client = queue.records.push(&mut self.entries, |entry| &mut entry.of_client, slot);
        let list = if u8::from(record.first) | record.delays == 0 {
            &mut self.arrivals
        } else if record.first {
            &mut self.first
        } else {
            &mut self.others[usize::from(record.delays) - 1].1
        };
        let of_all = list.push(&mut self.entries, |entry| &mut entry.of_all, slot);
        self.entries.set(slot.index(), BacklogEntry { record, of_client, of_all });
        queue.bytes += u64::from(record.bytes);
        self.bytes += u64::from(record.bytes);
        if queue.kept {
            self.kept_bytes += u64::from(record.bytes);
        }
    }

    /// The client whose next record goes first, and that record: the one with the earliest time. `next_of` returns the
    /// time of a client's next record that goes first, if it has one.
    pub(super) fn next_first(
        &mut self, next_of: impl Fn(&Backlog, u32) -> Option<(Time, Slot)>,
    ) -> Option<(u32, Slot)> {
        loop {
            let &Reverse((known, client)) = self.first_clients.peek()?;
            match next_of(self, client) {
                Some((time, slot)) if time <= known => return Some((client, slot)),
                Some((time, _)) => self.first_clients.peek_mut()?.0.0 = time,
                None => drop(self.first_clients.pop()),
            }
        }
    }

    /// Notes that no record of a client goes first any more. Its entry is nearly always the earliest; another one stays
    /// until it is met, or until no record at all goes first.
    fn leave_first(&mut self, client: u32) {
        if self.first.is_empty() {
            self.first_clients.clear();
        } else if self.first_clients.peek().is_some_and(|Reverse((_, first))| *first == client) {
            self.first_clients.pop();
        }
    }

    /// Keeps all records of a client, so that none is evicted, until it has none left.
    pub(super) fn keep(&mut self, queue: &mut ClientQueue) {
        if !std::mem::replace(&mut queue.kept, true) {
            self.kept_clients += 1;
            self.kept_bytes += queue.bytes;
        }
    }

    #[cold]
    fn forget_kept(&mut self, bytes: u64, queue: &mut ClientQueue) {
        self.kept_bytes -= bytes;
        if queue.records.is_empty() {
            queue.kept = false;
            self.kept_clients -= 1;
        }
    }

    /// Removes a record that is sent: its client pays for it in fair queueing, unless it goes first.
    pub(super) fn serve(&mut self, slot: Slot, queue: &mut ClientQueue) -> QueuedRecord {
        if self.get(slot).first {
            return self.remove(slot, queue);
        }
        self.fair.charge(queue);
        let record = self.remove(slot, queue);
        if queue.has_others() {
            self.fair.make_head(record.client, queue);
        }
        record
    }

    /// Removes a record that is not sent: its successor inherits its tag.
    pub(super) fn remove(&mut self, slot: Slot, queue: &mut ClientQueue) -> QueuedRecord {
        let BacklogEntry { record, of_client, of_all } = self.entries[slot.index()];
        queue.records.remove(&mut self.entries, |entry| &mut entry.of_client, of_client);
        let list = if u8::from(record.first) | record.delays == 0 {
            &mut self.arrivals
        } else if record.first {
            &mut self.first
        } else {
            &mut self.others[usize::from(record.delays) - 1].1
        };
        list.remove(&mut self.entries, |entry| &mut entry.of_all, of_all);
        queue.first -= u64::from(record.first);
        queue.owed -= u64::from(record.owed);
        if record.first && queue.first == 0 {
            self.leave_first(record.client);
        }
        queue.bytes -= u64::from(record.bytes);
        self.bytes -= u64::from(record.bytes);
        if queue.kept {
            self.forget_kept(u64::from(record.bytes), queue);
        }
        if !queue.has_others() {
            queue.empty();
        }
        record
    }

    /// Lets the records of a client that go first wait in its turn, before its others. The lists of all records stay in
    /// the order of arrival.
    #[cold]
    pub(super) fn wait_in_turn(&mut self, client: u32, queue: &mut ClientQueue) {
        let slots = queue.records.iter(&self.entries, |entry| &entry.of_client);
        let first: Vec<Slot> = slots.take(queue.first as usize).collect();
        let has_others = queue.has_others();
        // From the last one on, because each is inserted before those that arrived at the same time.
        for slot in first.into_iter().rev() {
            let BacklogEntry { mut record, of_client, of_all } = self.entries[slot.index()];
            self.first.remove(&mut self.entries, |entry| &mut entry.of_all, of_all);
            (record.first, record.owed) = (false, false);
            let list = match record.delays {
                0 => &mut self.arrivals,
                delays => &mut self.others[usize::from(delays) - 1].1,
            };
            let is_older = |entry: &BacklogEntry| entry.record.since < record.since;
            let of_all = list.insert(&mut self.entries, |entry| &mut entry.of_all, slot, is_older);
            self.entries.set(slot.index(), BacklogEntry { record, of_client, of_all });
        }
        (queue.first, queue.owed) = (0, 0);
        self.leave_first(client);
        if !has_others && queue.has_others() {
            self.fair.make_head(client, queue);
        }
    }

    /// Blocks a client: none of its records is sent before `until`.
    pub(super) fn block(&mut self, client: u32, queue: &mut ClientQueue, until: Time) {
        if queue.blocked.replace(until) != Some(until) {
            self.wake_at(until, client);
        }
    }

    /// Blocks a group: none of its clients' records is sent before `until`.
    pub(super) fn block_group(&mut self, group: usize, until: Time) {
        self.fair.block(group, until);
        self.wake_at(until, GROUPS + group as u32);
    }

    /// Lets a blocked client try again at `open` already, if that is clearly earlier.
    pub(super) fn wake_earlier(&mut self, now: Time, client: u32, queue: &mut ClientQueue, open: Time) {
        if queue.blocked.is_some_and(|until| is_clearly_earlier(now, open, until)) {
            self.block(client, queue, open);
        }
    }

    /// Lets a blocked group try again at `open` already, if that is clearly earlier.
    pub(super) fn wake_group_earlier(&mut self, now: Time, group: usize, open: Time) {
        if self.fair.blocked_until(group).is_some_and(|until| is_clearly_earlier(now, open, until)) {
            self.block_group(group, open);
        }
    }

    /// Lets a client or a group try again at this time. One that is held waits for other rules.
    fn wake_at(&mut self, until: Time, entry: u32) {
        if until != Time::NEVER {
            self.blocked.push(Reverse((until, entry)));
        }
    }

    /// Removes the times of clients that were forgotten, once most times are theirs: a limit may block for a day, and
    /// ids that are used once come each second. `clients` is the number of known clients; `blocked_until` returns the
    /// time of one.
    pub(super) fn forget_blocked(&mut self, clients: usize, blocked_until: impl Fn(u32) -> Option<Time>) {
        if self.blocked.len() <= 2 * clients + FEW_BLOCKED {
            return;
        }
        let fair = &self.fair;
        self.blocked.retain(|&Reverse((until, entry))| {
            let of_group = |group: u32| fair.blocked_until(group as usize);
            entry.checked_sub(GROUPS).map_or_else(|| blocked_until(entry), of_group) == Some(until)
        });
    }

    /// Removes a client from the blocked ones if its time has come; the caller passes its queue to
    /// [`unblock`](Backlog::unblock). Groups are unblocked here.
    #[inline]
    pub(super) fn next_blocked(&mut self, now: Time) -> Option<u32> {
        loop {
            let &Reverse((until, entry)) = self.blocked.peek()?;
            if until > now {
                return None;
            }
            self.blocked.pop();
            match entry.checked_sub(GROUPS) {
                None => return Some(entry),
                Some(group) => self.fair.unblock(now, group as usize),
            }
        }
    }

    /// The time at which the first blocked client may try again.
    pub(super) fn blocked_until(&self) -> Option<Time> {
        self.blocked.peek().map(|&Reverse((until, _))| until)
    }

    /// Lets a blocked client try again, if its time has come.
    pub(super) fn unblock(&mut self, now: Time, client: u32, queue: &mut ClientQueue) {
        if queue.blocked.is_some_and(|until| until <= now) {
            queue.blocked = None;
            self.fair.enter(client, queue);
        }
    }
}
