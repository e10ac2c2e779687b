//! The test harness on a real Kafka, without Watermaster: the oracle accepts records that a plain copy delivers.

use std::time::Duration;

use crate::rig::{DEAD_LETTER_PARTITIONS, Rig, TARGET_PARTITIONS, TargetTime, an_hour_ago};
use crate::support::generator::{Generator, client_of};
use crate::support::producer::{Outgoing, Producer};
use crate::support::record::{Identity, Record};
use crate::{
    support::broker::Broker, support::judge::Judge, support::own_broker::OwnBroker, support::reader::Follower,
};

const RECORDS: usize = 5_000;

/// Copies a record unaltered, as a plain consumer and producer do.
fn copy_of(record: &Record, topic: &str) -> Outgoing {
    Outgoing {
        topic: topic.to_owned(),
        partition: None,
        timestamp: Some(record.timestamp),
        key: record.key.clone(),
        value: record.value.clone(),
        headers: record.headers.clone(),
    }
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn the_oracle_accepts_a_plain_copy() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "copy", 2, 4, TargetTime::Create);
    let start = an_hour_ago();
    let producer = Producer::to(&broker);
    producer.send_all(Generator::new(11, &rig.sources, 4, start).take(RECORDS));
    let source = rig.read_sources();
    assert_eq!(source.len(), RECORDS);
    producer.send_all(source.iter().map(|record| copy_of(record, &rig.target)));
    let mut follower = Follower::of(&broker, &[&rig.target], Identity::TimestampFrom(start));
    follower.wait_for(RECORDS as u64, Duration::from_secs(30));
    let judge = Judge {
        identity: Identity::TimestampFrom(start),
        service: "kyc",
        client_of: &|record| client_of(record, &rig.topic_client(&record.topic)).map(str::to_owned),
        reasons: &[],
        admits_all: true,
        target_partitions: TARGET_PARTITIONS,
        dead_letter_partitions: DEAD_LETTER_PARTITIONS,
        keeps_timestamps: true,
        repeats_allowed: 0,
    };
    let verdict = judge.judge(&source, &rig.read_target(), &rig.read_dead_letter());
    assert_eq!(verdict.assert_right().admitted, RECORDS as u64);
}

/// These tests run only with `scripts/test --long`.
mod long {
    use super::*;

    #[test]
    #[ignore = "needs a real Kafka: scripts/test"]
    fn our_own_kafka_keeps_its_data_when_it_is_killed() {
        let mut broker = OwnBroker::start();
        let rig = Rig::new(&broker, "own", 1, 1, TargetTime::Append);
        let source = &rig.sources[0];
        let numbered = |number| Outgoing::numbered(source, number, "one");
        Producer::to(&broker).send_all((0..100).map(numbered));
        broker.kill();
        assert!(!broker.answers());
        broker.start_again();
        Producer::to(&broker).send_all((100..200).map(numbered));
        broker.freeze();
        assert!(!broker.answers());
        broker.thaw();
        let numbers: Vec<u64> = rig.read_sources().iter().filter_map(|record| Identity::Value.of(record)).collect();
        assert_eq!(numbers, (0..200).collect::<Vec<u64>>());
    }
}
