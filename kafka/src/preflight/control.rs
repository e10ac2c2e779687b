//! Checks the control topic of a service with `scope = "group"`.

use rdkafka::admin::ConfigResource;

use super::{problem::Problem, topics::TopicFacts};
use crate::control::{MAX_MESSAGE_BYTES, SETTINGS};

/// Compares a control topic with what a group needs. Other settings than these lose records that the group relies on; a
/// topic that takes small posts only costs fairness.
pub(super) fn compare(facts: &TopicFacts, config: Option<&ConfigResource>) -> Vec<Problem> {
    let mut problems = Vec::new();
    if facts.partitions != 1 {
        problems.push(Problem::ControlPartitions { partitions: facts.partitions });
    }
    let value = |name: &str| config?.get(name)?.value.clone();
    for (name, wanted) in SETTINGS {
        let is_enough = |found: &str| match name {
            // These only save or keep more.
            &"delete.retention.ms" | &"segment.ms" => true,
            &"max.message.bytes" => true,
            &"min.compaction.lag.ms" => found.parse::<i64>().is_ok_and(|found| found >= 60_000),
            _ => found == *wanted,
        };
        if let Some(found) = value(name).filter(|found| !is_enough(found)) {
            problems.push(Problem::ControlSetting { name, found, wanted });
        }
    }
    let wanted = MAX_MESSAGE_BYTES.parse().expect("a number");
    if let Some(found) = facts.max_message_bytes.filter(|&found| found < wanted) {
        problems.push(Problem::ControlPosts { found, wanted });
    }
    if facts.replication > 2 && facts.min_insync_replicas == Some(1) {
        problems.push(Problem::ControlInSync);
    }
    problems
}
