//! What librdkafka holds for an instance: a consumer in its group, a transactional producer.

use std::collections::VecDeque;
use std::time::Duration;

use watermaster_core::delivery::Failure;
use watermaster_core::units::Time;

use super::broker::{Broker, LOGS};
use super::checker::SentByOwner;
use super::group::{Beat, Partitions};
use super::planted::Plant;
use super::scenario::Rates;
use super::source::{PARTITIONS, Record};
use super::support::random::Random;
use super::trace::note;

/// Everything outside of the instances.
#[derive(Debug)]
pub struct Cluster {
    pub now: Time,
    pub random: Random,
    /// For faults that came to the model later ([`Rates::with_later_ones`]).
    pub later: Random,
    /// How often calls fail; nothing does in the quiet phase.
    pub rates: Rates,
    pub quiet: bool,
    pub plant: Option<Plant>,
    /// Otherwise at least once.
    pub exactly_once: bool,
    /// The epoch of the last producer that needs no coordinator.
    pub epochs: u32,
    pub broker: Broker,
}

impl Cluster {
    /// A fault of this rate strikes now.
    pub fn strikes(&mut self, rate: u32) -> bool {
        !self.quiet && self.random.strikes(rate)
    }

    /// As [`strikes`](Cluster::strikes), of a fault that came to the model later.
    pub fn strikes_later(&mut self, rate: u32) -> bool {
        !self.quiet && self.later.strikes(rate)
    }

    pub fn has(&self, plant: Plant) -> bool {
        self.plant == Some(plant)
    }

    /// A producer before its first call; without transactions it gets its epoch by itself.
    pub fn new_producer(&mut self) -> Producer {
        if self.exactly_once {
            return Producer::default();
        }
        self.epochs += 1;
        Producer { epoch: Some(self.epochs), ..Producer::default() }
    }
}

/// What the application has to serve.
#[derive(Debug, Clone, Copy)]
pub enum Op {
    Assign(Partitions),
    Revoke { partitions: Partitions, lost: bool },
}

/// A producer.
#[derive(Debug, Default)]
pub struct Producer {
    pub epoch: Option<u32>,
    pub open: bool,
    /// The coordinator knows of the transaction.
    pub added: bool,
    /// A commit was asked for and is not answered.
    pub committing: bool,
    /// Log, record and tag of what was taken and not sent.
    pub in_flight: VecDeque<(usize, Record, usize)>,
    /// So many of them, the first ones, are a batch that is sent again as it was.
    pub again: Option<usize>,
    /// The sequence number of the next record, by log. Whoever purges records gives their numbers to the next ones.
    pub next: [u64; LOGS],
    /// The offsets are on their way until then.
    pub offsets_until: Option<Time>,
    pub failures: Vec<(usize, Failure)>,
    /// Why the open transaction can't be committed.
    pub failing: Option<String>,
    pub fatal: Option<String>,
    pub tainted: bool,
}

/// A process's clients.
#[derive(Debug)]
pub struct Client {
    /// For the trace.
    pub name: String,
    /// Its `transactional.id`.
    pub id: usize,
    pub producer: Producer,
    /// Under at least once: the outputs of the partitions that it owns.
    pub sent: [SentByOwner; PARTITIONS],
    /// The time since which a commit of the consumer waits for its answer.
    pub committing: Option<Time>,
    /// The number of the transaction that was last committed, as far as is known.
    pub serial: u64,
    /// 0: none.
    pub member: u32,
    pub generation: i32,
    /// Assigned, and not given back.
    pub owned: Partitions,
    /// Of these: where they start is not known yet.
    pub unsettled: Partitions,
    pub ops: VecDeque<Op>,
    /// A partition was given back: the group is to know.
    rejoin: bool,
    /// No broker can be reached until then.
    pub cut_until: Time,
    /// The process died in a call.
    pub crashed: bool,
    /// How long the calls of this turn took.
    pub took: Duration,
}

impl Client {
    pub fn new(name: String, id: usize, producer: Producer) -> Client {
        Client {
            name,
            id,
            producer,
            sent: Default::default(),
            committing: None,
            serial: 0,
            member: 0,
            generation: -1,
            owned: 0,
            unsettled: 0,
            ops: VecDeque::new(),
            rejoin: false,
            cut_until: Time::ZERO,
            crashed: false,
            took: Duration::ZERO,
        }
    }

    /// It is to give everything back, because it was expelled.
    pub fn lost(&self) -> bool {
        self.ops.iter().any(|op| matches!(op, Op::Revoke { lost: true, .. }))
    }

    /// What librdkafka's own thread does while the process runs. Heartbeats and joins need no application; a member that
    /// has to give partitions back joins again only when the application did.
    pub fn background(&mut self, cluster: &mut Cluster) {
        if self.cut_until > cluster.now || cluster.broker.group_down > cluster.now {
            return;
        }
        let group = &mut cluster.broker.group;
        if self.member == 0 {
            if self.ops.is_empty() {
                self.member = group.join(cluster.now);
                note(&self.name, || format!("joins as member {}", self.member));
            }
        } else {
            match group.heartbeat(self.member, cluster.now) {
                Beat::Unknown => self.expelled(),
                Beat::Join if self.ops.is_empty() && self.unsettled == 0 => self.join_again(cluster),
                Beat::Stable if self.rejoin && self.ops.is_empty() => self.join_again(cluster),
                Beat::Join | Beat::Stable => {}
                Beat::Sync { generation, assigned } => self.synced(generation, assigned),
            }
        }
        let (quiet, random) = (cluster.quiet, &mut cluster.random);
        if cluster.broker.group.settle(random, !quiet) {
            cluster.broker.coverage.rebalances += 1;
        }
    }

    fn join_again(&mut self, cluster: &mut Cluster) {
        self.rejoin = false;
        cluster.broker.group.rejoin(self.member, self.owned);
    }

    fn expelled(&mut self) {
        note(&self.name, || format!("is told that member {} is unknown", self.member));
        self.member = 0;
        self.rejoin = false;
        self.ops.clear();
        if self.owned != 0 {
            self.ops.push_back(Op::Revoke { partitions: self.owned, lost: true });
        }
    }

    fn synced(&mut self, generation: i32, assigned: Partitions) {
        note(&self.name, || format!("is in generation {generation} with {assigned:#08b}"));
        self.generation = generation;
        let (gone, new) = (self.owned & !assigned, assigned & !self.owned);
        if gone != 0 {
            self.ops.push_back(Op::Revoke { partitions: gone, lost: false });
        }
        if new != 0 {
            self.ops.push_back(Op::Assign(new));
        }
    }

    /// The next thing to serve. Once it is returned, it counts as served.
    pub fn next_op(&mut self) -> Option<Op> {
        let op = self.ops.pop_front()?;
        match op {
            Op::Assign(partitions) => {
                self.owned |= partitions;
                self.unsettled |= partitions;
            }
            Op::Revoke { partitions, lost } => {
                self.owned &= !partitions;
                self.unsettled &= !partitions;
                self.rejoin = !lost;
            }
        }
        Some(op)
    }

    /// Leaves the group.
    pub fn leave(&mut self, cluster: &mut Cluster) {
        if self.member != 0 {
            note(&self.name, || format!("member {} leaves", self.member));
            cluster.broker.group.remove(self.member);
            self.member = 0;
        }
    }
}
