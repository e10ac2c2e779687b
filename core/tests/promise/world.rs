//! A service in simulated time: its logs, what the engine does, and the laws that hold at every step.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use watermaster_core::offset_map::{self, OffsetMap};
use watermaster_core::policy::{CatchUp, Mode, Overflow, Policy, Window};
use watermaster_core::reason::Reason;
use watermaster_core::slot::Slot;
use watermaster_core::throttle::{Action, Arrival, PartitionView, Rejection, Sender, Throttle, Verdict};
use watermaster_core::units::Time;
use watermaster_core::window::slice_width;

use crate::case::{Step, name};
use crate::sim::START;

/// Who sent a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Who {
    Client(usize),
    NotAllowed,
    Anonymous,
}

/// What became of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Unread,
    Held,
    Admitted,
    Rejected(Reason),
}

impl Fate {
    fn completed(self) -> bool {
        matches!(self, Fate::Admitted | Fate::Rejected(_))
    }
}

#[derive(Debug, Clone)]
pub struct Record {
    pub who: Who,
    pub bytes: u32,
    pub fate: Fate,
    /// When this owner read it, and when its fate was decided.
    pub read: Time,
    pub decided: Time,
}

/// One partition: its log (`None` is a hole), how far it was read, what the engine was told.
#[derive(Debug, Default)]
struct Log {
    records: Vec<Option<Record>>,
    position: usize,
    /// How far this process ever read it, or where it began.
    seen: usize,
    catch_up: usize,
    assigned: bool,
    paused: bool,
    /// Records that still come although it is paused.
    in_flight: u32,
}

/// What the throttle must know of a client.
#[derive(Debug, Default)]
struct Model {
    waiting: u64,
    arrivals: u64,
    held: u64,
    /// When it was admitted, lately.
    admitted: VecDeque<Time>,
    /// The last admitted offset by partition.
    last: BTreeMap<usize, usize>,
}

/// A decision for good.
#[derive(Debug, Clone, Copy)]
pub struct Decision {
    pub who: Who,
    pub at: Time,
    pub record: (usize, usize),
    /// `None`: admitted.
    pub rejection: Option<Rejection>,
}

pub struct World {
    pub throttle: Throttle,
    pub policy: Policy,
    pub now: Time,
    logs: Vec<Log>,
    names: Vec<String>,
    models: Vec<Model>,
    held: HashMap<Slot, (usize, usize)>,
    /// In their order.
    pub decisions: Vec<Decision>,
    in_window: VecDeque<Time>,
    resent: usize,
    /// Nothing is read any more once so many were decided.
    pub stop_after: usize,
    cycle_start: Time,
    /// Records that are read between two looks at what the throttle wants.
    batch: usize,
    in_flight: u32,
}

impl World {
    pub fn new(policy: Policy, partitions: usize, batch: usize, in_flight: u32) -> World {
        let clients = policy.clients.len();
        let mut world = World {
            throttle: Throttle::new(policy.clone(), START),
            now: START,
            logs: (0..partitions).map(|_| Log::default()).collect(),
            names: (0..clients).map(name).collect(),
            models: (0..clients).map(|_| Model::default()).collect(),
            held: HashMap::new(),
            decisions: Vec::new(),
            in_window: VecDeque::new(),
            resent: 0,
            stop_after: usize::MAX,
            cycle_start: START,
            batch,
            in_flight,
            policy,
        };
        for partition in 0..partitions {
            world.assign(partition, 0, &OffsetMap::default());
        }
        world
    }

    // ## Steps

    pub fn step(&mut self, step: Step) {
        match step {
            Step::Send { client, partition, records, bytes } => {
                (0..records).for_each(|_| self.append(partition, Who::Client(client), bytes));
                self.read();
            }
            Step::Flood { ids, partition } => {
                for _ in 0..ids {
                    let fresh = self.fresh();
                    self.append(partition, Who::Client(fresh), 10);
                }
                self.read();
            }
            Step::Unknown { allowed, partition, records } => {
                let who = if allowed { Who::Anonymous } else { Who::NotAllowed };
                (0..records).for_each(|_| self.append(partition, who, 10));
                self.read();
            }
            Step::Storm { partition, records } => self.storm(partition, records),
            Step::Hole { partition, offsets } => self.hole(partition, offsets),
            Step::Wait { cycles } => self.run_until(self.later(cycles)),
            Step::Stall { cycles } => {
                self.now = self.later(cycles);
                self.read();
            }
            Step::Commit => self.full_round(),
            Step::Restart { cycles } => self.restart(self.later(cycles)),
            Step::Reassign { partition, cycles } => self.reassign(partition, self.later(cycles)),
            Step::FetchGap { partition } => {
                let high = self.logs[partition].records.len();
                self.logs[partition].catch_up = high;
                self.throttle.handle_fetch_gap(partition as u32, high as i64);
            }
        }
        self.at_rest();
    }

    /// A moment so many thousandths of a cycle from now.
    pub fn later(&self, cycles: u32) -> Time {
        self.now + self.policy.cycle * cycles / 1_000
    }

    /// A record is written to a log.
    pub fn append(&mut self, partition: usize, who: Who, bytes: u32) {
        let record = Record { who, bytes, fate: Fate::Unread, read: self.now, decided: self.now };
        self.logs[partition].records.push(Some(record));
    }

    /// A client that nobody knows.
    pub fn fresh(&mut self) -> usize {
        self.names.push(format!("fresh-{}", self.names.len()));
        self.models.push(Model::default());
        self.names.len() - 1
    }

    fn storm(&mut self, partition: usize, records: u32) {
        let mut left = records;
        while left > 0 && self.resent < self.decisions.len() {
            let Decision { record: (from, offset), rejection, .. } = self.decisions[self.resent];
            if rejection.is_some() {
                let Record { who, bytes, .. } = *self.record(from, offset);
                self.append(partition, who, bytes);
                left -= 1;
            }
            self.resent += 1;
        }
        self.read();
    }

    fn hole(&mut self, partition: usize, offsets: u32) {
        let log = &mut self.logs[partition];
        log.records.extend((0..offsets).map(|_| None));
        if offsets.is_multiple_of(2) && log.assigned && log.position + offsets as usize == log.records.len() {
            // The end of the log is known only if everything before was read.
            log.position = log.records.len();
            log.seen = log.seen.max(log.position);
            self.throttle.handle_end(partition as u32, log.position as i64);
        }
    }

    // ## The engine's part

    /// Reads what may be read, and does what the throttle wants.
    pub fn read(&mut self) {
        self.act();
        loop {
            let mut read = 0;
            for partition in 0..self.logs.len() {
                while read < self.batch && self.may_read(partition) {
                    self.read_one(partition);
                    read += 1;
                }
            }
            self.act();
            if read == 0 {
                return;
            }
        }
    }

    /// One record of this partition is read.
    pub fn read_only(&mut self, partition: usize) {
        assert!(self.may_read(partition));
        self.read_one(partition);
        self.act();
    }

    /// The round is full in the middle of a batch: nothing is taken from the throttle before it is committed.
    fn full_round(&mut self) {
        for partition in 0..self.logs.len() {
            if self.may_read(partition) {
                self.read_one(partition);
            }
        }
        (0..self.logs.len()).for_each(|partition| drop(self.commit(partition)));
        self.read();
    }

    fn may_read(&mut self, partition: usize) -> bool {
        let log = &mut self.logs[partition];
        while log.records.get(log.position).is_some_and(Option::is_none) {
            log.position += 1;
        }
        let more = self.decisions.len() < self.stop_after
            && log.assigned
            && log.position < log.records.len()
            && (!log.paused || log.in_flight > 0);
        if more && log.paused {
            log.in_flight -= 1;
        }
        more
    }

    fn read_one(&mut self, partition: usize) {
        let log = &mut self.logs[partition];
        let offset = log.position;
        log.position += 1;
        let first_time = offset >= log.seen;
        let catching_up = offset < log.catch_up;
        log.seen = log.seen.max(log.position);
        let (who, bytes, before) = {
            let record = log.records[offset].as_ref().expect("holes are not read");
            (record.who, record.bytes, record.fate)
        };
        self.turn_cycles();
        let sender = match who {
            Who::Client(client) => Sender::Client(&self.names[client]),
            Who::NotAllowed => Sender::NotAllowed("stranger"),
            Who::Anonymous => Sender::Anonymous,
        };
        let arrival = Arrival { partition: partition as u32, offset: offset as i64, bytes, sender };
        let verdict = self.throttle.handle_record(self.now, &arrival);
        if before.completed() {
            assert_eq!(verdict, Verdict::Skip, "({partition}, {offset}) is {before:?}");
            return;
        }
        assert_eq!(before, Fate::Unread);
        if let Who::Client(client) = who
            && first_time
            && self.throttle.client(&self.names[client]).is_some()
        {
            self.models[client].arrivals += 1;
        }
        self.record_mut(partition, offset).read = self.now;
        match verdict {
            Verdict::Skip => panic!("({partition}, {offset}) is skipped, but was never decided"),
            Verdict::Admit(_) => {
                if !catching_up {
                    self.may_admit_at_once(who);
                }
                self.admitted(partition, offset);
            }
            Verdict::Delay(slot) => {
                assert_eq!(self.held.insert(slot, (partition, offset)), None, "a slot is given once");
                self.record_mut(partition, offset).fate = Fate::Held;
                if let Who::Client(client) = who {
                    self.models[client].held += 1;
                }
            }
            Verdict::Reject(rejection) => {
                self.may_reject(who, rejection, catching_up);
                self.rejected(partition, offset, rejection);
            }
        }
    }

    /// Does what the throttle wants now.
    pub fn act(&mut self) {
        self.turn_cycles();
        self.throttle.handle_timeout(self.now);
        while let Some(action) = self.throttle.poll_action(self.now) {
            self.enact(action);
        }
    }

    fn enact(&mut self, action: Action) {
        match action {
            Action::Admit { slot, .. } => {
                let (partition, offset) = self.let_go(slot);
                self.admitted(partition, offset);
            }
            Action::Reject { slot, rejection, .. } => {
                let (partition, offset) = self.let_go(slot);
                if rejection.reason == Reason::QueueFull {
                    assert!(!self.pauses(), "queue_full where nothing may be lost");
                }
                self.rejected(partition, offset, rejection);
            }
            Action::Pause { partition } => {
                let log = &mut self.logs[partition as usize];
                assert!(log.assigned && !log.paused);
                (log.paused, log.in_flight) = (true, self.in_flight);
            }
            Action::Resume { partition } => {
                let log = &mut self.logs[partition as usize];
                assert!(log.assigned && log.paused);
                log.paused = false;
            }
        }
    }

    fn let_go(&mut self, slot: Slot) -> (usize, usize) {
        let (partition, offset) = self.held.remove(&slot).expect("only held records are decided later");
        assert!(self.logs[partition].assigned);
        if let Who::Client(client) = self.record(partition, offset).who {
            self.models[client].held -= 1;
        }
        (partition, offset)
    }

    /// Lets time pass, stopping wherever the throttle wants to be heard.
    pub fn run_until(&mut self, until: Time) {
        self.read();
        loop {
            let next = self.throttle.poll_timeout(self.now);
            assert!(next > self.now, "it said nothing and wants to be heard at once");
            if next > until {
                break;
            }
            self.now = next;
            self.read();
        }
        self.now = self.now.max(until);
    }

    // ## Partitions and restarts

    fn assign(&mut self, partition: usize, base: i64, map: &OffsetMap) {
        let log = &mut self.logs[partition];
        (log.assigned, log.paused, log.position) = (true, false, base as usize);
        log.seen = log.seen.max(log.position);
        log.catch_up = log.records.len();
        let high = log.records.len() as i64;
        self.turn_cycles();
        self.throttle.handle_assigned(self.now, partition as u32, base, map, high);
    }

    /// The commit of a partition, which says exactly what is completed.
    fn commit(&mut self, partition: usize) -> (i64, OffsetMap) {
        let (base, text) = self.throttle.commit_of(self.now, partition as u32).expect("the map fits in its budget");
        self.throttle.handle_committed(partition as u32);
        let map = offset_map::decode(base, text.as_bytes()).expect("our own map");
        let log = &self.logs[partition];
        let mut recorded = vec![false; log.records.len()];
        recorded[..base as usize].fill(true);
        for run in map.completed.iter() {
            recorded[run.start as usize..run.end as usize].fill(true);
        }
        for (offset, record) in log.records.iter().enumerate() {
            if let Some(record) = record {
                assert_eq!(recorded[offset], record.fate.completed(), "({partition}, {offset}) is {:?}", record.fate);
            }
        }
        (base, map)
    }

    fn restart(&mut self, later: Time) {
        let commits: Vec<(i64, OffsetMap)> = (0..self.logs.len()).map(|partition| self.commit(partition)).collect();
        self.now = later;
        self.throttle = Throttle::new(self.policy.clone(), later);
        self.cycle_start = later;
        self.held.clear();
        for model in &mut self.models {
            (model.waiting, model.arrivals, model.held) = (0, 0, 0);
            if self.policy.mode == Mode::Reject {
                // What each client used is not known to the new owner; what the service took is.
                model.admitted.clear();
            }
        }
        for (partition, (base, map)) in commits.into_iter().enumerate() {
            self.logs[partition].seen = 0;
            self.forget(partition);
            self.assign(partition, base, &map);
        }
        self.read();
    }

    fn reassign(&mut self, partition: usize, later: Time) {
        let (base, map) = self.commit(partition);
        let mut freed = self.throttle.handle_revoked(partition as u32);
        self.logs[partition].assigned = false;
        let mut mine: Vec<Slot> =
            self.held.iter().filter(|(_, (of, _))| *of == partition).map(|(slot, _)| *slot).collect();
        freed.sort_unstable();
        mine.sort_unstable();
        assert_eq!(freed, mine, "revoking frees what was held, once");
        for slot in freed {
            let (partition, offset) = self.held.remove(&slot).expect("it was held");
            if let Who::Client(client) = self.record(partition, offset).who {
                self.models[client].held -= 1;
            }
        }
        self.forget(partition);
        self.run_until(later);
        self.assign(partition, base, &map);
        self.read();
    }

    fn forget(&mut self, partition: usize) {
        for record in self.logs[partition].records.iter_mut().flatten() {
            if record.fate == Fate::Held {
                record.fate = Fate::Unread;
            }
        }
    }

    // ## Laws

    /// Edges that have passed: what waits at an edge is wanted in the cycle that begins there.
    fn turn_cycles(&mut self) {
        if self.now < self.cycle_start + self.policy.cycle {
            return;
        }
        while self.now >= self.cycle_start + self.policy.cycle {
            self.cycle_start = self.cycle_start + self.policy.cycle;
        }
        for (model, name) in self.models.iter_mut().zip(&self.names) {
            // Rejected records that wait for room in the map are held, but nobody wants them admitted.
            let waiting = self.throttle.client(name).map_or(0, |known| known.backlog().0);
            (model.waiting, model.arrivals) = (waiting, 0);
        }
        self.throttle.handle_timeout(self.now);
        let granted: u64 = self.throttle.clients().map(|client| client.grant.records).sum();
        let nobody = self.throttle.clients().next().is_none();
        assert!(nobody || granted == self.policy.capacity, "{granted} granted");
    }

    fn admitted(&mut self, partition: usize, offset: usize) {
        let now = self.now;
        let Who::Client(client) = self.record(partition, offset).who else {
            panic!("somebody unknown was admitted");
        };
        let record = self.record_mut(partition, offset);
        assert!(!record.fate.completed(), "({partition}, {offset}) was {:?}", record.fate);
        (record.fate, record.decided) = (Fate::Admitted, now);
        let model = &mut self.models[client];
        model.admitted.push_back(now);
        if let Some(last) = model.last.insert(partition, offset) {
            assert!(last < offset, "order of a client in a partition: {offset} after {last}");
        }
        let who = Who::Client(client);
        self.decisions.push(Decision { who, at: now, record: (partition, offset), rejection: None });
        self.in_window.push_back(now);
        while self.in_window[0] + self.policy.cycle <= now {
            self.in_window.pop_front();
        }
        let window = self.in_window.len();
        assert!(window as u64 <= self.policy.capacity, "{window} of {} in a window", self.policy.capacity);
    }

    fn rejected(&mut self, partition: usize, offset: usize, rejection: Rejection) {
        let now = self.now;
        let record = self.record_mut(partition, offset);
        assert!(!record.fate.completed(), "({partition}, {offset}) was {:?}", record.fate);
        (record.fate, record.decided) = (Fate::Rejected(rejection.reason), now);
        let who = record.who;
        self.decisions.push(Decision { who, at: now, record: (partition, offset), rejection: Some(rejection) });
    }

    /// Reject mode: nobody is over its allowance.
    fn may_admit_at_once(&mut self, who: Who) {
        let Who::Client(client) = who else { return };
        if self.policy.mode == Mode::Reject && self.policy.window == Window::Sliding {
            let used = self.used(client, Duration::ZERO);
            let allowance = self.throttle.client(&self.names[client]).unwrap().allowance();
            assert!(used < allowance, "{used} of {allowance}");
        }
    }

    fn may_reject(&mut self, who: Who, rejection: Rejection, catching_up: bool) {
        let known = matches!(who, Who::Client(_));
        match rejection.reason {
            Reason::Anonymous => assert_eq!(who, Who::Anonymous),
            Reason::UnknownClient => assert_eq!(who, Who::NotAllowed),
            Reason::TooManyClients => assert!(known),
            Reason::OverAllocation => {
                assert_eq!(self.policy.mode, Mode::Reject);
                assert!(!catching_up || self.policy.catch_up == CatchUp::Reject, "nothing that catches up");
                self.is_over_its_allowance(who);
            }
            Reason::CapacityInUse => {
                assert_eq!(self.policy.mode, Mode::Reject);
                assert!(!catching_up || self.policy.catch_up == CatchUp::Reject, "nothing that catches up");
            }
            Reason::ClientLimit => assert_eq!(self.policy.mode, Mode::Reject),
            reason => assert!(!known, "{reason:?} for {who:?} as it comes"),
        }
    }

    /// A client below its grant, or below its default share, is not over its allowance.
    fn is_over_its_allowance(&mut self, who: Who) {
        let Who::Client(client) = who else { return };
        let waiting = self.throttle.client(&self.names[client]).unwrap().backlog().0;
        let slack = slice_width(self.policy.cycle);
        let used = match self.policy.window {
            Window::Sliding => self.used(client, slack),
            Window::Fixed => {
                let start = self.cycle_start;
                self.models[client].admitted.iter().filter(|at| **at >= start).count() as u64
            }
        };
        let known = self.throttle.client(&self.names[client]).unwrap();
        let granted = known.grant.records.max(known.grant.default_share.floor());
        assert!(used + waiting >= granted, "{used} used and {waiting} waiting of {granted}");
    }

    /// How many of a client's records were admitted in the last cycle and a little more.
    fn used(&mut self, client: usize, more: Duration) -> u64 {
        let admitted = &mut self.models[client].admitted;
        let keep = self.policy.cycle + slice_width(self.policy.cycle);
        while admitted.front().is_some_and(|at| *at + keep <= self.now) {
            admitted.pop_front();
        }
        admitted.iter().filter(|at| **at + self.policy.cycle + more > self.now).count() as u64
    }

    /// Whether backlogs are bounded by reading less.
    fn pauses(&self) -> bool {
        self.policy.overflow == Overflow::Pause || self.policy.mode == Mode::Reject
    }

    /// What holds whenever the throttle has said everything.
    pub fn at_rest(&mut self) {
        self.wants_are_counted();
        self.backlogs_are_bounded();
        // Encoding may succeed beyond the budget's part, if the window's memory happens to be small.
        let used = |partition| self.throttle.partition(partition).map_or(0.0, |view| view.map_used);
        assert!((0..self.logs.len() as u32).all(|partition| used(partition) <= 1.0), "the map's budget");
    }

    fn wants_are_counted(&self) {
        let short_memory = self.policy.client_idle_timeout < self.policy.cycle * 50;
        for (client, model) in self.models.iter().enumerate() {
            if short_memory && client >= self.policy.clients.len() {
                return;
            }
            if let Some(known) = self.throttle.client(&self.names[client]) {
                assert_eq!(known.wants(), model.waiting + model.arrivals, "wants of {}", self.names[client]);
                let waiting = known.backlog().0;
                assert!(waiting == model.held || self.pauses() && waiting < model.held, "{waiting} of {}", model.held);
            }
        }
    }

    fn backlogs_are_bounded(&self) {
        let (records, bytes) = self.throttle.backlog();
        assert_eq!(records, self.held.len() as u64, "what is held");
        let late = self.logs.len() as u64 * (1 + u64::from(self.in_flight) + self.batch as u64);
        let most = self.policy.queue_capacity + if self.pauses() { 2 * late } else { 0 };
        assert!(self.models.iter().all(|model| model.held <= most));
        assert!(self.pauses() || bytes <= self.policy.queue_bytes, "{bytes} bytes");
        assert!(bytes <= self.policy.queue_bytes + 2 * late * 200, "{bytes} bytes");
    }

    /// Everything is decided in the end.
    pub fn finish(&mut self) {
        let records: usize = self.logs.iter().map(|log| log.records.len()).sum();
        let cycles = records as u64 / self.policy.capacity + 3;
        if cycles > 150 {
            return;
        }
        let slowest = self.policy.clients.iter().filter_map(|client| client.limit).map(|limit| limit.per).max();
        let time = self.policy.cycle * cycles as u32 * 21 / 20 + slowest.unwrap_or_default() * records as u32;
        let until = self.now + time;
        while self.now < until && !self.is_done() {
            let step = self.now + self.policy.cycle;
            self.run_until(step);
        }
        self.at_rest();
        for (partition, log) in self.logs.iter().enumerate() {
            for (offset, record) in log.records.iter().enumerate() {
                let undecided = record.as_ref().filter(|record| !record.fate.completed());
                assert!(undecided.is_none(), "({partition}, {offset}) is {undecided:?}, paused {:?}", log.paused);
            }
            if let Some(PartitionView { base, held, .. }) = self.throttle.partition(partition as u32) {
                assert_eq!(held, 0);
                assert!(base as usize >= log.records.iter().rposition(Option::is_some).map_or(0, |last| last + 1));
            }
        }
        (0..self.logs.len()).for_each(|partition| drop(self.commit(partition)));
    }

    fn is_done(&self) -> bool {
        self.held.is_empty() && self.logs.iter().all(|log| log.records.iter().skip(log.position).all(Option::is_none))
    }

    // ## What it shows

    pub fn record(&self, partition: usize, offset: usize) -> &Record {
        self.logs[partition].records[offset].as_ref().expect("a hole is no record")
    }

    fn record_mut(&mut self, partition: usize, offset: usize) -> &mut Record {
        self.logs[partition].records[offset].as_mut().expect("a hole is no record")
    }

    pub fn held_of(&self, client: usize) -> u64 {
        self.models[client].held
    }

    /// The name of a client.
    pub fn name(&self, client: usize) -> &str {
        &self.names[client]
    }
}
