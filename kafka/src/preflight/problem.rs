//! Findings of the checks, with their severity and text.

use std::time::Duration;

use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};
use watermaster_settings::StartFrom;

use super::{TRANSACTION_LOG, history::History};
use crate::control::{COMPACTION_LAG, MAX_MESSAGE_BYTES};
use crate::event::ForeignOffset;

/// A finding of a check.
#[derive(Debug, Clone)]
pub struct Finding {
    pub severity: Severity,
    /// The service that it is about, unless it is about the brokers.
    pub service: Option<String>,
    pub topic: Option<String>,
    pub problem: Problem,
}

impl Finding {
    /// Returns whether the brokers may answer otherwise when they are asked again.
    pub fn may_pass(&self) -> bool {
        use Code::{BrokerNotAvailable, LeaderNotAvailable, ReplicaNotAvailable, RequestTimedOut};
        match self.problem {
            Problem::TopicUnanswered(_) => true,
            Problem::TopicRefused(code) => {
                matches!(code, BrokerNotAvailable | LeaderNotAvailable | ReplicaNotAvailable | RequestTimedOut)
            }
            _ => false,
        }
    }
}

/// The severity of a finding. With an error, its service can't work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Severity {
    #[strum(serialize = "note")]
    Info,
    Warning,
    Error,
}

/// A problem that was found. The text says how to resolve it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Problem {
    // ## A topic
    #[error("does not exist: create it")]
    MissingTopic,
    #[error("may not be seen: grant DESCRIBE, and READ on sources or WRITE on target and dead-letter topics")]
    HiddenTopic,
    #[error("is not a topic name that Kafka accepts")]
    InvalidTopicName,
    #[error("can't be looked up: {0}")]
    TopicUnanswered(#[source] ClientError),
    #[error("can't be looked up: {0}")]
    TopicRefused(Code),
    #[error("min.insync.replicas is {insync}, more than its {replicas} replicas: brokers may refuse every record")]
    TooFewReplicas { insync: u64, replicas: usize },
    #[error(
        "max.message.bytes is {bytes}, too little for the sources' records of up to {largest}{}: set it to {}",
        if *.headers > 0 { " and the throttle headers" } else { "" },
        .largest.saturating_add(*.headers)
    )]
    SmallRecords { bytes: u64, largest: u64, headers: u64 },
    #[error("has {replicas} replicas, the sources have {sources}")]
    FewerReplicas { replicas: u64, sources: u64 },
    #[error("min.insync.replicas is {insync}, the sources' is {sources}")]
    FewerInSync { insync: u64, sources: u64 },
    #[error("is compacted: it refuses records without a key, and drops older ones of the same key")]
    Compacted,
    #[error(
        "deletes dead letters after {}, before a person can look at them: set retention.ms to 604800000 (a week) or \
         more",
        humantime::format_duration(*.retention)
    )]
    ShortDeadLetters { retention: Duration },
    #[error(
        "holds {records} records, which take {} at the part of the capacity that {client} always has, and deletes them \
         after {}: set retention.ms to {} or more",
        humantime::format_duration(*.drained),
        humantime::format_duration(*.retention),
        .drained.as_millis()
    )]
    ShortRetention { client: String, records: u64, drained: Duration, retention: Duration },
    #[error("limits and retention of topics were not checked: {0}")]
    ConfigsUnanswered(#[source] ClientError),

    #[error(
        "no topic of the cluster matches topic_pattern = {pattern:?}{}",
        .nearest.as_ref().map(|topic| format!(": the nearest is {topic}")).unwrap_or_default()
    )]
    NothingMatches { pattern: String, nearest: Option<String> },
    #[error("the topics that match a pattern are not known: {0}")]
    NamesUnanswered(#[source] ClientError),

    // ## The offsets that a group starts at
    #[error("the group {group} has committed nothing: start_from is \"{start_from}\", and the sources hold {history}")]
    FreshGroup { group: String, history: History, start_from: StartFrom },
    #[error(
        "the group {group} has committed nothing, and the sources hold {history}. Write in [kafka] start_from = \
         \"earliest\" to read them all, or start_from = \"latest\" to begin with the records that come from now on{}",
        if *.enforce { "" } else { "; in shadow mode the service reads them all, and admits each at once" }
    )]
    UndecidedStart { group: String, history: History, enforce: bool },
    #[error(
        "an instance that starts {}: {foreign}{}",
        if *.replay { "goes on there, and may repeat or skip records" } else { "stops, unless it is told to go on" },
        if *.more > 0 { format!(". {} more partitions have such an offset", .more) } else { String::new() }
    )]
    ForeignOffset { foreign: ForeignOffset, more: usize, replay: bool },
    #[error("it was not checked whether the group {group} starts at old records: {reason}")]
    StartUnanswered { group: String, reason: String },

    // ## The group that reads the target
    #[error("the consumer group {group} has committed nothing in it: until it does, no capacity is found")]
    NothingCommitted { group: String },
    #[error("nothing tells how far the consumer group {group} is: grant DESCRIBE on the group ({reason})")]
    GroupUnanswered { group: String, reason: String },
    #[error(
        "the consumer group {group} committed nothing in it for {interval} while records waited: no capacity is found \
         from rarer commits. Have the service commit more often, or set pace.interval to more than its time between \
         two commits"
    )]
    RareCommits { group: String, interval: humantime::FormattedDuration },
    #[error(
        "other programs write about {rate} records a second to it: the capacity that is found is the part that they \
         leave"
    )]
    OtherWriters { rate: u64 },

    // ## A control topic
    #[error("does not exist: it is made at the start, if this program may make topics")]
    ControlMissing,
    #[error("has {partitions} partitions: it needs exactly one")]
    ControlPartitions { partitions: usize },
    #[error("{name} is {found}: the instances need {wanted}, or they could admit more than the capacity together")]
    ControlSetting { name: &'static str, found: String, wanted: &'static str },
    #[error(
        "has {replicas} replicas, the target has {target}: the instances need as many, or they could admit more than \
         the capacity together"
    )]
    ControlReplicas { replicas: u64, target: u64 },
    #[error(
        "min.insync.replicas is {insync}, the target's is {target}: the instances need as many, or they could admit \
         more than the capacity together"
    )]
    ControlInSync { insync: u64, target: u64 },
    #[error("min.insync.replicas is 1: a broker that dies could take parts of the capacity with it")]
    ControlSingleInSync,
    #[error(
        "min.compaction.lag.ms is {found}: set it to {COMPACTION_LAG} or more, or an instance that reads late may miss \
         states of others"
    )]
    ControlCompaction { found: String },
    #[error(
        "max.message.bytes is {found}: set it to {MAX_MESSAGE_BYTES} or more, or the loads of many clients do not fit, \
         and those of small ones are told as one sum"
    )]
    ControlBytes { found: String },

    // ## Transactions
    #[error(
        "the embedded broker's transactions are not reliable: kafka.delivery = \"exactly_once\" needs a real one \
         (\"at_least_once\" works here)"
    )]
    EmbeddedTransactions,
    #[error(
        "transaction.timeout.ms is {timeout}, the brokers allow {allowed} (transaction.max.timeout.ms): \
         set it to {allowed} or less in [kafka.properties]"
    )]
    LongTransactions { timeout: u128, allowed: u64 },
    #[error(
        "the transactions' log may not be seen; if it does not exist yet, transactions can't begin: the brokers want \
         {wanted} replicas of it (transaction.state.log.replication.factor), but there are only {brokers} brokers. \
         Grant DESCRIBE on {TRANSACTION_LOG} to have this checked, or ignore it if transactions work in this cluster"
    )]
    HiddenLogOfTooFewBrokers { wanted: u64, brokers: usize },
    #[error("the transactions' log was not checked: grant DESCRIBE on {TRANSACTION_LOG}, or ignore this")]
    HiddenLog,
    #[error(
        "transactions can't begin: the brokers want {wanted} replicas of their log \
         (transaction.state.log.replication.factor), but there are only {brokers} brokers"
    )]
    TooFewBrokers { wanted: u64, brokers: usize },
    #[error(
        "the transactions' log has {replicas} replicas, transaction.state.log.min.isr is {insync}: \
         transactions may never commit"
    )]
    ThinLog { replicas: usize, insync: u64 },
    #[error("the transactions' log has 1 replica: without its broker nothing is delivered")]
    SingleLog,
    #[error("a transactional producer can't be made: {0}")]
    NoProducer(#[source] ClientError),
    #[error(
        "not allowed to use the transactional id {probe}: exactly_once needs WRITE and DESCRIBE on {id} or, better, on \
         all that begin so"
    )]
    TransactionalIdDenied { probe: String, id: String },
    #[error(
        "not allowed to use the transactional id {probe}: instances with scope = \"group\" open the seats of each \
         other, with both deliveries, and need WRITE and DESCRIBE on all ids that begin with {prefix}; grant them \
         with\n  {command}\nor set scope = \"instance\""
    )]
    SeatsDenied { probe: String, prefix: String, command: String },
    #[error("not allowed to write idempotently: grant IDEMPOTENT_WRITE on the cluster")]
    IdempotentWriteDenied,
    #[error("transaction.timeout.ms is {timeout}, more than the brokers allow (transaction.max.timeout.ms)")]
    TransactionTimeoutRefused { timeout: u128 },
    #[error(
        "the brokers know no transactions: neither kafka.delivery = \"exactly_once\" nor scope = \"group\" works with \
         them"
    )]
    NoTransactions,
    #[error("no transaction could be prepared within {seconds} s: {reason} ({code})")]
    TransactionFailed { seconds: u64, reason: String, code: Code },

    // ## Group protocol
    #[error(
        "the partitions of a dead instance move after {session} (group.consumer.session.timeout.ms), \
         unless the group has a configuration of its own"
    )]
    SessionTimeout { session: humantime::FormattedDuration },
    #[error(
        "the brokers do not know kafka.group_protocol = \"consumer\" ({PROTOCOLS} is \"{protocols}\"): \
         {PROTOCOL_ADVICE}"
    )]
    UnknownGroupProtocol { protocols: String },
    #[error(
        "the brokers do not say whether they know kafka.group_protocol = \"consumer\"; if the service never joins: \
         {PROTOCOL_ADVICE}"
    )]
    UnclearGroupProtocol,
}

/// The brokers' configuration of the group protocols.
pub(super) const PROTOCOLS: &str = "group.coordinator.rebalance.protocols";
const PROTOCOL_ADVICE: &str = "set it to \"classic\", or use Apache Kafka 4.0 or later";

impl Problem {
    fn severity(&self) -> Severity {
        match self {
            Problem::ConfigsUnanswered(_)
            | Problem::ControlMissing
            | Problem::HiddenLog
            | Problem::FreshGroup { .. }
            | Problem::SessionTimeout { .. } => Severity::Info,
            Problem::TooFewReplicas { .. }
            | Problem::SmallRecords { .. }
            | Problem::NamesUnanswered(_)
            | Problem::NothingMatches { .. }
            | Problem::FewerReplicas { .. }
            | Problem::FewerInSync { .. }
            | Problem::Compacted
            | Problem::ShortDeadLetters { .. }
            | Problem::ShortRetention { .. }
            | Problem::UndecidedStart { enforce: false, .. }
            | Problem::StartUnanswered { .. }
            | Problem::ForeignOffset { .. }
            | Problem::NothingCommitted { .. }
            | Problem::GroupUnanswered { .. }
            | Problem::RareCommits { .. }
            | Problem::OtherWriters { .. }
            | Problem::ControlSingleInSync
            | Problem::ControlCompaction { .. }
            | Problem::ControlBytes { .. }
            | Problem::HiddenLogOfTooFewBrokers { .. }
            | Problem::ThinLog { .. }
            | Problem::SingleLog
            | Problem::TransactionalIdDenied { .. }
            | Problem::UnclearGroupProtocol => Severity::Warning,
            _ => Severity::Error,
        }
    }

    pub(super) fn of_brokers(self) -> Finding {
        Finding { severity: self.severity(), service: None, topic: None, problem: self }
    }

    pub(super) fn of_service(self, service: &str) -> Finding {
        Finding { service: Some(service.to_owned()), ..self.of_brokers() }
    }

    pub(super) fn of_topic(self, service: &str, topic: &str) -> Finding {
        Finding { topic: Some(topic.to_owned()), ..self.of_service(service) }
    }
}
