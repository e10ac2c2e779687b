//! The topic of a control log: it is made if it is missing, and its settings are checked.

use std::time::Duration;

use rdkafka::admin::{NewTopic, TopicReplication};
use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};
use watermaster_settings as settings;

use crate::ask::{self, TopicFacts};
use crate::client::{self, KafkaError};

/// The replicas of a control topic on three brokers or more, unless the target has more.
const REPLICAS: usize = 3;
/// The least `max.message.bytes` of a control topic: a batch holds a state, and loads of up to 256 KiB.
pub(crate) const MAX_MESSAGE_BYTES: &str = "1048576";
/// The least `min.compaction.lag.ms` of a control topic. A reader that is behind for less than this time sees each
/// state, so that the states at its position belong to one moment.
pub(crate) const COMPACTION_LAG: &str = "60000";
/// The settings that no control topic can do without. Compaction keeps the last state of each seat.
pub(crate) const REQUIRED_SETTINGS: &[(&str, &str)] = &[
    ("cleanup.policy", "compact"),
    // A leader that lacks states would give parts of the capacity away twice.
    ("unclean.leader.election.enable", "false"),
];
/// Further settings of a topic that is made here.
pub(crate) const MORE_SETTINGS: &[(&str, &str)] = &[
    ("min.compaction.lag.ms", COMPACTION_LAG),
    // A reader of rules that takes an hour still meets each tombstone.
    ("delete.retention.ms", "86400000"),
    // Only closed segments are compacted.
    ("segment.ms", "600000"),
    ("max.message.bytes", MAX_MESSAGE_BYTES),
];

/// The topic is there now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnsuredTopic {
    /// True if it was made now.
    pub created: bool,
    /// The replicas that the cluster has too few brokers for.
    pub missing_replicas: usize,
    /// The control topic of the former version is there, too.
    pub former_exists: bool,
}

/// The topic is missing and can't be made.
#[derive(Debug, thiserror::Error)]
pub enum ControlTopicError {
    #[error(transparent)]
    Client(#[from] KafkaError),
    #[error("no answer about the topic {topic}: {source}")]
    Unanswered { topic: String, source: ClientError },
    #[error(
        "the topic {topic} is missing, and this program may not make it ({code}); make it with\n  {command}{otherwise}"
    )]
    Refused { topic: String, code: Code, command: String, otherwise: &'static str },
    /// The topic has several partitions, and only one of them would be read.
    #[error("the topic {topic} has {partitions} partitions; it needs exactly one")]
    Partitions { topic: String, partitions: usize },
}

impl ControlTopicError {
    /// Returns whether another attempt may succeed, because brokers come and go.
    pub fn passes_by(&self) -> bool {
        match self {
            ControlTopicError::Unanswered { .. } => true,
            ControlTopicError::Refused { code, .. } => {
                // There are brokers for the replicas of the target; some of them may be away.
                matches!(code, Code::RequestTimedOut | Code::NotController | Code::InvalidReplicationFactor)
            }
            _ => false,
        }
    }
}

/// The way out for a control topic.
const WITHOUT_CONTROL: &str = "\nor, for a single instance, set scope = \"instance\"";

/// Makes the topic of a service's rules unless it is there. Its settings are those of a control topic.
///
/// # Errors
/// The topic is missing and can't be made, or it has more than one partition.
pub fn ensure_rules_topic(
    kafka: &settings::Kafka, topic: &str, timeout: Duration,
) -> Result<EnsuredTopic, ControlTopicError> {
    ensure(kafka, topic, topic, None, timeout, "")
}

/// Makes the control topic unless it is there, with as many replicas as the service's `target` or more. Looks for
/// `former`, the control topic of the former version. Waits up to `timeout` for each answer.
///
/// # Errors
/// The topic is missing and can't be made, or it has more than one partition.
pub fn ensure_topic(
    kafka: &settings::Kafka, topic: &str, former: &str, target: Option<&TopicFacts>, timeout: Duration,
) -> Result<EnsuredTopic, ControlTopicError> {
    ensure(kafka, topic, former, target, timeout, WITHOUT_CONTROL)
}

fn ensure(
    kafka: &settings::Kafka, topic: &str, former: &str, target: Option<&TopicFacts>, timeout: Duration,
    otherwise: &'static str,
) -> Result<EnsuredTopic, ControlTopicError> {
    let config = client::config(kafka, &[], &[("allow.auto.create.topics", "false")]);
    let unanswered = |source| ControlTopicError::Unanswered { topic: topic.to_owned(), source };
    let metadata = client::consumer(&config)?.fetch_metadata(None, timeout).map_err(unanswered)?;
    let brokers = metadata.brokers().len();
    let find = |name| metadata.topics().iter().find(|found| found.name() == name);
    let former_exists = former != topic && find(former).is_some();
    let there = EnsuredTopic { created: false, missing_replicas: 0, former_exists };
    if let Some(found) = find(topic) {
        let partitions = found.partitions().len();
        if partitions != 1 {
            return Err(ControlTopicError::Partitions { topic: topic.to_owned(), partitions });
        }
        return Ok(there);
    }
    let (replicas, insync) = replicas(brokers, target);
    let insync = insync.to_string();
    let mut new = NewTopic::new(topic, 1, TopicReplication::Fixed(replicas as i32));
    for (name, value) in settings_of(&insync) {
        new = new.set(name, value);
    }
    match ask::create_topic(&config, &new, timeout).map_err(unanswered)? {
        Ok(true) => Ok(EnsuredTopic { created: true, missing_replicas: REPLICAS.saturating_sub(replicas), ..there }),
        // Another instance was faster.
        Ok(false) => Ok(there),
        Err(code) => {
            let command = command(kafka, topic, replicas, &insync);
            Err(ControlTopicError::Refused { topic: topic.to_owned(), code, command, otherwise })
        }
    }
}

/// Returns the number of replicas of a new control topic, and how many of them have to hold a record. A control topic
/// that loses records is as bad as a target that does.
fn replicas(brokers: usize, target: Option<&TopicFacts>) -> (usize, u64) {
    let usual = brokers.clamp(1, REPLICAS);
    let of_target = target.map_or((0, 0), |target| (target.replication, target.in_sync().unwrap_or(0)));
    (usual.max(of_target.0), (usual as u64 - 1).max(1).max(of_target.1))
}

fn settings_of(insync: &str) -> impl Iterator<Item = (&str, &str)> {
    REQUIRED_SETTINGS.iter().chain(MORE_SETTINGS).copied().chain([("min.insync.replicas", insync)])
}

/// The command that makes the topic.
fn command(kafka: &settings::Kafka, topic: &str, replicas: usize, insync: &str) -> String {
    let mut command = format!(
        "kafka-topics.sh --bootstrap-server {} --create --topic {topic} --partitions 1 --replication-factor {replicas}",
        kafka.bootstrap_servers
    );
    for (name, value) in settings_of(insync) {
        command.push_str(&format!(" --config {name}={value}"));
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(replication: usize, insync: Option<u64>) -> TopicFacts {
        TopicFacts { replication, min_insync_replicas: insync, ..TopicFacts::default() }
    }

    /// The check refuses fewer replicas than the target's: the program must not make a topic that it refuses.
    #[test]
    fn a_new_topic_has_at_least_the_replicas_of_the_target() {
        assert_eq!([1, 2, 3, 9].map(|brokers| replicas(brokers, None)), [(1, 1), (2, 1), (3, 2), (3, 2)]);
        assert_eq!(replicas(9, Some(&target(5, Some(4)))), (5, 4));
        assert_eq!(replicas(9, Some(&target(1, Some(1)))), (3, 2));
        // A broker is away.
        assert_eq!(replicas(2, Some(&target(3, None))), (3, 1));
        // The target asks for more than it has: it refuses each record.
        assert_eq!(replicas(1, Some(&target(1, Some(2)))), (1, 1));
    }
}
