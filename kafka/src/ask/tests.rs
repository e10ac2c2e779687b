use std::path::Path;

use rdkafka::ClientConfig;
use rdkafka::consumer::CommitMode;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use watermaster_settings::config::Config;

use super::*;
use crate::embedded::Embedded;

const TIMEOUT: Duration = Duration::from_secs(30);

#[test]
fn a_lag_counts_from_the_offsets_that_the_group_committed() {
    let broker = Embedded::start(1).unwrap();
    broker.create_topic("target", 3).unwrap();
    let text = include_str!("../../../config/watermaster.minimal.toml");
    let config = Config::parse(text, Path::new("test.toml"), [], crate::PROPERTY_RULES);
    let mut settings = config.expect("the configuration is valid").settings;
    settings.kafka.bootstrap_servers = broker.bootstrap_servers();
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", broker.bootstrap_servers()).set("group.id", "bureau");
    let producer: ThreadedProducer<DefaultProducerContext> = client.create().unwrap();
    for partition in [0; 10].into_iter().chain([1; 5]) {
        let record = BaseRecord::<(), str>::to("target").partition(partition).payload("x");
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(TIMEOUT).unwrap();

    let asker = Asker::new(&settings.kafka, "asker").unwrap();
    assert_eq!(asker.partitions("target", TIMEOUT).unwrap(), 3);
    assert_eq!(asker.lag("bureau", "target", TIMEOUT).unwrap(), None, "the group has committed nothing");
    let consumer: BaseConsumer = client.create().unwrap();
    let commit = |partition, offset| {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset("target", partition, Offset::Offset(offset)).unwrap();
        consumer.commit(&list, CommitMode::Sync).unwrap();
        asker.lag("bureau", "target", TIMEOUT).unwrap()
    };
    assert_eq!(commit(0, 4), Some(6), "the other partitions do not count");
    assert_eq!(commit(1, 5), Some(6));
    assert_eq!(commit(0, 10), Some(0));
    assert!(asker.partitions("missing", TIMEOUT).is_err());
}

/// The bug: a coordinator that did not answer in time had the exit code of a wrong configuration.
#[test]
fn a_question_without_an_answer_is_no_refusal() {
    let asked = |code| AskError::Client(KafkaError::Client(ClientError::OffsetFetch(code)));
    assert!([Code::OperationTimedOut, Code::CoordinatorNotAvailable].into_iter().all(|code| asked(code).is_silence()));
    assert!(!asked(Code::TopicAuthorizationFailed).is_silence());
    let unmade = ClientError::ClientCreation("no certificate".to_owned());
    assert!(!AskError::Client(KafkaError::Client(unmade)).is_silence());
    assert!(!AskError::MissingTopic { topic: "target".to_owned() }.is_silence());
}
