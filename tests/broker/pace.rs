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
/// The times, in seconds, in which it becomes slower and recovers.
const KNEE_TIMES: [f64; 2] = [2.0, 10.0];

/// A protected service: members of a consumer group that share a rate, as if all used one database.
struct Workers {
    group: String,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
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
        let group = format!("{}.workers", rig.name);
        let shared = Arc::new(Shared {
            rate: rate.into(),
            paused: false.into(),
            degrades: true.into(),
            stop: false.into(),
            finished: 0.into(),
            waiting: (0..members).map(|_| 0.into()).collect(),
            pace: Mutex::new(Turns { next: Instant::now(), part: 1.0 }),
        });
        let start = |member| {
            let mut config = rig.broker.client();
            config.set("group.id", &group).set("enable.auto.commit", "false").set("auto.offset.reset", "earliest");
            config.set("isolation.level", "read_committed").set("fetch.wait.max.ms", "50");
            let consumer: BaseConsumer = config.create().expect("a consumer");
            consumer.subscribe(&[&rig.target]).expect("the target exists");
            let (shared, target) = (Arc::clone(&shared), rig.target.clone());
            thread::spawn(move || work(&consumer, &target, &shared, member, commit_interval))
        };
        let threads = (0..members).map(start).collect();
        Workers { group, shared, threads }
    }

    fn finished(&self) -> u64 {
        self.shared.finished.load(Ordering::Relaxed)
    }

    fn stop(self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("a worker does not panic"));
    }
}

/// Works off records, one at a time, and commits at intervals.
fn work(consumer: &BaseConsumer, target: &str, shared: &Shared, member: usize, commit_interval: Duration) {
    let mut commit_at = Instant::now() + commit_interval;
    let (mut records, mut passed) = (0_u64, BTreeMap::new());
    while !shared.stop.load(Ordering::Relaxed) {
        if shared.paused.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(20));
            continue;
        }
        if Instant::now() >= commit_at {
            commit_at = Instant::now() + commit_interval;
            commit(consumer, target, std::mem::take(&mut passed));
            if shared.degrades.load(Ordering::Relaxed) {
                let (done, waiting) = offsets(consumer, target);
                // Markers of transactions are no work.
                let waiting = waiting * records.min(done) / done.max(1);
                shared.waiting[member].store(waiting, Ordering::Relaxed);
                if member == 0 {
                    shared.degrade(commit_interval);
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

/// The acceptance tests of the search: minutes each.
mod long {
    use super::*;
    use crate::support::producer::Load;
    use crate::support::promise::Promise;

    const CEILING: u64 = 2_000;
    const APPLY: &str = "control = \"apply\"\nfloor = 20\nceiling = 2000\n";

    /// A service that takes 400 records a second, under a demand of 1 200.
    struct World {
        rig: Rig,
        watermaster: Watermaster,
        workers: Workers,
        load: Load,
        began: Instant,
    }

    impl World {
        fn start(capacity: u64, keys: &str) -> World {
            let rig = Rig::new(&Broker::of_this_run(), "pace", 1, 4, TargetTime::Append);
            let workers = Workers::start(&rig, 2, 400, Duration::from_secs(1));
            let watermaster = start(&rig, capacity, &workers, keys);
            let source = rig.sources[0].clone();
            let client = |n: u64| ["one", "two", "three"][n as usize % 3];
            let load = Load::start(&rig.broker, 1_200, move |n| Outgoing::numbered(&source, n, client(n)));
            World { rig, watermaster, workers, load, began: Instant::now() }
        }

        fn figure(&self, name: &str) -> f64 {
            pace(&self.watermaster)[name].as_f64().unwrap_or(0.0)
        }

        /// Waits until the means of the found capacity over three times ten seconds are all within 10 % of `truth`.
        /// Returns the time until the first of them.
        fn wait_for(&self, truth: f64, timeout: Duration) -> Duration {
            let began = Instant::now();
            let mut last = Vec::new();
            while began.elapsed() < timeout {
                thread::sleep(Duration::from_millis(500));
                last.push(self.figure("found"));
                let mut means = last.rchunks(20).take(3).map(|ten| ten.iter().sum::<f64>() / 20.0);
                if last.len() >= 60 && means.all(|mean| (mean / truth - 1.0).abs() <= 0.1) {
                    return began.elapsed() - Duration::from_secs(30);
                }
                if last.len() % 20 == 0 {
                    eprintln!("{:4} s: {}", self.began.elapsed().as_secs(), pace(&self.watermaster));
                }
            }
            panic!("the capacity was not found in {timeout:?}: {}", pace(&self.watermaster));
        }

        /// The largest backlog of the service in this time, in seconds of its work.
        fn most_work(&self, rate: f64, time: Duration) -> f64 {
            let began = Instant::now();
            let mut most: f64 = 0.0;
            while began.elapsed() < time {
                thread::sleep(Duration::from_millis(250));
                most = most.max(self.figure("open_offsets") / rate);
            }
            most
        }

        /// The part of `rate` that was finished in this time.
        fn used(&self, rate: f64, time: Duration) -> f64 {
            let (began, before) = (Instant::now(), self.workers.finished());
            while began.elapsed() < time {
                thread::sleep(Duration::from_secs(10).min(time));
                eprintln!("{:4} s: {}", self.began.elapsed().as_secs(), pace(&self.watermaster));
            }
            (self.workers.finished() - before) as f64 / rate / began.elapsed().as_secs_f64()
        }

        /// Stops everything, and checks the promise and that each record arrived once.
        fn finish(mut self) {
            let sent = self.load.stop();
            assert_eq!(self.watermaster.terminate(STOP_TIMEOUT).code(), Some(0));
            self.workers.stop();
            let (target, rejected) = (self.rig.read_target(), self.rig.read_dead_letter());
            let promise = Promise {
                capacity: CEILING,
                cycle: Duration::from_secs(1),
                commit_interval: Duration::from_millis(100),
                burst_percent: 1,
            };
            let most = promise.most_in_any_window(&target);
            eprintln!("{sent} sent, {} in the target, most in any second {most}", target.len());
            assert!(most <= promise.bound(0), "{most} records in a window");
            let mut ids: Vec<_> = target.iter().map(|record| record.value.clone()).collect();
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), target.len(), "records are repeated");
            assert!(target.len() as u64 + rejected.len() as u64 <= sent);
        }
    }

    /// The workers commit the offset after their last record, and so never the marker of the transaction behind it: once
    /// the target is still, that must not look like an open record.
    #[test]
    #[ignore = "takes minutes: scripts/test --long"]
    fn a_tail_of_markers_is_no_open_record() {
        let broker = Broker::of_this_run();
        let rig = Rig::new(&broker, "pace", 1, 1, TargetTime::Append);
        Producer::to(&broker).send_all((0..100).map(|n| Outgoing::numbered(&rig.sources[0], n, "one")));
        let workers = Workers::start(&rig, 1, 1_000, Duration::from_millis(200));
        workers.shared.degrades.store(false, Ordering::Relaxed);
        let (code, said) = check(&config(&rig, 1_000, &workers, ""));
        assert!(code == Some(0) && said.contains("has committed nothing in it"), "{said}");
        let mut watermaster = start(&rig, 1_000, &workers, "poll = \"200ms\"\n");
        wait_until("all records to be finished", DRAIN_TIMEOUT, || workers.finished() == 100);
        wait_until("the tails to be known as empty", DRAIN_TIMEOUT, || {
            let pace = pace(&watermaster);
            pace["signal_age_seconds"].is_number() && pace["open_offsets"] == 0 && pace["state"] != "no_signal"
        });
        let committed = rig_offsets(&rig, &workers.group);
        assert!(
            committed.iter().any(|(end, committed)| end > committed),
            "no partition ends with a marker: {committed:?}"
        );
        workers.stop();
        assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0));
    }

    #[test]
    #[ignore = "takes minutes: scripts/test --long"]
    fn the_capacity_is_found_from_below() {
        let world = World::start(100, APPLY);
        let found = world.wait_for(400.0, Duration::from_secs(150));
        let used = world.used(400.0, Duration::from_secs(120));
        eprintln!("from 100: found after {:.0} s, then {used:.3} used", found.as_secs_f64());
        assert!(used >= 0.93, "{used}");
        world.finish();
    }

    #[test]
    #[ignore = "takes minutes: scripts/test --long"]
    fn the_capacity_is_found_from_above() {
        let world = World::start(1_600, APPLY);
        let found = world.wait_for(400.0, Duration::from_secs(270));
        let used = world.used(400.0, Duration::from_secs(120));
        eprintln!("from 1600: found after {:.0} s, then {used:.3} used", found.as_secs_f64());
        assert!(used >= 0.93, "{used}");
        world.finish();
    }

    #[test]
    #[ignore = "takes minutes: scripts/test --long"]
    fn a_capacity_that_is_halved_and_comes_back_is_followed() {
        let world = World::start(400, APPLY);
        world.used(400.0, Duration::from_secs(60));
        let open = world.figure("open_offsets") / 200.0;
        world.workers.shared.rate.store(200, Ordering::Relaxed);
        let added = world.most_work(200.0, Duration::from_secs(15)) - open;
        let found = world.wait_for(200.0, Duration::from_secs(105));
        eprintln!(
            "halved: {added:.1} s of work were added to {open:.1}, found after {:.0} s",
            found.as_secs_f64() + 15.0
        );
        world.workers.shared.rate.store(400, Ordering::Relaxed);
        let back = world.wait_for(400.0, Duration::from_secs(210));
        eprintln!("back: found after {:.0} s", back.as_secs_f64());
        assert!(added <= 8.0, "{added} s of work");
        world.finish();
    }

    #[test]
    #[ignore = "takes minutes: scripts/test --long"]
    fn a_pause_of_the_service_changes_no_estimate() {
        let world = World::start(380, APPLY);
        world.used(400.0, Duration::from_secs(60));
        let before = world.figure("found");
        world.workers.shared.paused.store(true, Ordering::Relaxed);
        let work = world.most_work(400.0, Duration::from_secs(20));
        let after = world.figure("found");
        world.workers.shared.paused.store(false, Ordering::Relaxed);
        eprintln!("paused for 20 s: {before} before, {after} after, {work:.1} s of work at most");
        assert!((after / before - 1.0).abs() <= 0.02, "{before} before, {after} after");
        assert!(work <= 15.0, "{work} s of work");
        let used = world.used(400.0, Duration::from_secs(60));
        eprintln!("then {used:.3} used");
        world.finish();
    }

    #[test]
    #[ignore = "takes minutes: scripts/test --long"]
    fn records_of_other_writers_are_subtracted() {
        let mut world = World::start(300, APPLY);
        world.wait_for(400.0, Duration::from_secs(180));
        let target = world.rig.target.clone();
        let foreign = Load::start(&world.rig.broker, 120, move |n| Outgoing::numbered(&target, n, "foreign"));
        let found = world.wait_for(280.0, Duration::from_secs(180));
        eprintln!("beside 120 records of another writer: found after {:.0} s", found.as_secs_f64());
        foreign.stop();
        world.load.stop();
        assert_eq!(world.watermaster.terminate(STOP_TIMEOUT).code(), Some(0));
        world.workers.stop();
    }

    /// The first instance searches, and the second one takes over its limit; once the first one is gone, the second
    /// one searches on from there.
    #[test]
    #[ignore = "takes minutes: scripts/test --long"]
    fn a_group_has_one_search_which_moves_with_the_instances() {
        let mut world = World::start(200, APPLY);
        let mut settings = config(&world.rig, 200, &world.workers, APPLY);
        settings.instance = "second";
        let mut second = Watermaster::start(&settings);
        let capacity = |watermaster: &Watermaster| watermaster.service("kyc")["capacity"].as_f64().unwrap_or(0.0);
        world.wait_for(400.0, Duration::from_secs(150));
        let (first, other) = (capacity(&world.watermaster), capacity(&second));
        eprintln!("the limit is {first} at the first instance, {other} at the second: {}", pace(&second));
        assert_eq!(pace(&second)["state"], "not_alone");
        assert!((other / first - 1.0).abs() <= 0.3, "{first} and {other}");
        let used = world.used(400.0, Duration::from_secs(60));
        eprintln!("{used:.3} used with two instances");
        assert!(used >= 0.8, "{used}");
        assert_eq!(world.watermaster.terminate(STOP_TIMEOUT).code(), Some(0));
        wait_until("the second instance to search", DRAIN_TIMEOUT, || pace(&second)["state"] != "not_alone");
        let found = pace(&second);
        eprintln!("the second instance searches: {found}");
        assert!(found["found"].as_f64().unwrap_or(0.0) >= 200.0, "{found}");
        std::mem::swap(&mut world.watermaster, &mut second);
        let used = world.used(400.0, Duration::from_secs(60));
        eprintln!("{used:.3} used by the second instance alone");
        assert!(used >= 0.8, "{used}");
        world.finish();
    }

    #[test]
    #[ignore = "takes minutes: scripts/test --long"]
    fn shadow_mode_tells_the_capacity_after_a_campaign() {
        let rig = Rig::new(&Broker::of_this_run(), "pace", 1, 4, TargetTime::Append);
        let workers = Workers::start(&rig, 2, 400, Duration::from_secs(1));
        // A service that degrades would show the rate to which it had fallen.
        workers.shared.degrades.store(false, Ordering::Relaxed);
        let mut watermaster = start(&rig, 1_000, &workers, "");
        let source = rig.sources[0].clone();
        let send = |rate: u64, time: Duration| {
            let source = source.clone();
            let load = Load::start(&rig.broker, rate, move |n| Outgoing::numbered(&source, n, "one"));
            thread::sleep(time);
            load.stop();
        };
        send(200, Duration::from_secs(90));
        let before = pace(&watermaster);
        assert!(before["at_least"].as_bool() == Some(true), "{before}");
        send(1_200, Duration::from_secs(60));
        let found = pace(&watermaster);
        eprintln!("before the campaign {before}, after it {found}");
        assert_eq!(found["at_least"], false, "{found}");
        let is = found["found"].as_f64().unwrap_or(0.0);
        // The rate covers some seconds before the campaign, and loses the markers of records that still wait.
        assert!((0.75..=1.1).contains(&(is / 400.0)), "{found}");
        workers.stop();
        assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0));
    }
}
