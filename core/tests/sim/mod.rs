//! Drives a throttle through simulated time and records the fate of every record.
#![allow(dead_code, reason = "each test binary uses its own part of this")]

use std::{collections::BTreeMap, time::Duration};

use watermaster_core::offset_map::{self, OffsetMap};
use watermaster_core::policy::{ClientPolicy, Limit, Policy};
use watermaster_core::reason::{Grounds, Reason};
use watermaster_core::scheduler::Counts;
use watermaster_core::slot::Slot;
use watermaster_core::throttle::{Action, Arrival, Sender, Throttle, Totals, Verdict};
use watermaster_core::units::{Time, Weight};

/// A policy without tight bounds; each test changes the fields that it is about.
pub fn policy(capacity: u64, cycle: Duration) -> Policy {
    Policy {
        max_clients: 100_000,
        client_idle_timeout: cycle * 100,
        queue_capacity: 1_000_000,
        queue_bytes: 1 << 40,
        max_delay: None,
        commit_interval: cycle / 100,
        ..Policy::new(capacity, cycle)
    }
}

/// The counts of records without a known client, those of forgotten clients included: decisions that were carried out,
/// and shadow mode's.
pub fn unregistered(throttle: &Throttle) -> (Counts, Counts) {
    let Totals { unregistered: mut counts, unregistered_shadow: mut shadow, .. } = *throttle.totals();
    for page in 0..throttle.clients().pages() {
        let (_, forgotten) = throttle.clients().page(page);
        counts.merge(&forgotten.counts);
        shadow.merge(&forgotten.shadow);
    }
    (counts, shadow)
}

/// The records that are granted to all clients, and to groups without clients.
pub fn granted(throttle: &Throttle) -> u64 {
    let clients = throttle.clients().iter().map(|(_, client)| client.grant.records);
    let empty = throttle.clients().groups().iter().filter(|group| group.clients == 0);
    clients.chain(empty.map(|group| group.grant.records)).sum()
}

/// A configured client.
pub fn client(name: &str, weight: f64, limit: Option<Limit>) -> ClientPolicy {
    let weight = Weight::from_thousandths((weight * 1_000.0).round() as u64).unwrap();
    ClientPolicy { name: name.into(), weight, limits: limit.into_iter().collect() }
}

/// The fate of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Admitted { waited: Duration },
    Rejected(Reason),
    Held,
}

/// The history of a record.
#[derive(Debug, Clone)]
pub struct Life {
    pub client: String,
    pub read: Time,
    pub fate: Fate,
    /// The time of the decision; for a held record, the time at which it was read.
    pub decided: Time,
    /// The number of the decision, counted over all records.
    pub turn: usize,
}

/// A throttle, the logs of its partitions and the simulated time.
pub struct Sim {
    pub throttle: Throttle,
    pub now: Time,
    pub lives: BTreeMap<(u32, i64), Life>,
    /// The time at which the next records that are read were written; `None` if they have no timestamp.
    pub written: Option<Time>,
    /// The grounds of the last rejection.
    pub grounds: Grounds,
    held: BTreeMap<Slot, (u32, i64)>,
    ends: Vec<i64>,
    pub paused: Vec<bool>,
    turns: usize,
}

/// The start of simulated time: far from zero, like a real clock.
pub const START: Time = Time::from_nanos(1_700_000_000_000_000_000);
/// The wall clock at the start, in milliseconds since the Unix epoch.
pub const START_MS: i64 = (START.as_nanos() / 1_000_000) as i64;

impl Sim {
    /// Creates a service with this many partitions, assigned and empty.
    pub fn new(policy: Policy, partitions: u32) -> Sim {
        let mut sim = Sim {
            throttle: Throttle::new(policy, START),
            now: START,
            lives: BTreeMap::new(),
            written: None,
            grounds: Grounds::default(),
            held: BTreeMap::new(),
            ends: vec![0; partitions as usize],
            paused: vec![false; partitions as usize],
            turns: 0,
        };
        for partition in 0..partitions {
            sim.throttle.handle_assigned(START, partition, 0, &OffsetMap::default(), 0);
        }
        sim
    }

    /// Reads a record of this client from a partition.
    pub fn read(&mut self, client: &str, partition: u32) -> Fate {
        self.read_sized(Sender::Client(client), partition, 100)
    }

    /// Reads a record of this sender and size from a partition.
    pub fn read_sized(&mut self, sender: Sender<'_>, partition: u32, bytes: u32) -> Fate {
        let offset = self.ends[partition as usize];
        self.ends[partition as usize] += 1;
        self.reread(sender, partition, offset, bytes)
    }

    /// Reads the record at this offset.
    pub fn reread(&mut self, sender: Sender<'_>, partition: u32, offset: i64, bytes: u32) -> Fate {
        let name = match sender {
            Sender::Client(name) | Sender::Redriven(name) | Sender::NotAllowed(name) => name,
            Sender::Anonymous | Sender::Oversized => "",
        };
        let at = (partition, offset);
        let written_ms = self.written.map(|time| time.as_nanos() as i64 / 1_000_000);
        let verdict = self.throttle.handle_record(self.now, &Arrival { partition, offset, bytes, sender, written_ms });
        let fate = match verdict {
            Verdict::Skip => return self.lives[&at].fate,
            Verdict::Admit(_) => Fate::Admitted { waited: Duration::ZERO },
            Verdict::Reject(rejection) => {
                self.grounds = self.throttle.take_grounds();
                Fate::Rejected(rejection.reason)
            }
            Verdict::Delay(slot) => {
                assert_eq!(self.held.insert(slot, at), None, "the throttle must not use a slot twice");
                Fate::Held
            }
        };
        self.turns += 1;
        let life = Life { client: name.into(), read: self.now, fate, decided: self.now, turn: self.turns };
        if let Some(before) = self.lives.insert(at, life) {
            assert_eq!(before.fate, Fate::Held, "{at:?} was decided twice");
        }
        self.act();
        self.lives[&at].fate
    }

    /// Carries out the throttle's actions.
    pub fn act(&mut self) {
        self.throttle.handle_timeout(self.now);
        while let Some(action) = self.throttle.poll_action(self.now) {
            match action {
                Action::Admit { slot, waited, .. } => self.decided(slot, Fate::Admitted { waited }),
                Action::Reject { slot, rejection, .. } => {
                    self.grounds = self.throttle.take_grounds();
                    self.decided(slot, Fate::Rejected(rejection.reason));
                }
                Action::Pause { partition } => self.paused[partition as usize] = true,
                Action::Resume { partition } => self.paused[partition as usize] = false,
            }
        }
    }

    fn decided(&mut self, slot: Slot, fate: Fate) {
        let at = self.held.remove(&slot).expect("only held records are decided later");
        self.turns += 1;
        let life = self.lives.get_mut(&at).unwrap();
        assert_eq!(life.fate, Fate::Held, "{at:?} was decided twice");
        (life.fate, life.decided, life.turn) = (fate, self.now, self.turns);
    }

    /// Lets time pass, stopping at each of the throttle's timeouts.
    pub fn run_until(&mut self, until: Time) {
        self.act();
        loop {
            let next = self.throttle.poll_timeout(self.now);
            assert!(next > self.now, "the throttle has no action, but its timeout is due");
            if next > until {
                break;
            }
            self.now = next;
            self.act();
        }
        self.now = self.now.max(until);
    }

    /// Lets time pass, like [`run_until`](Sim::run_until).
    pub fn run_for(&mut self, duration: Duration) {
        self.run_until(self.now + duration);
    }

    /// Has partitions without an owner while `pass` lets time pass, and returns the times at which records were written
    /// to each of them. Then they are read, behind the records that were held before: one partition after another.
    pub fn without_owner(&mut self, unowned: &[(u32, &str)], pass: impl FnOnce(&mut Sim) -> Vec<Vec<Time>>) {
        let revoke = |&(partition, _): &(u32, &str)| {
            let commit = self.throttle.commit_without(self.now, partition, &[]).expect("the offset map fits");
            for slot in self.throttle.handle_revoked(partition) {
                self.held.remove(&slot);
            }
            (commit, self.ends[partition as usize])
        };
        let commits: Vec<_> = unowned.iter().map(revoke).collect();
        let written = pass(self);
        for ((&(partition, _), ((base, text), end)), written) in unowned.iter().zip(&commits).zip(&written) {
            let map = offset_map::decode(*base, text.as_bytes()).expect("the core's own map");
            self.throttle.handle_assigned(self.now, partition, *base, &map, end + written.len() as i64);
            self.throttle.handle_takeover(self.now, partition);
        }
        for ((&(partition, client), ((base, _), end)), written) in unowned.iter().zip(commits).zip(written) {
            for offset in base..end {
                let life = self.lives[&(partition, offset)].clone();
                if life.fate == Fate::Held {
                    self.written = Some(life.read);
                    self.reread(Sender::Client(client), partition, offset, 100);
                }
            }
            for time in written {
                self.written = Some(time);
                self.read(client, partition);
            }
        }
    }

    /// Replaces the process after a commit: held records are read again.
    pub fn restart(&mut self, policy: Policy) {
        let commits: Vec<(i64, String)> = (0..self.ends.len() as u32)
            .map(|partition| self.throttle.commit_without(self.now, partition, &[]).expect("the offset map fits"))
            .collect();
        self.throttle = Throttle::new(policy, self.now);
        self.held.clear();
        for (partition, (base, text)) in (0u32..).zip(&commits) {
            let map = offset_map::decode(*base, text.as_bytes()).expect("the core's own map");
            self.paused[partition as usize] = false;
            self.throttle.handle_assigned(self.now, partition, *base, &map, self.ends[partition as usize]);
        }
        for (partition, (base, _)) in (0u32..).zip(commits) {
            for offset in base..self.ends[partition as usize] {
                let before = self.lives[&(partition, offset)].clone();
                let fate = self.reread(Sender::Client(&before.client), partition, offset, 100);
                if before.fate != Fate::Held {
                    assert_eq!(fate, before.fate, "a completed record must not be decided again");
                }
            }
        }
    }

    /// Asserts that the partition's offset map is within its budget and can be committed.
    pub fn assert_the_map_fits(&mut self, partition: u32) {
        assert!(self.throttle.ledger().partition(partition).unwrap().map_used <= 1.0, "the offset map fits");
        self.throttle.commit_without(self.now, partition, &[]).expect("the offset map fits");
    }

    /// Returns the grants of these clients, in the same order.
    pub fn grants(&self, names: &[&str]) -> Vec<u64> {
        names.iter().map(|name| self.throttle.client(name).unwrap().grant.records).collect()
    }

    /// The number of decisions so far.
    pub fn decisions(&self) -> usize {
        self.turns
    }

    /// Counts the records of a client with a fate that passes `test`.
    pub fn count(&self, client: &str, test: impl Fn(&Fate) -> bool) -> usize {
        self.lives.values().filter(|life| life.client == client && test(&life.fate)).count()
    }

    /// Returns the times of all admissions, in order.
    pub fn admissions(&self) -> Vec<Time> {
        let admitted = self.lives.values().filter(|life| matches!(life.fate, Fate::Admitted { .. }));
        let mut times: Vec<Time> = admitted.map(|life| life.decided).collect();
        times.sort_unstable();
        times
    }

    /// Returns the maximum number of admissions in a window (t − cycle, t].
    pub fn most_in_a_window(&self, cycle: Duration) -> usize {
        let times = self.admissions();
        let mut first = 0;
        let mut most = 0;
        for (last, &time) in times.iter().enumerate() {
            while times[first] + cycle <= time {
                first += 1;
            }
            most = most.max(last - first + 1);
        }
        most
    }
}
