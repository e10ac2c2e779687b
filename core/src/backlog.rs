//! The delayed records of a service, and which of their clients is served next.
//!
//! Each record stands in three lists at once, in order of arrival: its client's, its partition's and that of all
//! records. Between clients [`fair`] decides.

mod fair;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::allocator::Fixed;
use crate::chunks::Chunks;
use crate::units::Time;
use fair::{FairQueue, Flow};
pub use fair::{Group, Tag};

/// Names a delayed record until it leaves; reused afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

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
#[derive(Debug)]
#[repr(C)]
pub struct Lane {
    /// Its delayed records, oldest first.
    pub records: List,
    flow: Flow,
    /// Their bytes.
    pub bytes: u64,
    /// Its own limit refused: not before this.
    parked: Option<Time>,
    group: Group,
}

impl Default for Lane {
    /// The lane of a client that is there from the start, without a weight so far.
    fn default() -> Lane {
        Lane { records: List::default(), flow: Flow::new(0), bytes: 0, parked: None, group: Group::Main }
    }
}

impl Lane {
    /// The lane of a client that comes while the service runs. With its first weight it begins as if it had just been
    /// served one of its own records: if it began at the virtual time, ids that are used once would always go first.
    pub fn of_newcomer(group: Group) -> Lane {
        Lane { flow: Flow::new(Tag::MAX), group, ..Lane::default() }
    }

    /// The weight from now on; the tag that the first record has stays. No finish lies further ahead of the virtual
    /// time than a record of this weight costs: a client that was light does not wait for long once it is heavy.
    pub fn set_weight(&mut self, weight: Fixed, backlog: &Backlog) {
        backlog.fair.set_weight(self, weight);
    }
}

/// All delayed records of a service.
#[derive(Debug, Default)]
pub struct Backlog {
    nodes: Chunks<Node>,
    free: Vec<u32>,
    arrivals: List,
    bytes: u64,
    fair: FairQueue,
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
            self.fair.make_head(held.client, lane);
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

    /// Returns whether no client is in a queue, quicker than [`next_client`](Backlog::next_client) does.
    #[inline]
    pub fn nobody_stands(&self) -> bool {
        self.fair.is_empty()
    }

    /// The client that is served next.
    pub fn next_client(&mut self, tag_of: impl Fn(u32) -> Option<Tag>) -> Option<u32> {
        self.fair.next_client(tag_of)
    }

    /// Takes a record out because it is served: its client pays for it.
    pub fn serve(&mut self, slot: Slot, lane: &mut Lane, partition: &mut List) -> Held {
        self.fair.charge(lane);
        let held = self.unlink(slot, lane, partition);
        if !lane.records.is_empty() {
            self.fair.make_head(held.client, lane);
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
        self.fair.charge(lane);
    }

    /// The weight of all unlisted clients together.
    pub fn set_group_weight(&mut self, weight: Fixed) {
        self.fair.set_group_weight(weight);
    }

    /// Takes all clients out of the queues, for each to be put back by [`requeue`](Backlog::requeue).
    pub fn clear_queues(&mut self) {
        self.fair.clear();
        self.parked.clear();
    }

    /// Puts a client back, in a queue that may be another one than before. Records that it was served lately count as at
    /// most one record of its present weight. A client that waited for its own limit may go again.
    pub fn requeue(&mut self, client: u32, lane: &mut Lane, group: Group) {
        self.fair.change_group(lane, group);
        lane.parked = None;
        self.fair.enter(client, lane);
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
            self.fair.enter(client, lane);
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

    fn unlink(&mut self, slot: Slot, lane: &mut Lane, partition: &mut List) -> Held {
        let Node { held, links: [of_client, of_partition, of_all] } = self.nodes[slot.0 as usize];
        let nodes = &mut self.nodes;
        unlink(nodes, By::Client, &mut lane.records, of_client);
        unlink(nodes, By::Partition, partition, of_partition);
        unlink(nodes, By::Arrival, &mut self.arrivals, of_all);
        lane.bytes -= u64::from(held.bytes);
        self.bytes -= u64::from(held.bytes);
        if lane.records.is_empty() {
            lane.flow.head_tag = None;
            lane.parked = None;
        }
        held
    }
}

/// The tag under which a client stands in the queue; `None` if it has nothing that may go.
pub fn eligible_tag(lane: &Lane) -> Option<Tag> {
    if lane.parked.is_some() { None } else { lane.flow.head_tag }
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
