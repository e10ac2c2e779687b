//! Instances with real throttles, on a log that takes its time: transactions of 25 ms, openings of 0.1 to 1.5 s.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::rc::Rc;
use std::{sync::Arc, time::Duration};

use watermaster_core::allocator::ClientGroupPart;
use watermaster_core::group::control::{ControlLog, Event, LogCall, OpeningNumber};
use watermaster_core::group::driver::Driver;
use watermaster_core::group::member::Member;
use watermaster_core::group::state::SeatRecord;
use watermaster_core::group::targets::Shares;
use watermaster_core::group::{Clocks, GroupParams};
use watermaster_core::offset_map;
use watermaster_core::policy::{Policy, Scope};
use watermaster_core::reason::Reason;
use watermaster_core::throttle::{Action, Arrival, Sender, Slot, Throttle, Verdict};
use watermaster_core::units::{Ratio, Time};

use crate::planted::RuleMistake;
use crate::support::random::Random;

/// The time from a commit until it is read.
const READING: Duration = Duration::from_millis(10);
/// A call without an answer fails after this time.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The log that all instances share.
#[derive(Debug)]
struct Shared {
    now: Time,
    /// Committed records, with the time of the commit.
    records: Vec<(Time, SeatRecord)>,
    /// The opening that owns each seat.
    owners: BTreeMap<Arc<str>, (usize, OpeningNumber)>,
    /// No broker answers until then.
    away_until: Time,
    states: u64,
    /// One transaction in so many takes 0.2 to 1 s; 0 for none.
    slow_one_in: u64,
    random: Random,
}

impl Shared {
    fn transaction(&mut self) -> Duration {
        if self.slow_one_in > 0 && self.random.once_in(self.slow_one_in) {
            return self.random.millis(200, 1_000);
        }
        let deviation = (0..12).map(|_| self.random.unit()).sum::<f64>() - 6.0;
        Duration::from_secs_f64(0.025 * (0.4 * deviation).exp())
    }
}

/// One instance's view of the log.
pub struct SimLog {
    shared: Rc<RefCell<Shared>>,
    instance: usize,
    read: usize,
    is_at_end: bool,
    events: Vec<(Time, Event)>,
    /// Records that are committed at a time, unless the opening has lost its seat.
    writes: Vec<(Time, OpeningNumber, Vec<SeatRecord>)>,
    seats: BTreeMap<OpeningNumber, Arc<str>>,
    mistake: Option<RuleMistake>,
}

impl SimLog {
    fn commit_due(&mut self) {
        let shared = Rc::clone(&self.shared);
        let mut shared = shared.borrow_mut();
        let now = shared.now;
        let mut failed = Vec::new();
        self.writes.retain(|(at, attempt, records)| {
            if *at > now {
                return true;
            }
            let owner = self.seats.get(attempt).and_then(|seat| shared.owners.get(seat));
            let committed = owner == Some(&(self.instance, *attempt));
            if committed {
                shared.records.extend(records.iter().map(|record| (now, record.clone())));
                shared.states += 1;
            }
            failed.push((now, Event::Written { attempt: *attempt, committed }));
            false
        });
        self.events.extend(failed);
    }
}

impl ControlLog for SimLog {
    type Error = Infallible;

    fn poll(&mut self) -> Result<Option<Event>, Infallible> {
        self.commit_due();
        let shared = self.shared.borrow();
        if let Some(index) = self.events.iter().position(|(at, _)| *at <= shared.now) {
            let (_, event) = self.events.remove(index);
            return Ok(Some(match event {
                // The end is asked for after the opening.
                Event::Opened { attempt, .. } => Event::Opened { attempt, end: shared.records.len() as u64 },
                other => other,
            }));
        }
        if shared.now < shared.away_until {
            return Ok(None);
        }
        let next = shared.records.get(self.read).filter(|(at, _)| *at + READING <= shared.now);
        if let Some((_, record)) = next {
            let (offset, mut record) = (self.read as u64, record.clone());
            self.read += 1;
            self.is_at_end = false;
            if let Some(mistake) = self.mistake {
                mistake.spoil_read(&mut record);
            }
            return Ok(Some(Event::Record { offset, record }));
        }
        // An end behind the records that are on their way to the reader, as a broker tells it, comes with them.
        if !self.is_at_end && self.read == shared.records.len() {
            self.is_at_end = true;
            return Ok(Some(Event::End(self.read as u64)));
        }
        Ok(None)
    }

    fn call(&mut self, call: LogCall) {
        match call {
            LogCall::Open { seat, attempt } => self.open(seat, attempt),
            LogCall::Write { attempt, records } => self.write(attempt, records),
            LogCall::Close { attempt } => drop(self.seats.remove(&attempt)),
        }
    }
}

impl SimLog {
    fn open(&mut self, seat: Arc<str>, attempt: OpeningNumber) {
        let mut shared = self.shared.borrow_mut();
        self.seats.retain(|_, other| *other != seat);
        self.seats.insert(attempt, Arc::clone(&seat));
        let took = shared.random.millis(100, 1_500);
        let at = shared.now.max(shared.away_until) + took;
        if at > shared.now + CALL_TIMEOUT {
            self.events.push((shared.now + CALL_TIMEOUT, Event::Failed { attempt }));
            return;
        }
        shared.owners.insert(seat, (self.instance, attempt));
        self.is_at_end = false;
        self.events.push((at, Event::Opened { attempt, end: 0 }));
    }

    fn write(&mut self, attempt: OpeningNumber, records: Vec<SeatRecord>) {
        let is_removal = matches!(&records[..], [SeatRecord::Tombstone(_), ..]);
        assert!(!is_removal, "no simulated hour has passed: {records:?}");
        let mut shared = self.shared.borrow_mut();
        let took = shared.transaction();
        let at = shared.now.max(shared.away_until) + took;
        if at > shared.now + CALL_TIMEOUT {
            self.events.push((shared.now + CALL_TIMEOUT, Event::Written { attempt, committed: false }));
            return;
        }
        self.writes.push((at, attempt, records));
    }
}

/// A throttle, and its place in the group; a single instance has none.
pub struct Instance {
    pub throttle: Throttle,
    pub group: Option<(Driver, SimLog)>,
    pub name: Arc<str>,
    /// The number that no other life of the seat has.
    pub life: u64,
    /// The instance's wall clock less the true time, in milliseconds.
    pub ahead_ms: i64,
    pub mistake: Option<RuleMistake>,
    /// The time by which the instance's monotonic clock is ahead.
    pub clock_ahead: Duration,
    held: BTreeMap<Slot, (u32, i64)>,
}

impl Instance {
    /// Takes other rules over, as the engine does. `configured` is the policy of the configuration, without rules of
    /// run time.
    pub fn take_rules(&mut self, now: Time, params: &GroupParams, policy: Policy) {
        if let Some((driver, _)) = &mut self.group {
            driver.change(GroupParams { capacity: policy.capacity, ..params.clone() }, &policy);
        }
        self.throttle.handle_rules(now, policy);
    }

    /// The instance's wall clock, in milliseconds since the Unix epoch.
    pub fn wall_ms(&self, now: Time) -> i64 {
        (now.as_nanos() / 1_000_000) as i64 + self.ahead_ms
    }
}

/// A partition of the sources.
#[derive(Debug, Default)]
struct Partition {
    owner: Option<usize>,
    end: i64,
    /// Records that are not completed: the client and the time of arrival.
    records: BTreeMap<i64, (usize, Time)>,
    /// The committable offset and the map that the next owner begins with.
    committed: Option<(i64, String)>,
    unread: VecDeque<i64>,
}

/// Counts of decided records.
#[derive(Debug, Default, Clone)]
pub struct Counts {
    pub admitted: u64,
    pub rejected: u64,
    pub expired: u64,
    /// The longest time from arrival to admission.
    pub longest: Duration,
    pub last: Time,
}

/// The instances of a group, or a single one.
pub struct Group {
    policy: Policy,
    pub params: GroupParams,
    shared: Rc<RefCell<Shared>>,
    /// `None` for one that is gone.
    pub instances: Vec<Option<Instance>>,
    partitions: Vec<Partition>,
    clients: Vec<String>,
    pub counts: Counts,
    /// Rejections by client, but for records that expired.
    pub rejected: Vec<u64>,
    /// Admissions since the last call of `take_admitted`: client and time since arrival.
    admitted: Vec<(usize, Duration)>,
    window: VecDeque<(Time, u64)>,
    /// The admissions in the window that ends now.
    pub in_window: u64,
    pub fullest: u64,
    lives: u64,
    /// The records of the log that [`take_committed`](Group::take_committed) returned.
    taken: usize,
}

impl Group {
    pub fn new(policy: &Policy, partitions: usize, clients: &[&str], now: Time, seed: u64) -> Group {
        let random = Random::stream(seed, 29);
        let shared = Shared {
            now,
            records: Vec::new(),
            owners: BTreeMap::new(),
            away_until: Time::ZERO,
            states: 0,
            slow_one_in: 0,
            random,
        };
        Group {
            policy: policy.clone(),
            params: GroupParams::new(policy, GroupParams::default_ahead_time(policy.cycle), Duration::from_secs(6)),
            shared: Rc::new(RefCell::new(shared)),
            instances: Vec::new(),
            partitions: (0..partitions).map(|_| Partition::default()).collect(),
            clients: clients.iter().map(|&name| name.to_owned()).collect(),
            counts: Counts::default(),
            rejected: vec![0; clients.len()],
            admitted: Vec::new(),
            window: VecDeque::new(),
            in_window: 0,
            fullest: 0,
            lives: seed << 20,
            taken: 0,
        }
    }

    pub fn now(&self) -> Time {
        self.shared.borrow().now
    }

    pub fn states(&self) -> u64 {
        self.shared.borrow().states
    }

    /// One transaction in a hundred takes 0.2 to 1 s.
    pub fn with_slow_transactions(self) -> Group {
        self.shared.borrow_mut().slow_one_in = 100;
        self
    }

    /// No broker answers about the control topic for a time.
    pub fn outage(&self, length: Duration) {
        let mut shared = self.shared.borrow_mut();
        shared.away_until = shared.now + length;
    }

    /// Starts an instance of the group, or a single one.
    pub fn start(&mut self, name: &str, scope: Scope) -> usize {
        self.start_with(name, Policy { scope, ..self.policy.clone() }, None)
    }

    /// Starts an instance with another policy than that of the configuration, perhaps one that makes a mistake.
    pub fn start_with(&mut self, name: &str, policy: Policy, mistake: Option<RuleMistake>) -> usize {
        let now = self.now();
        let (instance, name): (usize, Arc<str>) = (self.instances.len(), Arc::from(name));
        self.lives += 1;
        let group = (policy.scope == Scope::Group).then(|| {
            let member = Member::new(
                GroupParams { capacity: policy.capacity, ..self.params.clone() },
                Shares::new(&policy),
                Arc::clone(&name),
                self.lives,
                Clocks::same(now),
            );
            let log = SimLog {
                shared: Rc::clone(&self.shared),
                instance,
                read: 0,
                is_at_end: false,
                events: Vec::new(),
                writes: Vec::new(),
                seats: BTreeMap::new(),
                mistake,
            };
            (Driver::new(member, false), log)
        });
        let throttle = Throttle::new(policy, now);
        let (life, held, clock_ahead) = (self.lives, BTreeMap::new(), Duration::ZERO);
        self.instances.push(Some(Instance { throttle, group, name, life, ahead_ms: 0, mistake, clock_ahead, held }));
        instance
    }

    /// The index of the living instance with this name.
    pub fn find(&self, name: &str) -> usize {
        let is_it = |instance: &Option<Instance>| instance.as_ref().is_some_and(|instance| &*instance.name == name);
        self.instances.iter().rposition(is_it).expect("an instance of this name")
    }

    /// Gives a partition to an instance, or to none.
    pub fn assign(&mut self, partition: usize, owner: Option<usize>) {
        let now = self.now();
        self.revoke(partition);
        let of = &mut self.partitions[partition];
        of.owner = owner;
        let Some(instance) = owner.and_then(|owner| self.instances[owner].as_mut()) else { return };
        let decoded = |(base, text): &(i64, String)| {
            (*base, offset_map::decode(*base, text.as_bytes()).expect("the core's own map"))
        };
        let (base, map) = of.committed.as_ref().map_or_else(Default::default, decoded);
        instance.throttle.handle_wall_clock(now, instance.wall_ms(now));
        instance.throttle.handle_assigned(now, partition as u32, base, &map, of.end);
        instance.throttle.handle_takeover(now, partition as u32);
        of.unread = of.records.keys().copied().collect();
    }

    /// Takes a partition from its owner, with its last commit.
    fn revoke(&mut self, partition: usize) {
        let now = self.now();
        let of = &mut self.partitions[partition];
        let Some(instance) = of.owner.take().and_then(|owner| self.instances[owner].as_mut()) else { return };
        instance.throttle.handle_wall_clock(now, instance.wall_ms(now));
        of.committed = Some(instance.throttle.commit_without(now, partition as u32, &[]).expect("the map fits"));
        for slot in instance.throttle.handle_revoked(partition as u32) {
            instance.held.remove(&slot);
        }
    }

    /// Kills an instance. What it has committed stays.
    pub fn kill(&mut self, instance: usize) {
        for partition in 0..self.partitions.len() {
            if self.partitions[partition].owner == Some(instance) {
                self.revoke(partition);
            }
        }
        self.instances[instance] = None;
    }

    /// Begins to stop an instance in order: it admits nothing more.
    pub fn leave(&mut self, instance: usize) {
        if let Some((driver, _)) = self.instances[instance].as_mut().and_then(|instance| instance.group.as_mut()) {
            driver.leave();
        }
    }

    /// A record arrives.
    pub fn arrive(&mut self, partition: usize, client: usize) {
        let now = self.now();
        let of = &mut self.partitions[partition];
        of.records.insert(of.end, (client, now));
        of.unread.push_back(of.end);
        of.end += 1;
    }

    /// Lets all instances work, and then time pass.
    pub fn step(&mut self, step: Duration) {
        let now = self.now();
        let mut sent = 0;
        for index in 0..self.instances.len() {
            sent += self.work(now, index);
            let has_left =
                |instance: &Instance| instance.group.as_ref().is_some_and(|(driver, _)| driver.member().has_left());
            if self.instances[index].as_ref().is_some_and(has_left) {
                self.kill(index);
            }
        }
        if sent > 0 {
            self.counts.last = now;
        }
        self.window.push_back((now, sent));
        self.in_window += sent;
        while self.window.front().is_some_and(|&(at, _)| at + self.policy.cycle <= now) {
            self.in_window -= self.window.pop_front().expect("a front").1;
        }
        self.fullest = self.fullest.max(self.in_window);
        self.shared.borrow_mut().now = now + step;
    }

    fn work(&mut self, now: Time, index: usize) -> u64 {
        let Some(instance) = &mut self.instances[index] else { return 0 };
        let Instance { throttle, group, held, mistake, clock_ahead, .. } = instance;
        let (true_time, now) = (now, now + *clock_ahead);
        if let Some((driver, log)) = group {
            driver.serve(|| Clocks::same(now), throttle, log, || Some(0)).unwrap_or_else(|error| match error {});
            assert!(!driver.member().is_replaced());
            if *mistake == Some(RuleMistake::LimitNotSplit) {
                let whole = ClientGroupPart { ratio: Ratio::ONE, weight: None };
                throttle.handle_parts(now, |client| driver.member().part(client), |_| Some(whole));
            }
        }
        let before = self.counts.admitted;
        let mut done = |of: &mut Partition, offset: i64, rejected: Option<Reason>| {
            let (client, arrived) = of.records.remove(&offset).expect("a record that is not completed");
            match rejected {
                None => {
                    self.counts.admitted += 1;
                    self.counts.longest = self.counts.longest.max(true_time.since(arrived));
                    self.admitted.push((client, true_time.since(arrived)));
                }
                Some(Reason::Expired) => self.counts.expired += 1,
                Some(_) => {
                    self.counts.rejected += 1;
                    self.rejected[client] += 1;
                }
            }
        };
        for (number, of) in self.partitions.iter_mut().enumerate().filter(|(_, of)| of.owner == Some(index)) {
            while let Some(offset) = of.unread.pop_front() {
                let (client, arrived) = of.records[&offset];
                let written_ms = Some((arrived.as_nanos() / 1_000_000) as i64);
                let sender = Sender::Client(&self.clients[client]);
                let arrival = Arrival { partition: number as u32, offset, bytes: 100, sender, written_ms };
                match throttle.handle_record(now, &arrival) {
                    Verdict::Admit(_) => done(of, offset, None),
                    Verdict::Reject(rejection) => done(of, offset, Some(rejection.reason)),
                    Verdict::Delay(slot) => drop(held.insert(slot, (number as u32, offset))),
                    Verdict::Skip => {}
                }
            }
        }
        throttle.handle_timeout(now);
        while let Some(action) = throttle.poll_action(now) {
            let (slot, rejected) = match action {
                Action::Admit { slot, .. } => (slot, None),
                Action::Reject { slot, rejection, .. } => (slot, Some(rejection.reason)),
                Action::Pause { .. } | Action::Resume { .. } => continue,
            };
            let (partition, offset) = held.remove(&slot).expect("a held record");
            done(&mut self.partitions[partition as usize], offset, rejected);
        }
        self.counts.admitted - before
    }

    /// The admissions since the last call: client, and time since arrival.
    pub fn take_admitted(&mut self) -> Vec<(usize, Duration)> {
        std::mem::take(&mut self.admitted)
    }

    /// The records that were committed to the control log since the last call.
    pub fn take_committed(&mut self) -> Vec<SeatRecord> {
        let shared = self.shared.borrow();
        let news = shared.records[self.taken..].iter().map(|(_, record)| record.clone()).collect();
        self.taken = shared.records.len();
        news
    }

    /// Commits a record that no member wrote.
    pub fn forge(&self, record: SeatRecord) {
        let mut shared = self.shared.borrow_mut();
        let now = shared.now;
        shared.records.push((now, record));
    }

    /// The number of records that are not completed.
    pub fn waiting(&self) -> usize {
        self.partitions.iter().map(|partition| partition.records.len()).sum()
    }
}
