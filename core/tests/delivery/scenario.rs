//! The scenario of a seed.

use std::time::Duration;

use watermaster_core::delivery::{DeliveryRules, Strategy};
use watermaster_core::offset_map::MapBudget;
use watermaster_core::policy::{CatchUp, Lending, Mode, Overflow, Policy, Window};
use watermaster_core::units::{Ratio, Time};

use super::sim::{self, START};
use super::source::{PARTITIONS, Poison, Record, Source};
use super::{instance::Job, support::random::Random};

/// Failure rates of calls, in ten thousandths, and the configuration of librdkafka.
#[derive(Debug, Clone, Copy)]
pub struct Rates {
    pub crash: u32,
    pub error: u32,
    /// The connection breaks during EndTxn.
    pub disconnect: u32,
    pub batch_lost: u32,
    /// A batch is stored, and its answer asks to send it again (the leader moves, or too few replicas).
    pub stored_and_repeated: u32,
    /// Offsets wait behind other requests to the same broker.
    pub slow_offsets: u32,
    pub slow: u32,
    /// Network time per record, also in the quiet phase: a full round takes longer than `transaction.timeout.ms`.
    pub per_record: Duration,
    /// Maximum number of records in a batch.
    pub batch: u64,
    /// Maximum number of records in the send queue.
    pub queue: u64,
}

#[derive(Debug)]
pub struct Scenario {
    pub instances: usize,
    pub job: Job,
    pub session: Duration,
    pub sources: Vec<Source>,
    pub rates: Rates,
    /// Mean milliseconds between two faults.
    pub fault_interval: u64,
    /// The time at which faults end.
    pub quiet_from: Time,
    pub small_map: bool,
}

impl Rates {
    /// Adds the faults that the model gained later. They draw from a stream of their own, so that older seeds keep
    /// their scenarios.
    pub fn with_later_faults(self, random: &mut Random) -> Rates {
        if random.once_in(2) {
            return self;
        }
        Rates { stored_and_repeated: random.below(1_000) as u32, slow_offsets: random.below(300) as u32, ..self }
    }

    /// Gives one seed of eight a slow network. The seeds named in `main.rs` are not among them.
    pub fn with_a_slow_network(self, seed: u64, job: &Job) -> Rates {
        if seed % 8 != 5 || job.full < 10 {
            return self;
        }
        Rates { per_record: job.transaction_timeout * 2 / job.full as u32, ..self }
    }
}

impl Scenario {
    pub fn new(random: &mut Random, exactly_once: bool) -> Scenario {
        let seconds = random.between(8, 40);
        let clients = random.between(2, 5);
        let small_map = random.once_in(5);
        let poisonous = random.once_in(3);
        let partitions = random.between(1, PARTITIONS as u64);
        let per_partition = random.between(4, 150 / partitions.max(3));
        let sources: Vec<Source> = (0..partitions as u32)
            .map(|partition| source(random, partition, per_partition, clients, seconds * 900, poisonous))
            .collect();
        let records = partitions * per_partition;
        let transaction_timeout = random.millis(2_000, 10_000);
        let strategy = Strategy::ExactlyOnce { timeout: transaction_timeout };
        let rules = DeliveryRules {
            strategy: if exactly_once { strategy } else { Strategy::AtLeastOnce },
            replay_foreign: false,
            discard_undeliverable: random.once_in(2),
        };
        let job = Job {
            policy: policy(random, records, seconds, small_map),
            rules,
            transaction_timeout,
            full: random.one_of(&[3, 10, 30, 100]),
            reads: random.one_of(&[2, 8, 30]),
            opens_early: false,
        };
        let (calm, wild) = (random.once_in(12), random.once_in(4));
        let factor = if calm { 0 } else { 1 + 2 * u32::from(wild) };
        let mut rate = |most: u64| factor * if random.once_in(3) { 0 } else { random.below(most) as u32 };
        let [crash, error, disconnect, batch_lost, slow] = [60, 200, 1_200, 200, 1_000].map(&mut rate);
        let rates = Rates {
            crash,
            error,
            disconnect,
            batch_lost,
            stored_and_repeated: 0,
            slow_offsets: 0,
            slow,
            per_record: Duration::ZERO,
            batch: random.one_of(&[1, 3, 10]),
            queue: random.one_of(&[2, 8, 1_000, 1_000]),
        };
        Scenario {
            instances: random.between(1, 3) as usize,
            job,
            session: random.millis(2_000, 8_000),
            sources,
            rates,
            fault_interval: if calm { 1_000_000 } else { random.one_of(&[1_500, 4_000, 10_000]) },
            quiet_from: START + Duration::from_secs(seconds),
            small_map,
        }
    }
}

fn source(random: &mut Random, partition: u32, records: u64, clients: u64, millis: u64, poisonous: bool) -> Source {
    let start = random.one_of(&[0, 0, 7]);
    let holes = random.one_of(&[0, 10, 25]);
    let mut entries = Vec::new();
    let mut left = records;
    while left > 0 && entries.len() < 120 {
        let hole = random.below(100) < holes;
        let offset = start + entries.len() as i64;
        entries.push((!hole).then(|| record(random, partition, offset, clients, poisonous)));
        left -= u64::from(!hole);
    }
    // Transaction markers at the end.
    entries.extend((0..random.one_of(&[0, 0, 1, 2])).map(|_| None));
    let bursty = random.once_in(2);
    let mut arrivals: Vec<Time> = entries
        .iter()
        .map(|_| if bursty { random.below(4) * millis / 4 } else { random.below(millis) })
        .map(|at| START + Duration::from_millis(at))
        .collect();
    arrivals.sort_unstable();
    Source { start, entries, arrivals, arrived: 0 }
}

fn record(random: &mut Random, partition: u32, offset: i64, clients: u64, poisonous: bool) -> Record {
    // Client 0 floods; rarely, the client is unknown.
    let client = if random.once_in(3) { 0 } else { random.below(clients) as u8 };
    let client = if random.once_in(60) { 7 } else { client };
    let poison = match random.below(if poisonous { 60 } else { u64::MAX }) {
        0 | 1 => Poison::Producer,
        2 | 3 => Poison::Broker,
        4 => Poison::Everywhere,
        5 => Poison::Whole,
        6 => Poison::Key,
        7 => Poison::Instance,
        _ => Poison::None,
    };
    Record { partition, offset, client, poison }
}

/// Builds a policy with a capacity that is mostly below the demand.
fn policy(random: &mut Random, records: u64, seconds: u64, small_map: bool) -> Policy {
    let cycle = random.millis(500, 4_000);
    let cycles = (seconds * 1_000) / cycle.as_millis() as u64 + 1;
    let fair = records / cycles;
    let mut policy = sim::policy((fair * random.between(30, 200) / 100).max(1), cycle);
    policy.mode = if random.once_in(3) { Mode::Reject } else { Mode::Shape };
    policy.window = random.one_of(&[Window::Sliding, Window::Fixed]);
    policy.catch_up = random.one_of(&[CatchUp::Delay, CatchUp::Reject]);
    policy.lending = random.one_of(&[Lending::Proportional, Lending::MaxMin]);
    policy.overflow = random.one_of(&[Overflow::DeadLetter, Overflow::Pause, Overflow::Auto]);
    policy.enforce = !random.once_in(15);
    policy.queue_capacity = random.one_of(&[3, 10, 1_000, 1_000]);
    policy.queue_bytes = random.one_of(&[1_000, 1 << 30, 1 << 30]);
    policy.max_delay = random.once_in(4).then_some(cycle * 2);
    policy.max_clients = random.one_of(&[2, 100, 100]);
    policy.burst = Ratio::from_millionths(random.one_of(&[10_000, 300_000])).unwrap();
    policy.commit_interval = random.millis(20, 400).min(cycle / 2);
    if small_map {
        policy.map_budget = random.one_of(&[MapBudget::Chars(16), MapBudget::Chars(24), MapBudget::Bytes(60)]);
    }
    policy
}
