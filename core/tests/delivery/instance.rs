//! A small engine: polls, decides and delivers rounds, like the engine of the program.

use std::{sync::Arc, time::Duration};

use watermaster_core::delivery::{DeliveryRules, FatalError, Form, Machine, Round, Step};
use watermaster_core::throttle::{Action, Arrival, Rejection, Sender, Throttle, Verdict};
use watermaster_core::{policy::Policy, units::Time};

use super::client::{Client, Cluster};
use super::source::{PARTITIONS, Poison, Record};
use super::{group::Partitions, link::Offsets, planted::Planted};

/// Wait between two steps.
pub(super) const STEP_WAIT: Duration = Duration::from_millis(100);
/// Maximum sleep.
const MAX_SLEEP: Duration = Duration::from_millis(500);
/// Size of every record.
const RECORD_BYTES: u32 = 100;
pub const CLIENTS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// The configuration of an instance.
#[derive(Debug, Clone)]
pub struct Job {
    pub policy: Policy,
    pub rules: DeliveryRules,
    /// `transaction.timeout.ms`
    pub transaction_timeout: Duration,
    /// Number of outputs in a full round.
    pub full: usize,
    /// Maximum number of records read in one turn.
    pub reads: u64,
    /// Transactions begin before their rounds are due.
    pub opens_early: bool,
}

/// The end of a turn.
#[derive(Debug)]
pub enum Turn {
    Sleep(Duration),
    /// The instance drained and left the group.
    Left,
    /// The process crashed in a call.
    Died,
    Stopped(FatalError),
}

#[derive(Debug)]
pub struct Instance {
    pub client: Client,
    pub job: Job,
    pub throttle: Throttle,
    pub round: Round<Record>,
    pub(super) machine: Machine<Offsets>,
    pub(super) held: Vec<Option<Record>>,
    pub(super) deferred: Vec<Record>,
    /// Partitions that the engine reads: assigned, with a start position.
    pub(super) assigned: Partitions,
    pub(super) positions: [i64; PARTITIONS],
    pub(super) paused: Partitions,
    pub(super) reading_paused: bool,
    pub(super) last_round: Time,
    /// The start of the running round.
    pub in_round: Option<Time>,
    pub(super) prepared: bool,
    pub(super) draining: Option<Time>,
    pub(super) last_turn: Time,
}

impl Instance {
    pub fn new(client: Client, job: Job, now: Time) -> Instance {
        Instance {
            client,
            throttle: Throttle::new(job.policy.clone(), now),
            round: Round::default(),
            machine: Machine::new(job.rules),
            job,
            held: Vec::new(),
            deferred: Vec::new(),
            assigned: 0,
            positions: [0; PARTITIONS],
            paused: 0,
            reading_paused: false,
            last_round: now,
            in_round: None,
            prepared: false,
            draining: None,
            last_turn: now,
        }
    }

    /// Starts to drain: the instance finishes its round and leaves.
    pub fn drain(&mut self, now: Time) {
        self.draining.get_or_insert(now);
    }

    /// Returns whether no record is delayed, decided or being delivered.
    pub fn is_idle(&self) -> bool {
        let waiting = self.throttle.backlog().0 > 0 || self.held.iter().any(Option::is_some);
        self.in_round.is_none() && self.round.is_empty() && self.deferred.is_empty() && !waiting
    }

    /// Returns whether records are delayed while later ones are committed.
    pub fn holds_around_a_map(&self, cluster: &Cluster) -> bool {
        let owned = (0..PARTITIONS).filter(|partition| self.assigned & 1 << partition != 0);
        self.throttle.backlog().0 > 0 && owned.into_iter().any(|partition| cluster.broker.checker.has_map(partition))
    }

    /// Runs one step of the engine's thread.
    pub fn turn(&mut self, cluster: &mut Cluster) -> Turn {
        self.client.took = Duration::ZERO;
        let ended = self.work(cluster);
        if self.client.crashed {
            return Turn::Died;
        }
        self.count_events(cluster);
        if ended.is_err() {
            self.abandon(cluster);
        }
        match ended {
            Ok(Turn::Sleep(wait)) => Turn::Sleep(wait + self.client.took),
            Ok(turn) => turn,
            Err(stop) => Turn::Stopped(stop),
        }
    }

    fn work(&mut self, cluster: &mut Cluster) -> Result<Turn, FatalError> {
        let now = cluster.now;
        if !self.prepared {
            let mut link = Planted::new(&mut self.client, cluster);
            let step = self.machine.prepare(&mut link, now)?;
            self.prepared = step == Step::Done;
            return Ok(Turn::Sleep(STEP_WAIT));
        }
        if self.in_round.is_some() {
            return self.step(cluster);
        }
        if self.draining.is_some() {
            if !self.has_work() {
                self.client.leave(cluster);
                return Ok(Turn::Left);
            }
            self.begin_round(now);
            return self.step(cluster);
        }
        self.notice_gap(cluster);
        self.throttle.handle_timeout(now);
        self.act(now);
        if self.round_is_due(now) {
            self.begin_round(now);
            return self.step(cluster);
        }
        if self.job.opens_early && !self.round.is_empty() {
            let was_open = self.machine.is_open();
            self.machine.open(&mut self.round, &mut Planted::new(&mut self.client, cluster), now);
            if self.client.crashed {
                return Ok(Turn::Died);
            }
            cluster.broker.coverage.opened_early += u64::from(self.machine.is_open() && !was_open);
        }
        self.serve_group(cluster)?;
        if self.read(cluster)? {
            return Ok(Turn::Sleep(Duration::from_millis(2)));
        }
        let mut until = self.throttle.poll_timeout(now).min(now + MAX_SLEEP);
        if self.has_work() {
            until = until.min(self.last_round + self.job.policy.commit_interval);
        }
        Ok(Turn::Sleep(until.since(now).max(Duration::from_millis(1))))
    }

    // ## Deciding

    /// Tells the throttle after a pause that records piled up unread; they are catching up.
    fn notice_gap(&mut self, cluster: &mut Cluster) {
        let gap = cluster.now.since(std::mem::replace(&mut self.last_turn, cluster.now));
        if gap > self.job.policy.cycle + Duration::from_secs(1) {
            for partition in self.assigned_numbers() {
                let end = cluster.broker.sources[partition as usize].end(cluster.now);
                self.throttle.handle_fetch_gap(partition, end);
            }
        }
    }

    pub(super) fn assigned_numbers(&self) -> impl Iterator<Item = u32> + use<> {
        let assigned = self.assigned;
        (0..PARTITIONS as u32).filter(move |partition| assigned & 1 << partition != 0)
    }

    /// Reads the next records. Returns false if there are none.
    fn read(&mut self, cluster: &mut Cluster) -> Result<bool, FatalError> {
        let now = cluster.now;
        let mut any = false;
        while let Some(record) = if self.deferred.is_empty() { None } else { Some(self.deferred.remove(0)) } {
            self.decide(now, record);
            any = true;
        }
        for _ in 0..cluster.random.between(1, self.job.reads) {
            if self.round.len() >= self.job.full {
                break;
            }
            let Some(record) = self.poll(cluster) else { break };
            self.decide(now, record);
            any = true;
            // A rebalance may happen between two records.
            if cluster.random.once_in(20) {
                self.client.background(cluster);
            }
            self.serve_group(cluster)?;
        }
        Ok(any)
    }

    /// Returns the next record of a partition that is not paused.
    pub(super) fn poll(&mut self, cluster: &mut Cluster) -> Option<Record> {
        if self.reading_paused || self.client.cut_until > cluster.now {
            return None;
        }
        let first = cluster.random.below(PARTITIONS as u64) as u32;
        for partition in (0..PARTITIONS as u32).map(|n| (first + n) % PARTITIONS as u32) {
            if self.assigned & !self.paused & 1 << partition == 0 {
                continue;
            }
            let source = &mut cluster.broker.sources[partition as usize];
            let (at, end) = (&mut self.positions[partition as usize], source.end(cluster.now));
            while *at < end {
                *at += 1;
                if let Some(record) = source.get(*at - 1) {
                    return Some(record);
                }
            }
            // Deferred records are not decided yet.
            if !self.deferred.iter().any(|record| record.partition == partition) {
                self.throttle.handle_end(partition, end);
            }
        }
        None
    }

    fn decide(&mut self, now: Time, record: Record) {
        let Record { partition, offset, client, .. } = record;
        let sender = CLIENTS.get(usize::from(client)).map_or(Sender::Anonymous, |name| Sender::Client(name));
        let sender = if record.poison == Poison::Instance { Sender::Oversized } else { sender };
        match self
            .throttle
            .handle_record(now, &Arrival { partition, offset, bytes: RECORD_BYTES, sender, written_ms: None })
        {
            Verdict::Skip => {}
            Verdict::Admit(client) => {
                let client = client.and_then(|client| self.throttle.clients().name_of(client));
                self.round.admit((partition, offset), record, RECORD_BYTES as usize, client);
            }
            Verdict::Delay(slot) => {
                let index = slot.0 as usize;
                if self.held.len() <= index {
                    self.held.resize_with(index + 1, || None);
                }
                self.held[index] = Some(record);
            }
            Verdict::Reject(rejection) => {
                let name = rejection.client.and_then(|client| self.throttle.clients().name_of(client));
                self.reject(record, rejection, name);
            }
        }
    }

    fn reject(&mut self, record: Record, rejection: Rejection, name: Option<Arc<str>>) {
        let at = (record.partition, record.offset);
        let form = if record.poison == Poison::Instance { Form::Stub } else { Form::Whole };
        let (rejection, name) = ((rejection, self.throttle.take_grounds()), name.unwrap_or_else(|| Arc::from("")));
        self.round.reject(at, (record, form), RECORD_BYTES as usize, rejection, name);
    }

    fn act(&mut self, now: Time) {
        while self.round.len() < self.job.full
            && let Some(action) = self.throttle.poll_action(now)
        {
            self.apply(action);
        }
    }

    pub(super) fn apply(&mut self, action: Action) {
        match action {
            Action::Admit { slot, partition, offset, client, .. } => {
                let record = self.held[slot.0 as usize].take().expect("the slot of a delayed record");
                let client = self.throttle.clients().name_of(client);
                self.round.admit((partition, offset), record, RECORD_BYTES as usize, client);
            }
            Action::Reject { slot, rejection, name, .. } => {
                let record = self.held[slot.0 as usize].take().expect("the slot of a delayed record");
                self.reject(record, rejection, name);
            }
            Action::Pause { partition } => self.paused |= 1 << partition,
            Action::Resume { partition } => self.paused &= !(1 << partition),
        }
    }
}
