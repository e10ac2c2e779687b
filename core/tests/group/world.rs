//! The run of one seed.

mod faults;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::{fmt, sync::Arc, time::Duration};

use watermaster_core::group::GroupParams;
use watermaster_core::group::member::Restart;
use watermaster_core::group::record::Record;
use watermaster_core::units::Time;

pub use self::faults::Faults;
use crate::log::Log;
use crate::node::{Node, member};
use crate::planted::Mistake;
use crate::setting::Setting;
use crate::support::random::Random;

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

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Beat { node: u64, reader: u64 },
    Arrive { record: usize },
    Report { node: u64, reader: u64, seq: u64 },
    Trouble,
    Respawn { node: u64 },
}

pub struct World {
    random: Random,
    setting: Setting,
    params: GroupParams,
    mistake: Option<Mistake>,
    clients: Vec<Arc<str>>,
    log: Log,
    /// Records on their way, by number: events must be ordered, and records are not.
    records: Vec<Option<Record>>,
    nodes: BTreeMap<u64, Node>,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    number: u64,
    outages: Vec<(Time, Time)>,
    last_append: BTreeMap<u64, Time>,
    /// The capacities of nodes from a time on.
    capacities: BTreeMap<u64, u64>,
    admitted: Vec<(Time, u64)>,
    faults: Faults,
    next_reader: u64,
}

/// Runs a setting. The members begin after one cycle, in which others may have admitted records.
pub fn run(setting: Setting, mut random: Random, mistake: Option<Mistake>) -> Outcome {
    let begin = Time::ZERO + setting.params.cycle;
    let memory = setting.params.capacity * setting.memory / 100;
    let mut admitted = Vec::new();
    for _ in 0..memory {
        admitted.push((Time::from_nanos(1 + random.below(begin.as_nanos())), 1));
    }
    admitted.sort_unstable();
    let mut world = World {
        random,
        params: setting.params.clone(),
        clients: (0..setting.clients).map(|client| Arc::from(format!("client-{client}"))).collect(),
        setting,
        mistake,
        log: Log::default(),
        records: Vec::new(),
        nodes: BTreeMap::new(),
        events: BinaryHeap::new(),
        number: 0,
        outages: Vec::new(),
        last_append: BTreeMap::new(),
        capacities: BTreeMap::new(),
        admitted,
        faults: Faults::default(),
        next_reader: 0,
    };
    for node in 0..world.setting.nodes {
        world.spawn(begin, node);
    }
    world.at(begin + world.setting.trouble, Event::Trouble);
    world.run(begin + world.setting.length);
    world.outcome()
}

impl World {
    fn at(&mut self, when: Time, event: Event) {
        self.number += 1;
        self.events.push(Reverse((when, self.number, event)));
    }

    fn run(&mut self, end: Time) {
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            if now >= end {
                break;
            }
            match event {
                Event::Beat { node, reader } => self.beat(now, node, reader),
                Event::Arrive { record } => {
                    let record = self.records[record].take().expect("a record arrives once");
                    self.log.append(now, record);
                }
                Event::Report { node, reader, seq } => self.report(node, reader, seq),
                Event::Trouble => self.trouble(now),
                Event::Respawn { node } if !self.nodes[&node].alive => self.spawn(now, node),
                Event::Respawn { .. } => {}
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
        if self.random.chance(self.setting.late) {
            let lease = self.params.lease.as_millis() as u64;
            return self.random.millis(300, (lease * 5 / 2).max(301));
        }
        self.setting.slow.mul_f64(0.2 + 2.8 * self.random.unit())
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
        self.records.push(Some(record));
        self.at(arrival, Event::Arrive { record: self.records.len() - 1 });
    }

    fn report(&mut self, node: u64, reader: u64, seq: u64) {
        if let Some(node) = self.nodes.get_mut(&node).filter(|node| node.alive && node.reader == reader) {
            node.member.handle_failed(seq);
        }
    }

    /// Reads the records that have come by now, which each reading finds with another delay.
    fn read_on(&mut self, now: Time, id: u64) {
        if self.after_outages(now) > now || self.nodes[&id].stalled_until > now {
            return;
        }
        let delay = self.delay();
        if delay > self.setting.slow * 4 {
            self.nodes.get_mut(&id).expect("a living node").stalled_until = now + delay;
            return;
        }
        let mut most = if self.random.once_in(8) { self.random.below(6) } else { u64::MAX };
        while most > 0 {
            most -= 1;
            let node = self.nodes.get_mut(&id).expect("a living node");
            let offset = match node.prefix.pop() {
                Some(offset) => offset,
                None if self.log.get(node.next).is_some_and(|&(at, _)| at + delay <= now) => {
                    node.next += 1;
                    node.next - 1
                }
                None => break,
            };
            // Records that were superseded while the reader stood still are gone.
            if offset >= self.nodes[&id].compacted_to || self.log.is_kept(offset) {
                self.read(now, id, offset);
                if self.random.once_in(3) {
                    self.admit(now, id);
                }
            }
        }
    }

    fn read(&mut self, now: Time, id: u64, offset: u64) {
        let node = self.nodes.get_mut(&id).expect("a living node");
        let clocks = node.clocks(now);
        let (_, record) = self.log.get(offset).expect("a record that was appended");
        let next = node.member.seats().next_offset();
        let offset = match self.mistake {
            Some(Mistake::CompactionTrusted) => next,
            Some(Mistake::GapUnnoticed) => offset.min(next.max(node.start)),
            _ => offset,
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
        let params = self.setting.params_of(id, capacity);
        let start = self.believed_start();
        let node = Node::new(&params, id, reader, start, now, self.mistake, &mut self.random);
        self.nodes.insert(id, node);
        self.change_demand(id, &[0, self.params.capacity]);
        self.subscribe(now, id);
    }

    /// The end of the log, from which on a newcomer sees all records.
    fn believed_start(&self) -> u64 {
        if self.mistake == Some(Mistake::CompactionTrusted) { 0 } else { self.log.end() }
    }

    /// Reads the log from its beginning: some of it was compacted.
    fn subscribe(&mut self, now: Time, id: u64) {
        let fresh = [0, 0, 5, 50][self.random.index(4)];
        let mut prefix = self.log.compacted(fresh);
        prefix.reverse();
        let node = self.nodes.get_mut(&id).expect("a node");
        (node.prefix, node.next) = (prefix, self.log.end());
        let event = Event::Beat { node: id, reader: node.reader };
        let delay = self.delay();
        let first = self.after_outages(now + delay);
        self.at(first, event);
    }

    fn change_demand(&mut self, id: u64, choices: &[u64]) {
        let mut demands = Vec::new();
        for _ in 0..self.setting.clients_of_node {
            let client = &self.clients[self.random.index(self.clients.len())];
            let demand = choices[self.random.index(choices.len())];
            if !demands.iter().any(|(other, _)| Arc::ptr_eq(other, client)) {
                demands.push((Arc::clone(client), demand));
            }
        }
        self.nodes.get_mut(&id).expect("a node").set_demand(demands);
    }

    fn admit(&mut self, now: Time, id: u64) {
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.alive && node.stopped_until <= now) else { return };
        let records = node.admit(now);
        if records > 0 {
            self.admitted.push((now, records));
        }
    }

    fn beat(&mut self, now: Time, id: u64, reader: u64) {
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.alive && node.reader == reader) else { return };
        if node.stopped_until <= now {
            let was_stopped = std::mem::replace(&mut node.stopped_until, Time::ZERO) > Time::ZERO;
            if was_stopped && self.random.once_in(2) {
                node.compacted_to = self.log.end();
            }
            self.admit(now, id);
            self.read_on(now, id);
            self.serve(now, id);
        }
        // After lost history, reading the log again leads to the next beat.
        if self.nodes[&id].reader == reader {
            let next = now + self.random.millis(self.setting.beats.0, self.setting.beats.1);
            self.at(next, Event::Beat { node: id, reader });
        }
    }

    fn serve(&mut self, now: Time, id: u64) {
        let ahead = self.random.millis(0, 2 * self.params.cycle.as_millis() as u64);
        let slews = self.random.chance(20);
        if self.random.chance(self.setting.demand_changes) {
            let capacity = self.params.capacity;
            self.change_demand(id, &[0, 0, 1, capacity / 3, capacity]);
        }
        let node = self.nodes.get_mut(&id).expect("a living node");
        if slews {
            node.ahead += ahead;
        }
        let clocks = node.clocks(now);
        if node.prefix.is_empty() && !std::mem::replace(&mut node.read_to_end, true) {
            node.member.handle_caught_up(clocks);
            if self.setting.fences {
                node.member.handle_fenced(clocks);
            }
            if node.member.is_first() && self.mistake != Some(Mistake::MemoryForgotten) {
                let from = now - self.params.cycle;
                let recent = self.admitted.iter().rev().take_while(|(at, _)| *at > from);
                node.member.charge_memory(clocks, recent.map(|(_, records)| records).sum());
            }
        }
        node.expire(clocks);
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
        let count = if self.mistake == Some(Mistake::ForgottenWindow) { 0 } else { node.count };
        let mut records = node.member.look(clocks, count, &node.loads);
        if let Some(mistake) = self.mistake {
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
        let node = self.nodes.get_mut(&id).expect("a living node");
        node.member = member(&node.params, id, incarnation, start, node.clocks(now));
        (node.reader, node.start, node.read_to_end) = (reader, start, false);
        node.begin_window();
        self.subscribe(now, id);
    }

    // ## The checker

    fn outcome(self) -> Outcome {
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
        let cycles = self.setting.length.as_secs_f64() / self.params.cycle.as_secs_f64();
        Outcome {
            most_over: most as i64 - capacity as i64,
            largest: most as f64 / capacity as f64,
            used: total as f64 / (capacity as f64 * cycles),
            faults: self.faults,
            log: self.log,
            setting: self.setting.to_string(),
            at,
        }
    }
}
