//! Checks brokers, topics and their limits before a service starts.

mod brokers;
mod client;
mod commits;
mod control;
mod history;
mod missing;
mod problem;
mod topics;
mod transactions;

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use watermaster_core::policy::Scope;
use watermaster_settings::{Service, Settings, Source};

use crate::topics::{SourcePartition, all_partitions};
use crate::{ask::TopicFacts, producer::DEFAULT_BATCH_BYTES};
pub use client::{ConnectError, PreflightClient, Unreachable};
pub use missing::MissingTopic;
pub use problem::{Finding, Problem, Severity};

/// The topic in which Kafka keeps its transactions; it does not exist before the first one.
const TRANSACTION_LOG: &str = "__transaction_state";

/// The result of the checks.
#[derive(Debug, Clone, Default)]
pub struct Report {
    pub findings: Vec<Finding>,
    /// The topics of the services that exist and may be seen, by name.
    pub topics: BTreeMap<String, TopicFacts>,
    /// The names of all topics of the cluster, if a source has a pattern and the brokers tell them.
    pub names: Option<Vec<String>>,
    /// The number of brokers; 0 if it is unknown.
    pub brokers: usize,
}

impl Report {
    /// Returns true if a service can't work.
    pub fn has_errors(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity == Severity::Error)
    }

    /// Returns true if there is a finding that is more than a note.
    pub fn has_warnings(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity != Severity::Info)
    }

    /// Returns the topics that the services need and the cluster lacks, in the order of their names.
    pub fn missing_topics(&self, settings: &Settings) -> Vec<MissingTopic> {
        missing::topics(settings, self)
    }

    /// Returns the partitions of a service's sources, in their order.
    fn partitions(&self, service: &Service) -> Vec<SourcePartition> {
        let count = |topic: &str| self.topics.get(topic).map_or(0, |facts| facts.partitions as i32);
        all_partitions(service.sources.iter().map(|source| count(&source.topic)))
    }

    /// Returns true if a pattern of a source has no topic.
    pub fn lacks_topics(&self) -> bool {
        self.findings.iter().any(|finding| matches!(finding.problem, Problem::NothingMatches { .. }))
    }
}

/// Returns the size of a producer's largest batch in bytes: at most the smallest `max.message.bytes` of the outputs of
/// these sources. A single record may be larger, since it may compress; the broker decides.
pub fn batch_bytes(sources: &[Source], topics: &BTreeMap<String, TopicFacts>) -> u64 {
    let outputs = sources.iter().flat_map(|source| [&source.target, &source.dead_letter]);
    let limits = outputs.filter_map(|topic| topics.get(topic)?.max_message_bytes);
    limits.fold(DEFAULT_BATCH_BYTES, u64::min).max(1)
}

/// Returns whether the instances of a service share its capacity through a control topic.
fn is_grouped(service: &Service) -> bool {
    service.policy.scope == Scope::Group
}

/// The time after which brokers that did not answer about a topic are asked again.
const ASK_AGAIN_INTERVAL: Duration = Duration::from_secs(1);
/// The time that a refused client waits for another broker, or for another answer.
const REFUSED_TIMEOUT: Duration = Duration::from_secs(3);

/// Runs the checks that need no transaction, for `timeout` at most until the first answer and again for the others.
pub fn check(settings: &Settings, timeout: Duration) -> Result<Report, ConnectError> {
    check_patiently(settings, timeout, |unreachable| {
        unreachable.waited < if unreachable.refused { timeout.min(REFUSED_TIMEOUT) } else { timeout }
    })
}

/// Runs the checks that need no transaction, once the brokers answer about each topic. While they don't, `keep_waiting`
/// is called about once a second; it may end the wait. Each answer may take `timeout`.
pub fn check_patiently(
    settings: &Settings, timeout: Duration, mut keep_waiting: impl FnMut(&Unreachable) -> bool,
) -> Result<Report, ConnectError> {
    let began = Instant::now();
    let mut client = PreflightClient::connect(&settings.kafka, &mut keep_waiting)?;
    loop {
        let report = look(&client, settings, timeout);
        // A broker may end, or just have started, between two of its answers.
        let unanswered = report.findings.iter().find(|finding| finding.may_pass());
        let Some(finding) = unanswered else { return Ok(report) };
        let unreachable = Unreachable {
            bootstrap_servers: settings.kafka.bootstrap_servers.clone(),
            waited: began.elapsed(),
            last_error: format!("{} {}", finding.topic.as_deref().unwrap_or_default(), finding.problem),
            refused: false,
        };
        if !keep_waiting(&unreachable) {
            return Ok(report);
        }
        thread::sleep(ASK_AGAIN_INTERVAL);
        // Another client takes other certificates.
        client = PreflightClient::connect(&settings.kafka, &mut keep_waiting)?;
    }
}

/// Returns whether a topic is a source because it matches a pattern, so that it need not exist.
fn matches_pattern(service: &Service, topic: &str) -> bool {
    service.sources.iter().any(|source| source.by_pattern && source.topic == topic)
}

/// Asks the brokers once.
fn look(client: &PreflightClient, settings: &Settings, timeout: Duration) -> Report {
    let mut report = Report::default();
    let settings = &if settings.has_patterns() {
        report.names = client
            .topic_names(timeout)
            .map_err(|error| {
                let text = format!("the topics that match a pattern are not known: {error}");
                report.findings.push(Problem::warning(text).of_brokers());
            })
            .ok();
        settings.with_matches(report.names.as_deref().unwrap_or_default())
    } else {
        settings.clone()
    };
    if let Some(names) = &report.names {
        for service in &settings.services {
            let nothing = |(pattern, nearest): (&str, Option<&str>)| {
                let (pattern, nearest) = (pattern.to_owned(), nearest.map(str::to_owned));
                Problem::NothingMatches { pattern, nearest }.of_service(&service.name)
            };
            report.findings.extend(service.idle_patterns(names).into_iter().map(nothing));
        }
    }
    let facts = client.broker_facts(settings, timeout);
    report.brokers = facts.brokers;
    report.findings.extend(brokers::compare(settings, &facts).into_iter().map(Problem::of_brokers));
    let mut all: Vec<&str> = settings.services.iter().flat_map(topics::of).collect();
    // The topics of rules have the settings of control topics.
    let compacted = || {
        let of_group = settings.services.iter().filter(|service| is_grouped(service));
        let control = of_group.map(|service| (service, service.control_topic.as_str()));
        let rules = settings.services.iter().filter_map(|service| Some((service, service.rules_topic.as_deref()?)));
        control.chain(rules)
    };
    all.extend(compacted().map(|(_, topic)| topic));
    all.sort_unstable();
    all.dedup();
    let mut described = client.topic_configs(&all, timeout).unwrap_or_else(|error| {
        let text = format!("limits and retention of topics were not checked: {error}");
        report.findings.push(Problem::note(text).of_brokers());
        BTreeMap::new()
    });
    for service in &settings.services {
        for topic in topics::of(service) {
            match client.topic_facts(topic, timeout) {
                Ok(mut facts) => {
                    if let Some(config) = described.remove(topic) {
                        facts.apply(&config);
                    }
                    report.topics.entry(topic.to_owned()).or_insert(facts);
                }
                // The topic was deleted after the brokers had listed it. Topics of a pattern come and go.
                Err(Problem::MissingTopic) if matches_pattern(service, topic) => {}
                Err(problem) => report.findings.push(problem.of_topic(&service.name, topic)),
            }
        }
        if report.findings.iter().any(Finding::may_pass) {
            // All are asked again, and each question may take the whole time.
            continue;
        }
        report.findings.extend(topics::compare(service, &report.topics));
        let target = report.topics.get(&service.target);
        let of_group = target.and_then(|_| commits::check(&settings.kafka, service, timeout));
        report.findings.extend(of_group.map(|problem| problem.of_topic(&service.name, &service.target)));
        let start = history::check(settings, service, &report.partitions(service), timeout);
        report.findings.extend(start.map(|problem| problem.of_service(&service.name)));
    }
    for (service, topic) in compacted() {
        // The start makes a missing one, so it must not wait for it.
        let found = match client.look_up(topic, timeout) {
            Ok(mut facts) => {
                let config = described.remove(topic);
                config.iter().for_each(|config| facts.apply(config));
                control::compare(&facts, config.as_ref(), report.topics.get(&service.target))
            }
            Err(Problem::MissingTopic) => vec![Problem::ControlMissing],
            Err(problem) => vec![problem],
        };
        report.findings.extend(found.into_iter().map(|problem| problem.of_topic(&service.name, topic)));
    }
    report
}

/// Tries what a service needs beside its topics, and adds findings to a report without errors. Registers a
/// transactional id beside each service's own and beside those of its seats, which running instances may hold; the
/// brokers forget such ids a week later. Where a service has a search for the capacity, looks twice at the commits in
/// its target, which takes one `pace.interval`, but 15 s at most.
pub fn check_further(settings: &Settings, timeout: Duration, report: &mut Report) {
    if !report.has_errors() {
        for service in &settings.services {
            let problem = transactions::probe(&settings.kafka, service, timeout).err();
            report.findings.extend(problem.map(|problem| problem.of_service(&service.name)));
        }
    }
    if report.has_errors() {
        return;
    }
    let settings = settings.with_matches(report.names.as_deref().unwrap_or_default());
    let with_search = settings.services.iter().filter(|service| service.pace.is_some());
    let with_search = with_search.map(|service| (service, report.partitions(service)));
    for (service, problem) in commits::watch(&settings.kafka, with_search.collect(), timeout) {
        report.findings.push(problem.of_topic(&service.name, &service.target));
    }
    for service in &settings.services {
        let problems = topics::check_retention(&settings.kafka, service, &report.topics, timeout);
        report.findings.extend(problems.into_iter().map(|(topic, problem)| problem.of_topic(&service.name, topic)));
    }
}
