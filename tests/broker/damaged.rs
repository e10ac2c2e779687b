//! Unreadable records stop the service: it never continues behind them.

use std::{fs::OpenOptions, os::unix::fs::FileExt as _, path::Path};

use crate::rig::{DRAIN_TIMEOUT, Rig, TargetTime};
use crate::support::producer::{Outgoing, Producer};
use crate::{support::own_broker::OwnBroker, support::record::Identity, support::watermaster::Watermaster};

/// The number of records in each of the three batches.
const BATCH: u64 = 10;
/// The length of a batch's header in bytes.
const HEADER: u64 = 61;
/// The part of that header which a batch's length field does not count: base offset and length.
const UNCOUNTED: u64 = 12;

fn u32_at(file: &std::fs::File, position: u64) -> u64 {
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, position).expect("the file is long enough");
    u32::from_be_bytes(bytes).into()
}

/// Inverts the byte of the second batch that lies `at` bytes behind its header.
fn damage_second_batch(segment: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(segment).expect("the segment file exists");
    let second = UNCOUNTED + u32_at(&file, 8);
    let mut byte = [0];
    file.read_exact_at(&mut byte, second + HEADER + at).expect("the second batch has records");
    file.write_all_at(&[!byte[0]], second + HEADER + at).expect("the segment can be written");
}

/// Asserts that the service, with the lines `kafka`, stops at the second batch and logs `says`.
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
    let status = watermaster.wait(DRAIN_TIMEOUT);
    let log = watermaster.log();
    assert_ne!(status.code(), Some(0), "{log}");
    let place = format!("a record of {}-0 can't be read", rig.sources[0]);
    assert!(log.contains(&place) && log.contains(says), "{log}");
    let numbers: Vec<_> = rig.read_target().iter().filter_map(|record| Identity::Value.of(record)).collect();
    assert!(
        numbers.iter().all(|number| *number < BATCH),
        "the service continued behind the damaged batch: {numbers:?}"
    );
}

#[test]
#[ignore = "needs a real Kafka and its jars: scripts/test"]
fn an_unreadable_batch_stops_the_service() {
    let broker = OwnBroker::start();
    // A wrong checksum, after which librdkafka would continue with the next batch.
    let checked = "\n[kafka.properties]\n\"check.crcs\" = \"true\"";
    stops_at_the_second_batch(&broker, "checksum", 20, checked, "MessageSet at offset 10 ");
    // A batch that cannot be unpacked, which librdkafka would retry without end.
    stops_at_the_second_batch(&broker, "unpack", 0, "", "message at 10 of");
}
