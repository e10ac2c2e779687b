//! `max_open`: no more admitted records than this that the service's own consumer group has not committed.

use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::rig::{DRAIN_TIMEOUT, Rig, TARGET_PARTITIONS, TargetTime};
use crate::support::producer::{Outgoing, Producer};
use crate::support::wait::wait_until;
use crate::{support::broker::Broker, support::reader::read_all, support::watermaster::Watermaster};

const GROUP: &str = "bureau";
const MAX_OPEN: i64 = 200;
const RECORDS: u64 = 3_000;
/// The most records that the service finishes before it commits.
const STEP: i64 = 70;
const TIMEOUT: Duration = Duration::from_secs(10);

/// A service that commits what it finished, and knows how many records are open.
struct Service<'r> {
    rig: &'r Rig,
    consumer: BaseConsumer,
    committed: [i64; TARGET_PARTITIONS as usize],
}

impl Service<'_> {
    fn new(rig: &Rig) -> Service<'_> {
        let mut client = rig.broker.client();
        client.set("group.id", format!("{}.{GROUP}", rig.name)).set("enable.auto.commit", "false");
        let service = Service { rig, consumer: client.create().expect("a consumer"), committed: Default::default() };
        service.commit();
        service
    }

    fn commit(&self) {
        let mut list = TopicPartitionList::new();
        for (partition, offset) in (0..).zip(self.committed) {
            list.add_partition_offset(&self.rig.target, partition, Offset::Offset(offset)).expect("an offset");
        }
        self.consumer.commit(&list, CommitMode::Sync).expect("nothing joined the group");
    }

    /// Returns the open records of each partition. Nothing else commits, so the sum is exact.
    fn open(&self) -> Vec<i64> {
        let end = |partition| self.consumer.fetch_watermarks(&self.rig.target, partition, TIMEOUT).expect("the end").1;
        (0..).zip(self.committed).map(|(partition, committed)| end(partition) - committed).collect()
    }

    /// Finishes and commits some records. Returns the number of open ones before.
    fn work(&mut self) -> i64 {
        let open = self.open();
        let mut left = STEP;
        for (committed, open) in self.committed.iter_mut().zip(&open) {
            let finished = left.min(*open);
            (*committed, left) = (*committed + finished, left - finished);
        }
        self.commit();
        open.iter().sum()
    }
}

#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn open_records_are_bounded_while_the_group_commits_and_not_without_it() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "open", 1, 2, TargetTime::Create);
    let keys = format!("scope = \"instance\"\nmax_open = {MAX_OPEN}\nconsumer_group = \"{}.{GROUP}\"", rig.name);
    let mut watermaster = Watermaster::start(&rig.config(rig.service(100_000, "1s", &keys, "")));
    let mut service = Service::new(&rig);
    let producer = Producer::to(&broker);
    let send = || (0..RECORDS).for_each(|number| producer.send(&Outgoing::numbered(&rig.sources[0], number, "home")));
    send();

    let (mut finished, mut most, deadline) = (0, 0, Instant::now() + DRAIN_TIMEOUT);
    while finished < RECORDS as i64 {
        assert!(Instant::now() < deadline, "{finished} records were finished; at most {most} were open");
        most = most.max(service.work());
        finished = service.committed.iter().sum();
    }
    assert!(most <= MAX_OPEN, "{most} records were open");
    // The bound was in reach all the time, so that the test is about it.
    assert!(most > MAX_OPEN / 2, "at most {most} records were open");

    // Without commits there is no signal, and the program says so.
    send();
    wait_until("the bound is reached", DRAIN_TIMEOUT, || service.open().iter().sum::<i64>() == MAX_OPEN);
    assert_eq!(watermaster.metric("watermaster_max_open_records", &[]), Some(MAX_OPEN as f64));
    wait_until("the open records are shown", DRAIN_TIMEOUT, || {
        watermaster.metric("watermaster_open_records", &[]) == Some(MAX_OPEN as f64)
    });
    broker.delete_group(&format!("{}.{GROUP}", rig.name));
    wait_until("all records are admitted", DRAIN_TIMEOUT, || service.open().iter().sum::<i64>() == RECORDS as i64);
    assert_eq!(watermaster.metric("watermaster_open_records", &[]), None);
    assert!(watermaster.log().contains("they are not bounded"), "{}", watermaster.log());
    assert!(read_all(&broker, &rig.dead_letter).is_empty());
    watermaster.terminate(DRAIN_TIMEOUT);
}

/// Behind the group's committed offset lie an aborted transaction and its mark: the service has nothing to do, and would
/// never commit again.
#[test]
#[ignore = "needs a real Kafka: scripts/test"]
fn records_of_an_aborted_transaction_take_no_room_for_long() {
    let broker = Broker::of_this_run();
    let rig = Rig::new(&broker, "aborted", 1, 2, TargetTime::Create);
    let service = Service::new(&rig);
    let mut client = broker.client();
    client.set("transactional.id", format!("{}.other", rig.name)).set("partitioner", "murmur2_random");
    let other: BaseProducer = client.create().expect("a producer");
    other.init_transactions(TIMEOUT).expect("the broker knows the producer");
    other.begin_transaction().expect("a transaction");
    for number in 0..2 * MAX_OPEN {
        other.send(BaseRecord::<str, str>::to(&rig.target).key(&number.to_string()).payload("x")).expect("room");
    }
    other.flush(TIMEOUT).expect("the broker has the records");
    other.abort_transaction(TIMEOUT).expect("the transaction is aborted");
    wait_until("the marks of the abort", TIMEOUT, || service.open().iter().sum::<i64>() > 2 * MAX_OPEN);

    let keys = format!("scope = \"instance\"\nmax_open = {MAX_OPEN}\nconsumer_group = \"{}.{GROUP}\"", rig.name);
    let mut watermaster = Watermaster::start(&rig.config(rig.service(100_000, "1s", &keys, "")));
    let producer = Producer::to(&broker);
    let records = MAX_OPEN as u64 / 2;
    (0..records).for_each(|number| producer.send(&Outgoing::numbered(&rig.sources[0], number, "home")));
    wait_until("the records arrive", DRAIN_TIMEOUT, || read_all(&broker, &rig.target).len() as u64 == records);
    // The program still counted the open records: the tail took no room.
    assert!(!watermaster.log().contains("they are not bounded"), "{}", watermaster.log());
    watermaster.terminate(DRAIN_TIMEOUT);
}
