//! Asks brokers about themselves and their topics.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, ConfigResourceResult};
use rdkafka::admin::{OwnedResourceSpecifier, ResourceSpecifier};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};
use watermaster_settings::{GroupProtocol, Kafka, Settings};

use super::brokers::{self, BrokerFacts};
use super::{TRANSACTION_LOG, problem::Problem};
use crate::ask::{TopicFacts, block_on};
use crate::client::{self, KafkaError, LoggingContext};
use crate::{login::Login, refusal::Explanations};

/// The time that brokers have to know a topic: one of them may have just started, or the topic may be new.
const MISSING_TOPIC_TIMEOUT: Duration = Duration::from_secs(3);
const MISSING_TOPIC_INTERVAL: Duration = Duration::from_millis(300);
/// The longest wait for one attempt to reach a broker; librdkafka's errors are collected between two attempts.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The most events that are served between two attempts.
const MAX_EVENTS: usize = 100;
/// The text while librdkafka reports no error: brokers that want TLS or a login close other connections without a word.
const NO_ERROR: &str = "timed out; security.protocol may not be that of the brokers' port";

/// The state in which no broker has answered yet.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "no {} kafka.bootstrap_servers = \"{bootstrap_servers}\" within {} s: {last_error}",
    if *.refused { "connection to" } else { "answer from" }, .waited.as_secs()
)]
pub struct Unreachable {
    pub bootstrap_servers: String,
    pub waited: Duration,
    /// The reason, with librdkafka's text.
    pub last_error: String,
    /// True if waiting does not help: a client, a broker or its certificate is not accepted, or a host is not known.
    pub refused: bool,
}

/// The reason why the brokers can't be asked.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// librdkafka refuses the configuration, for example because a file of certificates is missing.
    #[error("kafka.properties: {0}")]
    Client(#[from] KafkaError),
    #[error(transparent)]
    Unreachable(Unreachable),
}

/// A connection for questions. It is a consumer's, since only consumers don't create the topics that they ask for.
pub struct PreflightClient {
    consumer: BaseConsumer<LoggingContext>,
    config: ClientConfig,
    login: Login,
    /// The time of the brokers' first answer.
    connected: Instant,
    /// The error of a topic about which no broker answered in time. The next ones would take as long.
    unanswered: RefCell<Option<ClientError>>,
}

/// Returns the properties of a client whose errors are returned: a line of the log for each would repeat them.
fn silent_config(kafka: &Kafka) -> ClientConfig {
    let mut config = client::config(kafka, &[], &[("allow.auto.create.topics", "false")]);
    client::silence(&mut config);
    config
}

impl PreflightClient {
    /// Connects to the brokers. While none answers, `keep_waiting` is called about once a second; it may end the wait.
    pub fn connect(
        kafka: &Kafka, mut keep_waiting: impl FnMut(&Unreachable) -> bool,
    ) -> Result<PreflightClient, ConnectError> {
        let (mut login, mut config) = (Login::new(kafka), silent_config(kafka));
        let mut consumer = client::consumer(&config)?;
        let began = Instant::now();
        let mut explanations = Explanations::default();
        while consumer.client().fetch_cluster_id(CONNECT_TIMEOUT).is_none() {
            login.renew(consumer.client());
            if login.is_outdated() {
                (login, config) = (Login::new(kafka), silent_config(kafka));
                consumer = client::consumer(&config)?;
            }
            // An event that is no record ends a poll, and with Kerberos an error stands behind lines of the log.
            (0..MAX_EVENTS).for_each(|_| drop(consumer.poll(Duration::ZERO)));
            let last_error = consumer.context().last_error();
            let unreachable = Unreachable {
                bootstrap_servers: kafka.bootstrap_servers.clone(),
                refused: last_error.as_ref().is_some_and(|error| error.refusal().is_some()),
                last_error: last_error.map_or_else(|| NO_ERROR.to_owned(), |error| explanations.of(kafka, &error)),
                waited: began.elapsed(),
            };
            if !keep_waiting(&unreachable) {
                return Err(ConnectError::Unreachable(unreachable));
            }
        }
        Ok(PreflightClient { consumer, config, login, connected: Instant::now(), unanswered: RefCell::default() })
    }

    /// Connects to the brokers, if one answers within this time or a second.
    pub fn connect_within(kafka: &Kafka, timeout: Duration) -> Result<PreflightClient, ConnectError> {
        PreflightClient::connect(kafka, |unreachable| unreachable.waited < timeout && !unreachable.refused)
    }

    /// Returns true if secrets have changed that only another client takes.
    pub fn has_old_secrets(&self) -> bool {
        self.login.is_outdated()
    }

    /// Returns the facts of a topic that has to exist. Asks again for some time if no broker knows it.
    pub(super) fn topic_facts(&self, topic: &str, timeout: Duration) -> Result<TopicFacts, Problem> {
        loop {
            let found = self.look_up(topic, timeout);
            if !matches!(found, Err(Problem::MissingTopic)) || self.connected.elapsed() >= MISSING_TOPIC_TIMEOUT {
                return found;
            }
            thread::sleep(MISSING_TOPIC_INTERVAL);
        }
    }

    /// Returns the names of all topics that may be seen.
    pub fn topic_names(&self, timeout: Duration) -> Result<Vec<String>, ClientError> {
        self.login.renew(self.consumer.client());
        // Serves errors that wait to be logged.
        self.consumer.poll(Duration::ZERO);
        let metadata = self.consumer.fetch_metadata(None, timeout)?;
        let exists = metadata.topics().iter().filter(|topic| topic.error().is_none() && !topic.partitions().is_empty());
        let mut names: Vec<String> = exists.map(|topic| topic.name().to_owned()).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Returns the facts of a topic by one answer.
    pub(super) fn look_up(&self, topic: &str, timeout: Duration) -> Result<TopicFacts, Problem> {
        if let Some(error) = &*self.unanswered.borrow() {
            return Err(Problem::TopicUnanswered(error.clone()));
        }
        let metadata = self.consumer.fetch_metadata(Some(topic), timeout).map_err(|error| {
            self.unanswered.replace(Some(error.clone()));
            Problem::TopicUnanswered(error)
        })?;
        let found = metadata.topics().first().ok_or(Problem::MissingTopic)?;
        let partitions = found.partitions();
        match found.error().map(Code::from) {
            None if partitions.is_empty() => Err(Problem::MissingTopic),
            None => {
                let replication = partitions.iter().map(|partition| partition.replicas().len()).min().unwrap_or(0);
                Ok(TopicFacts { partitions: partitions.len(), replication, ..TopicFacts::default() })
            }
            Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => Err(Problem::MissingTopic),
            Some(Code::TopicAuthorizationFailed) => Err(Problem::error(
                "may not be seen: grant DESCRIBE, and READ on sources or WRITE on target and dead-letter topics",
            )),
            Some(Code::InvalidTopic) => Err(Problem::error("is not a topic name that Kafka accepts")),
            Some(code) => Err(Problem::TopicRefused(code)),
        }
    }

    /// Returns the configuration of each topic that the broker describes.
    pub(super) fn topic_configs(
        &self, topics: &[&str], timeout: Duration,
    ) -> Result<BTreeMap<String, ConfigResource>, ClientError> {
        let resources: Vec<_> = topics.iter().map(|topic| ResourceSpecifier::Topic(topic)).collect();
        // Any broker knows; unless one is named, librdkafka waits for the controller, which the embedded broker never
        // tells.
        let metadata = topics.first().map(|topic| self.consumer.fetch_metadata(Some(topic), timeout));
        let broker = metadata.and_then(Result::ok).map(|metadata| metadata.orig_broker_id());
        let answers = self.configs(&resources, broker, timeout)?;
        let by_topic = |config: ConfigResource| match &config.specifier {
            OwnedResourceSpecifier::Topic(topic) => Some((topic.clone(), config)),
            OwnedResourceSpecifier::Group(_) | OwnedResourceSpecifier::Broker(_) => None,
        };
        Ok(answers.into_iter().filter_map(|answer| by_topic(answer.ok()?)).collect())
    }

    fn configs(
        &self, resources: &[ResourceSpecifier<'_>], broker: Option<i32>, timeout: Duration,
    ) -> Result<Vec<ConfigResourceResult>, ClientError> {
        let options = AdminOptions::new().request_timeout(Some(timeout)).broker_id(broker);
        let admin: AdminClient<_> = client::create(&self.config, LoggingContext::default(), AdminClient::inner)?;
        block_on(admin.describe_configs(resources, &options))
    }

    /// Returns facts about the brokers: only their number, unless the configuration depends on more.
    pub(super) fn broker_facts(&self, settings: &Settings, timeout: Duration) -> BrokerFacts {
        let needs_more =
            brokers::need_transactions(settings) || settings.kafka.group_protocol != GroupProtocol::Classic;
        // Without transactions, the program needs no permission for their log.
        let target = settings.services.first().map(|service| service.target.as_str()).filter(|_| !needs_more);
        let metadata = self.consumer.fetch_metadata(Some(target.unwrap_or(TRANSACTION_LOG)), timeout);
        let brokers = metadata.as_ref().map_or(0, |metadata| metadata.brokers().len());
        if !needs_more {
            return BrokerFacts { brokers, ..BrokerFacts::default() };
        }
        let cluster_id = self.consumer.client().fetch_cluster_id(timeout);
        let Ok(metadata) = metadata else {
            return BrokerFacts { cluster_id, ..BrokerFacts::default() };
        };
        let broker = metadata.orig_broker_id();
        let answers = self.configs(&[ResourceSpecifier::Broker(broker)], Some(broker), timeout);
        let config = answers.ok().and_then(|answers| answers.into_iter().find_map(Result::ok));
        let entries = |config: ConfigResource| {
            config.entries.into_iter().filter_map(|entry| Some((entry.name, entry.value?))).collect()
        };
        let log = metadata.topics().first();
        let partitions = log.map_or(&[][..], |topic| topic.partitions());
        let error = log.and_then(|topic| topic.error()).map(Code::from);
        BrokerFacts {
            cluster_id,
            brokers,
            config: config.map(entries),
            transaction_log_replicas: partitions.iter().map(|partition| partition.replicas().len()).min(),
            transaction_log_hidden: error == Some(Code::TopicAuthorizationFailed),
        }
    }
}
