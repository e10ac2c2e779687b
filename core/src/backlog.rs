//! The delayed records of a service and who of their clients is served next.
//!
//! Each record stands in three lists at once, in order of arrival: its client's, its partition's and everybody's.
//! Between clients, start-time fair queueing (Goyal, Vin, Cheng 1996) decides: a head's tag is the later of the
//! virtual time and its client's last finish; serving it moves the virtual time there and the finish by 1 / weight.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::chunks::Chunks;
use crate::units::Time;

/// Names a delayed record until it leaves; reused afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// Virtual time, in records × 2⁵⁶ per unit of weight.
pub type Tag = u128;

/// A delayed record, as the core knows it.
#[derive(Debug, Clone, Copy)]
pub struct Held {
    pub client: u32,
    pub partition: u32,
    pub offset: i64,
    pub bytes: u32,
    /// When this owner read it.
    pub since: Time,
}

/// The end of a list.
const NONE: u32 = u32::MAX;

/// Which list: the index of a record's links.
#[derive(Clone, Copy)]
enum By {
    Client = 0,
    Partition = 1,
    Arrival = 2,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    held: Held,
    links: [(u32, u32); 3],
}

impl Default for Node {
    /// A place that was not used yet.
    fn default() -> Node {
        let held = Held { client: NONE, partition: NONE, offset: 0, bytes: 0, since: Time::ZERO };
        Node { held, links: [(NONE, NONE); 3] }
    }
}

/// One list through the nodes.
#[derive(Debug, Clone, Copy)]
pub struct List {
    head: u32,
    tail: u32,
    len: u64,
}

impl Default for List {
    fn default() -> List {
        List { head: NONE, tail: NONE, len: 0 }
    }
}

impl List {
    /// How many stand in it.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nobody does.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Who stands first.
    pub fn head(&self) -> Option<Slot> {
        (self.head != NONE).then_some(Slot(self.head))
    }
}

/// A client's place in the queue; what a record that goes at once touches comes first.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Lane {
    /// Its delayed records, oldest first.
    pub records: List,
    finish: Tag,
    /// 1 / weight.
    cost: Tag,
    /// The tag of its first record.
    head_tag: Option<Tag>,
    /// Their bytes.
    pub bytes: u64,
    /// Its own limit refused: not before this.
    parked: Option<Time>,
}

impl Lane {
    /// The weight from now on, in 2⁻⁶⁴ records; the tag that its first record has stays.
    pub fn set_weight(&mut self, weight: u128) {
        self.cost = ((1 << 120) / weight.max(1)).max(1);
    }
}

/// All delayed records of a service.
#[derive(Debug, Default)]
pub struct Backlog {
    nodes: Chunks<Node>,
    free: Vec<u32>,
    arrivals: List,
    bytes: u64,
    virtual_time: Tag,
    /// Clients with a head that may go, by its tag. An entry that no longer is its client's tag is void.
    ready: BinaryHeap<Reverse<(Tag, u32)>>,
    /// Clients whose own limit refused.
    parked: BinaryHeap<Reverse<(Time, u32)>>,
}

impl Backlog {
    /// How many are delayed.
    pub fn len(&self) -> u64 {
        self.arrivals.len
    }

    /// Whether nothing is delayed.
    pub fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }

    /// Their bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The record that was read first.
    pub fn oldest(&self) -> Option<Slot> {
        self.arrivals.head()
    }

    /// What stands in a slot that was not let go.
    pub fn get(&self, slot: Slot) -> &Held {
        &self.nodes[slot.0 as usize].held
    }

    /// Puts a record at the end of its client's lane and its partition's list.
    pub fn push(&mut self, held: Held, lane: &mut Lane, partition: &mut List) -> Slot {
        let index = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(Node::default());
            u32::try_from(self.nodes.len() - 1).expect("fewer than 2³² delayed records")
        });
        if lane.records.is_empty() {
            self.make_head(held.client, lane, lane.finish.max(self.virtual_time));
        }
        let nodes = &mut self.nodes;
        let links = [
            append(nodes, By::Client, &mut lane.records, index),
            append(nodes, By::Partition, partition, index),
            append(nodes, By::Arrival, &mut self.arrivals, index),
        ];
        nodes[index as usize] = Node { held, links };
        lane.bytes += u64::from(held.bytes);
        self.bytes += u64::from(held.bytes);
        Slot(index)
    }

    /// Whether nobody stands in the queue, which is quicker to know than who is [next](Backlog::next_client).
    #[inline]
    pub fn nobody_stands(&self) -> bool {
        self.ready.is_empty()
    }

    /// The client that is served next.
    pub fn next_client(&mut self, lane_of: impl Fn(u32) -> Option<Tag>) -> Option<u32> {
        while let Some(&Reverse((tag, client))) = self.ready.peek() {
            if lane_of(client) == Some(tag) {
                return Some(client);
            }
            self.ready.pop();
        }
        None
    }

    /// Takes a record out because it is served: its client pays for it.
    pub fn serve(&mut self, slot: Slot, lane: &mut Lane, partition: &mut List) -> Held {
        let tag = lane.head_tag.unwrap_or(self.virtual_time);
        self.virtual_time = self.virtual_time.max(tag);
        lane.finish = tag + lane.cost;
        let held = self.unlink(slot, lane, partition);
        if !lane.records.is_empty() {
            self.make_head(held.client, lane, lane.finish.max(self.virtual_time));
        }
        held
    }

    /// Takes a record out for another reason: its successor inherits its tag.
    pub fn discard(&mut self, slot: Slot, lane: &mut Lane, partition: &mut List) -> Held {
        self.unlink(slot, lane, partition)
    }

    /// Charges a record that was served at once.
    #[inline]
    pub fn serve_at_once(&mut self, lane: &mut Lane) {
        let tag = lane.finish.max(self.virtual_time);
        self.virtual_time = tag;
        lane.finish = tag + lane.cost;
    }

    /// Frees a slot whose payload was handed out.
    pub fn release(&mut self, slot: Slot) {
        self.free.push(slot.0);
    }

    /// The client is not served before `until`.
    pub fn park(&mut self, client: u32, lane: &mut Lane, until: Time) {
        lane.parked = Some(until);
        self.parked.push(Reverse((until, client)));
    }

    /// A client whose time has come, if any; the caller hands its lane to [`unpark`](Backlog::unpark).
    pub fn next_parked(&mut self, now: Time) -> Option<u32> {
        let &Reverse((until, client)) = self.parked.peek()?;
        (until <= now).then(|| {
            self.parked.pop();
            client
        })
    }

    /// When the first parked client comes back.
    pub fn parked_until(&self) -> Option<Time> {
        self.parked.peek().map(|&Reverse((until, _))| until)
    }

    /// Lets a parked client be served again.
    pub fn unpark(&mut self, now: Time, client: u32, lane: &mut Lane) {
        if lane.parked.is_some_and(|until| until <= now) {
            lane.parked = None;
            if let Some(tag) = lane.head_tag {
                self.ready.push(Reverse((tag, client)));
            }
        }
    }

    /// A partition's records, oldest first.
    pub fn of_partition<'a>(&'a self, partition: &List) -> impl Iterator<Item = Slot> + 'a {
        self.iter(By::Partition, partition)
    }

    fn iter(&self, by: By, list: &List) -> impl Iterator<Item = Slot> + '_ {
        std::iter::successors(list.head(), move |slot| {
            let next = self.nodes[slot.0 as usize].links[by as usize].1;
            (next != NONE).then_some(Slot(next))
        })
    }

    fn make_head(&mut self, client: u32, lane: &mut Lane, tag: Tag) {
        lane.head_tag = Some(tag);
        if lane.parked.is_none() {
            self.ready.push(Reverse((tag, client)));
        }
    }

    fn unlink(&mut self, slot: Slot, lane: &mut Lane, partition: &mut List) -> Held {
        let Node { held, links: [of_client, of_partition, of_all] } = self.nodes[slot.0 as usize];
        let nodes = &mut self.nodes;
        unlink(nodes, By::Client, &mut lane.records, of_client);
        unlink(nodes, By::Partition, partition, of_partition);
        unlink(nodes, By::Arrival, &mut self.arrivals, of_all);
        lane.bytes -= u64::from(held.bytes);
        self.bytes -= u64::from(held.bytes);
        if lane.records.is_empty() {
            lane.head_tag = None;
            lane.parked = None;
        }
        held
    }
}

/// The tag under which a client stands in the queue; `None` if it has nothing that may go.
pub fn eligible_tag(lane: &Lane) -> Option<Tag> {
    if lane.parked.is_some() { None } else { lane.head_tag }
}

/// Puts a place at the end of a list; returns its links there.
fn append(nodes: &mut Chunks<Node>, by: By, list: &mut List, index: u32) -> (u32, u32) {
    let before = list.tail;
    match before {
        NONE => list.head = index,
        before => nodes[before as usize].links[by as usize].1 = index,
    }
    list.tail = index;
    list.len += 1;
    (before, NONE)
}

/// Joins what is before and behind a place that leaves a list.
fn unlink(nodes: &mut Chunks<Node>, by: By, list: &mut List, (before, after): (u32, u32)) {
    match before {
        NONE => list.head = after,
        before => nodes[before as usize].links[by as usize].1 = after,
    }
    match after {
        NONE => list.tail = before,
        after => nodes[after as usize].links[by as usize].0 = before,
    }
    list.len -= 1;
}
