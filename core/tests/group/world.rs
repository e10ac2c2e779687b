//! The run of one seed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::{fmt, sync::Arc, time::Duration};

use watermaster_core::group::GroupParams;
use watermaster_core::group::control::{Event, LogCall, OpeningNumber};
use watermaster_core::group::member::Admissions as _;
use watermaster_core::group::state::{BANK, SeatRecord, State, StateKind};
use watermaster_core::group::targets::Shares;
use watermaster_core::policy::{Mode, Policy};
use watermaster_core::units::Time;

use crate::broker::{Answer, Broker, Follows, Request};
use crate::node::{Call, Node, Producer};
use crate::planted::Mistake;
use crate::support::random::Random;

pub const CYCLE: Duration = Duration::from_secs(8);
const AHEAD_TIME: Duration = Duration::from_secs(6);
const SILENCE: Duration = Duration::from_millis(2_400);
const FORGET_AFTER: Duration = Duration::from_millis(2_500);
const LENGTH: Duration = Duration::from_secs(90);
/// The last part of a run is without faults.
const CALM: Duration = Duration::from_secs(32);
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(4);
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_NODES: usize = 6;

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    pub violation: Option<String>,
    /// The fullest window, as a part of the most that circulated in it.
    pub fullest: f64,
    /// The used part of the capacity at the end of the calm part.
    pub used: f64,
    /// Circulating, and the capacity, at the end.
    pub circulating: (u64, u64),
    pub nodes: usize,
    pub claims: u64,
    pub mints: u64,
    pub kills: u64,
    pub removals: u64,
    pub setting: String,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let violation = self.violation.as_deref().unwrap_or("no violation");
        write!(f, "{violation}; {}", self.setting)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Poll,
    Got(usize),
    Look,
    Decide,
    /// The answer to a call.
    Answer {
        attempt: OpeningNumber,
        number: u64,
        answer: usize,
    },
    /// The next try of a call.
    Call {
        attempt: OpeningNumber,
        number: u64,
    },
    /// The process reads its configuration, as it is at this moment.
    Reload,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Node {
        node: usize,
        step: Step,
    },
    /// A request arrives at the brokers.
    Arrive {
        node: usize,
        request: usize,
    },
    Markers {
        id: Arc<str>,
    },
    Timeout {
        id: Arc<str>,
        epoch: u64,
        offset: u64,
    },
    Spawn {
        seat: Option<Arc<str>>,
    },
    Fault,
    Jitter,
    Tidy,
    Ensure,
}

/// A request on its way.
#[derive(Debug, Clone)]
struct Sent {
    id: Arc<str>,
    request: Request,
    attempt: OpeningNumber,
    number: u64,
}

pub struct World {
    random: Random,
    mistake: Option<Mistake>,
    /// Prints all commits and admissions: a single seed is run.
    traces: bool,
    params: GroupParams,
    now: Time,
    events: BinaryHeap<Reverse<(Time, u64, Due)>>,
    number: u64,
    broker: Broker,
    nodes: Vec<Option<Node>>,
    sent: Vec<Sent>,
    answers: Vec<Reply>,
    fetched: Vec<(Vec<(u64, SeatRecord)>, u64)>,
    names: u64,
    lives: u64,
    // The setting.
    capacity: u64,
    capacities: Vec<u64>,
    greed: u32,
    repeats: u32,
    losses: u32,
    late: u32,
    faults: Duration,
    reloads: bool,
    memory: u64,
    // The checker.
    window: VecDeque<(Time, u64)>,
    in_window: u64,
    circulating: VecDeque<(Time, u64)>,
    truth: LastStates,
    outcome: Outcome,
    calm_total: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reply {
    Of(Answer),
    End(u64),
}

/// Runs a seed.
pub fn run(seed: u64, mistake: Option<Mistake>) -> Outcome {
    let mut random = Random::stream(seed, 23);
    let capacity = random.one_of(&[7, 40, 200, 1_000]);
    let mode = if random.once_in(2) { Mode::Shape } else { Mode::Reject };
    let policy = Policy { mode, ..Policy::new(capacity, CYCLE) };
    let params = GroupParams { forget_after: FORGET_AFTER, ..GroupParams::new(&policy, AHEAD_TIME, SILENCE) };
    let memory = random.one_of(&[0, 0, 50, 100]) * capacity / 100;
    let mut world = World {
        mistake,
        traces: std::env::var_os("WATERMASTER_GROUP_SEED").is_some(),
        params,
        now: Time::ZERO,
        events: BinaryHeap::new(),
        number: 0,
        broker: Broker { mistake, ..Broker::default() },
        nodes: Vec::new(),
        sent: Vec::new(),
        answers: Vec::new(),
        fetched: Vec::new(),
        names: 0,
        lives: seed << 32,
        capacity,
        capacities: vec![capacity],
        greed: random.one_of(&[2_000, 9_000]),
        repeats: random.one_of(&[0, 500, 3_000]),
        losses: random.one_of(&[0, 100, 500]),
        late: random.one_of(&[0, 100, 500]),
        faults: Duration::from_secs_f64(random.one_of(&[10.0, 2.5, 1.25])),
        reloads: random.chance(4_000),
        memory,
        window: VecDeque::new(),
        in_window: 0,
        circulating: VecDeque::from([(Time::ZERO, memory)]),
        truth: BTreeMap::new(),
        outcome: Outcome {
            violation: None,
            fullest: 0.0,
            used: 0.0,
            circulating: (0, 0),
            nodes: 0,
            claims: 0,
            mints: 0,
            kills: 0,
            removals: 0,
            setting: format!("seed {seed}, {mode:?}, capacity {capacity}, memory {memory}"),
        },
        calm_total: 0,
        random,
    };
    world.run();
    world.outcome
}

impl World {
    fn run(&mut self) {
        // The group begins after a cycle in which others may have admitted records.
        self.now = Time::ZERO + CYCLE;
        self.window.push_back((self.now, self.memory));
        self.in_window = self.memory;
        for _ in 0..self.random.between(1, 4) {
            let after = self.random.millis(0, 1_000);
            self.after(after, Due::Spawn { seat: None });
        }
        let after = self.random.millis(0, 3_000);
        self.after(after, Due::Fault);
        self.after(Duration::from_secs(1), Due::Jitter);
        self.after(Duration::from_secs(1), Due::Tidy);
        self.at(self.calm() + Duration::from_millis(10), Due::Ensure);
        self.at(self.calm() + Duration::from_secs(6), Due::Ensure);
        while let Some(Reverse((at, _, due))) = self.events.pop() {
            if at > self.end() || self.outcome.violation.is_some() {
                break;
            }
            self.now = at;
            self.step(due);
        }
        let cycles = (CALM.as_secs_f64() / CYCLE.as_secs_f64()) - 2.0;
        self.outcome.used = self.calm_total as f64 / (self.capacity as f64 * cycles);
        self.outcome.nodes = self.nodes.iter().flatten().count();
        self.outcome.circulating = (self.circulating.back().map_or(0, |(_, sum)| *sum), self.capacity);
    }

    fn end(&self) -> Time {
        Time::ZERO + CYCLE + LENGTH
    }

    fn calm(&self) -> Time {
        self.end() - CALM
    }

    fn at(&mut self, at: Time, due: Due) {
        self.number += 1;
        self.events.push(Reverse((at, self.number, due)));
    }

    fn after(&mut self, after: Duration, due: Due) {
        self.at(self.now + after, due);
    }

    fn step_of(&mut self, node: usize, after: Duration, step: Step) {
        self.after(after, Due::Node { node, step });
    }

    /// The time that a message takes.
    fn latency(&mut self, node: Option<usize>) -> Duration {
        let is_slow = node.and_then(|node| self.nodes[node].as_ref()).is_some_and(|node| self.now < node.slow_until);
        if is_slow {
            return self.random.millis(200, 3_000);
        }
        if self.now < self.calm() && self.random.chance(self.late) {
            return self.random.millis(100, 2_500);
        }
        Duration::from_micros(1_500 + self.random.below(8_000))
    }

    fn is_lost(&mut self) -> bool {
        self.now < self.calm() && self.random.chance(self.losses)
    }

    fn step(&mut self, due: Due) {
        match due {
            Due::Node { node, step } => self.step_node(node, step),
            Due::Arrive { node, request } => self.arrive(node, request),
            Due::Markers { id } => self.mark(&id),
            Due::Timeout { id, epoch, offset } => {
                let follows = self.broker.time_out(&id, epoch, offset);
                self.follow(follows);
            }
            Due::Spawn { seat } => self.spawn(seat),
            Due::Fault => self.fault(),
            Due::Jitter => {
                for node in 0..self.nodes.len() {
                    let load = self.random.one_of(&[self.capacity / 100, self.capacity / 3, self.capacity]);
                    let changes = self.random.chance(3_000);
                    if let Some(node) = self.nodes[node].as_mut().filter(|_| changes) {
                        node.load = load;
                    }
                }
                self.after(Duration::from_secs(1), Due::Jitter);
            }
            Due::Tidy => {
                self.broker.compact(self.now);
                let after = Duration::from_millis(self.random.one_of(&[300, 1_000, 3_000]));
                self.after(after, Due::Tidy);
            }
            Due::Ensure => {
                if self.nodes.iter().all(Option::is_none) {
                    self.spawn(None);
                }
            }
        }
    }

    fn step_node(&mut self, index: usize, step: Step) {
        let Some(node) = &self.nodes[index] else { return };
        let paused_until = node.paused_until;
        if self.now < paused_until {
            let later = Duration::from_micros(self.random.below(10_000));
            return self.at(paused_until + later, Due::Node { node: index, step });
        }
        match step {
            Step::Poll => self.poll(index),
            Step::Got(fetched) => self.read(index, fetched),
            Step::Look => self.look(index),
            Step::Decide => self.decide(index),
            Step::Answer { attempt, number, answer } => self.answer(index, attempt, number, self.answers[answer]),
            Step::Call { attempt, number } => self.call(index, attempt, number),
            Step::Reload => self.reload(index),
        }
    }

    // ## Processes

    fn spawn(&mut self, seat: Option<Arc<str>>) {
        let seat = seat.unwrap_or_else(|| {
            self.names += 1;
            format!("wm-{}", self.names).into()
        });
        self.lives += 1;
        let params = GroupParams { capacity: self.capacity, ..self.params.clone() };
        let node = Node::new(&params, seat, self.lives, self.now, &mut self.random);
        self.nodes.push(Some(node));
        let index = self.nodes.len() - 1;
        for step in [Step::Look, Step::Poll, Step::Decide] {
            self.step_of(index, Duration::ZERO, step);
        }
    }

    fn stop(&mut self, node: usize) {
        self.nodes[node] = None;
    }

    fn reload(&mut self, index: usize) {
        let node = self.nodes[index].as_mut().expect("a node");
        node.params.capacity = self.capacity;
        let policy = Policy { mode: node.params.mode, ..Policy::new(self.capacity, CYCLE) };
        node.member.change(node.params.clone(), Shares::new(&policy));
    }

    fn fault(&mut self) {
        if self.now >= self.calm() {
            return;
        }
        let pause = self.faults.mul_f64(-(1.0 - self.random.unit()).ln());
        self.after(pause, Due::Fault);
        let living: Vec<usize> = (0..self.nodes.len()).filter(|&index| self.nodes[index].is_some()).collect();
        let what = self.random.below(100);
        if living.is_empty() || what < 10 && living.len() < MAX_NODES {
            return self.spawn(None);
        }
        let index = living[self.random.index(living.len())];
        let seat = Arc::clone(&self.nodes[index].as_ref().expect("a living node").seat);
        match what {
            0..35 => self.kill(index),
            35..60 => {
                let pause = self.random.one_of(&[300, 1_000, 3_000, 6_000, 12_000]);
                self.nodes[index].as_mut().expect("a node").paused_until = self.now + Duration::from_millis(pause);
            }
            60..70 => {
                let until = self.now + self.random.millis(1_000, 8_000);
                self.nodes[index].as_mut().expect("a node").slow_until = until;
            }
            70..78 => {
                let length = Duration::from_millis(self.random.one_of(&[300, 2_000, 8_000]));
                self.broker.outages.push((self.now, self.now + length));
            }
            78..86 => {
                let node = self.nodes[index].as_mut().expect("a node");
                node.member.leave();
                let after = self.random.millis(100, 3_000);
                let seat = if self.random.once_in(2) { Some(seat) } else { None };
                self.after(after, Due::Spawn { seat });
            }
            // A second process with this id.
            86..90 => self.spawn(Some(seat)),
            90..96 if self.reloads => {
                let first = self.capacities[0];
                let capacity = self.random.one_of(&[first / 2, first, first * 2]);
                self.capacity = capacity;
                self.capacities.push(capacity);
                for node in living {
                    let after = self.random.millis(0, 5_000);
                    self.step_of(node, after, Step::Reload);
                }
            }
            _ => living.into_iter().for_each(|index| {
                if self.random.chance(7_000) {
                    self.kill(index);
                }
            }),
        }
    }

    fn kill(&mut self, index: usize) {
        let seat = Arc::clone(&self.nodes[index].as_ref().expect("a node").seat);
        self.outcome.kills += 1;
        self.stop(index);
        let (after, seat) = match self.random.chance(6_000) {
            true => (Duration::from_millis(self.random.one_of(&[50, 500, 2_000, 5_000])), Some(seat)),
            false => (self.random.millis(100, 6_000), None),
        };
        self.after(after, Due::Spawn { seat });
    }

    // ## Reading

    fn poll(&mut self, index: usize) {
        if let Some(back) = self.broker.away(self.now) {
            let latency = self.latency(Some(index));
            return self.at(back + latency, Due::Node { node: index, step: Step::Poll });
        }
        let position = self.nodes[index].as_ref().expect("a node").position;
        self.fetched.push(self.broker.fetch(position));
        let latency = self.latency(Some(index));
        self.step_of(index, latency, Step::Got(self.fetched.len() - 1));
    }

    fn read(&mut self, index: usize, fetched: usize) {
        let (records, end) = std::mem::take(&mut self.fetched[fetched]);
        for (offset, mut record) in records {
            let node = self.nodes[index].as_ref().expect("a node");
            let (seat, life) = (Arc::clone(&node.seat), node.life);
            if let Some(mistake) = self.mistake {
                mistake.spoil_read(&mut record, &seat, &[life], &mut self.random);
            }
            self.event(index, &Event::Record { offset, record });
            if self.nodes[index].is_none() {
                return;
            }
        }
        let node = self.nodes[index].as_mut().expect("a node");
        node.position = node.position.max(end);
        self.event(index, &Event::End(end));
        let after = self.random.millis(5, 30);
        self.step_of(index, after, Step::Poll);
    }

    fn event(&mut self, index: usize, event: &Event) {
        let Some(node) = &mut self.nodes[index] else { return };
        let clocks = node.clocks(self.now);
        if matches!(event, Event::Written { .. }) {
            node.limit_before_write = None;
        }
        let commands = node.member.handle_event(clocks, event, &mut node.greedy);
        self.obey(index, commands);
    }

    fn look(&mut self, index: usize) {
        let node = self.nodes[index].as_mut().expect("a node");
        let clocks = node.clocks(self.now);
        if node.member.needs_memory() {
            let count = if self.mistake == Some(Mistake::MemoryForgotten) { 0 } else { self.memory };
            node.member.charge_memory(count);
        }
        let (loads, before) = (node.loads(), node.member.part_now(clocks).limit);
        let commands = node.member.look(clocks, &loads, None, &mut node.greedy);
        if commands.iter().flat_map(written).any(|state| state.kind == StateKind::Own) {
            node.limit_before_write = Some(before);
        }
        self.obey(index, commands);
        let after = self.random.millis(30, 100);
        self.step_of(index, after, Step::Look);
    }

    fn produce(&mut self, index: usize, attempt: OpeningNumber, records: Vec<SeatRecord>) {
        let node = self.nodes[index].as_mut().expect("a node");
        if let Some(producer) = node.producers.get_mut(&attempt) {
            producer.call = Call::Produce(records);
            producer.number += 1;
            let number = producer.number;
            self.call(index, attempt, number);
        }
    }

    fn obey(&mut self, index: usize, commands: Vec<LogCall>) {
        for command in commands {
            let node = self.nodes[index].as_mut().expect("a node");
            match command {
                LogCall::Open { seat, attempt } => {
                    node.producers.retain(|_, producer| producer.seat != seat);
                    node.producers.insert(attempt, Producer { seat, epoch: 0, call: Call::Init, number: 1 });
                    self.call(index, attempt, 1);
                }
                LogCall::Write { attempt, mut records } => {
                    for record in &mut records {
                        let SeatRecord::State(state) = record else { continue };
                        node.wrote_last |= state.kind == StateKind::Left && state.seat == node.seat;
                        if let Some(mistake) = self.mistake {
                            mistake.spoil_write(state);
                        }
                    }
                    self.produce(index, attempt, records);
                }
                LogCall::Close { attempt } => drop(node.producers.remove(&attempt)),
            }
        }
        let Some(node) = &self.nodes[index] else { return };
        if node.member.has_left() && node.member.ahead() > 0 && !node.wrote_last {
            let seat = Arc::clone(&node.seat);
            self.violate(format!("{seat} left without a last state"));
        }
        let Some(node) = &self.nodes[index] else { return };
        if node.member.has_left() || node.member.is_replaced() {
            self.stop(index);
        }
    }

    // ## Calls

    /// Makes the current call of an opening.
    fn call(&mut self, index: usize, attempt: OpeningNumber, number: u64) {
        let Some(node) = &self.nodes[index] else { return };
        let Some(producer) = node.producers.get(&attempt).filter(|producer| producer.number == number) else { return };
        let (id, epoch) = (Arc::clone(&producer.seat), producer.epoch);
        let request = match &producer.call {
            Call::Init => Request::Init,
            Call::Produce(records) => Request::Produce { epoch, records: records.clone() },
            Call::Commit => Request::End { epoch, commits: true },
            Call::End | Call::Idle => return,
        };
        self.sent.push(Sent { id, request, attempt, number });
        let sent = self.sent.len() - 1;
        if !self.is_lost() {
            let latency = self.latency(Some(index));
            self.after(latency, Due::Arrive { node: index, request: sent });
        }
        if self.sent[sent].request == (Request::End { epoch, commits: true }) && self.random.chance(self.repeats) {
            // A copy that comes late.
            let after = self.random.millis(0, 3_000);
            self.after(after, Due::Arrive { node: index, request: sent });
        }
        self.reply(index, CALL_TIMEOUT, attempt, number, Reply::Of(Answer::Timeout));
    }

    fn reply(&mut self, index: usize, after: Duration, attempt: OpeningNumber, number: u64, reply: Reply) {
        self.answers.push(reply);
        self.step_of(index, after, Step::Answer { attempt, number, answer: self.answers.len() - 1 });
    }

    fn arrive(&mut self, index: usize, sent: usize) {
        let Sent { id, request, attempt, number } = self.sent[sent].clone();
        let (answer, follows) = self.broker.request(self.now, &id, &request);
        self.follow(follows);
        if !self.is_lost() {
            let latency = self.latency(Some(index));
            self.reply(index, latency, attempt, number, Reply::Of(answer));
        }
    }

    fn follow(&mut self, follows: Option<Follows>) {
        match follows {
            Some(Follows::Markers(id)) => {
                let latency = self.latency(None);
                self.after(latency, Due::Markers { id });
            }
            Some(Follows::Timeout { id, epoch, offset }) => {
                self.after(TRANSACTION_TIMEOUT, Due::Timeout { id, epoch, offset });
            }
            None => {}
        }
    }

    fn mark(&mut self, id: &Arc<str>) {
        if let Some(back) = self.broker.away(self.now) {
            let latency = self.latency(None);
            return self.at(back + latency, Due::Markers { id: Arc::clone(id) });
        }
        for (offset, record) in self.broker.mark(id) {
            match record {
                SeatRecord::State(state) => self.check_commit(offset, state),
                SeatRecord::Tombstone(seat) => self.check_removal(&seat),
                SeatRecord::Loads(_) | SeatRecord::LoadsTombstone(_) => {}
            }
        }
    }

    fn answer(&mut self, index: usize, attempt: OpeningNumber, number: u64, reply: Reply) {
        let is_catching = self.mistake != Some(Mistake::NotCaughtUp);
        let Some(node) = &mut self.nodes[index] else { return };
        let Some(producer) = node.producers.get_mut(&attempt) else { return };
        if producer.number != number || producer.call == Call::Idle {
            return;
        }
        let next = match (&producer.call, reply) {
            (Call::Init, Reply::Of(Answer::Epoch(epoch))) => {
                producer.epoch = epoch;
                Some(Call::End)
            }
            (Call::Produce(_), Reply::Of(Answer::Done)) => Some(Call::Commit),
            (Call::Init | Call::Produce(_), Reply::Of(Answer::Concurrent)) => {
                let after = self.random.millis(20, 300);
                producer.number += 1;
                let number = producer.number;
                return self.step_of(index, after, Step::Call { attempt, number });
            }
            _ => None,
        };
        producer.number += 1;
        let number = producer.number;
        match (next, reply) {
            (Some(Call::End), _) => {
                producer.call = Call::End;
                let end = self.broker.end;
                let latency = self.latency(Some(index));
                self.reply(index, latency, attempt, number, Reply::End(if is_catching { end } else { 0 }));
            }
            (Some(next), _) => {
                producer.call = next;
                self.call(index, attempt, number);
            }
            (None, Reply::End(end)) => {
                producer.call = Call::Idle;
                self.event(index, &Event::Opened { attempt, end });
            }
            (None, Reply::Of(answer)) => {
                let was = std::mem::replace(&mut producer.call, Call::Idle);
                let event = match was {
                    Call::Init | Call::End => Event::Failed { attempt },
                    _ => Event::Written { attempt, committed: was == Call::Commit && answer == Answer::Done },
                };
                if event != (Event::Written { attempt, committed: true }) {
                    node.producers.remove(&attempt);
                }
                self.event(index, &event);
            }
        }
    }

    // ## Admissions

    fn decide(&mut self, index: usize) {
        let after = self.random.millis(20, 150);
        self.step_of(index, after, Step::Decide);
        let is_all = self.random.chance(self.greed);
        let is_calm = self.now > self.calm();
        let node = self.nodes[index].as_mut().expect("a node");
        let clocks = node.clocks(self.now);
        let mut part = node.member.part_now(clocks);
        match self.mistake {
            Some(Mistake::AheadEndless) if part.admitted > 0 => part.until = Time::NEVER,
            Some(Mistake::AheadUnlimited) if part.admitted > 0 => part.admitted = u64::MAX,
            Some(Mistake::GivenLate) => part.limit = part.limit.max(node.limit_before_write.unwrap_or(0)),
            Some(Mistake::ClaimIgnored) => {
                let goes_on = node.member.hold() == 0 && part.admitted > 0;
                node.former_limit = if node.member.hold() > 0 { node.member.hold() } else { node.former_limit };
                part.limit = part.limit.max(if goes_on { node.former_limit } else { 0 });
            }
            _ => {}
        }
        if clocks.slow > part.until {
            return;
        }
        let used = node.greedy.count(clocks.slow);
        let total = node.greedy.total();
        let mut room = part.limit.saturating_sub(used).min(part.admitted.saturating_sub(total));
        if room > 0 && is_calm && node.member.hold() > node.member.target() {
            // Above its target a member admits at its target's pace, as in shape mode, so that its window drains.
            let paced = node.member.target() as f64 * 0.085 / CYCLE.as_secs_f64() + self.random.unit();
            room = room.min(paced as u64);
        }
        if room == 0 {
            return;
        }
        let node = self.nodes[index].as_mut().expect("a node");
        let records = if is_all { room } else { self.random.between(1, room) };
        node.greedy.admit(clocks.slow, records);
        self.check_admission(records);
    }

    fn check_admission(&mut self, records: u64) {
        if self.now > self.calm() + CYCLE * 2 {
            self.calm_total += records;
        }
        if self.traces {
            println!("{:?} {records} admitted", self.now.since(Time::ZERO));
        }
        self.window.push_back((self.now, records));
        self.in_window += records;
        while self.window.front().is_some_and(|(at, _)| *at + CYCLE <= self.now) {
            self.in_window -= self.window.pop_front().expect("a front").1;
        }
        while self.circulating.get(1).is_some_and(|(at, _)| *at + CYCLE <= self.now) {
            self.circulating.pop_front();
        }
        let allowed = self.circulating.iter().map(|(_, sum)| *sum).max().unwrap_or(0);
        self.outcome.fullest = self.outcome.fullest.max(self.in_window as f64 / allowed.max(1) as f64);
        if self.in_window > allowed {
            self.violate(format!("{} records in a window, {allowed} circulated", self.in_window));
        }
    }

    fn violate(&mut self, what: String) {
        let at = self.now.since(Time::ZERO);
        self.outcome.violation.get_or_insert(format!("{what}, at {at:?}"));
    }

    fn total(&self) -> u64 {
        circulating(&self.truth)
    }

    /// Checks that a removed seat held nothing, and that no move is applied a second time because of it.
    fn check_removal(&mut self, seat: &str) {
        let before = self.total();
        self.truth.remove(seat);
        self.outcome.removals += 1;
        let total = self.total();
        if total != before {
            self.violate(format!("{total} circulate after {before}: {seat} was removed"));
        }
    }

    /// Checks conservation by the committed log, in the order of commits.
    fn check_commit(&mut self, offset: u64, state: State) {
        let kind = state.kind;
        if self.traces {
            println!("{:?} {offset} {state:?}", self.now.since(Time::ZERO));
        }
        if self.truth.get(&state.seat).is_some_and(|(before, _)| *before > offset) {
            self.violate(format!("a state of {} was committed out of order", state.seat));
        }
        self.outcome.claims += u64::from(kind == StateKind::Claimed);
        self.outcome.mints += u64::from(kind == StateKind::Bank);
        self.truth.insert(Arc::clone(&state.seat), (offset, state));
        let (total, before) = (self.total(), self.circulating.back().map_or(0, |(_, sum)| *sum));
        let is_first = self.truth.len() == 1;
        if total > before && kind != StateKind::Bank {
            self.violate(format!("{total} circulate after {before}: a state of kind {kind:?} made capacity"));
        }
        if total < before && !is_first && matches!(kind, StateKind::Claimed | StateKind::Left) {
            self.violate(format!("{total} circulate after {before}: a state of kind {kind:?} lost capacity"));
        }
        if total > self.capacities.iter().copied().max().unwrap_or(0) {
            self.violate(format!("{total} circulate"));
        }
        if total != before {
            self.circulating.push_back((self.now, total));
        }
    }
}

/// The state that a call writes.
fn written(call: &LogCall) -> Option<&State> {
    match call {
        LogCall::Write { records, .. } => match records.first()? {
            SeatRecord::State(state) => Some(state),
            _ => None,
        },
        _ => None,
    }
}

/// The last committed state of each seat, with its offset.
pub type LastStates = BTreeMap<Arc<str>, (u64, State)>;

/// The sum of all holds and open moves, by the committed log.
pub fn circulating(last: &LastStates) -> u64 {
    let seen =
        |to: &str, giver: &Arc<str>| last.get(to).and_then(|(_, state)| state.seen.get(giver)).copied().unwrap_or(0);
    let states = || last.iter().map(|(seat, (_, state))| (seat, state));
    let holds: u64 = states().filter(|(seat, _)| &***seat != BANK).map(|(_, state)| state.hold).sum();
    let moves = states().flat_map(|(seat, state)| state.out.iter().map(move |one| (seat, one)));
    holds + moves.filter(|(seat, one)| one.id > seen(&one.to, seat)).map(|(_, one)| one.hold).sum::<u64>()
}
