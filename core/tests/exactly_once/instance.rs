//! A small engine: polls and decides, then carries a round through its transactions, as the program's does.

use std::sync::Arc;
use std::time::Duration;

use watermaster_core::map::{self, Map};
use watermaster_core::policy::Policy;
use watermaster_core::round::{Cause, Kafka, Note, Phase, Round, RoundOutcome, Rules, Step, Stop, Transactions};
use watermaster_core::throttle::{Action, Arrival, Rejection, Sender, Throttle, Verdict};
use watermaster_core::units::Time;

use super::broker::{PARTITIONS, Record};
use super::client::{Client, Cluster, Op};
use super::group::Partitions;
use super::link::{Link, Offsets};
use super::planted::Plant;
use super::trace::note;

const STEP: Duration = Duration::from_millis(100);
/// The longest sleep.
const IDLE: Duration = Duration::from_millis(500);
/// A round that takes longer serves the group.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// A drain gives up after this.
const DRAIN: Duration = Duration::from_secs(6);
/// Of every record.
const BYTES: u32 = 100;
pub const CLIENTS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// What an instance is given.
#[derive(Debug, Clone)]
pub struct Job {
    pub policy: Policy,
    pub rules: Rules,
    /// A round is full at this many outputs.
    pub full: usize,
    /// Records decided in one turn.
    pub reads: u64,
}

/// How a turn ended.
#[derive(Debug)]
pub enum Turn {
    Sleep(Duration),
    /// Drained; it has left the group.
    Left,
    /// The process died in a call.
    Died,
    Stopped(Stop),
}

#[derive(Debug)]
pub struct Instance {
    pub client: Client,
    pub job: Job,
    pub throttle: Throttle,
    pub round: Round<Record>,
    transactions: Transactions<Offsets>,
    held: Vec<Option<Record>>,
    stash: Vec<Record>,
    /// What is assigned and settled, by the engine's own books.
    assigned: Partitions,
    positions: [i64; PARTITIONS],
    paused: Partitions,
    held_back: bool,
    last_round: Time,
    /// The running round began then.
    pub in_round: Option<Time>,
    prepared: bool,
    draining: Option<Time>,
    last_turn: Time,
}

impl Instance {
    pub fn new(client: Client, job: Job, now: Time) -> Instance {
        Instance {
            client,
            throttle: Throttle::new(job.policy.clone(), now),
            round: Round::default(),
            transactions: Transactions::new(job.rules),
            job,
            held: Vec::new(),
            stash: Vec::new(),
            assigned: 0,
            positions: [0; PARTITIONS],
            paused: 0,
            held_back: false,
            last_round: now,
            in_round: None,
            prepared: false,
            draining: None,
            last_turn: now,
        }
    }

    /// Asks it to finish its round and leave.
    pub fn drain(&mut self, now: Time) {
        self.draining.get_or_insert(now);
    }

    /// Nothing is delayed, decided or under way.
    pub fn is_idle(&self) -> bool {
        let waiting = self.throttle.backlog().0 > 0 || self.held.iter().any(Option::is_some);
        self.in_round.is_none() && self.round.is_empty() && self.stash.is_empty() && !waiting
    }

    /// Records wait, and what overtook them is committed.
    pub fn holds_around_a_map(&self, cluster: &Cluster) -> bool {
        let owned = (0..PARTITIONS).filter(|partition| self.assigned & 1 << partition != 0);
        self.throttle.backlog().0 > 0 && owned.into_iter().any(|partition| cluster.broker.checker.has_map(partition))
    }

    /// One step of the engine's thread.
    pub fn turn(&mut self, cluster: &mut Cluster) -> Turn {
        self.client.took = Duration::ZERO;
        let ended = self.work(cluster);
        if self.client.crashed {
            return Turn::Died;
        }
        self.take_notes(cluster);
        if ended.is_err() {
            self.abandon(cluster);
        }
        match ended {
            Ok(Turn::Sleep(wait)) => Turn::Sleep(wait + self.client.took),
            Ok(turn) => turn,
            Err(stop) => Turn::Stopped(stop),
        }
    }

    fn work(&mut self, cluster: &mut Cluster) -> Result<Turn, Stop> {
        let now = cluster.now;
        if !self.prepared {
            let mut link = Link { client: &mut self.client, cluster };
            let step = self.transactions.prepare(&mut link, now)?;
            self.prepared = step == Step::Done;
            return Ok(Turn::Sleep(STEP));
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
        self.serve_group(cluster)?;
        if self.read(cluster) {
            return Ok(Turn::Sleep(Duration::from_millis(2)));
        }
        let mut until = self.throttle.poll_timeout(now).min(now + IDLE);
        if self.has_work() {
            until = until.min(self.last_round + self.job.policy.commit_interval);
        }
        Ok(Turn::Sleep(until.since(now).max(Duration::from_millis(1))))
    }

    // ## Deciding

    /// What piled up while nothing was read is nobody's fault.
    fn notice_gap(&mut self, cluster: &mut Cluster) {
        let gap = cluster.now.since(std::mem::replace(&mut self.last_turn, cluster.now));
        if gap > self.job.policy.cycle + Duration::from_secs(1) {
            for partition in self.assigned_numbers() {
                let end = cluster.broker.sources[partition as usize].end(cluster.now);
                self.throttle.handle_fetch_gap(partition, end);
            }
        }
    }

    fn assigned_numbers(&self) -> impl Iterator<Item = u32> + use<> {
        let assigned = self.assigned;
        (0..PARTITIONS as u32).filter(move |partition| assigned & 1 << partition != 0)
    }

    /// Takes what can be read. False: nothing.
    fn read(&mut self, cluster: &mut Cluster) -> bool {
        let now = cluster.now;
        let mut any = false;
        while let Some(record) = if self.stash.is_empty() { None } else { Some(self.stash.remove(0)) } {
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
        }
        any
    }

    /// The next record of a partition that is being read.
    fn poll(&mut self, cluster: &mut Cluster) -> Option<Record> {
        if self.held_back || self.client.cut_until > cluster.now {
            return None;
        }
        let first = cluster.random.below(PARTITIONS as u64) as u32;
        for partition in (0..PARTITIONS as u32).map(|n| (first + n) % PARTITIONS as u32) {
            // What was put aside is decided on before the end of its log is told.
            let aside = self.stash.iter().any(|record| record.partition == partition);
            if self.assigned & !self.paused & 1 << partition == 0 || aside {
                continue;
            }
            let source = &mut cluster.broker.sources[partition as usize];
            let (at, end) = (&mut self.positions[partition as usize], source.end(cluster.now));
            while *at < end {
                *at += 1;
                if let Some(record) = source.get(*at - 1) {
                    return Some(record);
                }
                if *at == end {
                    // Nothing but holes up to here.
                    self.throttle.handle_end(partition, end);
                }
            }
        }
        None
    }

    fn decide(&mut self, now: Time, record: Record) {
        let Record { partition, offset, client, .. } = record;
        let sender = CLIENTS.get(usize::from(client)).map_or(Sender::Anonymous, |name| Sender::Client(name));
        match self.throttle.handle_record(now, &Arrival { partition, offset, bytes: BYTES, sender }) {
            Verdict::Skip => {}
            Verdict::Admit(client) => self.round.admit((partition, offset), record, BYTES as usize, client),
            Verdict::Delay(slot) => {
                let index = slot.0 as usize;
                if self.held.len() <= index {
                    self.held.resize_with(index + 1, || None);
                }
                self.held[index] = Some(record);
            }
            Verdict::Reject(rejection) => self.reject(record, rejection),
        }
    }

    fn reject(&mut self, record: Record, rejection: Rejection) {
        let name = rejection.client.and_then(|client| self.throttle.client_name(client));
        let at = (record.partition, record.offset);
        self.round.reject(at, record, BYTES as usize, rejection, name.unwrap_or_else(|| Arc::from("")));
    }

    fn act(&mut self, now: Time) {
        while self.round.len() < self.job.full
            && let Some(action) = self.throttle.poll_action(now)
        {
            self.enact(action);
        }
    }

    fn enact(&mut self, action: Action) {
        match action {
            Action::Admit { slot, partition, offset, client, .. } => {
                let record = self.held[slot.0 as usize].take().expect("a slot that was given");
                self.round.admit((partition, offset), record, BYTES as usize, Some(client));
            }
            Action::Reject { slot, rejection, .. } => {
                let record = self.held[slot.0 as usize].take().expect("a slot that was given");
                self.reject(record, rejection);
            }
            Action::Pause { partition } => self.paused |= 1 << partition,
            Action::Resume { partition } => self.paused &= !(1 << partition),
        }
    }

    // ## The group

    /// Serves what there is; records that come while a round is late are put aside.
    fn serve_group(&mut self, cluster: &mut Cluster) -> Result<(), Stop> {
        while let Some(op) = self.client.next_op() {
            match op {
                Op::Assign(_) => {}
                Op::Revoke { partitions, lost } => {
                    note(&self.client.name, || format!("gives back {partitions:#08b}, lost: {lost}"));
                    cluster.broker.coverage.lost_revokes += u64::from(lost);
                    cluster.broker.coverage.revoked_in_round += u64::from(self.in_round.is_some());
                    if cluster.has(Plant::NoPurgeOnRevoke) {
                        continue;
                    }
                    self.revoked(partitions);
                }
            }
        }
        if self.client.unsettled != 0 {
            self.settle(cluster)?;
        }
        if self.in_round.is_some()
            && let Some(record) = self.poll(cluster)
        {
            cluster.broker.coverage.put_aside += 1;
            self.stash.push(record);
            self.held_back = true;
        }
        Ok(())
    }

    /// Finds out where the new partitions start.
    fn settle(&mut self, cluster: &mut Cluster) -> Result<(), Stop> {
        let new = self.client.unsettled;
        let numbers: Vec<u32> = (0..PARTITIONS as u32).filter(|partition| new & 1 << partition != 0).collect();
        let answer = Link { client: &mut self.client, cluster }.committed(&numbers);
        let Ok(committed) = answer else { return Ok(()) };
        self.client.unsettled = 0;
        self.revoked(new & self.assigned);
        for committed in committed {
            let partition = committed.partition;
            let source = &mut cluster.broker.sources[partition as usize];
            let (base, map) = match committed.offset {
                None => (source.start, Map::default()),
                Some((offset, metadata)) => (offset, map::decode(offset, &metadata).unwrap_or_default()),
            };
            let end = source.end(cluster.now);
            note(&self.client.name, || format!("starts {partition} at {base}, {:?}", map.completed));
            self.throttle.handle_assigned(cluster.now, partition, base, &map, end);
            self.positions[partition as usize] = base;
            self.assigned |= 1 << partition;
            self.paused &= !(1 << partition);
        }
        Ok(())
    }

    fn revoked(&mut self, partitions: Partitions) {
        for partition in (0..PARTITIONS as u32).filter(|partition| partitions & 1 << partition != 0) {
            for slot in self.throttle.handle_revoked(partition) {
                self.held[slot.0 as usize] = None;
            }
            self.round.forget(partition);
            self.stash.retain(|record| record.partition != partition);
        }
        self.assigned &= !partitions;
    }

    // ## Rounds

    fn has_work(&self) -> bool {
        !self.round.is_empty() || self.throttle.touched().next().is_some()
    }

    fn round_is_due(&self, now: Time) -> bool {
        let due = self.last_round + self.job.policy.commit_interval <= now;
        self.round.len() >= self.job.full || due && self.has_work()
    }

    fn begin_round(&mut self, now: Time) {
        self.in_round = Some(now);
        while let Some(action) = self.throttle.poll_rejection() {
            self.enact(action);
        }
    }

    fn step(&mut self, cluster: &mut Cluster) -> Result<Turn, Stop> {
        let now = cluster.now;
        let began = self.in_round.unwrap_or(now);
        if self.draining.is_some_and(|since| now.since(since) > DRAIN) {
            cluster.broker.coverage.drains_given_up += 1;
            note(&self.client.name, || "gives up its round".to_owned());
            self.abandon(cluster);
            self.client.leave(cluster);
            return Ok(Turn::Left);
        }
        if self.transactions.phase() == Phase::Begin {
            self.check_view(cluster);
        }
        let mut link = Link { client: &mut self.client, cluster };
        let step = self.transactions.step(&mut self.round, &mut self.throttle, &mut link, now)?;
        if self.client.crashed {
            return Ok(Turn::Died);
        }
        let wait = match step {
            Step::Done => {
                self.end_round(cluster, began);
                return Ok(Turn::Sleep(Duration::ZERO));
            }
            Step::ServeGroup => {
                self.serve_group(cluster)?;
                STEP
            }
            Step::Breathe => STEP,
            Step::Again => Duration::ZERO,
        };
        // A rebalance must not meet an open transaction.
        if now.since(began) > KEEP_ALIVE && !self.client.producer.open {
            self.serve_group(cluster)?;
        }
        Ok(Turn::Sleep(wait))
    }

    /// What a round leaves open is aborted, or left to the next producer of this id, or to the coordinator's clock.
    fn abandon(&mut self, cluster: &mut Cluster) {
        let mut link = Link { client: &mut self.client, cluster };
        if link.in_transaction() && !link.client.producer.committing && link.cluster.random.one_in(2) {
            let _ = link.abort();
        }
    }

    fn end_round(&mut self, cluster: &mut Cluster, began: Time) {
        cluster.broker.coverage.rejected += self.round.outputs().iter().filter(|one| one.rejected.is_some()).count() as u64;
        self.round = Round::default();
        (self.in_round, self.last_round, self.held_back) = (None, began, false);
    }

    /// The machine's central claim, wherever nothing is under way.
    fn check_view(&mut self, cluster: &mut Cluster) {
        for partition in self.assigned_numbers() {
            let ours = cluster.broker.group.is_owner(self.client.member, partition);
            if ours && !cluster.broker.is_pending(partition) {
                cluster.broker.coverage.views += 1;
                cluster.broker.checker.local_view(partition, &self.throttle, &self.round);
            }
        }
    }

    fn take_notes(&mut self, cluster: &mut Cluster) {
        let Client { id, serial, .. } = self.client;
        for told in self.transactions.take_notes() {
            note(&self.client.name, || format!("{told:?}"));
            let applied = cluster.broker.was_committed(id, serial);
            let coverage = &mut cluster.broker.coverage;
            match told {
                Note::Ended { outcome: RoundOutcome::Unknown, .. } if applied => coverage.unknown_applied += 1,
                Note::Ended { outcome: RoundOutcome::Unknown, .. } => coverage.unknown_not_applied += 1,
                Note::Compared { done, .. } => {
                    coverage.resyncs += 1;
                    coverage.resyncs_dropped += u64::from(done > 0);
                }
                Note::Undeliverable { .. } => coverage.undeliverable += 1,
                Note::Discarded { .. } => coverage.discarded += 1,
                Note::Replaced { cause: Cause::Disconnect, .. } => coverage.taints += 1,
                _ => {}
            }
        }
        coverage_of_pauses(self, cluster);
    }
}

fn coverage_of_pauses(instance: &Instance, cluster: &mut Cluster) {
    cluster.broker.coverage.paused_turns += u64::from(instance.paused != 0);
}
