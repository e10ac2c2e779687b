//! The scheduler: runs the next instance, broker event or fault.
//!
//! Every instance has two threads, its engine's and librdkafka's, which take turns in simulated time. The event that is
//! due first runs first; the seed chooses how long each step takes, and thereby the order.

use std::time::Duration;

use watermaster_core::{delivery::FatalError, units::Time};

use super::client::{Client, Cluster};
use super::instance::{Instance, Job, Turn};
use super::trace::{self, note};
use super::{
    broker::Broker, checker, coverage::Coverage, group::Group, planted::Plant, scenario::Scenario, sim::START,
    support::random::Random,
};

/// Maximum time from the last fault until all records are delivered.
const REST_TIMEOUT: Duration = Duration::from_secs(1_200);
/// Maximum number of turns of a seed; no seed needs as many.
const MAX_TURNS: u32 = 400_000;
/// Interval between two checks whether all records are delivered.
const REST_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A process that runs or will start.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) process: Option<Process>,
    /// The time at which the next process starts here.
    pub(super) restart: Time,
    /// The `transactional.id` of the process.
    pub(super) id: usize,
    /// Set if another process replaced this one while it hung: it does not start again.
    pub(super) ghost: bool,
}

#[derive(Debug)]
pub(super) struct Process {
    pub(super) instance: Instance,
    /// The time of the engine's next turn.
    engine: Time,
    /// The time of librdkafka's next turn.
    background: Time,
    /// The time before which neither of them runs.
    pub(super) paused: Time,
}

pub struct World {
    pub(super) cluster: Cluster,
    pub(super) job: Job,
    pub(super) session: Duration,
    pub(super) seats: Vec<Seat>,
    started: u32,
    pub(super) fault_interval: u64,
    pub(super) next_fault: Time,
    next_check: Time,
    pub(super) quiet_from: Time,
}

impl World {
    pub fn new(seed: u64, exactly_once: bool, plant: Option<Plant>) -> World {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03);
        let mut scenario = Scenario::new(&mut random, exactly_once);
        // The seeds named in `main.rs` keep their runs: none of them is among these.
        scenario.job.opens_early = seed % 3 == 2;
        note("seed", || format!("{seed}: {:?}, {:?}, session {:?}", scenario.job, scenario.rates, scenario.session));
        let group = Group::new(scenario.sources.len() as u32, scenario.session);
        let broker = Broker::new(scenario.sources, scenario.job.transaction_timeout, group, exactly_once);
        let mut later = Random::stream(seed, 1);
        let rates = scenario.rates.with_later_faults(&mut later).with_a_slow_network(seed, &scenario.job);
        let cluster =
            Cluster { now: START, random, later, rates, quiet: false, plant, exactly_once, epochs: 0, broker };
        let mut world = World {
            cluster,
            job: scenario.job,
            session: scenario.session,
            seats: Vec::new(),
            started: 0,
            fault_interval: scenario.fault_interval,
            next_fault: START,
            next_check: scenario.quiet_from,
            quiet_from: scenario.quiet_from,
        };
        world.coverage().small_maps += u64::from(scenario.small_map);
        for _ in 0..scenario.instances {
            world.add_seat();
        }
        world.schedule_fault();
        world
    }

    pub(super) fn coverage(&mut self) -> &mut Coverage {
        &mut self.cluster.broker.coverage
    }

    /// Runs to the end. Returns the counts, or the invariant that broke.
    pub fn run(mut self) -> Result<Coverage, String> {
        for _ in 0..MAX_TURNS {
            if let Some(broken) = self.cluster.broker.checker.broken.take() {
                return Err(broken);
            }
            if self.cluster.quiet && self.next_check <= self.cluster.now {
                self.next_check = self.cluster.now + REST_CHECK_INTERVAL;
                if self.is_at_rest() {
                    return self.conclude();
                }
                if self.cluster.now > self.quiet_from + REST_TIMEOUT {
                    return Err(self.restless());
                }
            }
            self.advance();
        }
        Err(format!("endless: {MAX_TURNS} turns; {}", self.restless()))
    }

    fn conclude(mut self) -> Result<Coverage, String> {
        checker::check_rest(&mut self.cluster.broker);
        let records: usize =
            self.cluster.broker.sources.iter().map(|source| source.entries.iter().flatten().count()).sum();
        self.coverage().records += records as u64;
        match self.cluster.broker.checker.broken.take() {
            Some(broken) => Err(broken),
            None => Ok(self.cluster.broker.coverage),
        }
    }

    // ## Time

    /// Runs the next event.
    fn advance(&mut self) {
        let broker = self.cluster.broker.next_event();
        let fault = if self.cluster.quiet { Time::NEVER } else { self.next_fault.min(self.quiet_from) };
        let (seat, at) = self.next_seat();
        let next = broker.min(fault).min(at).min(if self.cluster.quiet { self.next_check } else { Time::NEVER });
        self.cluster.now = self.cluster.now.max(next);
        trace::at(self.cluster.now);
        if broker <= next {
            let Cluster { now, random, broker, .. } = &mut self.cluster;
            broker.run(*now, random);
        } else if fault <= next {
            self.inject_fault();
        } else if at <= next {
            self.seat_turn(seat);
        }
    }

    fn next_seat(&self) -> (usize, Time) {
        let due = |seat: &Seat| match &seat.process {
            None => seat.restart,
            Some(process) => process.engine.min(process.background).max(process.paused),
        };
        let next = self.seats.iter().map(due).enumerate().min_by_key(|(_, at)| *at);
        next.unwrap_or((0, Time::NEVER))
    }

    fn seat_turn(&mut self, seat: usize) {
        self.expire_members();
        let cluster = &mut self.cluster;
        let Some(process) = &mut self.seats[seat].process else {
            self.start(seat);
            return;
        };
        let now = cluster.now;
        if process.background.max(process.paused) <= now {
            process.instance.client.background(cluster);
            process.background = now + cluster.random.millis(50, 900);
            return;
        }
        match process.instance.turn(cluster) {
            Turn::Sleep(wait) => {
                let jitter = Duration::from_micros(cluster.random.between(100, 3_000));
                process.engine = now + wait + jitter;
            }
            Turn::Died => self.dies(seat),
            Turn::Left => {
                self.seats[seat].process = None;
                self.restart(seat);
            }
            Turn::Stopped(stop) => {
                let Process { instance, .. } = process;
                note(&instance.client.name, || format!("stops: {stop:?}"));
                instance.client.leave(cluster);
                let coverage = &mut cluster.broker.coverage;
                match stop {
                    FatalError::Undeliverable { .. } => coverage.stopped_undeliverable += 1,
                    FatalError::FencedTwice(_) => coverage.stopped_fenced_twice += 1,
                    FatalError::TooManyFailures { .. } => coverage.stopped_failures += 1,
                    other => cluster.broker.checker.breaks(|| format!("stopped: {other:?}")),
                }
                self.seats[seat].process = None;
                self.restart(seat);
            }
        }
    }

    fn expire_members(&mut self) {
        let now = self.cluster.now;
        if self.cluster.broker.group_down > now {
            return;
        }
        for id in self.cluster.broker.group.expire(now) {
            self.count_expulsion(id);
        }
    }

    pub(super) fn count_expulsion(&mut self, id: u32) {
        let of = |seat: &&Seat| seat.process.as_ref().is_some_and(|process| process.instance.client.member == id);
        let process = self.seats.iter().find(of).and_then(|seat| seat.process.as_ref());
        let in_round = process.is_some_and(|process| process.instance.in_round.is_some());
        let lives = process.is_some();
        self.coverage().expelled += u64::from(lives);
        self.coverage().expelled_in_round += u64::from(in_round);
    }

    // ## Processes

    pub(super) fn add_seat(&mut self) {
        let id = self.cluster.broker.new_id();
        let restart = self.cluster.now + self.cluster.random.millis(0, 1_500);
        self.seats.push(Seat { process: None, restart, id, ghost: false });
    }

    fn start(&mut self, seat: usize) {
        let (now, id) = (self.cluster.now, self.seats[seat].id);
        self.started += 1;
        let name = format!("i{}(id {id})", self.started);
        note(&name, || "starts".to_owned());
        let mut job = self.job.clone();
        // An operator has read why the instance stopped.
        job.rules.discard_undeliverable |= self.cluster.quiet;
        let instance = Instance::new(Client::new(name, id, self.cluster.new_producer()), job, now);
        self.seats[seat].process = Some(Process { instance, engine: now, background: now, paused: Time::ZERO });
        self.seats[seat].restart = Time::NEVER;
    }

    pub(super) fn dies(&mut self, seat: usize) {
        if let Some(process) = self.seats[seat].process.take() {
            note(&process.instance.client.name, || "crashed".to_owned());
            let with_map = process.instance.holds_around_a_map(&self.cluster);
            self.coverage().crashes_with_map += u64::from(with_map);
        }
        self.restart(seat);
    }

    /// Schedules a new process: mostly soon, mostly with the same id.
    fn restart(&mut self, seat: usize) {
        if self.seats[seat].ghost {
            return;
        }
        if self.cluster.random.once_in(4) {
            self.seats[seat].id = self.cluster.broker.new_id();
            self.coverage().restarts_new_id += 1;
        } else {
            self.coverage().restarts_same_id += 1;
        }
        let after = if self.cluster.random.once_in(3) { (3_000, 12_000) } else { (10, 1_500) };
        self.seats[seat].restart = self.cluster.now + self.cluster.random.millis(after.0, after.1);
    }

    // ## Rest

    /// Ends all faults; instances and brokers recover.
    pub(super) fn quiet(&mut self) {
        note("world", || "no more faults".to_owned());
        let now = self.cluster.now;
        self.cluster.quiet = true;
        let Broker { transactions_down, group_down, .. } = &mut self.cluster.broker;
        (*transactions_down, *group_down) = ((*transactions_down).min(now), (*group_down).min(now));
        for seat in &mut self.seats {
            if let Some(process) = &mut seat.process {
                process.instance.client.cut_until = process.instance.client.cut_until.min(now);
            } else if !seat.ghost {
                seat.restart = seat.restart.min(now);
            }
        }
        if self.seats.iter().all(|seat| seat.ghost) {
            self.add_seat();
        }
    }

    fn is_at_rest(&self) -> bool {
        let broker = &self.cluster.broker;
        let done = |(partition, source): (usize, &super::source::Source)| {
            source.arrived == source.entries.len() && broker.checker.is_finished(partition, source.last_end())
        };
        let idle = |seat: &Seat| seat.process.as_ref().is_none_or(|process| process.instance.is_idle());
        broker.is_quiet() && broker.sources.iter().enumerate().all(done) && self.seats.iter().all(idle)
    }

    /// Describes the unfinished partitions and the busy instances.
    fn restless(&self) -> String {
        let broker = &self.cluster.broker;
        let partitions = broker.sources.iter().enumerate();
        let unfinished: Vec<String> = partitions
            .filter(|(partition, source)| !broker.checker.is_finished(*partition, source.last_end()))
            .map(|(partition, source)| broker.checker.unfinished(partition, source.last_end()))
            .collect();
        let busy = self.seats.iter().filter_map(|seat| seat.process.as_ref());
        let busy: Vec<&str> =
            busy.map(|process| &process.instance).filter(|one| !one.is_idle()).map(|one| &*one.client.name).collect();
        let open = if broker.is_quiet() { "" } else { "; a transaction is open" };
        format!("silent: not done long after the last fault: {unfinished:?}; busy: {busy:?}{open}")
    }
}
