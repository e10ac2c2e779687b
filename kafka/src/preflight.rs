//! Looks before it leaps: brokers, topics and their limits, before a service starts.

mod brokers;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use rdkafka::admin::{
    AdminClient, AdminOptions, ConfigResource, ConfigResourceResult, OwnedResourceSpecifier, ResourceSpecifier,
};
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};
use rdkafka::producer::{DeliveryResult, ProducerContext};

use super::client;
use super::producer::Limits;
use brokers::BrokerFacts;
pub use brokers::probe_transactions;
use watermaster_settings::{Delivery, GroupProtocol, Kafka, Service, Settings};

/// Room for the headers that a rejected record gains, its names at their longest.
const HEADER_ROOM: u64 = 2048;

/// Where Kafka keeps its transactions; it does not exist before the first one.
const TRANSACTION_LOG: &str = "__transaction_state";

/// A topic that was created just now, or a broker that has just started: so long it is asked for again.
const MISSING_GRACE: Duration = Duration::from_secs(3);
const MISSING_STEP: Duration = Duration::from_millis(300);
const MISSING: &str = "does not exist: create it";

/// What was found out.
#[derive(Debug, Clone, Default)]
pub struct Report {
    pub findings: Vec<Finding>,
    /// Of each topic that exists and may be seen.
    pub topics: BTreeMap<String, TopicFacts>,
}

/// Something that people should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub severity: Severity,
    /// The service that it concerns, if it is one.
    pub service: Option<String>,
    pub topic: Option<String>,
    pub text: String,
}

/// How bad a finding is. With an error, its service can't work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    Info,
    Warning,
    Error,
}

/// What a broker tells of a topic. What it does not tell is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopicFacts {
    pub partitions: usize,
    pub replication: usize,
    pub max_message_bytes: Option<u64>,
    pub min_insync_replicas: Option<u64>,
    /// `Duration::MAX`: for ever.
    pub retention: Option<Duration>,
    pub compacted: Option<bool>,
}

/// No broker answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no answer from kafka.bootstrap_servers = \"{bootstrap_servers}\" within {seconds} s: {last_error}")]
pub struct Unreachable {
    pub bootstrap_servers: String,
    pub seconds: u64,
    pub last_error: String,
}

impl Report {
    /// Whether a service can't work.
    pub fn has_errors(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity == Severity::Error)
    }

    /// What the topics of a service allow its producer.
    pub fn limits(&self, service: &Service) -> Limits {
        let outputs = [&service.target, &service.dead_letter];
        Limits::of_topics(outputs.iter().filter_map(|topic| self.topics.get(*topic)?.max_message_bytes))
    }

    /// How long each source of a service keeps its records, where the broker tells and it is not for ever.
    pub fn source_retention(&self, service: &Service) -> Vec<(String, Duration)> {
        let retention = |topic: &str| self.topics.get(topic)?.retention.filter(|kept| *kept != Duration::MAX);
        service.sources.iter().filter_map(|source| Some((source.topic.clone(), retention(&source.topic)?))).collect()
    }

    fn find(&mut self, severity: Severity, service: &Service, topic: &str, text: String) {
        let (service, topic) = (Some(service.name.clone()), Some(topic.to_owned()));
        self.findings.push(Finding { severity, service, topic, text });
    }
}

/// Looks at everything that the services need, for `timeout` at most until the first answer and as long again for the rest.
pub fn check(settings: &Settings, timeout: Duration) -> Result<Report, Unreachable> {
    let asker = Asker::new(&settings.kafka, timeout)?;
    let mut report = Report::default();
    report.findings.extend(brokers::compare(&settings.kafka, &asker.brokers(&settings.kafka, timeout)));
    let mut described = asker.describe(settings, timeout, &mut report);
    for service in &settings.services {
        for topic in topics_of(service) {
            match asker.topic(topic, timeout) {
                Ok(mut facts) => {
                    if let Some(config) = described.remove(topic) {
                        facts.apply(&config);
                    }
                    report.topics.entry(topic.to_owned()).or_insert(facts);
                }
                Err(text) => report.find(Severity::Error, service, topic, text),
            }
        }
        compare(service, &mut report);
        find_too_few_replicas(service, &mut report);
    }
    Ok(report)
}

/// A topic that wants more replicas in sync than it has may refuse every record.
fn find_too_few_replicas(service: &Service, report: &mut Report) {
    for topic in topics_of(service) {
        if let Some(facts) = report.topics.get(topic)
            && let (replicas, Some(insync)) = (facts.replication, facts.min_insync_replicas)
            && insync > replicas as u64
        {
            let text = format!(
                "min.insync.replicas is {insync}, more than its {replicas} replicas: brokers may refuse every record"
            );
            report.find(Severity::Warning, service, topic, text);
        }
    }
}

fn topics_of(service: &Service) -> impl Iterator<Item = &str> {
    let outputs = [service.target.as_str(), service.dead_letter.as_str()];
    service.sources.iter().map(|source| source.topic.as_str()).chain(outputs)
}

impl TopicFacts {
    fn apply(&mut self, config: &ConfigResource) {
        let value = |name: &str| config.get(name)?.value.clone();
        let number = |name: &str| value(name)?.parse::<i64>().ok();
        self.max_message_bytes = number("max.message.bytes").and_then(|bytes| bytes.try_into().ok());
        self.min_insync_replicas = number("min.insync.replicas").and_then(|count| count.try_into().ok());
        self.retention = number("retention.ms").map(|ms| ms.try_into().map_or(Duration::MAX, Duration::from_millis));
        self.compacted = value("cleanup.policy").map(|policy| policy.contains("compact"));
    }
}

/// What the outputs of a service must be able to take, its sources can hold.
fn compare(service: &Service, report: &mut Report) {
    let sources: Vec<_> =
        service.sources.iter().filter_map(|source| report.topics.get(&source.topic)).cloned().collect();
    let most = |of: fn(&TopicFacts) -> Option<u64>| sources.iter().filter_map(of).max();
    let largest = most(|facts| facts.max_message_bytes);
    let replication = most(|facts| u64::try_from(facts.replication).ok());
    let insync = most(|facts| facts.min_insync_replicas);
    for (topic, room) in [(&service.target, 0), (&service.dead_letter, HEADER_ROOM)] {
        let Some(facts) = report.topics.get(topic).cloned() else {
            continue;
        };
        if let (Some(mine), Some(theirs)) = (facts.max_message_bytes, largest)
            && mine < theirs.saturating_add(room)
        {
            let why = if room > 0 { " and the throttle headers" } else { "" };
            report.find(Severity::Warning, service, topic, format!("max.message.bytes is {mine}, too little for the sources' records of up to {theirs}{why}: set it to {}", theirs.saturating_add(room)));
        }
        if let Some(theirs) = replication
            && (facts.replication as u64) < theirs
        {
            report.find(
                Severity::Warning,
                service,
                topic,
                format!("has {} replicas, the sources have {theirs}", facts.replication),
            );
        }
        if let (Some(mine), Some(theirs)) = (facts.min_insync_replicas, insync)
            && mine < theirs
        {
            report.find(
                Severity::Warning,
                service,
                topic,
                format!("min.insync.replicas is {mine}, the sources' is {theirs}"),
            );
        }
        if facts.compacted == Some(true) {
            report.find(
                Severity::Warning,
                service,
                topic,
                "is compacted: it refuses records without a key, and drops older ones of the same key".to_owned(),
            );
        }
    }
}

/// A connection to ask with; a consumer, since only those don't create the topics that they ask for.
struct Asker {
    consumer: BaseConsumer<LastError>,
    config: rdkafka::ClientConfig,
    began: Instant,
}

/// Remembers what went wrong last.
#[derive(Default)]
struct LastError(Mutex<Option<String>>);

impl ClientContext for LastError {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        client::log(level, facility, message);
    }

    fn error(&self, error: ClientError, reason: &str) {
        // That all brokers are down only says that the reason came before.
        if error.rdkafka_error_code() != Some(Code::AllBrokersDown) {
            *self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(reason.to_owned());
        }
    }
}

impl ConsumerContext for LastError {}

impl Asker {
    /// Connects, or says why not.
    fn new(kafka: &Kafka, timeout: Duration) -> Result<Asker, Unreachable> {
        let unreachable = |last_error: String| Unreachable {
            bootstrap_servers: kafka.bootstrap_servers.clone(),
            seconds: timeout.as_secs(),
            last_error,
        };
        let config = client::config(kafka, &[], &[("allow.auto.create.topics", "false")]);
        let consumer: BaseConsumer<LastError> =
            config.create_with_context(LastError::default()).map_err(|error| unreachable(error.to_string()))?;
        let asker = Asker { consumer, config, began: Instant::now() };
        match asker.connect(timeout) {
            Ok(()) => Ok(asker),
            Err(error) => {
                let last = asker.consumer.context().0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
                Err(unreachable(last.unwrap_or_else(|| error.to_string())))
            }
        }
    }

    /// Waits for the first answer; between attempts librdkafka's errors are collected.
    fn connect(&self, timeout: Duration) -> Result<(), ClientError> {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let answer = self.consumer.client().fetch_cluster_id(left.min(Duration::from_secs(1)));
            self.consumer.poll(Duration::ZERO);
            match answer {
                Some(_) => return Ok(()),
                None if left.is_zero() => {
                    return Err(ClientError::MetadataFetch(Code::OperationTimedOut));
                }
                None => {}
            }
        }
    }

    fn topic(&self, topic: &str, timeout: Duration) -> Result<TopicFacts, String> {
        loop {
            let found = self.look_up(topic, timeout);
            let missing = found.as_ref().is_err_and(|text| text == MISSING);
            if !missing || self.began.elapsed() >= MISSING_GRACE {
                return found;
            }
            thread::sleep(MISSING_STEP);
        }
    }

    fn look_up(&self, topic: &str, timeout: Duration) -> Result<TopicFacts, String> {
        let metadata = self
            .consumer
            .fetch_metadata(Some(topic), timeout)
            .map_err(|error| format!("can't be looked up: {error}"))?;
        let Some(found) = metadata.topics().first() else {
            return Err(MISSING.to_owned());
        };
        match found.error().map(Code::from) {
            None if found.partitions().is_empty() => Err(MISSING.to_owned()),
            None => {
                let replication = found.partitions().iter().map(|partition| partition.replicas().len()).min();
                Ok(TopicFacts {
                    partitions: found.partitions().len(),
                    replication: replication.unwrap_or(0),
                    ..TopicFacts::default()
                })
            }
            Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => Err(MISSING.to_owned()),
            Some(Code::TopicAuthorizationFailed) => {
                Err("is not ours to see: grant DESCRIBE, and READ on sources or WRITE on target and dead-letter topics"
                    .to_owned())
            }
            Some(Code::InvalidTopic) => Err("is not a topic name that Kafka takes".to_owned()),
            Some(code) => Err(format!("can't be looked up: {code}")),
        }
    }

    /// The configuration of each topic, where the broker tells it.
    fn describe(
        &self,
        settings: &Settings,
        timeout: Duration,
        report: &mut Report,
    ) -> BTreeMap<String, ConfigResource> {
        let mut topics: Vec<&str> = settings.services.iter().flat_map(topics_of).collect();
        topics.sort_unstable();
        topics.dedup();
        let resources: Vec<_> = topics.iter().map(|topic| ResourceSpecifier::Topic(topic)).collect();
        // Any broker knows; without a name librdkafka waits for the controller, which the embedded broker never tells.
        let metadata = topics.first().map(|topic| self.consumer.fetch_metadata(Some(topic), timeout));
        let broker = metadata.and_then(Result::ok).map(|metadata| metadata.orig_broker_id());
        match self.configs(&resources, broker, timeout) {
            Ok(answers) => answers.into_iter().filter_map(topic_config).collect(),
            Err(error) => {
                let text = format!("limits and retention of topics were not checked: {error}");
                report.findings.push(Finding { severity: Severity::Info, service: None, topic: None, text });
                BTreeMap::new()
            }
        }
    }

    fn configs(
        &self,
        resources: &[ResourceSpecifier<'_>],
        broker: Option<i32>,
        timeout: Duration,
    ) -> Result<Vec<ConfigResourceResult>, ClientError> {
        let options = AdminOptions::new().request_timeout(Some(timeout)).broker_id(broker);
        let admin: AdminClient<Quiet> = self.config.create_with_context(Quiet)?;
        block_on(admin.describe_configs(resources, &options))
    }

    /// What the brokers tell of themselves, where the configuration depends on it.
    fn brokers(&self, kafka: &Kafka, timeout: Duration) -> BrokerFacts {
        let transactions = kafka.delivery == Delivery::ExactlyOnce;
        if !transactions && kafka.group_protocol == GroupProtocol::Classic {
            return BrokerFacts::default();
        }
        let cluster_id = self.consumer.client().fetch_cluster_id(timeout);
        let Ok(metadata) = self.consumer.fetch_metadata(Some(TRANSACTION_LOG), timeout) else {
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
            brokers: metadata.brokers().len(),
            config: config.map(entries),
            transaction_log_replicas: partitions.iter().map(|partition| partition.replicas().len()).min(),
            transaction_log_hidden: error == Some(Code::TopicAuthorizationFailed),
        }
    }
}

fn topic_config(answer: ConfigResourceResult) -> Option<(String, ConfigResource)> {
    let config = answer.ok()?;
    match &config.specifier {
        OwnedResourceSpecifier::Topic(topic) => Some((topic.clone(), config)),
        OwnedResourceSpecifier::Group(_) | OwnedResourceSpecifier::Broker(_) => None,
    }
}

/// Logs like the others.
struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        client::log(level, facility, message);
    }

    fn error(&self, error: ClientError, reason: &str) {
        tracing::debug!("admin client: {error}: {reason}");
    }
}

impl ProducerContext for Quiet {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

/// Runs a future that another thread completes, here where there may or may not be a runtime.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut TaskContext::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
