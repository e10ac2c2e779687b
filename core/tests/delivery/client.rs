//! The state of librdkafka in an instance: a consumer in its group, and a producer.

use std::{collections::VecDeque, time::Duration};

use watermaster_core::{delivery::Failure, units::Time};

use super::broker::{Broker, LOGS};
use super::group::{Beat, Partitions};
use super::source::{PARTITIONS, Record};
use super::{checker::SentByOwner, planted::Plant, scenario::Rates, support::random::Random, trace::note};

/// The world outside the instances.
#[derive(Debug)]
pub struct Cluster {
    pub now: Time,
    pub random: Random,
    /// The stream for faults that the model gained later ([`Rates::with_later_faults`]).
    pub later: Random,
    /// Failure rates of calls; none fails in the quiet phase.
    pub rates: Rates,
    pub quiet: bool,
    pub plant: Option<Plant>,
    /// False under at least once.
    pub exactly_once: bool,
    /// The epoch of the last producer that needs no coordinator.
    pub epochs: u32,
    pub broker: Broker,
}

impl Cluster {
    /// Returns whether a fault of this rate occurs now.
    pub fn fault_occurs(&mut self, rate: u32) -> bool {
        !self.quiet && self.random.chance(rate)
    }

    /// Like [`fault_occurs`](Cluster::fault_occurs), for a fault that the model gained later.
    pub fn later_fault_occurs(&mut self, rate: u32) -> bool {
        !self.quiet && self.later.chance(rate)
    }

    pub fn has(&self, plant: Plant) -> bool {
        self.plant == Some(plant)
    }

    /// Creates a producer; without transactions it has its epoch at once.
    pub fn new_producer(&mut self) -> Producer {
        if self.exactly_once {
            return Producer::default();
        }
        self.epochs += 1;
        Producer { epoch: Some(self.epochs), ..Producer::default() }
    }
}

/// A rebalance event that the application has to handle.
#[derive(Debug, Clone, Copy)]
pub enum Op {
    Assign(Partitions),
    Revoke { partitions: Partitions, lost: bool },
}

/// The producer of an instance.
#[derive(Debug, Default)]
pub struct Producer {
    pub epoch: Option<u32>,
    pub open: bool,
    /// Set once the coordinator knows the transaction.
    pub added: bool,
    /// Set while a commit is not answered.
    pub committing: bool,
    /// Log, record and tag of the outputs that were taken and not sent.
    pub in_flight: VecDeque<(usize, Record, usize)>,
    /// Number of outputs at the front that form a batch to be sent again unchanged.
    pub again: Option<usize>,
    /// The sequence number of the next record, by log. Records sent after a purge reuse the numbers of the purged ones.
    pub next: [u64; LOGS],
    /// The time at which the delayed offsets arrive.
    pub offsets_until: Option<Time>,
    pub failures: Vec<(usize, Failure)>,
    /// The reason why the open transaction must be aborted.
    pub failing: Option<String>,
    pub fatal: Option<String>,
    pub tainted: bool,
}

/// The Kafka clients of a process.
#[derive(Debug)]
pub struct Client {
    /// The name in the trace.
    pub name: String,
    /// The `transactional.id` of the producer.
    pub id: usize,
    pub producer: Producer,
    /// Under at least once: the sent outputs of the owned partitions.
    pub sent: [SentByOwner; PARTITIONS],
    /// The time of the consumer's commit that is not answered yet.
    pub committing: Option<Time>,
    /// The number of the transaction that the last commit call was for.
    pub serial: u64,
    /// The member id; 0 if there is none.
    pub member: u32,
    pub generation: i32,
    /// Partitions that are assigned and not revoked.
    pub owned: Partitions,
    /// Owned partitions without a start position.
    pub unsettled: Partitions,
    pub ops: VecDeque<Op>,
    /// Set after a revocation: the group must be joined again.
    rejoin: bool,
    /// The time until which no broker is reachable.
    pub cut_until: Time,
    /// Set if the process crashed in a call.
    pub crashed: bool,
    /// Duration of the calls of this turn.
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

    /// Returns whether the member was expelled and has not dropped its partitions yet.
    pub fn lost(&self) -> bool {
        self.ops.iter().any(|op| matches!(op, Op::Revoke { lost: true, .. }))
    }

    /// Runs librdkafka's own thread. Heartbeats and joins need no application; a member with partitions to give back
    /// joins again only after the application has revoked them.
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
        note(&self.name, || format!("learns that member {} is unknown", self.member));
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

    /// Takes the next event; it counts as handled.
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
