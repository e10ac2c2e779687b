//! `delivery = "exactly_once"`: a `read_committed` reader finds each record once, even if processes die or freeze.

use std::time::{Duration, Instant};

use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use crate::rig::{DRAIN_TIMEOUT, NUMBERED, Rig, TargetTime};
use crate::support::config::{Config, SHORT_SESSION};
use crate::support::judge::{Judge, Verdict};
use crate::support::producer::{Load, Outgoing, Producer};
use crate::support::record::Identity;
use crate::support::wait::{let_the_fault_last, wait_until};
use crate::{
    support::broker::Broker, support::generator::Random, support::own_broker::OwnBroker, support::reader::Follower,
    support::watermaster::Watermaster,
};

const CLIENT_FROM: &str = "client_from = [\"header:client-id\"]";
const TABLES: &str = "[service.shape]\nqueue_capacity = 100000\nmax_delay = \"10m\"";
pub const STOP_TIMEOUT: Duration = Duration::from_secs(12);

pub fn config(rig: &Rig, capacity: u64, instance: &'static str) -> Config {
    let mut config = rig.config(rig.service(capacity, "1s", CLIENT_FROM, TABLES));
    config.kafka = "delivery = \"exactly_once\"".to_owned();
    config.instance = instance;
    config
}

/// Returns record `n`. One record in ten is of the client `trickle`, which overtakes the backlog of `flood`, so commits
/// contain gaps.
pub fn numbered(sources: &[String], n: u64) -> Outgoing {
    let client = if n.is_multiple_of(10) { "trickle" } else { "flood" };
    Outgoing::numbered(&sources[(n / 10) as usize % sources.len()], n, client)
}

/// Asserts that no record is lost, repeated, altered or out of order.
pub fn judge(rig: &Rig, reasons: &[&str]) -> Verdict {
    let judge = Judge { reasons, ..NUMBERED };
    let verdict = judge.judge(&rig.read_sources(), &rig.read_target(), &rig.read_dead_letter());
    eprintln!(
        "{}: {} admitted, {} rejected, {} repeated, {} wrong",
        rig.name,
        verdict.admitted,
        verdict.rejected,
        verdict.repeated,
        verdict.wrong.len()
    );
    verdict.assert_right();
    verdict
}

pub fn follow(broker: &Broker, rig: &Rig) -> Follower {
    Follower::of(broker, &[&rig.target, &rig.dead_letter], Identity::Value)
}

pub fn wait_for_backlog(watermaster: &mut Watermaster, records: f64) {
    wait_until("records to be delayed", DRAIN_TIMEOUT, || {
        watermaster.assert_running();
        watermaster.metric("watermaster_backlog_records", &[]).is_some_and(|held| held >= records)
    });
}

/// Waits until all records are delivered, terminates the program and judges the result.
fn finish(rig: &Rig, follower: &mut Follower, records: u64) {
    finish_with(&config(rig, 100_000, "only"), rig, follower, records);
}

/// Runs the program with `config` until all records are delivered, terminates it and judges the result.
pub fn finish_with(config: &Config, rig: &Rig, follower: &mut Follower, records: u64) {
    let mut watermaster = Watermaster::start(config);
    follower.wait_for(records, DRAIN_TIMEOUT);
    assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());
    let verdict = judge(rig, &["queue_full"]);
    assert_eq!(verdict.admitted + verdict.rejected, records);
}

pub fn rounds(watermaster: &Watermaster) -> String {
    let count = |name: &str, label: &str| watermaster.metric(name, &[label]).unwrap_or(0.0);
    let outcome = |value: &str| count("watermaster_rounds_total", &format!("outcome=\"{value}\""));
    let cause = |value: &str| count("watermaster_producer_recreations_total", &format!("cause=\"{value}\""));
    format!(
        "rounds: {} committed, {} aborted, {} unknown; producers: {} disconnect, {} timeout, {} fenced, {} fatal",
        outcome("committed"),
        outcome("aborted"),
        outcome("unknown"),
        cause("disconnect"),
        cause("timeout"),
        cause("fenced"),
        cause("fatal")
    )
}

/// Kills each instance at a seeded moment, with thousands of records delayed and under constant load.
fn kills(prefix: &str, instances: &[&'static str], seed: u64) {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, prefix, 2, 4, TargetTime::Create);
    let mut random = Random(seed);
    let sources = rig.sources.clone();
    let load = Load::start(&broker, 3_000, move |n| numbered(&sources, n));
    let mut follower = follow(&broker, &rig);
    for instance in instances {
        let mut config = config(&rig, 1_500, instance);
        config.kafka.push_str(SHORT_SESSION);
        let mut watermaster = Watermaster::start(&config);
        wait_for_backlog(&mut watermaster, 3_000.0);
        let from = follower.seen() as u64;
        follower.wait_for(from + 500 + random.below(1_500), DRAIN_TIMEOUT);
        let_the_fault_last(Duration::from_millis(random.below(250)));
        eprintln!("before the kill: {}", rounds(&watermaster));
        watermaster.kill();
    }
    let sent = load.stop();
    finish(&rig, &mut follower, sent);
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn kills_under_load_repeat_nothing() {
    kills("eos-kill", &["only"; 4], 1);
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn sigterm_leaves_no_open_transaction() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "eos-term", 2, 4, TargetTime::Create);
    let sources = rig.sources.clone();
    let load = Load::start(&broker, 3_000, move |n| numbered(&sources, n));
    let mut follower = follow(&broker, &rig);
    for _ in 0..2 {
        let mut watermaster = Watermaster::start(&config(&rig, 1_500, "only"));
        wait_for_backlog(&mut watermaster, 1_000.0);
        eprintln!("before SIGTERM: {}", rounds(&watermaster));
        let asked = Instant::now();
        assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());
        eprintln!("exited after {:.1} s", asked.elapsed().as_secs_f32());
    }
    let sent = load.stop();
    finish(&rig, &mut follower, sent);
}

/// Injects a fault into the broker while records flow; Watermaster survives it.
fn broker_fault(prefix: &str, fault: impl FnOnce(&mut OwnBroker)) {
    let mut broker = OwnBroker::start();
    let rig = Rig::new(&broker, prefix, 1, 4, TargetTime::Create);
    let records = 6_000;
    Producer::to(&broker).send_all((0..records).map(|n| numbered(&rig.sources, n)));
    let mut watermaster = Watermaster::start(&config(&rig, 1_000, "only"));
    let mut follower = follow(&broker, &rig);
    follower.wait_for(1_500, DRAIN_TIMEOUT);
    fault(&mut broker);
    follower.wait_for(records, DRAIN_TIMEOUT);
    eprintln!("{prefix}: {}", rounds(&watermaster));
    let log = watermaster.log();
    log.lines()
        .filter(|line| line.contains("replacing") || line.contains("abort"))
        .for_each(|line| eprintln!("{line}"));
    assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());
    assert_eq!(judge(&rig, &[]).admitted, records);
}

/// The instances fence each other's seats and transactions until one of them stops and logs the reason.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn two_instances_with_one_id_are_reported() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "eos-twins", 2, 4, TargetTime::Create);
    let sources = rig.sources.clone();
    let load = Load::start(&broker, 1_000, move |n| numbered(&sources, n));
    let mut follower = follow(&broker, &rig);
    let mut twins = [(); 2].map(|()| Watermaster::start(&config(&rig, 1_000, "twin")));
    wait_until("one instance to report the shared id", DRAIN_TIMEOUT, || {
        follower.read_on(Duration::from_millis(100));
        let reasons = ["have the instance_id twin", "share the instance_id twin"];
        twins.iter().any(|twin| reasons.iter().any(|reason| twin.log().contains(reason)))
    });
    let from = follower.seen() as u64;
    follower.wait_for(from + 1_000, DRAIN_TIMEOUT);
    let sent = load.stop();
    twins.iter_mut().for_each(Watermaster::kill);
    finish(&rig, &mut follower, sent);
}

/// The broker refuses a whole batch because of one record with tomorrow's timestamp.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn one_poison_record_does_not_hold_up_its_neighbours() {
    const POISON: u64 = 777;
    let broker = Broker::of_this_run();
    let rig = Rig::with_target(&broker, "eos-poison", 1, 1, |topic| {
        topic.set("message.timestamp.after.max.ms", "3600000");
    });
    let tomorrow = crate::rig::an_hour_ago() + 24 * 3_600_000;
    let record = |n| Outgoing { timestamp: (n == POISON).then_some(tomorrow), ..numbered(&rig.sources, n) };
    Producer::to(&broker).send_all((0..2_000).map(record));
    let mut follower = follow(&broker, &rig);
    let mut watermaster = Watermaster::start(&config(&rig, 10_000, "only"));
    let began = Instant::now();
    follower.wait_for(2_000, Duration::from_secs(30));
    eprintln!("poison: all records delivered after {:.1} s; {}", began.elapsed().as_secs_f32(), rounds(&watermaster));
    assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());
    let verdict = judge(&rig, &["undeliverable"]);
    assert_eq!((verdict.admitted, verdict.rejected), (1_999, 1));
    let numbers: Vec<_> = rig.read_dead_letter().iter().map(|record| Identity::Value.of(record)).collect();
    assert_eq!(numbers, [Some(POISON)]);
}

/// The source holds committed and aborted transactions. Only committed records are delivered, and the lag is 0 although
/// transaction markers end the log.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn the_committed_offset_passes_markers_at_the_end_of_a_log() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "eos-markers", 1, 2, TargetTime::Create);
    let upstream: BaseProducer =
        broker.client().set("transactional.id", &rig.name).create().expect("a transactional producer");
    upstream.init_transactions(DRAIN_TIMEOUT).expect("transactions are initialised");
    let mut watermaster = Watermaster::start(&config(&rig, 1_000, "only"));
    let mut follower = follow(&broker, &rig);
    let mut sent = 0;
    for committed in [true, false, true, false, false] {
        upstream.begin_transaction().expect("a transaction begins");
        for n in sent..sent + 20 {
            let value = format!("{n}|{:-<100}", "");
            let headers = OwnedHeaders::new().insert(Header { key: "client-id", value: Some("upstream") });
            let record = BaseRecord::<str, str>::to(&rig.sources[0]).partition((n % 2) as i32).payload(&value);
            upstream.send(record.headers(headers)).expect("the record is queued");
        }
        if committed {
            upstream.commit_transaction(DRAIN_TIMEOUT).expect("the transaction commits");
            sent += 20;
        } else {
            upstream.flush(DRAIN_TIMEOUT).expect("the records are written before the abort");
            upstream.abort_transaction(DRAIN_TIMEOUT).expect("the transaction aborts");
        }
    }
    follower.wait_for(sent, DRAIN_TIMEOUT);
    wait_until("the committed offset to pass the markers", DRAIN_TIMEOUT, || {
        watermaster.assert_running();
        rig.lag_of_committed(&rig.sources[0], 2) == Some(0)
    });
    wait_until("the lag metric to be 0", DRAIN_TIMEOUT, || {
        watermaster.metric("watermaster_consumer_lag_records", &[]) == Some(0.0)
    });
    assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());
    assert_eq!(judge(&rig, &[]).admitted, sent);
}

/// The long tests of this file; `scripts/chaos --short` injects the same kinds of fault in less time.
mod long {
    use super::*;

    #[test]
    #[ignore = "needs a real Kafka: scripts/test --long"]
    fn kills_with_a_new_instance_id_repeat_nothing() {
        kills("eos-kill-new", &["one", "two", "three"], 2);
    }

    /// The freeze outlasts session and transaction: the second instance takes over, and the first one's open round is
    /// void.
    #[test]
    #[ignore = "needs a real Kafka: scripts/test --long"]
    fn a_frozen_instance_that_comes_back_repeats_nothing() {
        let broker = Broker::of_this_run();
        let rig = Rig::new(&broker, "eos-stop", 2, 4, TargetTime::Create);
        let sources = rig.sources.clone();
        let load = Load::start(&broker, 2_000, move |n| numbered(&sources, n));
        let mut follower = follow(&broker, &rig);
        let mut first = Watermaster::start(&config(&rig, 1_000, "first"));
        wait_for_backlog(&mut first, 2_000.0);
        let mut second = Watermaster::start(&config(&rig, 1_000, "second"));
        follower.wait_for(follower.seen() as u64 + 2_000, DRAIN_TIMEOUT);
        first.freeze();
        let from = follower.seen() as u64;
        // The session, the transaction and the coordinator's check of both time out after 10 s each.
        let_the_fault_last(Duration::from_secs(25));
        follower.wait_for(from + 4_000, DRAIN_TIMEOUT);
        first.thaw();
        follower.wait_for(follower.seen() as u64 + 4_000, DRAIN_TIMEOUT);
        eprintln!("first: {}\nsecond: {}", rounds(&first), rounds(&second));
        let sent = load.stop();
        assert_eq!(first.terminate(STOP_TIMEOUT).code(), Some(0), "{}", first.log());
        assert_eq!(second.terminate(STOP_TIMEOUT).code(), Some(0), "{}", second.log());
        finish(&rig, &mut follower, sent);
    }

    #[test]
    #[ignore = "needs a real Kafka and its jars: scripts/test --long"]
    fn a_frozen_own_kafka_repeats_nothing() {
        broker_fault("eos-frozen", |broker| {
            broker.freeze();
            let_the_fault_last(Duration::from_secs(5));
            broker.thaw();
        });
    }

    #[test]
    #[ignore = "needs a real Kafka and its jars: scripts/test --long"]
    fn a_frozen_own_kafka_that_outlasts_the_transaction_repeats_nothing() {
        broker_fault("eos-frozen-long", |broker| {
            broker.freeze();
            let_the_fault_last(Duration::from_secs(16));
            broker.thaw();
        });
    }

    #[test]
    #[ignore = "needs a real Kafka and its jars: scripts/test --long"]
    fn a_dead_own_kafka_repeats_nothing() {
        broker_fault("eos-dead", |broker| {
            broker.kill();
            let_the_fault_last(Duration::from_secs(5));
            broker.start_again();
        });
    }
}
