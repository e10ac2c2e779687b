//! Which client is served next: start-time fair queueing (Goyal, Vin, Cheng 1996).
//!
//! The tag of a client's first record is the later of the virtual time and the client's last finish; the smallest tag
//! is served, which moves the virtual time to that tag and the client's finish by 1 / weight beyond it.
//!
//! Once any client is configured, all others queue in a group of their own, which stands in the main queue as if it
//! were one client with the weight of all its members. So a configured client waits for at most one of their records at
//! a time, however many ids there are and whatever they do.

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

/// Stands in the main queue for the group of unlisted clients.
const UNLISTED: u32 = u32::MAX - 1;

/// Clients with a record that may go, by its tag.
#[derive(Debug, Default)]
struct Queue {
    virtual_time: Tag,
    /// An entry whose tag no longer is its client's tag is void.
    ready: BinaryHeap<Reverse<(Tag, u32)>>,
}

/// Both queues.
#[derive(Debug, Default)]
pub(super) struct FairQueue {
    main: Queue,
    unlisted: Queue,
    /// The place of the unlisted clients in the main queue.
    group: Flow,
}

/// The tags of the group, as a [`Lane`] keeps those of a client.
#[derive(Debug, Default)]
struct Flow {
    finish: Tag,
    cost: Tag,
    head_tag: Option<Tag>,
}

/// 1 / weight.
pub(super) fn cost_of(weight: Fixed) -> Tag {
    ((1 << 120) / weight.to_bits().max(1)).max(1)
}

impl FairQueue {
    /// The virtual time of a queue.
    pub fn virtual_time(&self, group: Group) -> Tag {
        self.queue(group).virtual_time
    }

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

    /// Sets the weight of the group of unlisted clients.
    pub fn set_group_weight(&mut self, weight: Fixed) {
        self.group.cost = cost_of(weight);
        self.group.finish = self.group.finish.min(self.main.virtual_time + self.group.cost);
    }

    /// Whether both queues are empty; void entries count as clients.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.main.ready.is_empty()
    }

    /// The tag of a client's record that becomes its first one.
    pub fn next_tag(&self, lane: &Lane) -> Tag {
        lane.finish.max(self.queue(lane.group).virtual_time)
    }

    /// Puts a client with a record that may go into its queue.
    pub fn enter(&mut self, client: u32, group: Group, tag: Tag) {
        self.queue_mut(group).ready.push(Reverse((tag, client)));
        if group == Group::Unlisted && self.group.head_tag.is_none() {
            self.enter_group();
        }
    }

    fn enter_group(&mut self) {
        let tag = self.group.finish.max(self.main.virtual_time);
        self.group.head_tag = Some(tag);
        self.main.ready.push(Reverse((tag, UNLISTED)));
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

    /// Charges a record that stood in the queue to its client and, for an unlisted client, to the group.
    #[inline]
    pub fn charge(&mut self, lane: &mut Lane) {
        if lane.group == Group::Unlisted {
            return self.charge_member(lane);
        }
        self.main.charge(lane);
    }

    /// The same for a record that goes at once: no record of its client stands in the queue.
    #[inline]
    pub fn charge_at_once(&mut self, lane: &mut Lane) {
        if lane.group == Group::Unlisted {
            return self.charge_member(lane);
        }
        let tag = lane.finish.max(self.main.virtual_time);
        self.main.virtual_time = tag;
        lane.finish = tag + lane.cost;
    }

    fn charge_member(&mut self, lane: &mut Lane) {
        self.unlisted.charge(lane);
        self.charge_group();
    }

    fn charge_group(&mut self) {
        let Flow { finish, cost, head_tag } = &mut self.group;
        let tag = head_tag.take().unwrap_or_else(|| (*finish).max(self.main.virtual_time));
        self.main.virtual_time = self.main.virtual_time.max(tag);
        *finish = tag + *cost;
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
    #[inline]
    fn charge(&mut self, lane: &mut Lane) {
        let tag = lane.head_tag.unwrap_or_else(|| lane.finish.max(self.virtual_time));
        self.virtual_time = self.virtual_time.max(tag);
        lane.finish = tag + lane.cost;
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
