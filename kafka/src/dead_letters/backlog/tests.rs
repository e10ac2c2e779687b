use std::path::Path;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use watermaster_settings::{Settings, config::Config};

use super::*;
use crate::dead_letters::{DoneState, Holder};
use crate::embedded::Embedded;

const TIMEOUT: Duration = Duration::from_secs(30);
const TOPIC: &str = "kyc.dead-letter";

/// A dead-letter topic with two partitions.
struct Letters {
    broker: Embedded,
    producer: ThreadedProducer<DefaultProducerContext>,
}

impl Letters {
    fn new() -> Letters {
        let broker = Embedded::start(1).unwrap();
        broker.create_topic(TOPIC, 2).unwrap();
        broker.create_topic(&format!("{TOPIC}.ledger"), 1).unwrap();
        let producer = Self::client(&broker).create().unwrap();
        Letters { broker, producer }
    }

    fn client(broker: &Embedded) -> ClientConfig {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", broker.bootstrap_servers());
        client
    }

    fn settings(&self) -> Settings {
        let text = include_str!("../../../../config/watermaster.minimal.toml");
        let config = Config::parse(text, Path::new("test.toml"), [], crate::PROPERTY_RULES);
        let mut settings = config.expect("the configuration is valid").settings;
        settings.kafka.bootstrap_servers = self.broker.bootstrap_servers();
        settings.services[0].dead_letter = TOPIC.to_owned();
        settings
    }

    fn backlog(&self) -> Backlog {
        let settings = self.settings();
        let asker = Asker::new(&settings.kafka, "asker").unwrap();
        Backlog::open(Arc::new(asker), &settings.kafka, &settings.services[0], TOPIC, TIMEOUT).unwrap()
    }

    /// Writes dead letters with these times.
    fn write(&self, partition: i32, times: &[i64]) {
        for time in times {
            let record = BaseRecord::<(), str>::to(TOPIC).partition(partition).payload("x").timestamp(*time);
            self.producer.send(record).map_err(|(error, _)| error).unwrap();
        }
        self.producer.flush(TIMEOUT).unwrap();
    }

    /// Records in the ledger that these dead letters, by partition and offset, are done.
    fn record(&self, done: &[(i32, i64)]) {
        let settings = self.settings();
        let service = &settings.services[0];
        let mut reader = Reader::open(&settings.kafka, "recorder", TOPIC, TIMEOUT).unwrap();
        let mut ledger = Ledger::new(service, &reader);
        ledger.load(&mut reader, TIMEOUT).unwrap();
        done.iter().for_each(|(partition, offset)| ledger.mark(*partition, *offset, DoneState::Closed));
        let holder = Holder { process: "test".to_owned(), job: "test".to_owned(), transaction: 1 };
        for entry in ledger.take_changes(&holder) {
            let (key, value) = (entry.key.unwrap(), entry.value.unwrap());
            self.producer.send(BaseRecord::to(&entry.topic).key(&key).payload(&value)).map_err(|(e, _)| e).unwrap();
        }
        self.producer.flush(TIMEOUT).unwrap();
    }

    fn move_job(&self, partition: i32, offset: i64) {
        let settings = self.settings();
        let group = Job::group(&settings.kafka, &settings.services[0], DEFAULT_JOB);
        let consumer: BaseConsumer = Self::client(&self.broker).set("group.id", group).create().unwrap();
        let mut list = TopicPartitionList::new();
        let mut element = list.add_partition(TOPIC, partition);
        element.set_offset(Offset::Offset(offset)).unwrap();
        element.set_metadata(r#"{"end":9,"select":{"conditions":[],"since":null},"to":"source"}"#);
        consumer.commit(&list, CommitMode::Sync).unwrap();
    }
}

#[test]
fn open_dead_letters_are_those_that_no_job_has_passed_and_the_ledger_does_not_hold() {
    let letters = Letters::new();
    let mut backlog = letters.backlog();
    let mut look = || {
        let unread = backlog.look(TIMEOUT).unwrap();
        (unread.offsets, unread.oldest_ms)
    };
    assert_eq!(look(), (0, None));
    letters.write(0, &[30, 20, 10]);
    letters.write(1, &[5, 40]);
    assert_eq!(look(), (5, Some(5)));
    letters.record(&[(1, 0)]);
    assert_eq!(look(), (4, Some(30)));
    letters.record(&[(1, 1), (0, 0), (0, 1)]);
    assert_eq!(look(), (1, Some(10)));
    letters.record(&[(0, 2)]);
    assert_eq!(look(), (0, None));
}

#[test]
fn the_newest_dead_letters_have_headers_and_a_state_and_no_value() {
    let letters = Letters::new();
    let mut backlog = letters.backlog();
    backlog.look(TIMEOUT).unwrap();
    assert_eq!(backlog.newest(100, TIMEOUT).unwrap(), NewestHeads { heads: Vec::new(), is_complete: true });
    letters.write(0, &(0..30).collect::<Vec<_>>());
    // Those of this program stand behind all others.
    let text = |key, value| Header { key, value };
    let many = (0..100).fold(OwnedHeaders::new(), |headers, _| headers.insert(text("other", Some("x"))));
    let long = "ü".repeat(1_000);
    let headers =
        many.insert(text("long", Some(&*long))).insert(Header { key: "bytes", value: Some(&[0xff_u8, 1][..]) });
    let headers = headers.insert(text("throttle-reason", Some("expired"))).insert(text("empty", None));
    let record = BaseRecord::<(), str>::to(TOPIC).partition(1).payload("x").timestamp(7).headers(headers);
    letters.producer.send(record).map_err(|(error, _)| error).unwrap();
    letters.producer.flush(TIMEOUT).unwrap();
    letters.record(&[(1, 0)]);
    backlog.look(TIMEOUT).unwrap();
    let NewestHeads { mut heads, is_complete } = backlog.newest(50, TIMEOUT).unwrap();
    assert!(is_complete);
    heads.sort_by_key(|head| (head.partition, head.offset));
    let (one, of_first) = heads.split_last().unwrap();
    // Each partition has its last 25.
    let last: Vec<_> = (5..30).map(|time| (0, time)).collect();
    assert_eq!(of_first.iter().map(|head| (head.partition, head.timestamp_ms)).collect::<Vec<_>>(), last);
    assert!(of_first.iter().all(|head| head.state.is_none() && head.headers.is_empty()));
    assert_eq!((one.partition, one.timestamp_ms, one.state), (1, 7, Some(DoneState::Closed)));
    assert_eq!((one.headers.len(), one.header(b"throttle-reason")), (64, Some("expired")));
    let [.., cut, bytes, _, empty] = one.headers.as_slice() else { panic!("{:?}", one.headers) };
    assert_eq!((cut.value.as_deref(), cut.bytes), (Some(&*format!("{}…", "ü".repeat(250))), 2_000));
    assert_eq!((bytes.value.as_deref(), empty.value.as_deref()), (Some("2 bytes that are no text"), None));
    // The looks go on as before.
    assert_eq!(backlog.look(TIMEOUT).unwrap().offsets, 30);
}

/// A client may write a megabyte into the headers of a record.
#[test]
fn few_bytes_are_read_for_the_newest_dead_letters() {
    let letters = Letters::new();
    let large = "x".repeat(430_000);
    for _ in 0..11 {
        let headers = OwnedHeaders::new().insert(Header { key: "large", value: Some(&*large) });
        let record = BaseRecord::<(), str>::to(TOPIC).partition(0).payload("x").headers(headers);
        letters.producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    letters.producer.flush(TIMEOUT).unwrap();
    let mut backlog = letters.backlog();
    backlog.look(TIMEOUT).unwrap();
    let NewestHeads { heads, is_complete } = backlog.newest(400, TIMEOUT).unwrap();
    assert_eq!((heads.len(), is_complete), (10, false));
    assert_eq!(backlog.look(TIMEOUT).unwrap().offsets, 11);
}

/// A job of a version without a ledger tells only by its committed offsets how far it is, also while it runs.
#[test]
fn dead_letters_that_a_job_of_a_former_version_passes_are_not_open() {
    let letters = Letters::new();
    letters.write(0, &[30, 20, 10]);
    let mut backlog = letters.backlog();
    for (position, open) in [(0, (3, Some(30))), (1, (2, Some(20))), (3, (0, None))] {
        letters.move_job(0, position);
        let unread = backlog.look(TIMEOUT).unwrap();
        assert_eq!((unread.offsets, unread.oldest_ms), open);
    }
}
