//! Members of a group share one capacity through a control log on a real Kafka.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use watermaster_core::group::member::Member;
use watermaster_core::group::record::{Key, Load, Loads, Record};
use watermaster_core::group::targets::Shares;
use watermaster_core::group::{Clocks, GroupParams};
use watermaster_core::policy::{Mode, Policy};
use watermaster_core::units::Time;
use watermaster_kafka::control::{ControlLog, ControlTopicError, ensure_topic};
use watermaster_settings::{Delivery, GroupProtocol, Kafka, OnDataLoss, OnForeignOffset, StartFrom, secrets::Secrets};

use crate::support::broker::{Broker, Topic, unique};
use crate::support::wait::wait_until;

const TIMEOUT: Duration = Duration::from_secs(20);
const CAPACITY: u64 = 1_000;
const CYCLE: Duration = Duration::from_secs(2);

pub fn kafka(broker: &Broker, instance: u64) -> Kafka {
    Kafka {
        bootstrap_servers: broker.bootstrap.clone(),
        group_id: "wm".to_owned(),
        instance_id: format!("wm-{instance}"),
        delivery: Delivery::AtLeastOnce,
        group_protocol: GroupProtocol::Classic,
        min_commit_interval: Duration::from_millis(20),
        commit_interval: Duration::from_millis(100),
        start_from: StartFrom::Earliest,
        on_foreign_offset: OnForeignOffset::Stop,
        on_data_loss: OnDataLoss::Stop,
        properties: [("broker.address.family".to_owned(), "v4".to_owned())].into(),
        secrets: Secrets::default(),
        schema_registry: None,
    }
}

#[test]
#[ignore = "needs Kafka: scripts/test"]
fn a_control_topic_is_made_once_and_has_one_partition() {
    let broker = Broker::of_this_run();
    let topic = unique("control");
    let made = ensure_topic(&kafka(&broker, 0), &topic, TIMEOUT).expect("the topic is made");
    assert!(made.created);
    assert_eq!(made.missing_replicas, 2, "one broker holds one replica of three");
    let found = ensure_topic(&kafka(&broker, 1), &topic, TIMEOUT).expect("the topic is there");
    assert!(!found.created);

    let wide = unique("control-wide");
    let _topics = broker.create(&[Topic::new(&wide, 2)]);
    let refused = ensure_topic(&kafka(&broker, 0), &wide, TIMEOUT);
    assert!(matches!(refused, Err(ControlTopicError::Partitions { partitions: 2, .. })), "{refused:?}");
}

/// The state that a node shows, and the demand that the test gives it.
#[derive(Default)]
struct Shared {
    demand: AtomicU64,
    limit: AtomicU64,
    stop: AtomicBool,
    admitted: Mutex<Vec<(Duration, u64)>>,
    exchanges: Mutex<Vec<Duration>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a member that admits up to its limit and its target, on a thread of its own. It leaves when it is told to stop.
fn start(broker: &Broker, topic: &str, instance: u64, began: Instant, shared: &Arc<Shared>) -> JoinHandle<()> {
    let (kafka, topic, shared) = (kafka(broker, instance), topic.to_owned(), Arc::clone(shared));
    thread::spawn(move || {
        let now = || Time::ZERO + began.elapsed();
        let log = ControlLog::open(&kafka, &topic, &topic, TIMEOUT).expect("the log opens");
        let policy = Policy { mode: Mode::Reject, ..Policy::new(CAPACITY, CYCLE) };
        let params = GroupParams::new(&policy, Duration::from_secs(10));
        let key = Key { instance: kafka.instance_id.as_str().into(), incarnation: began.elapsed().as_nanos() as u64 };
        let mut member = Member::new(params.clone(), Shares::new(&policy), key, log.start(), Clocks::same(now()));
        let mut window: VecDeque<(Time, u64)> = VecDeque::new();
        let (mut count, mut sent) = (0, HashMap::new());
        loop {
            if let Some((offset, record)) = log.poll(Duration::from_millis(2)).expect("the log is read") {
                if let Record::Post(post) = &record
                    && post.key == *member.key()
                    && let Some(at) = sent.remove(&post.seq)
                {
                    lock(&shared.exchanges).push(began.elapsed() - at);
                }
                member.handle_record(Clocks::same(now()), offset, &record);
            }
            if !member.seats().is_complete() && log.is_caught_up().expect("a position") {
                member.handle_caught_up(Clocks::same(now()));
            }
            log.take_failed().into_iter().for_each(|seq| member.handle_failed(seq));
            let clocks = Clocks::same(now());
            assert_eq!(member.restart(clocks), None, "instance {instance}");
            while let Some(&(at, records)) = window.front()
                && at + params.window() <= clocks.slow
            {
                count -= records;
                window.pop_front();
            }
            let demand = shared.demand.load(Ordering::Relaxed);
            let load = Load { demand, wants: demand };
            let loads: Loads = if demand > 0 { [("home".into(), load)].into() } else { Loads::new() };
            let stops = shared.stop.load(Ordering::Relaxed);
            let records = if stops { member.leave(clocks, count) } else { member.look(clocks, count, &loads) };
            for record in &records {
                let seq = if let Record::Post(post) = record { post.seq } else { 0 };
                sent.insert(seq, began.elapsed());
                log.append(record, seq).expect("the producer takes a record");
            }
            if stops {
                return log.flush(TIMEOUT).expect("the last post arrives");
            }
            let limit = member.limit(clocks);
            shared.limit.store(limit, Ordering::Relaxed);
            // A member above its target goes on at its target's pace, as a throttle does: else it would never give back.
            let most = limit.min(member.target());
            let records = if demand > 0 { most.saturating_sub(count) } else { 0 };
            if records > 0 {
                window.push_back((clocks.slow, records));
                count += records;
                lock(&shared.admitted).push((clocks.slow.since(Time::ZERO), records));
            }
        }
    })
}

/// The records of the fullest window of one cycle.
fn fullest_window(mut admitted: Vec<(Duration, u64)>) -> u64 {
    admitted.sort_unstable();
    let (mut window, mut sum, mut most) = (VecDeque::new(), 0, 0);
    for (now, records) in admitted {
        window.push_back((now, records));
        sum += records;
        while let Some(&(then, gone)) = window.front()
            && then + CYCLE <= now
        {
            sum -= gone;
            window.pop_front();
        }
        most = most.max(sum);
    }
    most
}

#[test]
#[ignore = "needs Kafka: scripts/test"]
fn members_share_one_capacity_through_a_real_log() {
    let broker = Broker::of_this_run();
    let topic = unique("control");
    ensure_topic(&kafka(&broker, 0), &topic, TIMEOUT).expect("the topic is made");
    let began = Instant::now();
    let shared: Vec<Arc<Shared>> = (0..3).map(|_| Arc::default()).collect();
    let limits = || shared.iter().map(|node| node.limit.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let demand = |node: usize, demand: u64| shared[node].demand.store(demand, Ordering::Relaxed);

    demand(0, CAPACITY);
    let mut nodes = vec![start(&broker, &topic, 0, began, &shared[0])];
    wait_until("the only member to hold the capacity", TIMEOUT, || limits()[0] == CAPACITY);
    nodes.extend([1, 2].map(|node| start(&broker, &topic, node as u64, began, &shared[node])));
    wait_until("the other members to hold their parts", TIMEOUT, || {
        limits()[1..].iter().all(|&limit| limit > 0) || limits()[0] == CAPACITY
    });
    for node in [1, 2] {
        demand(node, CAPACITY);
    }
    wait_until("equal parts", TIMEOUT, || limits().iter().all(|&limit| (333..=334).contains(&limit)));
    // The third leaves: the others get its part back as its window empties.
    shared[2].stop.store(true, Ordering::Relaxed);
    nodes.pop().expect("three nodes").join().expect("the third member leaves");
    wait_until("halves", TIMEOUT, || limits()[..2] == [CAPACITY / 2, CAPACITY / 2]);
    shared.iter().for_each(|node| node.stop.store(true, Ordering::Relaxed));
    nodes.into_iter().for_each(|node| node.join().expect("a member leaves"));

    let admitted: Vec<_> = shared.iter().flat_map(|node| lock(&node.admitted).clone()).collect();
    let fullest = fullest_window(admitted);
    let mut exchanges: Vec<_> = shared.iter().flat_map(|node| lock(&node.exchanges).clone()).collect();
    exchanges.sort_unstable();
    let quantile = |part: usize| exchanges[(exchanges.len() - 1) * part / 100];
    println!(
        "fullest window: {fullest} of {CAPACITY}; {} exchanges, median {:?}, p99 {:?}",
        exchanges.len(),
        quantile(50),
        quantile(99)
    );
    assert!(fullest <= CAPACITY, "{fullest} records within one cycle");
    assert!(fullest * 100 >= CAPACITY * 97, "{fullest} records within one cycle");
}
