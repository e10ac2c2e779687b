//! The topic of a control log: it is made if it is missing, and its settings are checked.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseProducer, Producer as _};
use watermaster_settings as settings;

use crate::client::{self, KafkaError, LoggingContext};
use crate::preflight::block_on;

/// The replicas of a control topic on three brokers or more.
const REPLICAS: usize = 3;
/// The least bytes of a batch that a control topic has to take: a batch may hold two posts, of up to 500 KB each.
pub(crate) const MAX_MESSAGE_BYTES: &str = "1000000";
/// The settings of a control topic that are the same on any cluster. Compaction keeps the last records of each member,
/// and leaves the newest ones alone, so that a reader that is behind for less than a minute has no gap.
pub(crate) const SETTINGS: &[(&str, &str)] = &[
    ("cleanup.policy", "compact"),
    ("min.compaction.lag.ms", "60000"),
    ("delete.retention.ms", "86400000"),
    ("segment.ms", "600000"),
    ("max.message.bytes", MAX_MESSAGE_BYTES),
    // A leader that lacks records would give parts of the capacity away twice.
    ("unclean.leader.election.enable", "false"),
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
    /// No broker answered.
    #[error("no answer about the control topic {topic}: {source}")]
    Unanswered { topic: String, source: ClientError },
    /// The brokers refuse to make the topic.
    #[error(
        "the control topic {topic} is missing, and this program may not make it ({code}); make it with\n  {command}\n\
         or, for a single instance, set scope = \"instance\""
    )]
    Refused { topic: String, code: Code, command: String },
    /// The topic has several partitions, and only one of them would be read.
    #[error("the control topic {topic} has {partitions} partitions; it needs exactly one")]
    Partitions { topic: String, partitions: usize },
}

impl ControlTopicError {
    /// Returns whether another attempt may succeed, because brokers come and go.
    pub fn passes_by(&self) -> bool {
        match self {
            ControlTopicError::Unanswered { .. } => true,
            ControlTopicError::Refused { code, .. } => matches!(code, Code::RequestTimedOut | Code::NotController),
            ControlTopicError::Client(_) | ControlTopicError::Partitions { .. } => false,
        }
    }
}

/// Makes the control topic unless it is there, and looks for `former`, the control topic of the former version. Waits
/// up to `timeout` for each answer.
///
/// # Errors
/// The topic is missing and can't be made, or it has more than one partition.
pub fn ensure_topic(
    kafka: &settings::Kafka, topic: &str, former: &str, timeout: Duration,
) -> Result<EnsuredTopic, ControlTopicError> {
    let config = client::config(kafka, &[], &[("allow.auto.create.topics", "false")]);
    let asker: BaseProducer<_> = client::create(&config, LoggingContext::default()).map_err(KafkaError::from)?;
    let unanswered = |source| ControlTopicError::Unanswered { topic: topic.to_owned(), source };
    let metadata = asker.client().fetch_metadata(None, timeout).map_err(unanswered)?;
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
    let replicas = brokers.clamp(1, REPLICAS);
    let insync = (replicas - 1).max(1).to_string();
    let mut new = NewTopic::new(topic, 1, TopicReplication::Fixed(replicas as i32));
    for (name, value) in SETTINGS.iter().chain(&[("min.insync.replicas", insync.as_str())]) {
        new = new.set(name, value);
    }
    let admin: AdminClient<_> = client::create(&config, LoggingContext::default()).map_err(KafkaError::from)?;
    let options = AdminOptions::new().request_timeout(Some(timeout)).operation_timeout(Some(timeout));
    let created = block_on(admin.create_topics([&new], &options)).map_err(unanswered)?;
    match created.into_iter().next() {
        None | Some(Ok(_)) => Ok(EnsuredTopic { created: true, missing_replicas: REPLICAS - replicas, ..there }),
        // Another instance was faster.
        Some(Err((_, Code::TopicAlreadyExists))) => Ok(there),
        Some(Err((_, code))) => {
            let command = command(kafka, topic, replicas, &insync);
            Err(ControlTopicError::Refused { topic: topic.to_owned(), code, command })
        }
    }
}

/// The command that makes the topic.
fn command(kafka: &settings::Kafka, topic: &str, replicas: usize, insync: &str) -> String {
    let mut command = format!(
        "kafka-topics.sh --bootstrap-server {} --create --topic {topic} --partitions 1 --replication-factor {replicas}",
        kafka.bootstrap_servers
    );
    for (name, value) in SETTINGS.iter().chain(&[("min.insync.replicas", insync)]) {
        command.push_str(&format!(" --config {name}={value}"));
    }
    command
}
