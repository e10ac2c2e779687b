//! The scheduler: who does something next, and what befalls whom.
//!
//! Every instance has two threads, its engine's and librdkafka's, which take turns by simulated time. What happens next is
//! what is due first; how long each step takes is the seed's choice, and so is the order.

use std::time::Duration;

use watermaster_core::round::Stop;
use watermaster_core::units::Time;

use super::broker::Broker;
use super::checker;
use super::client::{Client, Cluster};
use super::coverage::Coverage;
use super::group::Group;
use super::instance::{Instance, Job, Turn};
use super::planted::Plant;
use super::random::Random;
use super::scenario::Scenario;
use super::sim::START;
use super::trace::{self, note};

/// The most instances that are meant to run.
const SEATS: usize = 4;
/// After the last fault everything has to come to rest within this.
const REST: Duration = Duration::from_secs(1_200);
/// More turns than any seed needs.
const TURNS: u32 = 400_000;
/// How often it is looked whether everything rests.
const LOOK: Duration = Duration::from_secs(1);

/// A place for a process.
#[derive(Debug)]
struct Seat {
    process: Option<Process>,
    /// When the next one starts here.
    restart: Time,
    /// Its `transactional.id`.
    id: usize,
    /// Another process took its place while it hung: it does not start again.
    ghost: bool,
}

#[derive(Debug)]
struct Process {
    instance: Instance,
    /// When its engine does something.
    engine: Time,
    /// When librdkafka does something.
    background: Time,
    /// Not before this does any of them.
    paused: Time,
}

pub struct World {
    cluster: Cluster,
    job: Job,
    session: Duration,
    seats: Vec<Seat>,
    started: u32,
    strikes: u64,
    next_strike: Time,
    next_look: Time,
    quiet_from: Time,
}

impl World {
    pub fn new(seed: u64, plant: Option<Plant>) -> World {
        let mut random = Random::new(seed);
        let scenario = Scenario::new(&mut random);
        note("seed", || format!("{seed}: {:?}, {:?}, session {:?}", scenario.job, scenario.rates, scenario.session));
        let group = Group::new(scenario.sources.len() as u32, scenario.session);
        let broker = Broker::new(scenario.sources, scenario.job.rules.timeout, group);
        let cluster = Cluster { now: START, random, rates: scenario.rates, quiet: false, plant, broker };
        let mut world = World {
            cluster,
            job: scenario.job,
            session: scenario.session,
            seats: Vec::new(),
            started: 0,
            strikes: scenario.strikes,
            next_strike: START,
            next_look: scenario.quiet_from,
            quiet_from: scenario.quiet_from,
        };
        world.coverage().small_maps += u64::from(scenario.small_map);
        for _ in 0..scenario.instances {
            world.add_seat();
        }
        world.strike_later();
        world
    }

    fn coverage(&mut self) -> &mut Coverage {
        &mut self.cluster.broker.coverage
    }

    /// Runs to the end. What was counted, or what does not hold.
    pub fn run(mut self) -> Result<Coverage, String> {
        for _ in 0..TURNS {
            if let Some(broken) = self.cluster.broker.checker.broken.take() {
                return Err(broken);
            }
            if self.cluster.quiet && self.next_look <= self.cluster.now {
                self.next_look = self.cluster.now + LOOK;
                if self.is_at_rest() {
                    return self.conclude();
                }
                if self.cluster.now > self.quiet_from + REST {
                    return Err(self.restless());
                }
            }
            self.advance();
        }
        Err(format!("endless: {TURNS} turns; {}", self.restless()))
    }

    fn conclude(mut self) -> Result<Coverage, String> {
        checker::check_rest(&mut self.cluster.broker);
        let records: usize = self.cluster.broker.sources.iter().map(|source| source.entries.iter().flatten().count()).sum();
        self.coverage().records += records as u64;
        match self.cluster.broker.checker.broken.take() {
            Some(broken) => Err(broken),
            None => Ok(self.cluster.broker.coverage),
        }
    }

    // ## Time

    /// Does what is due next.
    fn advance(&mut self) {
        let broker = self.cluster.broker.next_event();
        let strike = if self.cluster.quiet { Time::NEVER } else { self.next_strike.min(self.quiet_from) };
        let (seat, at) = self.next_seat();
        let next = broker.min(strike).min(at).min(if self.cluster.quiet { self.next_look } else { Time::NEVER });
        self.cluster.now = self.cluster.now.max(next);
        trace::at(self.cluster.now);
        if broker <= next {
            let Cluster { now, random, broker, .. } = &mut self.cluster;
            broker.run(*now, random);
        } else if strike <= next {
            self.strike();
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
                    Stop::Undeliverable { .. } => coverage.stopped_undeliverable += 1,
                    Stop::FencedTwice(_) => coverage.stopped_fenced_twice += 1,
                    Stop::Failures { .. } => coverage.stopped_failures += 1,
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

    fn count_expulsion(&mut self, id: u32) {
        let of = |seat: &&Seat| seat.process.as_ref().is_some_and(|process| process.instance.client.member == id);
        let process = self.seats.iter().find(of).and_then(|seat| seat.process.as_ref());
        let in_round = process.is_some_and(|process| process.instance.in_round.is_some());
        let lives = process.is_some();
        self.coverage().expelled += u64::from(lives);
        self.coverage().expelled_in_round += u64::from(in_round);
    }

    // ## Processes

    fn add_seat(&mut self) {
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
        // Somebody looked at why it stopped.
        job.rules.discard_undeliverable |= self.cluster.quiet;
        let instance = Instance::new(Client::new(name, id), job, now);
        self.seats[seat].process = Some(Process { instance, engine: now, background: now, paused: Time::ZERO });
        self.seats[seat].restart = Time::NEVER;
    }

    fn dies(&mut self, seat: usize) {
        if let Some(process) = self.seats[seat].process.take() {
            note(&process.instance.client.name, || "is dead".to_owned());
            let with_map = process.instance.holds_around_a_map(&self.cluster);
            self.coverage().crashes_with_map += u64::from(with_map);
        }
        self.restart(seat);
    }

    /// Somebody starts a process here again: mostly soon, mostly by the same id.
    fn restart(&mut self, seat: usize) {
        if self.seats[seat].ghost {
            return;
        }
        if self.cluster.random.one_in(4) {
            self.seats[seat].id = self.cluster.broker.new_id();
            self.coverage().restarts_new_id += 1;
        } else {
            self.coverage().restarts_same_id += 1;
        }
        let after = if self.cluster.random.one_in(3) { (3_000, 12_000) } else { (10, 1_500) };
        self.seats[seat].restart = self.cluster.now + self.cluster.random.millis(after.0, after.1);
    }

    // ## What befalls them

    fn strike_later(&mut self) {
        let wait = self.cluster.random.below(2 * self.strikes) + 1;
        self.next_strike = self.cluster.now + Duration::from_millis(wait);
    }

    fn strike(&mut self) {
        if self.cluster.now >= self.quiet_from {
            return self.quiet();
        }
        self.strike_later();
        let living: Vec<usize> = (0..self.seats.len()).filter(|&seat| self.seats[seat].process.is_some()).collect();
        if living.is_empty() {
            return;
        }
        let seat = self.cluster.random.pick(&living);
        match self.cluster.random.below(16) {
            0..=2 => self.kill(seat),
            3 | 4 => self.pause(seat, false),
            5 | 6 => self.pause(seat, true),
            7 => self.haunt(seat),
            8 => self.join(),
            9 => self.drain(seat),
            10 => self.expel(seat),
            11 => self.hijack(seat),
            12 => self.cut(seat),
            13 => self.transactions_down(),
            14 => self.group_down(),
            _ => self.pause(seat, false),
        }
    }

    fn kill(&mut self, seat: usize) {
        self.coverage().crashes_between += 1;
        self.dies(seat);
    }

    fn pause(&mut self, seat: usize, long: bool) {
        let timeout = self.job.rules.timeout;
        let (shortest, longest) = (self.session.min(timeout), self.session.max(timeout));
        let millis = |duration: Duration| duration.as_millis() as u64;
        let time = if long {
            self.coverage().pauses_long += 1;
            self.cluster.random.millis(millis(shortest), millis(longest) + 4_000)
        } else {
            self.coverage().pauses_short += 1;
            self.cluster.random.millis(50, millis(shortest))
        };
        let until = self.cluster.now + time;
        if let Some(process) = &mut self.seats[seat].process {
            note(&process.instance.client.name, || format!("hangs for {time:?}"));
            process.paused = process.paused.max(until);
        }
    }

    /// It hangs, and is replaced by a process with the same id. Then it wakes up.
    fn haunt(&mut self, seat: usize) {
        if self.seats.len() >= 2 * SEATS {
            return;
        }
        self.pause(seat, true);
        self.coverage().ghosts += 1;
        let (now, id) = (self.cluster.now, self.seats[seat].id);
        let restart = now + self.cluster.random.millis(100, 2_000);
        self.seats[seat].ghost = true;
        self.seats.push(Seat { process: None, restart, id, ghost: false });
    }

    fn join(&mut self) {
        if self.seats.iter().filter(|seat| !seat.ghost).count() < SEATS {
            self.coverage().joins += 1;
            self.add_seat();
        }
    }

    fn drain(&mut self, seat: usize) {
        let now = self.cluster.now;
        self.coverage().drains += 1;
        if let Some(process) = &mut self.seats[seat].process {
            note(&process.instance.client.name, || "is to drain".to_owned());
            process.instance.drain(now);
        }
    }

    fn expel(&mut self, seat: usize) {
        let member = self.seats[seat].process.as_ref().map_or(0, |process| process.instance.client.member);
        if self.cluster.broker.group.ids().any(|id| id == member) {
            note("group", || format!("member {member} is expelled"));
            self.count_expulsion(member);
            self.cluster.broker.group.remove(member);
        }
    }

    /// A foreign producer takes the id for itself.
    fn hijack(&mut self, seat: usize) {
        let id = self.seats[seat].id;
        let Cluster { now, random, broker, .. } = &mut self.cluster;
        let epoch = broker.init(id, *now, random);
        note("stranger", || format!("takes id {id}: {epoch:?}"));
        self.coverage().hijacks += 1;
    }

    fn cut(&mut self, seat: usize) {
        let until = self.cluster.now + self.cluster.random.millis(500, 15_000);
        self.coverage().cuts += 1;
        if let Some(process) = &mut self.seats[seat].process {
            let client = &mut process.instance.client;
            note(&client.name, || "is cut off".to_owned());
            client.cut_until = client.cut_until.max(until);
            client.producer.tainted = true;
        }
    }

    fn transactions_down(&mut self) {
        let time = self.cluster.random.millis(300, 18_000);
        note("coordinator", || format!("of transactions is away for {time:?}"));
        self.coverage().coordinator_down += 1;
        self.cluster.broker.transactions_down = self.cluster.now + time;
    }

    fn group_down(&mut self) {
        let until = self.cluster.now + self.cluster.random.millis(300, 18_000);
        note("coordinator", || "of the group is away".to_owned());
        self.coverage().coordinator_down += 1;
        self.cluster.broker.group_down = until;
        self.cluster.broker.group.forgive(until);
    }

    // ## Rest

    /// No more faults; whoever was hit recovers.
    fn quiet(&mut self) {
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
        let done = |(partition, source): (usize, &super::broker::Source)| {
            source.arrived == source.entries.len() && broker.checker.is_finished(partition, source.last_end())
        };
        let idle = |seat: &Seat| seat.process.as_ref().is_none_or(|process| process.instance.is_idle());
        broker.is_quiet() && broker.sources.iter().enumerate().all(done) && self.seats.iter().all(idle)
    }

    /// Why it is not at rest.
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
        format!("silent: no rest long after the last fault: {unfinished:?}; at work: {busy:?}{open}")
    }
}
