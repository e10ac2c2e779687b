//! The order in which clients are served: start-time fair queueing (Goyal, Vin, Cheng 1996).
//!
//! The tag of a client's first record is the later of the virtual time and the client's last finish; the smallest tag
//! is served, which moves the virtual time to that tag and the client's finish by 1 / weight beyond it.
//!
//! Once any client is configured, all others queue in a group of their own, which stands in the main queue as if it
//! were one client with the weight of all its members. So at most one of their records at a time is served before a
//! configured client, for any number of ids.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Lane;
use crate::allocator::Fixed;

/// Virtual time, in records × 2⁵⁶ per unit of weight.
pub type Tag = u128;

/// Which queue a client stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Group {
    /// The main queue.
    #[default]
    Main,
    /// The queue of the clients that are not configured.
    Unlisted,
}

/// The entry of the group of unlisted clients in the main queue.
const UNLISTED: u32 = u32::MAX - 1;

/// The tags of a client, or of the group of unlisted clients.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Flow {
    finish: Tag,
    /// 1 / weight.
    cost: Tag,
    /// The tag of the first record.
    pub(super) head_tag: Option<Tag>,
}

impl Flow {
    /// A flow without a weight so far.
    pub(super) fn new(finish: Tag) -> Flow {
        Flow { finish, cost: cost_of(Fixed::ZERO), head_tag: None }
    }

    /// Sets the weight; the tag of the first record stays. The finish lies at most one record of this weight ahead of the
    /// virtual time.
    fn set_weight(&mut self, weight: Fixed, virtual_time: Tag) {
        self.cost = cost_of(weight);
        self.finish = self.finish.min(virtual_time + self.cost);
    }
}

/// 1 / weight.
fn cost_of(weight: Fixed) -> Tag {
    ((1 << 120) / weight.to_bits().max(1)).max(1)
}

/// Clients with a record that may go, by its tag.
#[derive(Debug, Default)]
struct Queue {
    virtual_time: Tag,
    /// An entry whose tag no longer is its client's tag is void.
    ready: BinaryHeap<Reverse<(Tag, u32)>>,
}

/// Both queues.
#[derive(Debug)]
pub(super) struct FairQueue {
    main: Queue,
    unlisted: Queue,
    /// The place of the unlisted clients in the main queue.
    group: Flow,
}

impl Default for FairQueue {
    fn default() -> FairQueue {
        FairQueue { main: Queue::default(), unlisted: Queue::default(), group: Flow::new(0) }
    }
}

impl FairQueue {
    fn queue(&self, group: Group) -> &Queue {
        match group {
            Group::Main => &self.main,
            Group::Unlisted => &self.unlisted,
        }
    }

    fn queue_mut(&mut self, group: Group) -> &mut Queue {
        match group {
            Group::Main => &mut self.main,
            Group::Unlisted => &mut self.unlisted,
        }
    }

    /// Sets the weight of a client.
    pub fn set_weight(&self, lane: &mut Lane, weight: Fixed) {
        lane.flow.set_weight(weight, self.queue(lane.group).virtual_time);
    }

    /// Sets the weight of the group of unlisted clients.
    pub fn set_group_weight(&mut self, weight: Fixed) {
        self.group.set_weight(weight, self.main.virtual_time);
    }

    /// Returns whether no client is in a queue; a void entry counts as a client.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.main.ready.is_empty()
    }

    /// Gives a client's record that becomes its first one a tag, and lets the client enter its queue if it may go.
    pub fn make_head(&mut self, client: u32, lane: &mut Lane) {
        lane.flow.head_tag = Some(self.queue(lane.group).next_tag(&lane.flow));
        if lane.parked.is_none() {
            self.enter(client, lane);
        }
    }

    /// Puts a client into its queue, if it has a record.
    pub fn enter(&mut self, client: u32, lane: &Lane) {
        let Some(tag) = lane.flow.head_tag else { return };
        self.queue_mut(lane.group).ready.push(Reverse((tag, client)));
        if lane.group == Group::Unlisted && self.group.head_tag.is_none() {
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
    pub fn change_group(&self, lane: &mut Lane, group: Group) {
        let (before, after) = (self.queue(lane.group).virtual_time, self.queue(group).virtual_time);
        let Flow { finish, cost, head_tag } = &mut lane.flow;
        let moved = |tag: Tag| after + tag.saturating_sub(before).min(*cost);
        (*finish, *head_tag) = (moved(*finish), head_tag.map(moved));
        lane.group = group;
    }

    /// The client that is served next; `tag_of` tells the tag under which a client stands, if it may go.
    pub fn next_client(&mut self, tag_of: impl Fn(u32) -> Option<Tag>) -> Option<u32> {
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
    fn next_member(&mut self, tag: Tag, tag_of: impl Fn(u32) -> Option<Tag>) -> Option<u32> {
        if self.group.head_tag != Some(tag) {
            return None;
        }
        let member = self.unlisted.first(tag_of);
        if member.is_none() {
            self.group.head_tag = None;
        }
        member
    }

    /// Charges a record to its client and, for an unlisted client, to the group.
    #[inline]
    pub fn charge(&mut self, lane: &mut Lane) {
        if lane.group == Group::Unlisted {
            return self.charge_member(lane);
        }
        self.main.charge(&mut lane.flow);
    }

    fn charge_member(&mut self, lane: &mut Lane) {
        self.unlisted.charge(&mut lane.flow);
        self.main.charge(&mut self.group);
        self.group.head_tag = None;
        if !self.unlisted.ready.is_empty() {
            self.enter_group();
        }
    }

    /// Empties both queues, for all clients to [enter](FairQueue::enter) again.
    pub fn clear(&mut self) {
        self.main.ready.clear();
        self.unlisted.ready.clear();
        self.group.head_tag = None;
    }
}

impl Queue {
    /// The tag of a record that becomes the first one of its flow.
    #[inline]
    fn next_tag(&self, flow: &Flow) -> Tag {
        flow.finish.max(self.virtual_time)
    }

    /// Charges a record to a flow: the first one that stands in the queue or, without one, a record that goes at once.
    #[inline]
    fn charge(&mut self, flow: &mut Flow) {
        let tag = flow.head_tag.unwrap_or_else(|| self.next_tag(flow));
        self.virtual_time = self.virtual_time.max(tag);
        flow.finish = tag + flow.cost;
    }

    fn first(&mut self, tag_of: impl Fn(u32) -> Option<Tag>) -> Option<u32> {
        while let Some(&Reverse((tag, client))) = self.ready.peek() {
            if tag_of(client) == Some(tag) {
                return Some(client);
            }
            self.ready.pop();
        }
        None
    }
}
