use std::path::Path;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use watermaster_settings::{Settings, config::Config};

use super::*;
use crate::dead_letters::{DoneState, Holder, Tally};
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
        Backlog::open(&settings.kafka, &settings.services[0], TIMEOUT).unwrap()
    }

    /// Writes dead letters with these reasons and times.
    fn write(&self, partition: i32, letters: &[(&str, i64)]) {
        for (reason, time) in letters {
            let header = |key, value| Header { key, value: Some(value) };
            let headers = OwnedHeaders::new().insert(header("throttle-reason", "of the record itself"));
            let headers = headers.insert(header("throttle-reason", *reason)).insert(header("later", "x"));
            let record = BaseRecord::<(), str>::to(TOPIC).partition(partition).payload("x").timestamp(*time);
            self.producer.send(record.headers(headers)).map_err(|(error, _)| error).unwrap();
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

/// Looks until all dead letters are counted, and returns the tallies that are not empty.
fn shown(backlog: &mut Backlog) -> Vec<(&'static str, u64, i64)> {
    let deadline = Instant::now() + TIMEOUT;
    let counted = loop {
        let counted = backlog.look(true, TIMEOUT).unwrap().counted.expect("they are counted");
        if counted.uncounted == 0 {
            break counted;
        }
        assert!(Instant::now() < deadline, "{counted:?}");
    };
    let shown = crate::dead_letters::REASON_LABELS.into_iter().zip(counted.tallies);
    let shown = shown.map(|(label, Tally { records, oldest_ms })| (label, records, oldest_ms.unwrap_or(-1)));
    shown.filter(|(_, records, _)| *records > 0).collect()
}

#[test]
fn dead_letters_are_counted_by_reason_from_the_position_of_the_job() {
    let letters = Letters::new();
    let mut backlog = letters.backlog();
    let mut look = || shown(&mut backlog);
    assert_eq!(look(), []);
    letters.write(0, &[("expired", 30), ("expired", 20), ("queue_full", 10)]);
    letters.write(1, &[("com.example.Error", 5), ("expired", 40)]);
    assert_eq!(look(), [("queue_full", 1, 10), ("expired", 3, 20), ("_other", 1, 5)]);
    letters.write(0, &[("queue_full", 7)]);
    assert_eq!(look(), [("queue_full", 2, 7), ("expired", 3, 20), ("_other", 1, 5)]);
    // Another job does a dead letter in the middle; the job of all dead letters passes a part of a chunk, then all of a
    // partition.
    letters.record(&[(1, 0)]);
    assert_eq!(look(), [("queue_full", 2, 7), ("expired", 3, 20)]);
    letters.move_job(0, 1);
    assert_eq!(look(), [("queue_full", 2, 7), ("expired", 2, 20)]);
    letters.move_job(1, 2);
    assert_eq!(look(), [("queue_full", 2, 7), ("expired", 1, 20)]);
    let unread = backlog.look(false, TIMEOUT).unwrap();
    assert_eq!((unread.offsets, unread.oldest_ms), (3, Some(20)));
    assert_eq!(backlog.look(false, TIMEOUT).unwrap().counted, None);
    assert!(backlog.chunks.is_empty());
    assert_eq!(shown(&mut backlog), [("queue_full", 2, 7), ("expired", 1, 20)]);
    letters.record(&[(0, 1), (0, 3)]);
    assert_eq!(shown(&mut backlog), [("queue_full", 1, 10)]);
    letters.record(&[(0, 2)]);
    assert_eq!(backlog.look(true, TIMEOUT).unwrap(), Unread { counted: Some(Counted::default()), ..Unread::default() });
}
