//! Faults of the embedded broker.

// Each test crate that includes this module uses only a part of it.
#![allow(dead_code)]

use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use watermaster_kafka::embedded::Embedded;

/// Refuses the next batch that is produced, as a broker does when a record in it is invalid.
pub fn refuse_next_batch(broker: &Embedded) {
    let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_RECORD;
    broker.cluster().request_errors(RDKafkaApiKey::Produce, &[error]);
}

/// Takes the next batch for a repeat of an earlier one and drops it, as a broker does that refused a producer's first
/// batch and took its second.
pub fn take_next_batch_for_a_repeat(broker: &Embedded) {
    let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_DUPLICATE_SEQUENCE_NUMBER;
    broker.cluster().request_errors(RDKafkaApiKey::Produce, &[error]);
}

/// Refuses a producer id to this number of producers, which is fatal to them.
pub fn refuse_next_producers(broker: &Embedded, count: usize) {
    let errors = vec![RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED; count];
    broker.cluster().request_errors(RDKafkaApiKey::InitProducerId, &errors);
}

/// Expels the member that sends the next heartbeat from its group.
pub fn expel_a_member(broker: &Embedded) {
    let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID;
    broker.cluster().request_errors(RDKafkaApiKey::Heartbeat, &[error]);
}

/// Refuses this number of attempts to join a group, or all until [`allow_joins`].
pub fn refuse_joins(broker: &Embedded, count: usize) {
    let errors = vec![RDKafkaRespErr::RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS; count];
    broker.cluster().request_errors(RDKafkaApiKey::JoinGroup, &errors);
}

/// Lets members join again.
pub fn allow_joins(broker: &Embedded) {
    broker.cluster().clear_request_errors(RDKafkaApiKey::JoinGroup);
}

/// Has the brokers know the leaders of this topic, or not.
pub fn set_led(broker: &Embedded, name: &str, is_led: bool) {
    let error = match is_led {
        true => RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR,
        false => RDKafkaRespErr::RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE,
    };
    broker.cluster().topic_error(name, error).unwrap();
}

/// Denies all access to this topic from now on.
pub fn forbid_topic(broker: &Embedded, name: &str) {
    let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    broker.cluster().topic_error(name, error).unwrap();
}

/// Refuses the next commits: with a rebalance for each `true`, with an unknown error for each `false`.
pub fn refuse_next_commits(broker: &Embedded, group_changes: &[bool]) {
    let error = |&changes: &bool| match changes {
        true => RDKafkaRespErr::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS,
        false => RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN,
    };
    let errors: Vec<_> = group_changes.iter().map(error).collect();
    broker.cluster().request_errors(RDKafkaApiKey::OffsetCommit, &errors);
}

/// Stops answering on all connections to the first broker.
pub fn broker_down(broker: &Embedded) {
    broker.cluster().broker_down(1).unwrap();
}

/// Answers on connections to the first broker again.
pub fn broker_up(broker: &Embedded) {
    broker.cluster().broker_up(1).unwrap();
}
