//! What the brokers themselves must offer, whatever the topics are.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::producer::{BaseProducer, Producer as _};

use super::{Finding, Quiet, Report, Severity, TRANSACTION_LOG};
use crate::producer;
use crate::{client, ffi};
use watermaster_settings::{Delivery, GroupProtocol, Kafka, Service, Settings};

/// How the id of librdkafka's mock, the embedded broker, begins.
const EMBEDDED: &str = "mockCluster";

/// What the brokers tell of themselves.
#[derive(Debug, Clone, Default)]
pub(super) struct BrokerFacts {
    pub cluster_id: Option<String>,
    pub brokers: usize,
    /// One broker's configuration; `None` if it may not be seen.
    pub config: Option<BTreeMap<String, String>>,
    /// Replicas of the topic that holds the transactions; `None` before the first one, or if it may not be seen.
    pub transaction_log_replicas: Option<usize>,
    /// The topic that holds the transactions may not be seen.
    pub transaction_log_hidden: bool,
}

impl BrokerFacts {
    fn value(&self, name: &str) -> Option<&str> {
        self.config.as_ref()?.get(name).map(String::as_str)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.value(name)?.parse().ok()
    }

    fn is_embedded(&self) -> bool {
        self.cluster_id.as_ref().is_some_and(|id| id.starts_with(EMBEDDED))
    }
}

/// What does not fit the configuration, for all services.
pub(super) fn compare(kafka: &Kafka, facts: &BrokerFacts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |severity, text| findings.push(Finding { severity, service: None, topic: None, text });
    if kafka.delivery == Delivery::ExactlyOnce {
        compare_transactions(kafka, facts, &mut find);
    }
    if kafka.group_protocol == GroupProtocol::Consumer {
        compare_group_protocol(facts, &mut find);
    }
    findings
}

fn compare_transactions(kafka: &Kafka, facts: &BrokerFacts, find: &mut impl FnMut(Severity, String)) {
    if facts.is_embedded() {
        find(
            Severity::Error,
            "the embedded broker's transactions can't be relied on: kafka.delivery = \"exactly_once\" needs a real one \
             (\"at_least_once\" works here)"
                .to_owned(),
        );
    }
    let ours = producer::transaction_timeout(kafka).as_millis();
    if let Some(theirs) = facts.number("transaction.max.timeout.ms")
        && ours > u128::from(theirs)
    {
        find(
            Severity::Error,
            format!(
                "transaction.timeout.ms is {ours}, the brokers allow {theirs} (transaction.max.timeout.ms): \
                 set it to {theirs} or less in [kafka.properties]"
            ),
        );
    }
    let (wanted, insync) = (
        facts.number("transaction.state.log.replication.factor"),
        facts.number("transaction.state.log.min.isr").unwrap_or(0),
    );
    match (facts.transaction_log_replicas, wanted) {
        // It may exist with fewer, or be made when it is needed: not to be told from a topic that is only hidden.
        (None, Some(wanted)) if facts.transaction_log_hidden && wanted > facts.brokers as u64 => find(
            Severity::Warning,
            format!(
                "the transactions' log may not be seen; if it does not exist yet, transactions can't begin: the brokers want \
                 {wanted} replicas of it (transaction.state.log.replication.factor) and are only {}. Grant DESCRIBE on \
                 {TRANSACTION_LOG} to have this checked, or ignore it if transactions work in this cluster",
                facts.brokers
            ),
        ),
        (None, _) if facts.transaction_log_hidden => find(
            Severity::Info,
            format!("the transactions' log was not checked: grant DESCRIBE on {TRANSACTION_LOG}, or ignore this"),
        ),
        (None, Some(wanted)) if wanted > facts.brokers as u64 => find(
            Severity::Error,
            format!(
                "transactions can't begin: the brokers want {wanted} replicas of their log \
                 (transaction.state.log.replication.factor) and are only {}",
                facts.brokers
            ),
        ),
        (Some(replicas), _) if (replicas as u64) < insync => find(
            Severity::Warning,
            format!(
                "the transactions' log has {replicas} replicas, transaction.state.log.min.isr is {insync}: transactions may never commit"
            ),
        ),
        (Some(1), _) if facts.brokers > 1 => find(
            Severity::Warning,
            "the transactions' log has 1 replica: without its broker nothing is delivered".to_owned(),
        ),
        _ => {}
    }
}

fn compare_group_protocol(facts: &BrokerFacts, find: &mut impl FnMut(Severity, String)) {
    const KEY: &str = "group.coordinator.rebalance.protocols";
    let advice = "set it to \"classic\", or use Apache Kafka 4.0 or later";
    match facts.value(KEY) {
        Some(protocols) if protocols.split(',').any(|protocol| protocol.trim() == "consumer") => {
            if let Some(session) = facts.number("group.consumer.session.timeout.ms") {
                let session = humantime::format_duration(Duration::from_millis(session));
                let text = format!(
                    "what a dead instance had moves after {session} (group.consumer.session.timeout.ms), \
                     unless the group has a configuration of its own"
                );
                find(Severity::Info, text);
            }
        }
        Some(protocols) => find(
            Severity::Error,
            format!("the brokers do not know kafka.group_protocol = \"consumer\" ({KEY} is \"{protocols}\"): {advice}"),
        ),
        None if facts.config.is_some() => find(
            Severity::Warning,
            format!(
                "the brokers do not say whether they know kafka.group_protocol = \"consumer\"; if the service never joins: {advice}"
            ),
        ),
        None => {}
    }
}

/// Begins to use a transactional id beside each service's own, which a running instance may hold: says whether
/// transactions work and ids may be used. Leaves an unused id at the brokers, which they forget after a week.
pub fn probe_transactions(settings: &Settings, timeout: Duration, report: &mut Report) {
    if settings.kafka.delivery != Delivery::ExactlyOnce || report.has_errors() {
        return;
    }
    for service in &settings.services {
        if let Err((severity, text)) = probe(&settings.kafka, service, timeout) {
            report.findings.push(Finding { severity, service: Some(service.name.clone()), topic: None, text });
        }
    }
}

fn probe(kafka: &Kafka, service: &Service, timeout: Duration) -> Result<(), (Severity, String)> {
    let id = producer::transactional_id(kafka, service);
    let probe = format!("{id}.check");
    let transaction_timeout = producer::transaction_timeout(kafka).as_millis().to_string();
    let owned = [
        ("transactional.id", probe.as_str()),
        ("transaction.timeout.ms", transaction_timeout.as_str()),
        ("enable.idempotence", "true"),
    ];
    let producer: BaseProducer<Quiet> = client::config(kafka, &[], &owned)
        .create_with_context(Quiet)
        .map_err(|error| (Severity::Error, format!("a transactional producer can't be made: {error}")))?;
    let Err(error) = ffi::init_transactions(producer.client(), timeout) else {
        return Ok(());
    };
    Err(match error.code {
        Code::TransactionalIdAuthorizationFailed => (
            Severity::Warning,
            format!(
                "not allowed to use the transactional id {probe}: exactly_once needs WRITE and DESCRIBE on {id} or, better, on all that begin so"
            ),
        ),
        Code::ClusterAuthorizationFailed => {
            (Severity::Error, "not allowed to write idempotently: grant IDEMPOTENT_WRITE on the cluster".to_owned())
        }
        Code::InvalidTransactionTimeout => (
            Severity::Error,
            format!(
                "transaction.timeout.ms is {transaction_timeout}, more than the brokers allow (transaction.max.timeout.ms)"
            ),
        ),
        Code::UnsupportedFeature | Code::UnsupportedVersion => (
            Severity::Error,
            "the brokers know no transactions: kafka.delivery = \"exactly_once\" can't work with them".to_owned(),
        ),
        _ => (Severity::Error, format!("no transaction could be prepared within {} s: {error}", timeout.as_secs())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use watermaster_settings::config::Config;

    fn kafka(lines: &str) -> Kafka {
        let text = format!("[kafka]\n{lines}\n{}", include_str!("../../../config/watermaster.minimal.toml"));
        Config::parse(&text, std::path::Path::new("test.toml"), [], crate::PROPERTY_RULES)
            .expect("it is valid")
            .settings
            .kafka
    }

    fn facts(config: &[(&str, &str)]) -> BrokerFacts {
        let config = config.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        BrokerFacts { brokers: 1, config: Some(config), ..BrokerFacts::default() }
    }

    fn found(lines: &str, facts: &BrokerFacts) -> Vec<(Severity, String)> {
        compare(&kafka(lines), facts).into_iter().map(|finding| (finding.severity, finding.text)).collect()
    }

    const EXACTLY_ONCE: &str = "delivery = \"exactly_once\"";
    const CONSUMER: &str = "delivery = \"at_least_once\"\ngroup_protocol = \"consumer\"";

    #[test]
    fn what_transactions_need_is_asked_for_only_with_them() {
        let lacking =
            facts(&[("transaction.max.timeout.ms", "5000"), ("transaction.state.log.replication.factor", "3")]);
        let found_with = found(EXACTLY_ONCE, &lacking);
        assert_eq!(found_with.len(), 2, "{found_with:?}");
        assert!(found_with.iter().all(|(severity, _)| *severity == Severity::Error));
        assert!(found_with[0].1.contains("is 10000, the brokers allow 5000"), "{found_with:?}");
        assert!(found_with[1].1.contains("3 replicas") && found_with[1].1.contains("only 1"), "{found_with:?}");
        assert_eq!(found("delivery = \"at_least_once\"", &lacking), []);
        // It exists: what it was made with does not matter.
        let exists = BrokerFacts { transaction_log_replicas: Some(1), ..lacking };
        assert_eq!(found(EXACTLY_ONCE, &exists).len(), 1);
        assert_eq!(found(EXACTLY_ONCE, &BrokerFacts::default()), []);
    }

    #[test]
    fn a_hidden_transaction_log_prevents_nothing() {
        let lacking = facts(&[("transaction.state.log.replication.factor", "3")]);
        let hidden = BrokerFacts { transaction_log_hidden: true, ..lacking };
        let texts = found(EXACTLY_ONCE, &hidden);
        assert!(
            matches!(texts.as_slice(), [(Severity::Warning, text)]
                if text.contains("3 replicas") && text.contains("DESCRIBE on __transaction_state")),
            "{texts:?}"
        );
        let enough = BrokerFacts { brokers: 3, ..hidden.clone() };
        let texts = found(EXACTLY_ONCE, &enough);
        assert!(matches!(texts.as_slice(), [(Severity::Info, text)] if text.contains("not checked")), "{texts:?}");
        assert_eq!(found("delivery = \"at_least_once\"", &hidden), []);
    }

    #[test]
    fn a_thin_transaction_log_is_doubtful() {
        let thin = facts(&[("transaction.state.log.min.isr", "2")]);
        let two = BrokerFacts { brokers: 2, transaction_log_replicas: Some(1), ..thin };
        let texts = found(EXACTLY_ONCE, &two);
        assert!(matches!(texts.as_slice(), [(Severity::Warning, text)] if text.contains("min.isr is 2")), "{texts:?}");
        let one = BrokerFacts { brokers: 2, transaction_log_replicas: Some(1), ..BrokerFacts::default() };
        let texts = found(EXACTLY_ONCE, &one);
        assert!(matches!(texts.as_slice(), [(Severity::Warning, text)] if text.contains("1 replica")), "{texts:?}");
    }

    #[test]
    fn the_embedded_broker_is_refused() {
        let embedded = BrokerFacts { cluster_id: Some("mockCluster7f".to_owned()), ..BrokerFacts::default() };
        let texts = found(EXACTLY_ONCE, &embedded);
        assert!(matches!(texts.as_slice(), [(Severity::Error, text)] if text.contains("embedded")), "{texts:?}");
        assert_eq!(found("delivery = \"at_least_once\"", &embedded), []);
    }

    #[test]
    fn a_broker_says_whether_it_knows_the_group_protocol() {
        const KEY: &str = "group.coordinator.rebalance.protocols";
        let old = found(CONSUMER, &facts(&[(KEY, "classic")]));
        assert!(
            matches!(old.as_slice(), [(Severity::Error, text)] if text.contains("set it to \"classic\"")),
            "{old:?}"
        );
        let new = facts(&[(KEY, "classic, consumer"), ("group.consumer.session.timeout.ms", "45000")]);
        let new = found(CONSUMER, &new);
        assert!(matches!(new.as_slice(), [(Severity::Info, text)] if text.contains("45s")), "{new:?}");
        assert!(matches!(found(CONSUMER, &facts(&[])).as_slice(), [(Severity::Warning, _)]));
        assert_eq!(found(CONSUMER, &BrokerFacts::default()), []);
        assert_eq!(found("delivery = \"at_least_once\"", &facts(&[(KEY, "classic")])), []);
    }
}
