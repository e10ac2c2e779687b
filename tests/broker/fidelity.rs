//! In each mode, every source record is found exactly once, unaltered, in the target or the dead-letter topic.

use std::time::{Duration, Instant};

use crate::rig::{DEAD_LETTER_PARTITIONS, DRAIN_TIMEOUT, Rig, TARGET_PARTITIONS, TargetTime, an_hour_ago};
use crate::support::generator::{Generator, client_of};
use crate::support::judge::{Judge, Verdict};
use crate::{
    support::broker::Broker, support::producer::Producer, support::reader::Follower, support::record::Identity,
    support::watermaster::Watermaster,
};

const RECORDS: usize = 200_000;
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// One mode: the service's configuration and the results that it may have.
struct Mode {
    name: &'static str,
    seed: u64,
    keys: &'static str,
    tables: &'static str,
    reasons: &'static [&'static str],
    admits_all: bool,
    delivery: &'static str,
}

const AT_LEAST_ONCE: &str = "delivery = \"at_least_once\"";

const CLIENT_FROM: &str = "client_from = [\"header:client-id\", \"key\", \"topic\"]";

/// Runs one mode. Half of the records exist before the program starts; the rest are produced while it runs.
fn run(mode: &Mode) -> Verdict {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, mode.name, 4, 4, TargetTime::Create);
    let start = an_hour_ago();
    let mut records = Generator::new(mode.seed, &rig.sources, 4, start).take(RECORDS);
    let producer = Producer::to(&broker);
    producer.send_all(records.by_ref().take(RECORDS / 2));
    let keys = format!("{CLIENT_FROM}\n{}", mode.keys);
    let mut config = rig.config(rig.service(40_000, "1s", &keys, mode.tables));
    config.kafka = mode.delivery.to_owned();
    let mut watermaster = Watermaster::start(&config);
    let began = Instant::now();
    producer.send_all(records);
    let mut follower = Follower::of(&broker, &[&rig.target, &rig.dead_letter], Identity::TimestampFrom(start));
    follower.wait_for(RECORDS as u64, DRAIN_TIMEOUT);
    eprintln!(
        "{}: {RECORDS} records delivered within {:.1} s (seed {})",
        mode.name,
        began.elapsed().as_secs_f32(),
        mode.seed
    );
    assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());

    let judge = Judge {
        identity: Identity::TimestampFrom(start),
        service: "kyc",
        client_of: &|record| client_of(record, &rig.topic_client(&record.topic)).map(str::to_owned),
        reasons: mode.reasons,
        admits_all: mode.admits_all,
        target_partitions: TARGET_PARTITIONS,
        dead_letter_partitions: DEAD_LETTER_PARTITIONS,
        keeps_timestamps: true,
        repeats_allowed: 0,
    };
    let source = rig.read_sources();
    assert_eq!(source.len(), RECORDS);
    let verdict = judge.judge(&source, &rig.read_target(), &rig.read_dead_letter());
    eprintln!("{}: {} admitted, {} rejected {:?}", mode.name, verdict.admitted, verdict.rejected, verdict.reasons);
    verdict.assert_right();
    verdict
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn shape() {
    let verdict = run(&Mode {
        name: "shape",
        seed: 101,
        keys: "mode = \"shape\"",
        tables: "[service.shape]\nqueue_capacity = 5000\nmax_delay = \"10m\"",
        reasons: &["queue_full"],
        admits_all: false,
        delivery: AT_LEAST_ONCE,
    });
    assert!(verdict.admitted > 50_000, "{verdict:?}");
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn shape_exactly_once() {
    let verdict = run(&Mode {
        name: "shape-exactly-once",
        seed: 105,
        keys: "mode = \"shape\"",
        tables: "[service.shape]\nqueue_capacity = 5000\nmax_delay = \"10m\"",
        reasons: &["queue_full"],
        admits_all: false,
        delivery: "delivery = \"exactly_once\"",
    });
    assert!(verdict.admitted > 50_000, "{verdict:?}");
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn shape_with_overflow_pause_rejects_only_anonymous_records() {
    let verdict = run(&Mode {
        name: "pause",
        seed: 104,
        keys: "mode = \"shape\"",
        tables: "[service.shape]\nqueue_capacity = 2000\nmax_delay = \"10m\"\noverflow = \"pause\"",
        reasons: &[],
        admits_all: false,
        delivery: AT_LEAST_ONCE,
    });
    assert!(verdict.admitted > RECORDS as u64 * 9 / 10, "{verdict:?}");
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn reject() {
    let verdict = run(&Mode {
        name: "reject",
        seed: 102,
        keys: "mode = \"reject\"\ncatch_up = \"reject\"",
        tables: "",
        reasons: &["over_allocation", "capacity_in_use"],
        admits_all: false,
        delivery: AT_LEAST_ONCE,
    });
    assert!(
        verdict.reasons.get("over_allocation").is_some_and(|n| *n > 1_000),
        "too few records were rejected: {verdict:?}"
    );
    assert!(verdict.admitted > 10_000, "{verdict:?}");
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn shadow_mode() {
    let verdict = run(&Mode {
        name: "shadow",
        seed: 103,
        keys: "enforce = false",
        tables: "",
        reasons: &[],
        admits_all: true,
        delivery: AT_LEAST_ONCE,
    });
    assert_eq!((verdict.admitted, verdict.rejected), (RECORDS as u64, 0));
}
