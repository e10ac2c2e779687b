//! The order in which clients are served: start-time fair queueing (Goyal, Vin, Cheng 1996).
//!
//! The tag of a client's first record is the later of the virtual time and the client's last finish; the smallest tag
//! is served, which moves the virtual time to that tag and the client's finish by 1 / weight beyond it.
//!
//! Once any client is configured, all others queue in a group of their own, which stands in the main queue as if it
//! were one client with the weight of all its members. So at most one of their records at a time is served before a
//! configured client, for any number of ids.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::{allocator::Fixed, linked_list::LinkedList, units::Time};

/// A virtual time, in records × 2⁵⁶ per unit of weight.
pub(super) type VirtualTime = u128;

/// The queue that a client stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WeightGroup {
    Main,
    /// The queue of clients that are not configured, if any client is.
    Unlisted,
}

/// The entry of the group of unlisted clients in the main queue.
const UNLISTED: u32 = u32::MAX - 1;

/// The tags of a client, or of the group of unlisted clients.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Flow {
    finish: VirtualTime,
    /// 1 / weight.
    cost: VirtualTime,
    /// The tag of the first record.
    head_tag: Option<VirtualTime>,
}

impl Flow {
    /// A flow without a weight.
    fn new(finish: VirtualTime) -> Flow {
        Flow { finish, cost: cost_of(Fixed::ZERO), head_tag: None }
    }

    fn set_weight(&mut self, weight: Fixed, virtual_time: VirtualTime) {
        self.cost = cost_of(weight);
        self.finish = self.finish.min(virtual_time + self.cost);
    }
}

/// 1 / weight.
fn cost_of(weight: Fixed) -> VirtualTime {
    ((1 << 120) / weight.to_bits().max(1)).max(1)
}

/// The delayed records of a client. The fields that every decision touches come first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ClientQueue {
    /// Delayed records, oldest first.
    pub(crate) records: LinkedList,
    flow: Flow,
    /// The sum of the records' bytes.
    pub(super) bytes: u64,
    /// The client's own limit refused its first record until this time.
    pub(super) blocked: Option<Time>,
    group: WeightGroup,
    /// The first records that were charged when they arrived (reject mode). They stand in no queue of clients.
    pub(super) first: u64,
    /// No record is evicted: some came from a partition that is paused instead.
    pub(crate) kept: bool,
}

impl Default for ClientQueue {
    /// The queue of a client that is known from the start, without a weight so far.
    fn default() -> ClientQueue {
        ClientQueue {
            records: LinkedList::default(),
            flow: Flow::new(0),
            bytes: 0,
            blocked: None,
            group: WeightGroup::Main,
            first: 0,
            kept: false,
        }
    }
}

impl ClientQueue {
    /// The queue of a client that comes while the service runs. With its first weight it starts as if it had just been
    /// served one of its own records: if it started at the virtual time, ids that are used once would always go first.
    pub(super) fn of_newcomer(group: WeightGroup) -> ClientQueue {
        ClientQueue { flow: Flow::new(VirtualTime::MAX), group, ..ClientQueue::default() }
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

    /// Notes that the last record left that does not go first.
    pub(super) fn empty(&mut self) {
        self.flow.head_tag = None;
        self.blocked = None;
    }
}

/// Clients with a record that may go, by its tag.
#[derive(Debug, Default)]
struct ReadyClients {
    virtual_time: VirtualTime,
    /// An entry is void if its tag is not its client's tag any more.
    ready: BinaryHeap<Reverse<(VirtualTime, u32)>>,
}

/// The queues of both groups.
#[derive(Debug)]
pub(crate) struct FairQueue {
    main: ReadyClients,
    unlisted: ReadyClients,
    /// The flow of all unlisted clients in the main queue.
    group: Flow,
}

impl Default for FairQueue {
    fn default() -> FairQueue {
        FairQueue { main: ReadyClients::default(), unlisted: ReadyClients::default(), group: Flow::new(0) }
    }
}

impl FairQueue {
    fn of(&self, group: WeightGroup) -> &ReadyClients {
        if group == WeightGroup::Main { &self.main } else { &self.unlisted }
    }

    /// Sets the weight of a client; the tag of its first record stays. The client's last finish lies at most one
    /// record of this weight ahead of the virtual time: a client that was light does not wait for long once it is
    /// heavy.
    pub(super) fn set_weight(&self, queue: &mut ClientQueue, weight: Fixed) {
        queue.flow.set_weight(weight, self.of(queue.group).virtual_time);
    }

    pub(super) fn set_group_weight(&mut self, weight: Fixed) {
        self.group.set_weight(weight, self.main.virtual_time);
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
        if queue.group == WeightGroup::Main {
            return self.main.ready.push(Reverse((tag, client)));
        }
        self.unlisted.ready.push(Reverse((tag, client)));
        if self.group.head_tag.is_none() {
            self.enter_group();
        }
    }

    fn enter_group(&mut self) {
        let tag = self.main.next_tag(&self.group);
        self.group.head_tag = Some(tag);
        self.main.ready.push(Reverse((tag, UNLISTED)));
    }

    /// Moves the tags of a client to the queue of a group, which may be another one than before. None of them lies
    /// further ahead of the virtual time than one record of the client's weight.
    pub(super) fn change_group(&self, queue: &mut ClientQueue, group: WeightGroup) {
        let (before, after) = (self.of(queue.group).virtual_time, self.of(group).virtual_time);
        let Flow { finish, cost, head_tag } = &mut queue.flow;
        let moved = |tag: VirtualTime| after + tag.saturating_sub(before).min(*cost);
        (*finish, *head_tag) = (moved(*finish), head_tag.map(moved));
        queue.group = group;
    }

    /// The client that is served next; `tag_of` returns the tag of a client that may go.
    pub(super) fn next_client(&mut self, tag_of: impl Fn(u32) -> Option<VirtualTime>) -> Option<u32> {
        while let Some(&Reverse((tag, client))) = self.main.ready.peek() {
            if client == UNLISTED {
                if let Some(member) = self.next_member(tag, &tag_of) {
                    return Some(member);
                }
            } else if tag_of(client) == Some(tag) {
                return Some(client);
            }
            self.main.ready.pop();
        }
        None
    }

    /// The unlisted client that is served next; `None` if the group's entry with this tag is void.
    #[inline(never)]
    fn next_member(&mut self, tag: VirtualTime, tag_of: impl Fn(u32) -> Option<VirtualTime>) -> Option<u32> {
        if self.group.head_tag != Some(tag) {
            return None;
        }
        while let Some(&Reverse((tag, member))) = self.unlisted.ready.peek() {
            if tag_of(member) == Some(tag) {
                return Some(member);
            }
            self.unlisted.ready.pop();
        }
        self.group.head_tag = None;
        None
    }

    /// Charges a record to its client and, for an unlisted client, to the group.
    #[inline]
    pub(super) fn charge(&mut self, queue: &mut ClientQueue) {
        if queue.group == WeightGroup::Unlisted {
            return self.charge_member(queue);
        }
        self.main.charge(&mut queue.flow);
    }

    fn charge_member(&mut self, queue: &mut ClientQueue) {
        self.unlisted.charge(&mut queue.flow);
        self.main.charge(&mut self.group);
        self.group.head_tag = None;
        if !self.unlisted.ready.is_empty() {
            self.enter_group();
        }
    }

    /// Empties both queues, for all clients to [enter](FairQueue::enter) again.
    pub(super) fn clear(&mut self) {
        self.main.ready.clear();
        self.unlisted.ready.clear();
        self.group.head_tag = None;
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
