//! Records that can't be read any more: nothing goes on behind them as if they had never been.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use crate::rig::{DRAIN, Rig, TargetTime};
use crate::support::own_broker::OwnBroker;
use crate::support::producer::{Outgoing, Producer};
use crate::support::record::Identity;
use crate::support::watermaster::Watermaster;

/// Records of each of the three batches.
const BATCH: u64 = 10;
/// Before the records of a batch, and before what its length counts.
const HEADER: u64 = 61;
const UNCOUNTED: u64 = 12;

fn u32_at(file: &std::fs::File, position: u64) -> u64 {
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, position).expect("the file goes on");
    u32::from_be_bytes(bytes).into()
}

/// Changes a byte of the second batch, so many bytes behind its header.
fn damage_second_batch(segment: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(segment).expect("the broker keeps it here");
    let second = UNCOUNTED + u32_at(&file, 8);
    let mut byte = [0];
    file.read_exact_at(&mut byte, second + HEADER + at).expect("it has records");
    file.write_all_at(&[!byte[0]], second + HEADER + at).expect("it can be written");
}

/// With these properties, the service stops at the second batch, and names it.
fn stops_at_the_second_batch(broker: &OwnBroker, name: &str, at: u64, kafka: &str, says: &str) {
    let rig = Rig::new(broker, name, 1, 2, TargetTime::Create);
    let producer = Producer::to(broker);
    for batch in 0..3 {
        producer.send_all(
            (batch * BATCH..(batch + 1) * BATCH)
                .map(|n| Outgoing { partition: Some(0), ..Outgoing::numbered(&rig.sources[0], n, "one") }),
        );
    }
    damage_second_batch(&broker.segment(&rig.sources[0], 0), at);
    let mut config = rig.config(rig.service(1_000, "1s", "client_from = [\"header:client-id\"]", ""));
    config.kafka.push_str(kafka);
    let mut watermaster = Watermaster::spawn(&config);
    let status = watermaster.wait(DRAIN);
    let log = watermaster.log();
    assert_ne!(status.code(), Some(0), "{log}");
    let place = format!("a record of {}-0 can't be read", rig.sources[0]);
    assert!(log.contains(&place) && log.contains(says), "{log}");
    let numbers: Vec<_> = rig.read_target().iter().filter_map(|record| Identity::Value.of(record)).collect();
    assert!(numbers.iter().all(|number| *number < BATCH), "went on behind it: {numbers:?}");
}

#[test]
#[ignore = "needs a real Kafka and its jars: scripts/test"]
fn what_can_not_be_read_is_not_passed_over() {
    let broker = OwnBroker::start();
    // A wrong checksum: librdkafka would go on behind it.
    let checked = "\n[kafka.properties]\n\"check.crcs\" = \"true\"";
    stops_at_the_second_batch(&broker, "checksum", 20, checked, "MessageSet at offset 10 ");
    // What can't be unpacked, it would try again and again.
    stops_at_the_second_batch(&broker, "unpack", 0, "", "message at 10 of");
}
