//! A service in simulated time: its logs, the engine's part, and the laws that hold at every step.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use watermaster_core::offset_map::{self, OffsetMap};
use watermaster_core::policy::{CatchUp, Mode, Overflow, Policy, Window};
use watermaster_core::throttle::{Action, Arrival, PartitionView, Rejection, Sender, Throttle, Verdict};
use watermaster_core::{reason::Reason, slot::Slot, units::Time, window::slice_width};

use crate::case::{Step, name};
use crate::sim::START;

/// The origin of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    Client(usize),
    NotAllowed,
    Anonymous,
}

/// The fate of a record.
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
    pub origin: Origin,
    pub bytes: u32,
    pub fate: Fate,
    pub written: Time,
    /// The times at which this owner read it and at which its fate was decided.
    pub read: Time,
    pub decided: Time,
}

/// One partition: its log (`None` is a hole), its positions, its state in the engine.
#[derive(Debug, Default)]
struct Log {
    records: Vec<Option<Record>>,
    position: usize,
    /// The furthest position that this process has read, or its start.
    seen: usize,
    catch_up: usize,
    assigned: bool,
    paused: bool,
    /// Number of records that still arrive after a pause.
    in_flight: u32,
}

/// The expected state of a client in the throttle.
#[derive(Debug, Default)]
struct Model {
    waiting: u64,
    arrivals: u64,
    held: u64,
    /// The times of recent admissions, and those at which their records arrived.
    admitted: VecDeque<(Time, Time)>,
    /// By partition: the last admitted offset.
    last: BTreeMap<usize, usize>,
}

/// A final decision.
#[derive(Debug, Clone, Copy)]
pub struct Decision {
    pub origin: Origin,
    pub at: Time,
    pub record: (usize, usize),
    /// `None` if the record is admitted.
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
    /// All decisions, in order.
    pub decisions: Vec<Decision>,
    in_window: VecDeque<Time>,
    resent: usize,
    /// Number of decisions after which no record is read.
    pub stop_after: usize,
    cycle_start: Time,
    /// Number of records that are read between two polls of the throttle's actions.
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
                let client = self.sole_client(partition).unwrap_or(client);
                (0..records).for_each(|_| self.append(partition, Origin::Client(client), bytes));
                self.read();
            }
            Step::Flood { ids, partition } => {
                for _ in 0..ids {
                    let fresh = self.fresh();
                    self.append(partition, Origin::Client(fresh), 10);
                }
                self.read();
            }
            Step::Unknown { allowed, partition, records } => {
                let origin = if allowed { Origin::Anonymous } else { Origin::NotAllowed };
                (0..records).for_each(|_| self.append(partition, origin, 10));
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

    /// Returns the time `cycles` thousandths of a cycle from now.
    pub fn later(&self, cycles: u32) -> Time {
        self.now + self.policy.cycle * cycles / 1_000
    }

    /// Appends a record to a log.
    pub fn append(&mut self, partition: usize, origin: Origin, bytes: u32) {
        let record = Record { origin, bytes, fate: Fate::Unread, written: self.now, read: self.now, decided: self.now };
        self.logs[partition].records.push(Some(record));
    }

    /// Adds a client that the throttle does not know.
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
                let Record { origin, bytes, .. } = *self.record(from, offset);
                self.append(partition, origin, bytes);
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
            // The end of the log is known only if all records before it were read.
            log.position = log.records.len();
            log.seen = log.seen.max(log.position);
            self.throttle.handle_end(partition as u32, log.position as i64);
        }
    }

    // ## The engine's part

    /// Reads all readable records and carries out the throttle's actions.
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

    /// Reads one record of this partition.
    pub fn read_only(&mut self, partition: usize) {
        assert!(self.may_read(partition));
        self.read_one(partition);
        self.act();
    }

    /// Commits a round that is full in the middle of a batch: no action is polled before the commit.
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
        let Record { origin, bytes, fate: before, written, .. } =
            *log.records[offset].as_ref().expect("a hole is never read");
        self.advance_cycles();
        let sender = match origin {
            Origin::Client(client) => Sender::Client(&self.names[client]),
            Origin::NotAllowed => Sender::NotAllowed("stranger"),
            Origin::Anonymous => Sender::Anonymous,
        };
        let written_ms = Some((written.as_nanos() / 1_000_000) as i64);
        let arrival = Arrival { partition: partition as u32, offset: offset as i64, bytes, sender, written_ms };
        let verdict = self.throttle.handle_record(self.now, &arrival);
        if before.completed() {
            assert_eq!(verdict, Verdict::Skip, "({partition}, {offset}) is {before:?}");
            return;
        }
        assert_eq!(before, Fate::Unread);
        if let Origin::Client(client) = origin
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
                    self.may_admit_at_once(origin);
                }
                self.admitted(partition, offset);
            }
            Verdict::Delay(slot) => {
                assert_eq!(self.held.insert(slot, (partition, offset)), None, "the throttle must not use a slot twice");
                self.record_mut(partition, offset).fate = Fate::Held;
                if let Origin::Client(client) = origin {
                    self.models[client].held += 1;
                }
            }
            Verdict::Reject(rejection) => {
                self.may_reject(partition, origin, rejection, catching_up);
                self.rejected(partition, offset, rejection);
            }
        }
    }

    /// Carries out the throttle's actions.
    pub fn act(&mut self) {
        self.advance_cycles();
        self.throttle.handle_timeout(self.now);
        while let Some(action) = self.throttle.poll_action(self.now) {
            self.apply(action);
        }
    }

    fn apply(&mut self, action: Action) {
        match action {
            Action::Admit { slot, .. } => {
                let (partition, offset) = self.release(slot);
                self.admitted(partition, offset);
            }
            Action::Reject { slot, rejection, .. } => {
                let (partition, offset) = self.release(slot);
                if rejection.reason == Reason::QueueFull {
                    let origin = self.record(partition, offset).origin;
                    assert!(!self.pauses_for(partition, origin), "queue_full although a pause bounds the backlogs");
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

    fn release(&mut self, slot: Slot) -> (usize, usize) {
        let (partition, offset) = self.held.remove(&slot).expect("only held records are decided later");
        assert!(self.logs[partition].assigned);
        if let Origin::Client(client) = self.record(partition, offset).origin {
            self.models[client].held -= 1;
        }
        (partition, offset)
    }

    /// Lets time pass, stopping at each of the throttle's timeouts.
    pub fn run_until(&mut self, until: Time) {
        self.read();
        loop {
            let next = self.throttle.poll_timeout(self.now);
            assert!(next > self.now, "the throttle has no action, but its timeout is due");
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
        self.advance_cycles();
        self.throttle.handle_assigned(self.now, partition as u32, base, map, high);
        self.throttle.handle_takeover(self.now, partition as u32);
        let sole = self.sole_client(partition).map(|client| self.names[client].as_str());
        self.throttle.handle_sole_client(partition as u32, sole);
    }

    /// Commits a partition and checks that the commit records exactly the completed offsets.
    fn commit(&mut self, partition: usize) -> (i64, OffsetMap) {
        let (base, text) =
            self.throttle.commit_without(self.now, partition as u32, &[]).expect("the map fits in its budget");
        self.throttle.handle_committed(partition as u32);
        let map = offset_map::decode(base, text.as_bytes()).expect("the core's own map");
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
                // The new owner knows the admissions of the service, but not those of each client.
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
        assert_eq!(freed, mine, "a revocation frees each held slot once");
        for slot in freed {
            let (partition, offset) = self.held.remove(&slot).expect("the slot was held");
            if let Origin::Client(client) = self.record(partition, offset).origin {
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

    /// Starts the cycles that have begun: the backlog at the start of a cycle counts as wants of that cycle.
    fn advance_cycles(&mut self) {
        if self.now < self.cycle_start + self.policy.cycle {
            return;
        }
        while self.now >= self.cycle_start + self.policy.cycle {
            self.cycle_start = self.cycle_start + self.policy.cycle;
        }
        for (model, name) in self.models.iter_mut().zip(&self.names) {
            // Rejected records that wait for room in the offset map are held, but are not wants.
            let waiting = self.throttle.client(name).map_or(0, |known| known.backlog().0);
            (model.waiting, model.arrivals) = (waiting, 0);
        }
        self.throttle.handle_timeout(self.now);
        let granted = crate::sim::granted(&self.throttle);
        let no_clients = self.throttle.clients().is_empty();
        assert!(no_clients || granted == self.policy.capacity, "{granted} granted");
    }

    fn admitted(&mut self, partition: usize, offset: usize) {
        let now = self.now;
        let Origin::Client(client) = self.record(partition, offset).origin else {
            panic!("a record without a known client was admitted");
        };
        let record = self.record_mut(partition, offset);
        assert!(!record.fate.completed(), "({partition}, {offset}) was {:?}", record.fate);
        (record.fate, record.decided) = (Fate::Admitted, now);
        // A record that had no owner for a while may be one that its client is owed, which is charged to no use.
        let is_late = offset < self.logs[partition].catch_up;
        let read = if is_late { Time::ZERO } else { self.record(partition, offset).read };
        let model = &mut self.models[client];
        model.admitted.push_back((now, read));
        if let Some(last) = model.last.insert(partition, offset) {
            assert!(last < offset, "order of a client in a partition: {offset} after {last}");
        }
        let origin = Origin::Client(client);
        self.decisions.push(Decision { origin, at: now, record: (partition, offset), rejection: None });
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
        let origin = record.origin;
        self.decisions.push(Decision { origin, at: now, record: (partition, offset), rejection: Some(rejection) });
    }

    /// Checks an immediate admission: in reject mode, the client is below its allowance.
    fn may_admit_at_once(&mut self, origin: Origin) {
        let Origin::Client(client) = origin else { return };
        if self.policy.mode == Mode::Reject && self.policy.window == Window::Sliding {
            let used = self.used(client, Duration::ZERO, |(_, arrived)| arrived);
            let allowance = self.throttle.client(&self.names[client]).unwrap().allowance();
            assert!(used < allowance, "admitted with {used} of {allowance} used");
        }
    }

    fn may_reject(&mut self, partition: usize, origin: Origin, rejection: Rejection, catching_up: bool) {
        let known = matches!(origin, Origin::Client(_));
        match rejection.reason {
            Reason::Anonymous => assert_eq!(origin, Origin::Anonymous),
            Reason::UnknownClient => assert_eq!(origin, Origin::NotAllowed),
            Reason::TooManyClients => assert!(known),
            Reason::OverAllocation => {
                assert_eq!(self.policy.mode, Mode::Reject);
                assert!(
                    !catching_up || self.policy.catch_up == CatchUp::Reject,
                    "a record that catches up must not be rejected"
                );
                self.is_over_its_allowance(origin);
            }
            Reason::CapacityInUse => {
                assert_eq!(self.policy.mode, Mode::Reject);
                assert!(
                    !catching_up || self.policy.catch_up == CatchUp::Reject,
                    "a record that catches up must not be rejected"
                );
            }
            Reason::ClientLimit => assert_eq!(self.policy.mode, Mode::Reject),
            Reason::QueueFull => {
                assert_eq!(self.policy.overflow, Overflow::Auto);
                assert!(!self.pauses_for(partition, origin), "queue_full although a pause bounds the backlogs");
            }
            reason => assert!(!known, "{reason:?} for {origin:?} at arrival"),
        }
    }

    /// Checks that the client has used its grant, and at least its default share.
    fn is_over_its_allowance(&mut self, origin: Origin) {
        let Origin::Client(client) = origin else { return };
        let waiting = self.throttle.client(&self.names[client]).unwrap().backlog().0;
        let slack = slice_width(self.policy.cycle);
        let used = match self.policy.window {
            Window::Sliding => self.used(client, slack, |(admitted, _)| admitted),
            Window::Fixed => {
                let start = self.cycle_start;
                self.models[client].admitted.iter().filter(|(at, _)| *at >= start).count() as u64
            }
        };
        let known = self.throttle.client(&self.names[client]).unwrap();
        let granted = known.grant.records.max(known.grant.default_share.floor());
        assert!(used + waiting >= granted, "{used} used and {waiting} waiting of {granted}");
    }

    /// Counts the client's admissions in the last cycle plus `more`, by one of their times. Its use lies between both
    /// counts: a record that waited for the window counts by its arrival.
    fn used(&mut self, client: usize, more: Duration, time: impl Fn((Time, Time)) -> Time) -> u64 {
        let admitted = &mut self.models[client].admitted;
        let keep = self.policy.cycle + slice_width(self.policy.cycle);
        while admitted.front().is_some_and(|(at, _)| *at + keep <= self.now) {
            admitted.pop_front();
        }
        admitted.iter().filter(|at| time(**at) + self.policy.cycle + more > self.now).count() as u64
    }

    /// Returns whether some backlogs are bounded by pausing.
    fn pauses(&self) -> bool {
        self.policy.overflow != Overflow::DeadLetter || self.policy.mode == Mode::Reject
    }

    /// Returns whether a partition with records of this origin is paused at a bound, so that none of them is evicted.
    fn pauses_for(&self, partition: usize, origin: Origin) -> bool {
        let sole = self.throttle.ledger().sole_client(partition as u32);
        let is_sole = matches!(origin, Origin::Client(client) if sole == Some(&*self.names[client]));
        self.pauses() && (self.policy.overflow() == Overflow::Pause || is_sole)
    }

    /// The client of a partition with records of one client: under `auto` every second one, until other steps than
    /// [`Step::Send`] add records of others.
    fn sole_client(&self, partition: usize) -> Option<usize> {
        let clients = self.policy.clients.len();
        let has_one = self.policy.overflow == Overflow::Auto && partition.is_multiple_of(2) && clients > 0;
        has_one.then(|| partition / 2 % clients)
    }

    /// Checks the laws that hold whenever no action is left.
    pub fn at_rest(&mut self) {
        self.wants_are_counted();
        self.backlogs_are_bounded();
        // Encoding may succeed beyond the budget of the map if the recent admissions take little space.
        let used = |partition| self.throttle.ledger().partition(partition).map_or(0.0, |view| view.map_used);
        assert!(
            (0..self.logs.len() as u32).all(|partition| used(partition) <= 1.0),
            "an offset map exceeds its budget"
        );
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
        assert_eq!(records, self.held.len() as u64, "backlog and held records differ");
        let late = self.logs.len() as u64 * (1 + u64::from(self.in_flight) + self.batch as u64);
        let most = self.policy.queue_capacity + if self.pauses() { 2 * late } else { 0 };
        assert!(self.models.iter().all(|model| model.held <= most));
        assert!(self.pauses() || bytes <= self.policy.queue_bytes, "{bytes} bytes");
        assert!(bytes <= self.policy.queue_bytes + 2 * late * 200, "{bytes} bytes");
    }

    /// Checks that every record is decided in the end.
    pub fn finish(&mut self) {
        let records: usize = self.logs.iter().map(|log| log.records.len()).sum();
        let cycles = records as u64 / self.policy.capacity + 3;
        if cycles > 150 {
            return;
        }
        let slowest = self.policy.clients.iter().flat_map(|client| &client.limits).map(|limit| limit.per).max();
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
            if let Some(PartitionView { base, held, .. }) = self.throttle.ledger().partition(partition as u32) {
                assert_eq!(held, 0);
                assert!(base as usize >= log.records.iter().rposition(Option::is_some).map_or(0, |last| last + 1));
            }
        }
        (0..self.logs.len()).for_each(|partition| drop(self.commit(partition)));
    }

    fn is_done(&self) -> bool {
        self.held.is_empty() && self.logs.iter().all(|log| log.records.iter().skip(log.position).all(Option::is_none))
    }

    // ## Views

    pub fn record(&self, partition: usize, offset: usize) -> &Record {
        self.logs[partition].records[offset].as_ref().expect("a hole is no record")
    }

    fn record_mut(&mut self, partition: usize, offset: usize) -> &mut Record {
        self.logs[partition].records[offset].as_mut().expect("a hole is no record")
    }

    pub fn held_of(&self, client: usize) -> u64 {
        self.models[client].held
    }

    /// Returns the name of a client.
    pub fn name(&self, client: usize) -> &str {
        &self.names[client]
    }
}
