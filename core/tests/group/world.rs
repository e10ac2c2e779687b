//! The run of one seed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::{fmt, time::Duration};

use watermaster_core::group::GroupParams;
use watermaster_core::group::member::Restart;
use watermaster_core::group::record::Record;
use watermaster_core::policy::{Mode, Policy};
use watermaster_core::units::{Ratio, Time};

use crate::log::{Entry, Log, compact};
use crate::node::{Node, member};
use crate::planted::Mistake;
use crate::support::random::Random;

/// The length of a run.
const END: Time = Time::from_nanos(60_000_000_000);
/// The most nodes at a time.
const MAX_NODES: usize = 8;

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The records by which the fullest window exceeded its capacity; negative if all had room.
    pub most_over: i64,
    /// The records of the fullest window, as a part of the capacity.
    pub largest: f64,
    /// The part of the capacity that was used.
    pub used: f64,
    pub faults: Faults,
    pub log: Log,
    setting: String,
    at: Time,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} records above the capacity at {:?} ({})", self.most_over, self.at, self.setting)
    }
}

/// The faults that took effect.
#[derive(Debug, Default, Clone)]
pub struct Faults {
    pub crashes: u64,
    pub stops: u64,
    pub drains: u64,
    pub outages: u64,
    pub joins: u64,
    pub reloads: u64,
    pub lost_posts: u64,
    pub put_out: u64,
    pub lost_histories: u64,
    pub unanswered: u64,
}

impl Faults {
    pub fn add(&mut self, other: &Faults) {
        self.crashes += other.crashes;
        self.stops += other.stops;
        self.drains += other.drains;
        self.outages += other.outages;
        self.joins += other.joins;
        self.reloads += other.reloads;
        self.lost_posts += other.lost_posts;
        self.put_out += other.put_out;
        self.lost_histories += other.lost_histories;
        self.unanswered += other.unanswered;
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Beat { node: u64, reader: u64 },
    Arrive { node: u64, record: usize },
    Report { node: u64, reader: u64, seq: u64 },
    Deliver { node: u64, reader: u64, offset: u64, record: usize },
    Trouble,
    Respawn { node: u64 },
    Reload { node: u64 },
}

pub struct World {
    random: Random,
    params: GroupParams,
    mistake: Option<Mistake>,
    /// Members with this property take former processes of their instance for fenced.
    fences: bool,
    reloads: bool,
    slow: Duration,
    /// Of 10 000 records, these take up to several leases.
    late: u32,
    log: Log,
    /// Records on their way, by number: events must be ordered, and records are not.
    records: Vec<Record>,
    nodes: BTreeMap<u64, Node>,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    number: u64,
    outages: Vec<(Time, Time)>,
    last_append: BTreeMap<u64, Time>,
    last_delivery: BTreeMap<(u64, u64), Time>,
    /// The capacities of nodes from a time on.
    capacities: BTreeMap<u64, u64>,
    admitted: Vec<(Time, u64)>,
    faults: Faults,
    next_reader: u64,
}

/// Runs a seed.
pub fn run(seed: u64, mistake: Option<Mistake>) -> Outcome {
    let mut random = Random::stream(seed, 17);
    let pick = |random: &mut Random, millis: &[u64]| Duration::from_millis(millis[random.index(millis.len())]);
    let capacity = [7, 50, 300][random.index(3)];
    let cycle = pick(&mut random, &[500, 1_000, 3_000]);
    let lease = pick(&mut random, &[500, 1_000, 2_000, 5_000]);
    let mode = if random.once_in(2) { Mode::Shape } else { Mode::Reject };
    let policy = Policy { mode, commit_interval: Duration::from_millis(50), ..Policy::new(capacity, cycle) };
    let params = GroupParams {
        look: Duration::from_millis(50),
        heartbeat: lease / 4,
        standby: Ratio::from_millionths([0, 50_000][random.index(2)]).unwrap(),
        margin: Ratio::from_millionths(50_000).unwrap(),
        ..GroupParams::new(&policy, lease)
    };
    let slow = pick(&mut random, &[2, 20, 200]);
    let late = [0, 200][random.index(2)];
    let (fences, reloads) = (random.once_in(2), random.once_in(3));
    let nodes = [2, 3, 5][random.index(3)];
    let setting = format!(
        "{mode:?}, capacity {capacity}, cycle {cycle:?}, lease {lease:?}, {nodes} nodes, fences {fences}, \
         reloads {reloads}, slow {slow:?}, late {late}"
    );
    let mut world = World {
        random,
        params,
        mistake,
        fences,
        reloads,
        slow,
        late,
        log: Log::default(),
        records: Vec::new(),
        nodes: BTreeMap::new(),
        events: BinaryHeap::new(),
        number: 0,
        outages: Vec::new(),
        last_append: BTreeMap::new(),
        last_delivery: BTreeMap::new(),
        capacities: BTreeMap::new(),
        admitted: Vec::new(),
        faults: Faults::default(),
        next_reader: 0,
    };
    for node in 0..nodes {
        world.spawn(Time::ZERO, node);
    }
    world.at(Time::ZERO + Duration::from_secs(1), Event::Trouble);
    world.run();
    world.outcome(setting)
}

impl World {
    fn at(&mut self, when: Time, event: Event) {
        self.number += 1;
        self.events.push(Reverse((when, self.number, event)));
    }

    fn run(&mut self) {
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            if now >= END {
                break;
            }
            match event {
                Event::Beat { node, reader } => self.beat(now, node, reader),
                Event::Arrive { node, record } => self.arrive(now, node, record),
                Event::Report { node, reader, seq } => self.report(node, reader, seq),
                Event::Deliver { node, reader, offset, record } => self.deliver(now, node, reader, (offset, record)),
                Event::Trouble => self.trouble(now),
                Event::Respawn { node } if !self.nodes[&node].alive => self.spawn(now, node),
                Event::Respawn { .. } => {}
                Event::Reload { node } => self.reload(node),
            }
        }
    }

    // ## The log

    /// The time of an arrival: outages hold everything up.
    fn after_outages(&self, mut when: Time) -> Time {
        for &(from, to) in &self.outages {
            if (from..to).contains(&when) {
                when = to;
            }
        }
        when
    }

    fn delay(&mut self) -> Duration {
        if self.random.chance(self.late) {
            let lease = self.params.lease.as_millis() as u64;
            return self.random.millis(300, (lease * 5 / 2).max(301));
        }
        self.slow.mul_f64(0.2 + 2.8 * self.random.unit())
    }

    fn append(&mut self, now: Time, node: u64, reader: u64, record: Record) {
        let delay = self.delay();
        let arrival = self.after_outages(now + delay);
        let seq = if let Record::Post(post) = &record { post.seq } else { 0 };
        if self.random.chance(300) {
            // The record never arrives; half of the losses are reported.
            self.faults.lost_posts += 1;
            if self.random.once_in(2) {
                self.at(arrival, Event::Report { node, reader, seq });
            }
            return;
        }
        if self.random.chance(50) {
            // A report that is wrong: the record arrives later.
            self.at(now + delay / 2, Event::Report { node, reader, seq });
        }
        let after_last = self.last_append.get(&reader).map_or(Time::ZERO, |&last| last + Duration::from_micros(1));
        let arrival = arrival.max(after_last);
        self.last_append.insert(reader, arrival);
        self.records.push(record);
        self.at(arrival, Event::Arrive { node, record: self.records.len() - 1 });
    }

    fn arrive(&mut self, now: Time, _node: u64, record: usize) {
        let offset = self.log.append(self.records[record].clone());
        let readers: Vec<(u64, u64)> =
            self.nodes.values().filter(|node| node.alive).map(|node| (node.id, node.reader)).collect();
        for (node, reader) in readers {
            self.send(now, node, reader, offset, record);
        }
    }

    fn send(&mut self, now: Time, node: u64, reader: u64, offset: u64, record: usize) -> Time {
        let delay = self.delay();
        let arrival = self.after_outages(now + delay);
        let after_last = self.last_delivery.get(&(node, reader)).copied().unwrap_or_default();
        let arrival = arrival.max(after_last + Duration::from_micros(1));
        self.last_delivery.insert((node, reader), arrival);
        self.at(arrival, Event::Deliver { node, reader, offset, record });
        arrival
    }

    fn report(&mut self, node: u64, reader: u64, seq: u64) {
        if let Some(node) = self.nodes.get_mut(&node).filter(|node| node.alive && node.reader == reader) {
            node.member.handle_failed(seq);
        }
    }

    fn deliver(&mut self, now: Time, id: u64, reader: u64, (offset, record): (u64, usize)) {
        let record = self.records[record].clone();
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.alive && node.reader == reader) else { return };
        if node.stopped_until > now || !node.unread.is_empty() {
            node.unread.push((offset, record));
            return;
        }
        self.read(now, id, &(offset, record));
        self.admit(now, id);
    }

    fn read(&mut self, now: Time, id: u64, (offset, record): &Entry) {
        let mistake = self.mistake;
        let node = self.nodes.get_mut(&id).expect("a living node");
        let clocks = node.clocks(now);
        let offset = match mistake {
            Some(Mistake::CompactionTrusted) => node.member.seats().next_offset(),
            Some(Mistake::GapUnnoticed) => (*offset).min(node.member.seats().next_offset().max(node.first_fresh())),
            _ => *offset,
        };
        node.member.handle_record(clocks, offset, record);
        if node.member.restart(clocks).is_none() {
            node.asked = 0;
        }
    }

    // ## Nodes

    fn spawn(&mut self, now: Time, id: u64) {
        self.next_reader += 1;
        let reader = self.next_reader;
        let capacity = self.capacities.get(&id).copied().unwrap_or(self.params.capacity);
        let params = GroupParams { capacity, ..self.params.clone() };
        let start = self.believed_start();
        let mut node = Node::new(&params, id, reader, start, now, self.mistake, &mut self.random);
        for demand in &mut node.demand {
            *demand = [0, self.params.capacity][self.random.index(2)];
        }
        self.nodes.insert(id, node);
        self.subscribe(now, id, reader);
    }

    /// The end of the log, from which on a newcomer sees all records.
    fn believed_start(&self) -> u64 {
        if self.mistake == Some(Mistake::CompactionTrusted) { 0 } else { self.log.end() }
    }

    /// Reads the log from its beginning: some of it was compacted.
    fn subscribe(&mut self, now: Time, id: u64, reader: u64) {
        let fresh = [0, 0, 5, 50][self.random.index(4)];
        let mut last = now;
        for (offset, record) in self.log.compacted(fresh) {
            self.records.push(record);
            last = self.send(now, id, reader, offset, self.records.len() - 1);
        }
        self.at(last + Duration::from_millis(1), Event::Beat { node: id, reader });
    }

    fn admit(&mut self, now: Time, id: u64) {
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.alive && node.stopped_until <= now) else { return };
        let records = node.admit(now, &self.params);
        if records > 0 {
            self.admitted.push((now, records));
        }
    }

    fn beat(&mut self, now: Time, id: u64, reader: u64) {
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.alive && node.reader == reader) else { return };
        if node.stopped_until <= now {
            let unread = std::mem::take(&mut node.unread);
            if !unread.is_empty() {
                self.catch_up(now, id, unread);
            }
            self.serve(now, id);
        }
        // After lost history, reading the log again leads to the next beat.
        if self.nodes[&id].reader == reader {
            let next = now + self.random.millis(10, 60);
            self.at(next, Event::Beat { node: id, reader });
        }
    }

    /// Reads what came while the node stood still; perhaps it was compacted meanwhile.
    fn catch_up(&mut self, now: Time, id: u64, unread: Vec<Entry>) {
        let was_compacted = self.random.once_in(2);
        let unread = if was_compacted { compact(unread, u64::MAX) } else { unread };
        for entry in &unread {
            self.read(now, id, entry);
            if self.random.once_in(3) {
                self.admit(now, id);
            }
        }
    }

    fn serve(&mut self, now: Time, id: u64) {
        let (params, mistake, fences) = (self.params.clone(), self.mistake, self.fences);
        let jump_to = self.random.millis(0, 2 * params.cycle.as_millis() as u64);
        let jumps = self.random.chance(20);
        let demand_changes = self.random.chance(500);
        let node = self.nodes.get_mut(&id).expect("a living node");
        if jumps {
            node.jumps = node.jumps + jump_to;
        }
        if demand_changes {
            for demand in &mut node.demand {
                *demand = [0, 0, 1, params.capacity / 3, params.capacity][self.random.index(5)];
            }
        }
        let clocks = node.clocks(now);
        if !node.read_to_end {
            node.read_to_end = true;
            node.member.handle_caught_up(clocks);
            if fences {
                node.member.handle_fenced(clocks);
            }
        }
        node.expire(clocks, params.window());
        match node.member.restart(clocks) {
            Some(Restart::LostHistory(_)) => return self.read_again(now, id),
            Some(why) => {
                node.member.rejoin(clocks, self.random.word());
                node.begin_window();
                match why {
                    Restart::Unanswered => self.faults.unanswered += 1,
                    _ => self.faults.put_out += 1,
                }
            }
            None => {}
        }
        let node = self.nodes.get_mut(&id).expect("a living node");
        let count = if mistake == Some(Mistake::ForgottenWindow) { 0 } else { node.count };
        let mut records = node.member.look(clocks, count, &node.loads());
        if let Some(mistake) = mistake {
            mistake.spoil(&mut records);
        }
        for record in records {
            let node = self.nodes.get_mut(&id).expect("a living node");
            if let Record::Post(post) = &record {
                node.asked = node.asked.max(post.want);
            }
            let reader = node.reader;
            self.append(now, id, reader, record);
        }
        self.admit(now, id);
    }

    /// Begins anew with another member, after history was lost.
    fn read_again(&mut self, now: Time, id: u64) {
        self.faults.lost_histories += 1;
        self.next_reader += 1;
        let (reader, start, incarnation) = (self.next_reader, self.believed_start(), self.random.word());
        let params = self.params.clone();
        let node = self.nodes.get_mut(&id).expect("a living node");
        node.member = member(&params, id, incarnation, start, node.clocks(now));
        (node.reader, node.start, node.read_to_end) = (reader, start, false);
        node.unread.clear();
        node.begin_window();
        self.subscribe(now, id, reader);
    }

    // ## Faults

    fn trouble(&mut self, now: Time) {
        let living: Vec<u64> = self.nodes.values().filter(|node| node.alive).map(|node| node.id).collect();
        let id = if living.is_empty() { None } else { Some(living[self.random.index(living.len())]) };
        let (lease, cycle) = (self.params.lease, self.params.cycle);
        match (self.random.below(8), id) {
            (0, Some(id)) => {
                self.faults.crashes += 1;
                self.nodes.get_mut(&id).expect("a node").alive = false;
                let pause = [Duration::from_millis(10), Duration::from_millis(500), lease * 3][self.random.index(3)];
                self.at(now + pause, Event::Respawn { node: id });
            }
            (1 | 2, Some(id)) if self.nodes[&id].stopped_until <= now => {
                self.faults.stops += 1;
                let pauses = [Duration::from_millis(100), lease, lease + cycle, (lease + cycle) * 3];
                let pause = pauses[self.random.index(4)].mul_f64(0.5 + 0.7 * self.random.unit());
                self.nodes.get_mut(&id).expect("a node").stopped_until = now + pause;
            }
            (3, Some(id)) if self.nodes[&id].stopped_until <= now => {
                self.faults.drains += 1;
                let window = self.params.window();
                let node = self.nodes.get_mut(&id).expect("a node");
                let clocks = node.clocks(now);
                node.expire(clocks, window);
                let (records, reader) = (node.member.leave(clocks, node.count), node.reader);
                node.alive = false;
                for record in records {
                    self.append(now, id, reader, record);
                }
                let pause = self.random.millis(10, 5_000);
                self.at(now + pause, Event::Respawn { node: id });
            }
            (4, _) => {
                self.faults.outages += 1;
                let pause = [Duration::from_millis(200), lease, lease * 2 + cycle][self.random.index(3)];
                self.outages.push((now, now + pause));
            }
            (5, _) if self.nodes.len() < MAX_NODES => {
                self.faults.joins += 1;
                let id = self.nodes.len() as u64;
                self.spawn(now, id);
            }
            (6, Some(id)) if self.reloads => self.at(now, Event::Reload { node: id }),
            _ => {}
        }
        let pause = Duration::from_secs_f64(-2.0 * (1.0 - self.random.unit()).ln());
        self.at(now + pause, Event::Trouble);
    }

    /// Changes the capacity of a node. It only falls or comes back: `params.capacity` bounds every window.
    fn reload(&mut self, id: u64) {
        self.faults.reloads += 1;
        let whole = self.params.capacity;
        let capacity = [whole, whole / 2, whole - whole / 4][self.random.index(3)].max(1);
        self.capacities.insert(id, capacity);
        let node = self.nodes.get_mut(&id).expect("a node");
        let params = GroupParams { capacity, ..self.params.clone() };
        let policy = Policy { mode: params.mode, ..Policy::new(capacity, params.cycle) };
        node.member.change(params, watermaster_core::group::targets::Shares::new(&policy));
    }

    // ## The checker

    fn outcome(self, setting: String) -> Outcome {
        let (mut sum, mut most, mut at) = (0_u64, 0_u64, Time::ZERO);
        let mut window: VecDeque<(Time, u64)> = VecDeque::new();
        for &(now, records) in &self.admitted {
            window.push_back((now, records));
            sum += records;
            while window.front().is_some_and(|&(then, _)| then + self.params.cycle <= now) {
                sum -= window.pop_front().expect("a front").1;
            }
            if sum > most {
                (most, at) = (sum, now);
            }
        }
        let capacity = self.params.capacity;
        let total: u64 = self.admitted.iter().map(|(_, records)| records).sum();
        let cycles = END.since(Time::ZERO).as_secs_f64() / self.params.cycle.as_secs_f64();
        Outcome {
            most_over: most as i64 - capacity as i64,
            largest: most as f64 / capacity as f64,
            used: total as f64 / (capacity as f64 * cycles),
            faults: self.faults,
            log: self.log,
            setting,
            at,
        }
    }
}
