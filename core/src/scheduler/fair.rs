//! The order in which clients are served: start-time fair queueing (Goyal, Vin, Cheng 1996).
//!
//! The tag of a client's first record is the later of the virtual time and the client's last finish; the smallest tag
//! is served, which moves the virtual time to that tag and the client's finish by 1 / weight beyond it.
//!
//! The clients of a group queue among themselves, and the group stands in the main queue as if it were one client with
//! the weight of all its members. So at most one of their records at a time is served before a client that stands
//! alone, for any number of ids.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::{allocator::Fixed, linked_list::LinkedList, units::Time};

/// A virtual time, in records × 2⁵⁶ per unit of weight.
pub(super) type VirtualTime = u128;

/// The queue that a client stands in: that of the group with this index, or the main one.
pub(super) type QueueOf = Option<u16>;

/// The entries of the groups in the main queue: this number and the index of the group. Clients have lower ones.
pub(super) const GROUPS: u32 = 1 << 31;

/// The tags of a client, or of a group.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Flow {
    finish: VirtualTime,
    /// 1 / weight.
    cost: VirtualTime,
    /// The tag of the first record.
    head_tag: Option<VirtualTime>,
}

impl Default for Flow {
    /// A flow without a weight.
    fn default() -> Flow {
        Flow { finish: 0, cost: cost_of(Fixed::ZERO), head_tag: None }
    }
}

impl Flow {
    /// Sets the weight. Neither the last finish nor the tag of the first record lies further ahead of the virtual time
    /// than one record of this weight: a flow that was light does not wait for long once it is heavy. Returns whether
    /// that moved the tag.
    #[inline]
    fn set_weight(&mut self, weight: Fixed, virtual_time: VirtualTime) -> bool {
        self.cost = cost_of(weight);
        let most = virtual_time + self.cost;
        // A tag is ahead of the virtual time only as far as the finish was that it was made of.
        if self.finish <= most {
            return false;
        }
        self.finish = most;
        let is_far = self.head_tag.is_some_and(|tag| tag > most);
        if is_far {
            self.head_tag = Some(most);
        }
        is_far
    }
}

/// 1 / weight.
fn cost_of(weight: Fixed) -> VirtualTime {
    ((1 << 120) / weight.to_bits().max(1)).max(1)
}

/// The delayed records of a client. The fields that every decision touches come first.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct ClientQueue {
    /// Delayed records, oldest first.
    pub(crate) records: LinkedList,
    flow: Flow,
    /// The sum of the records' bytes.
    pub(super) bytes: u64,
    /// The client's own limit refused its first record until this time.
    pub(super) blocked: Option<Time>,
    pub(super) group: QueueOf,
    /// The records that go first, which stand before the others. They stand in no queue of clients.
    pub(super) first: u64,
    /// The number of them that the client is owed since a takeover, which were not charged.
    pub(super) owed: u64,
    /// No record is evicted: some came from a partition that is paused instead.
    pub(crate) kept: bool,
    /// The records may wait for another time than the service's.
    pub(super) has_own_delay: bool,
}

impl ClientQueue {
    /// The queue of a client without a weight so far. With its first weight, a client that comes while the service runs
    /// starts as if it had just been served one of its own records: if it started at the virtual time, ids that are
    /// used once would always go first.
    pub(super) fn new(group: QueueOf, is_newcomer: bool) -> ClientQueue {
        let finish = if is_newcomer { VirtualTime::MAX } else { 0 };
        ClientQueue { group, flow: Flow { finish, ..Flow::default() }, ..ClientQueue::default() }
    }

    #[inline]
    pub(super) fn group(&self) -> Option<usize> {
        self.group.map(usize::from)
    }

    /// The tag under which the client stands in its group's heap; `None` if it has no record that may go.
    #[inline]
    pub(super) fn eligible_tag(&self) -> Option<VirtualTime> {
        if self.blocked.is_some() { None } else { self.flow.head_tag }
    }

    /// The number of records that do not go first.
    #[inline]
    pub(super) fn others(&self) -> u64 {
        self.records.len() - self.first
    }

    #[inline]
    pub(super) fn has_others(&self) -> bool {
        self.others() > 0
    }

    /// Notes that the last record left that does not go first. A block stays: the next record would only find it again.
    pub(super) fn empty(&mut self) {
        self.flow.head_tag = None;
    }
}

/// Clients with a record that may go, by its tag.
#[derive(Debug, Default)]
struct ReadyClients {
    virtual_time: VirtualTime,
    /// An entry is void if its tag is not its client's tag any more.
    ready: BinaryHeap<Reverse<(VirtualTime, u32)>>,
}

/// The main queue, and those of the groups.
#[derive(Debug, Default)]
pub(crate) struct FairQueue {
    main: ReadyClients,
    groups: Vec<GroupQueue>,
}

/// The queue of a group's clients.
#[derive(Debug, Default)]
struct GroupQueue {
    members: ReadyClients,
    /// The flow of all of them in the main queue.
    flow: Flow,
    /// The group's own limit refused a record until this time.
    blocked: Option<Time>,
}

impl FairQueue {
    /// Has at least so many groups from now on. Another group may get the flow of a former one: its tags lie no further
    /// ahead than one record of its weight.
    pub(super) fn extend(&mut self, groups: usize) {
        self.groups.resize_with(groups.max(self.groups.len()), GroupQueue::default);
    }

    fn of(&self, group: QueueOf) -> &ReadyClients {
        group.map_or(&self.main, |group| &self.groups[usize::from(group)].members)
    }

    #[inline]
    pub(super) fn set_weight(&mut self, client: u32, queue: &mut ClientQueue, weight: Fixed) {
        if queue.flow.set_weight(weight, self.of(queue.group).virtual_time) {
            self.enter_again(client, queue);
        }
    }

    #[cold]
    fn enter_again(&mut self, client: u32, queue: &ClientQueue) {
        if queue.blocked.is_none() {
            self.enter(client, queue);
        }
    }

    pub(super) fn set_group_weight(&mut self, group: usize, weight: Fixed) {
        let queue = &mut self.groups[group];
        let has_moved = queue.flow.set_weight(weight, self.main.virtual_time);
        if let Some(tag) = queue.flow.head_tag.filter(|_| has_moved && queue.blocked.is_none()) {
            self.main.ready.push(Reverse((tag, GROUPS + group as u32)));
        }
    }

    /// Returns whether the client's group waits for its own limit. Most clients are in no group with one.
    #[cold]
    pub(super) fn is_blocked(&self, queue: &ClientQueue) -> bool {
        queue.group().is_some_and(|group| self.groups[group].blocked.is_some())
    }

    /// Blocks a group: none of its records is sent before `until`.
    pub(super) fn block(&mut self, group: usize, until: Time) {
        self.groups[group].blocked = Some(until);
    }

    /// The time until which a group is blocked, if it is.
    pub(super) fn blocked_until(&self, group: usize) -> Option<Time> {
        self.groups.get(group)?.blocked
    }

    /// Lets a blocked group try again, if its time has come.
    pub(super) fn unblock(&mut self, now: Time, group: usize) {
        let queue = &mut self.groups[group];
        if queue.blocked.is_some_and(|until| until <= now) {
            queue.blocked = None;
            if let Some(tag) = queue.flow.head_tag {
                self.main.ready.push(Reverse((tag, GROUPS + group as u32)));
            }
        }
    }

    /// Returns whether no client is in a queue; a void entry counts as a client.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.main.ready.is_empty()
    }

    /// Tags a record that becomes the first one of its client, and adds the client to its queue if it may go.
    pub(super) fn make_head(&mut self, client: u32, queue: &mut ClientQueue) {
        queue.flow.head_tag = Some(self.of(queue.group).next_tag(&queue.flow));
        if queue.blocked.is_none() {
            self.enter(client, queue);
        }
    }

    /// Adds a client to its queue, if it has a record.
    pub(super) fn enter(&mut self, client: u32, queue: &ClientQueue) {
        let Some(tag) = queue.flow.head_tag else { return };
        let Some(group) = queue.group() else {
            return self.main.ready.push(Reverse((tag, client)));
        };
        self.groups[group].members.ready.push(Reverse((tag, client)));
        if self.groups[group].flow.head_tag.is_none() {
            self.enter_group(group);
        }
    }

    fn enter_group(&mut self, group: usize) {
        let queue = &mut self.groups[group];
        let tag = self.main.next_tag(&queue.flow);
        queue.flow.head_tag = Some(tag);
        if queue.blocked.is_none() {
            self.main.ready.push(Reverse((tag, GROUPS + group as u32)));
        }
    }

    /// Moves the tags of a client to the queue of a group, which may be another one than before. None of them lies
    /// further ahead of the virtual time than one record of the client's weight.
    pub(super) fn change_group(&self, queue: &mut ClientQueue, group: QueueOf) {
        let (before, after) = (self.of(queue.group).virtual_time, self.of(group).virtual_time);
        let Flow { finish, cost, head_tag } = &mut queue.flow;
        let moved = |tag: VirtualTime| after + tag.saturating_sub(before).min(*cost);
        (*finish, *head_tag) = (moved(*finish), head_tag.map(moved));
        queue.group = group;
    }

    /// The client that is served next; `tag_of` returns the tag of a client that may go.
    pub(super) fn next_client(&mut self, tag_of: impl Fn(u32) -> Option<VirtualTime>) -> Option<u32> {
        while let Some(&Reverse((tag, client))) = self.main.ready.peek() {
            if client >= GROUPS {
                if let Some(member) = self.next_member((client - GROUPS) as usize, tag, &tag_of) {
                    return Some(member);
                }
            } else if tag_of(client) == Some(tag) {
                return Some(client);
            }
            self.main.ready.pop();
        }
        None
    }

    /// The client of a group that is served next; `None` if the group's entry with this tag is void.
    #[inline(never)]
    fn next_member(
        &mut self, group: usize, tag: VirtualTime, tag_of: impl Fn(u32) -> Option<VirtualTime>,
    ) -> Option<u32> {
        let queue = &mut self.groups[group];
        if queue.flow.head_tag != Some(tag) || queue.blocked.is_some() {
            return None;
        }
        while let Some(&Reverse((tag, member))) = queue.members.ready.peek() {
            if tag_of(member) == Some(tag) {
                return Some(member);
            }
            queue.members.ready.pop();
        }
        queue.flow.head_tag = None;
        None
    }

    /// Charges a record to its client, and to the client's group.
    #[inline]
    pub(super) fn charge(&mut self, queue: &mut ClientQueue) {
        match queue.group() {
            Some(group) => self.charge_member(group, queue),
            None => self.main.charge(&mut queue.flow),
        }
    }

    fn charge_member(&mut self, group: usize, queue: &mut ClientQueue) {
        let group_queue = &mut self.groups[group];
        group_queue.members.charge(&mut queue.flow);
        self.main.charge(&mut group_queue.flow);
        group_queue.flow.head_tag = None;
        if !group_queue.members.ready.is_empty() {
            self.enter_group(group);
        }
    }

    /// Empties all queues, for all clients to [enter](FairQueue::enter) again. Blocked groups may try again.
    pub(super) fn clear(&mut self) {
        self.main.ready.clear();
        for queue in &mut self.groups {
            queue.members.ready.clear();
            (queue.flow.head_tag, queue.blocked) = (None, None);
        }
    }
}

impl ReadyClients {
    /// The tag of a record that becomes the first one of its flow.
    #[inline]
    fn next_tag(&self, flow: &Flow) -> VirtualTime {
        flow.finish.max(self.virtual_time)
    }

    /// Charges a record to a flow: the first one that stands in the queue or, without one, a record that goes at once.
    #[inline]
    fn charge(&mut self, flow: &mut Flow) {
        let tag = flow.head_tag.unwrap_or_else(|| self.next_tag(flow));
        self.virtual_time = self.virtual_time.max(tag);
        flow.finish = tag + flow.cost;
    }
}
