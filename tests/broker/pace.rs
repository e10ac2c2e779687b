//! The search for the capacity, with a real consumer group behind the target.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::{Message as _, Offset, TopicPartitionList};
use serde_json::Value;

use crate::rig::{DRAIN_TIMEOUT, Rig, TARGET_PARTITIONS, TargetTime};
use crate::support::producer::{Outgoing, Producer};
use crate::support::watermaster::{Watermaster, check};
use crate::{support::broker::Broker, support::config::Config, support::wait::wait_until};

const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// The work in seconds from which on the service becomes slower.
const KNEE_SECONDS: f64 = 4.0;
/// The part of its rate that it loses for each second of work beyond that, and the least rate.
const KNEE_SLOPE: f64 = 0.08;
const KNEE_LEAST: f64 = 0.5;
/// The time between two looks of the service at its own backlog.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The times, in seconds, in which it becomes slower and recovers.
const KNEE_TIMES: [f64; 2] = [2.0, 10.0];

/// A protected service: members of a consumer group that share a rate, as if all used one database.
struct Workers {
    group: String,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    commit_interval: Duration,
}

struct Shared {
    /// Records per second of all members together.
    rate: AtomicU64,
    paused: AtomicBool,
    degrades: AtomicBool,
    stop: AtomicBool,
    finished: AtomicU64,
    /// The records that wait for each member.
    waiting: Vec<AtomicU64>,
    pace: Mutex<Turns>,
}

/// The time of the next record, and the part of the rate that the service has left.
struct Turns {
    next: Instant,
    part: f64,
}

impl Shared {
    /// Waits for the turn of the next record.
    fn take_turn(&self) {
        let rate = self.rate.load(Ordering::Relaxed) as f64;
        let turn = {
            let mut turns = self.pace.lock().expect("no holder panics");
            // The consumer makes up for the delays of a busy machine.
            let earliest = Instant::now() - Duration::from_millis(500);
            turns.next = turns.next.max(earliest) + Duration::from_secs_f64(1.0 / (rate * turns.part));
            turns.next
        };
        thread::sleep(turn.saturating_duration_since(Instant::now()));
    }

    /// Becomes slower the more work waits, and recovers.
    fn degrade(&self, passed: Duration) {
        let waiting: u64 = self.waiting.iter().map(|one| one.load(Ordering::Relaxed)).sum();
        let work = waiting as f64 / self.rate.load(Ordering::Relaxed) as f64;
        let wanted = (1.0 - KNEE_SLOPE * (work - KNEE_SECONDS)).clamp(KNEE_LEAST, 1.0);
        let part = &mut self.pace.lock().expect("no holder panics").part;
        *part += passed.as_secs_f64() / KNEE_TIMES[usize::from(wanted > *part)] * (wanted - *part);
    }
}

impl Workers {
    fn start(rig: &Rig, members: usize, rate: u64, commit_interval: Duration) -> Workers {
        let shared = Arc::new(Shared {
            rate: rate.into(),
            paused: false.into(),
            degrades: true.into(),
            stop: false.into(),
            finished: 0.into(),
            waiting: (0..members).map(|_| 0.into()).collect(),
            pace: Mutex::new(Turns { next: Instant::now(), part: 1.0 }),
        });
        let mut workers = Workers { group: format!("{}.workers", rig.name), shared, threads: vec![], commit_interval };
        workers.run(rig);
        workers
    }

    /// Starts the members.
    fn run(&mut self, rig: &Rig) {
        self.shared.stop.store(false, Ordering::Relaxed);
        let start = |member| {
            let mut config = rig.broker.client();
            config.set("group.id", &self.group).set("enable.auto.commit", "false").set("auto.offset.reset", "earliest");
            config.set("isolation.level", "read_committed").set("fetch.wait.max.ms", "50");
            let consumer: BaseConsumer = config.create().expect("a consumer");
            consumer.subscribe(&[&rig.target]).expect("the target exists");
            let (shared, target, commit_interval) =
                (Arc::clone(&self.shared), rig.target.clone(), self.commit_interval);
            thread::spawn(move || work(&consumer, &target, &shared, member, commit_interval))
        };
        self.threads = (0..self.shared.waiting.len()).map(start).collect();
    }

    fn finished(&self) -> u64 {
        self.shared.finished.load(Ordering::Relaxed)
    }

    /// Ends the members, which leave their group.
    fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().expect("a worker does not panic"));
    }
}

/// Works off records, one at a time, and commits at intervals.
fn work(consumer: &BaseConsumer, target: &str, shared: &Shared, member: usize, commit_interval: Duration) {
    let mut commit_at = Instant::now() + commit_interval;
    let mut look_at = Instant::now() + LOOK_INTERVAL;
    let (mut records, mut passed) = (0_u64, BTreeMap::new());
    while !shared.stop.load(Ordering::Relaxed) {
        if shared.paused.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(20));
            continue;
        }
        if Instant::now() >= commit_at {
            commit_at = Instant::now() + commit_interval;
            commit(consumer, target, std::mem::take(&mut passed));
        }
        if Instant::now() >= look_at {
            look_at = Instant::now() + LOOK_INTERVAL;
            if shared.degrades.load(Ordering::Relaxed) {
                let (done, waiting) = offsets(consumer, target);
                // Markers of transactions are no work.
                let waiting = waiting * records.min(done) / done.max(1);
                shared.waiting[member].store(waiting, Ordering::Relaxed);
                if member == 0 {
                    shared.degrade(LOOK_INTERVAL);
                }
            }
        }
        let Some(Ok(record)) = consumer.poll(Duration::from_millis(10)) else { continue };
        passed.insert(record.partition(), record.offset() + 1);
        shared.take_turn();
        shared.finished.fetch_add(1, Ordering::Relaxed);
        records += 1;
    }
    commit(consumer, target, passed);
}

/// Commits the offset after the last record of each partition, as most consumers do.
fn commit(consumer: &BaseConsumer, target: &str, passed: BTreeMap<i32, i64>) {
    let mut list = TopicPartitionList::new();
    for (partition, offset) in passed {
        list.add_partition_offset(target, partition, Offset::Offset(offset)).expect("a valid offset");
    }
    // A partition that has moved to another member is committed there.
    let _ = consumer.commit(&list, CommitMode::Async);
}

/// The offsets that this member has passed, and those that wait for it.
fn offsets(consumer: &BaseConsumer, target: &str) -> (u64, u64) {
    let Ok(positions) = consumer.position() else { return (0, 0) };
    let of = |element: rdkafka::topic_partition_list::TopicPartitionListElem<'_>| {
        let at = element.offset().to_raw().and_then(|at| u64::try_from(at).ok()).unwrap_or(0);
        let ends = consumer.fetch_watermarks(target, element.partition(), Duration::from_secs(5));
        (at, ends.map_or(0, |(_, end)| u64::try_from(end).unwrap_or(0).saturating_sub(at)))
    };
    positions.elements().into_iter().map(of).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

fn start(rig: &Rig, capacity: u64, workers: &Workers, pace: &str) -> Watermaster {
    Watermaster::start(&config(rig, capacity, workers, pace))
}

fn config(rig: &Rig, capacity: u64, workers: &Workers, pace: &str) -> Config {
    let keys = "client_from = [\"header:client-id\"]";
    let tables = format!(
        "[service.shape]\nqueue_capacity = 20000\nmax_delay = \"10m\"\n[service.pace]\ngroup = {:?}\n{pace}",
        workers.group
    );
    let mut config = rig.config(rig.service(capacity, "1s", keys, &tables));
    config.commit_interval = "100ms";
    config.kafka = "delivery = \"exactly_once\"".to_owned();
    config
}

fn pace(watermaster: &Watermaster) -> Value {
    watermaster.service("kyc")["pace"].clone()
}

/// Returns the end and the committed offset of each partition of the target in which the group committed.
fn rig_offsets(rig: &Rig, group: &str) -> Vec<(i64, i64)> {
    let consumer: BaseConsumer = rig.broker.client().set("group.id", group).create().expect("a consumer");
    let mut list = TopicPartitionList::new();
    list.add_partition_range(&rig.target, 0, TARGET_PARTITIONS - 1);
    let committed = consumer.committed_offsets(list, DRAIN_TIMEOUT).expect("the broker answers");
    let offsets = committed.elements().into_iter().filter_map(|element| {
        let at = element.offset().to_raw().filter(|at| *at >= 0)?;
        Some((consumer.fetch_watermarks(&rig.target, element.partition(), DRAIN_TIMEOUT).ok()?.1, at))
    });
    offsets.collect()
}

mod long;
