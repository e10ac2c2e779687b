//! The control topic of a group on a real Kafka.

use std::time::Duration;

use watermaster_kafka::control::{ControlTopicError, ensure_topic};
use watermaster_settings::{Delivery, GroupProtocol, Kafka, OnDataLoss, OnForeignOffset, StartFrom, secrets::Secrets};

use crate::support::broker::{Broker, Topic, unique};

const TIMEOUT: Duration = Duration::from_secs(20);

pub fn kafka(broker: &Broker, instance: u64) -> Kafka {
    Kafka {
        bootstrap_servers: broker.bootstrap.clone(),
        group_id: "wm".to_owned(),
        instance_id: format!("wm-{instance}"),
        delivery: Delivery::AtLeastOnce,
        group_protocol: GroupProtocol::Classic,
        min_commit_interval: Duration::from_millis(20),
        commit_interval: Duration::from_millis(100),
        start_from: StartFrom::Earliest,
        on_foreign_offset: OnForeignOffset::Stop,
        on_data_loss: OnDataLoss::Stop,
        properties: [("broker.address.family".to_owned(), "v4".to_owned())].into(),
        secrets: Secrets::default(),
        property_files: Default::default(),
        schema_registry: None,
    }
}

#[test]
#[ignore = "needs Kafka: scripts/test"]
fn a_control_topic_is_made_once_and_has_one_partition() {
    let broker = Broker::of_this_run();
    let topic = unique("control");
    let former = unique("former");
    let made = ensure_topic(&kafka(&broker, 0), &topic, &former, None, TIMEOUT).expect("the topic is made");
    assert!(made.created && !made.former_exists);
    assert_eq!(made.missing_replicas, 2, "one broker holds one replica of three");
    let found = ensure_topic(&kafka(&broker, 1), &topic, &former, None, TIMEOUT).expect("the topic is there");
    assert!(!found.created);

    let wide = unique("control-wide");
    let _topics = broker.create(&[Topic::new(&wide, 2)]);
    let refused = ensure_topic(&kafka(&broker, 0), &wide, &former, None, TIMEOUT);
    assert!(matches!(refused, Err(ControlTopicError::Partitions { partitions: 2, .. })), "{refused:?}");
}
