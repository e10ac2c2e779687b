//! Three hundred partitions with offset maps of the maximal length: four times the size that a broker accepts in one
//! request.

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::{Offset, TopicPartitionList};
use watermaster_core::offset_map::{MapBudget, encode};
use watermaster_core::tracker::Tracker;

use crate::exactly_once::{STOP_TIMEOUT, config, follow, rounds};
use crate::rig::{DRAIN_TIMEOUT, Rig, TargetTime};
use crate::support::producer::{Outgoing, Producer};
use crate::{
    support::broker::Broker, support::config::SHORT_SESSION, support::record::Identity,
    support::watermaster::Watermaster,
};

const PARTITIONS: i32 = 300;
/// The number of records in each partition, of which every second one is already completed.
const RECORDS: u64 = 100;
/// [`PARTITIONS`] as `u64`: record n is at offset n / 300 of its partition.
const EACH: u64 = PARTITIONS as u64;
/// The number of offsets in the predecessor's offset map, of which every second one is completed. More would leave no
/// room in the metadata for recent admissions.
const SPAN: i64 = 56_000;

/// Commits, as a predecessor would, offset maps of 3 700 characters in which every second record is completed; returns
/// the length of a map. The maps are made up, because real records would take an hour to lead to them.
fn commit_as_predecessor(broker: &Broker, rig: &Rig) -> usize {
    let done = (0..SPAN).filter(|offset| offset % 2 == 1).map(|offset| offset..offset + 1).collect();
    let map =
        encode(MapBudget::default(), &Tracker::restore(0, &done), 50, &[], None).expect("the map fits its budget");
    let mut client = broker.client();
    client.set("group.id", format!("{}.kyc", rig.name)).set("enable.auto.commit", "false");
    let consumer: BaseConsumer = client.create().expect("a consumer");
    // A broker does not accept all partitions in one request.
    for partitions in (0..PARTITIONS).collect::<Vec<_>>().chunks(50) {
        let mut list = TopicPartitionList::new();
        for partition in partitions {
            let mut element = list.add_partition(&rig.sources[0], *partition);
            element.set_offset(Offset::Offset(0)).expect("a valid offset");
            element.set_metadata(&map);
        }
        consumer.commit(&list, CommitMode::Sync).expect("the group is empty");
    }
    map.chars().count()
}

fn numbered(rig: &Rig, n: u64) -> Outgoing {
    let partition = (n % EACH) as i32;
    // One client for each partition: the scheduler alternates, so that a round has records of every partition.
    let client = format!("client-{partition}");
    Outgoing { partition: Some(partition), ..Outgoing::numbered(&rig.sources[0], n, &client) }
}

mod long {
    use super::*;

    #[test]
    #[ignore = "needs a real Kafka: scripts/test --long"]
    fn three_hundred_full_maps_are_committed_together() {
        let broker = Broker::of_this_run();
        let rig = Rig::new(&broker, "maps", 1, PARTITIONS, TargetTime::Create);
        let records = RECORDS * EACH;
        Producer::to(&broker).send_all((0..records).map(|n| numbered(&rig, n)));
        let chars = commit_as_predecessor(&broker, &rig);
        eprintln!("{PARTITIONS} maps of {chars} characters: {} KiB", chars * 3 * PARTITIONS as usize / 1024);
        assert!(chars > 3_700);

        let mut config = config(&rig, 20_000, "only");
        config.services[0].cycle = "10s";
        config.commit_interval = "500ms";
        config.kafka.push_str(SHORT_SESSION);
        let mut follower = follow(&broker, &rig);
        let mut watermaster = Watermaster::start(&config);
        follower.wait_for(records / 8, DRAIN_TIMEOUT);
        let used = watermaster.metric("watermaster_map_used_ratio", &[]).unwrap_or(0.0);
        eprintln!("map_used_ratio {used}, {}", rounds(&watermaster));
        assert!((0.95..=1.0).contains(&used), "the fullest offset map uses {used} of its budget");
        watermaster.kill();

        watermaster = Watermaster::start(&config);
        follower.wait_for(records / 2, DRAIN_TIMEOUT);
        eprintln!("{}", rounds(&watermaster));
        let aborted = watermaster.metric("watermaster_rounds_total", &["outcome=\"aborted\""]);
        assert_eq!(aborted, Some(0.0), "{}", watermaster.log());
        assert_eq!(watermaster.terminate(STOP_TIMEOUT).code(), Some(0), "{}", watermaster.log());

        let mut numbers: Vec<u64> = rig.read_target().iter().filter_map(|record| Identity::Value.of(record)).collect();
        numbers.sort_unstable();
        // The records at the even offsets of each partition were not completed.
        let waited: Vec<u64> = (0..records).filter(|n| (n / EACH).is_multiple_of(2)).collect();
        assert!(numbers == waited, "{} records delivered, {} expected", numbers.len(), waited.len());
        assert_eq!(rig.read_dead_letter().len(), 0);
    }
}
