//! Compares the brokers' configuration with what delivery and group protocol need.

use std::{collections::BTreeMap, time::Duration};

use watermaster_settings::{Delivery, GroupProtocol, Kafka, Settings};

use super::{TRANSACTION_LOG, problem::Problem};
use crate::producer;

/// The beginning of the cluster id of librdkafka's mock, the embedded broker.
const EMBEDDED: &str = "mockCluster";

/// The brokers' configuration of the group protocols.
const PROTOCOLS: &str = "group.coordinator.rebalance.protocols";
const ADVICE: &str = "set it to \"classic\", or use Apache Kafka 4.0 or later";

#[derive(Debug, Clone, Default)]
pub(super) struct BrokerFacts {
    pub cluster_id: Option<String>,
    pub brokers: usize,
    /// One broker's configuration; `None` if it may not be seen.
    pub config: Option<BTreeMap<String, String>>,
    /// Replicas of the topic that holds the transactions; `None` before the first one, or if it may not be seen.
    pub transaction_log_replicas: Option<usize>,
    /// True if the topic that holds the transactions may not be seen.
    pub transaction_log_hidden: bool,
}

impl BrokerFacts {
    fn value(&self, name: &str) -> Option<&str> {
        self.config.as_ref()?.get(name).map(String::as_str)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.value(name)?.parse().ok()
    }
}

/// Returns whether a service needs transactions, for its rounds or for the seats of its group.
pub(super) fn need_transactions(settings: &Settings) -> bool {
    settings.kafka.delivery == Delivery::ExactlyOnce || settings.services.iter().any(super::is_grouped)
}

pub(super) fn compare(settings: &Settings, facts: &BrokerFacts) -> Vec<Problem> {
    let (kafka, mut problems) = (&settings.kafka, Vec::new());
    if kafka.delivery == Delivery::ExactlyOnce {
        // The seats of the demo's only instance do not depend on what the embedded broker lacks.
        if facts.cluster_id.as_ref().is_some_and(|id| id.starts_with(EMBEDDED)) {
            problems.push(Problem::error(
                "the embedded broker's transactions are not reliable: kafka.delivery = \"exactly_once\" needs a real \
                 one (\"at_least_once\" works here)",
            ));
        }
    }
    if need_transactions(settings) {
        problems.extend(compare_timeouts(kafka, facts));
        problems.extend(compare_log(facts));
    }
    if kafka.group_protocol == GroupProtocol::Consumer {
        problems.extend(compare_group_protocol(facts));
    }
    problems
}

fn compare_timeouts(kafka: &Kafka, facts: &BrokerFacts) -> Option<Problem> {
    // The longest one: that of a round, or of a seat.
    let timeout = match kafka.delivery {
        Delivery::ExactlyOnce => producer::transaction_timeout(kafka),
        Delivery::AtLeastOnce => producer::seat_transaction_timeout(kafka),
    };
    let timeout = timeout.as_millis();
    let allowed = facts.number("transaction.max.timeout.ms")?;
    (timeout > u128::from(allowed)).then(|| {
        Problem::error(format!(
            "transaction.timeout.ms is {timeout}, the brokers allow {allowed} (transaction.max.timeout.ms): set it to \
             {allowed} or less in [kafka.properties]"
        ))
    })
}

fn compare_log(facts: &BrokerFacts) -> Option<Problem> {
    let brokers = facts.brokers;
    let wanted = facts.number("transaction.state.log.replication.factor").filter(|wanted| *wanted > brokers as u64);
    let insync = facts.number("transaction.state.log.min.isr").unwrap_or(0);
    match (facts.transaction_log_replicas, wanted) {
        // A hidden log may exist with fewer replicas, or be missing still.
        (None, Some(wanted)) if facts.transaction_log_hidden => Some(Problem::warning(format!(
            "the transactions' log may not be seen; if it does not exist yet, transactions can't begin: the brokers \
             want {wanted} replicas of it (transaction.state.log.replication.factor), but there are only {brokers} \
             brokers. Grant DESCRIBE on {TRANSACTION_LOG} to have this checked, or ignore it if transactions work in \
             this cluster"
        ))),
        (None, None) if facts.transaction_log_hidden => Some(Problem::note(format!(
            "the transactions' log was not checked: grant DESCRIBE on {TRANSACTION_LOG}, or ignore this"
        ))),
        (None, Some(wanted)) => Some(Problem::error(format!(
            "transactions can't begin: the brokers want {wanted} replicas of their log \
             (transaction.state.log.replication.factor), but there are only {brokers} brokers"
        ))),
        (Some(replicas), _) if (replicas as u64) < insync => Some(Problem::warning(format!(
            "the transactions' log has {replicas} replicas, transaction.state.log.min.isr is {insync}: transactions \
             may never commit"
        ))),
        (Some(1), _) if brokers > 1 => {
            Some(Problem::warning("the transactions' log has 1 replica: without its broker nothing is delivered"))
        }
        _ => None,
    }
}

fn compare_group_protocol(facts: &BrokerFacts) -> Option<Problem> {
    match facts.value(PROTOCOLS) {
        Some(protocols) if protocols.split(',').any(|protocol| protocol.trim() == "consumer") => {
            let session = Duration::from_millis(facts.number("group.consumer.session.timeout.ms")?);
            let session = humantime::format_duration(session);
            Some(Problem::note(format!(
                "the partitions of a dead instance move after {session} (group.consumer.session.timeout.ms), unless \
                 the group has a configuration of its own"
            )))
        }
        Some(protocols) => Some(Problem::error(format!(
            "the brokers do not know kafka.group_protocol = \"consumer\" ({PROTOCOLS} is \"{protocols}\"): {ADVICE}"
        ))),
        None if facts.config.is_some() => Some(Problem::warning(format!(
            "the brokers do not say whether they know kafka.group_protocol = \"consumer\"; if the service never joins: \
             {ADVICE}"
        ))),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::*;
    use watermaster_core::policy::Scope;
    use watermaster_settings::config::Config;

    /// Returns settings with these lines in `[kafka]` and a service that has the scope.
    fn settings(lines: &str, scope: Scope) -> Settings {
        let text = format!("[kafka]\n{lines}\n{}", include_str!("../../../config/watermaster.minimal.toml"));
        let config = Config::parse(&text, std::path::Path::new("test.toml"), [], crate::PROPERTY_RULES);
        let mut settings = config.expect("the configuration is valid").settings;
        settings.services[0].policy.scope = scope;
        settings
    }

    fn facts(config: &[(&str, &str)]) -> BrokerFacts {
        let config = config.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        BrokerFacts { brokers: 1, config: Some(config), ..BrokerFacts::default() }
    }

    fn found(lines: &str, facts: &BrokerFacts) -> Vec<(Severity, String)> {
        found_for(Scope::Instance, lines, facts)
    }

    fn found_for(scope: Scope, lines: &str, facts: &BrokerFacts) -> Vec<(Severity, String)> {
        let findings = compare(&settings(lines, scope), facts).into_iter().map(Problem::of_brokers);
        findings.map(|finding| (finding.severity, finding.problem.to_string())).collect()
    }

    const EXACTLY_ONCE: &str = "delivery = \"exactly_once\"";
    const AT_LEAST_ONCE: &str = "delivery = \"at_least_once\"";
    const CONSUMER: &str = "delivery = \"at_least_once\"\ngroup_protocol = \"consumer\"";

    #[test]
    fn transactions_are_checked_only_if_they_are_used() {
        let lacking =
            facts(&[("transaction.max.timeout.ms", "5000"), ("transaction.state.log.replication.factor", "3")]);
        let found_with = found(EXACTLY_ONCE, &lacking);
        assert_eq!(found_with.len(), 2, "{found_with:?}");
        assert!(found_with.iter().all(|(severity, _)| *severity == Severity::Error));
        assert!(found_with[0].1.contains("is 10000, the brokers allow 5000"), "{found_with:?}");
        assert!(found_with[1].1.contains("3 replicas") && found_with[1].1.contains("only 1"), "{found_with:?}");
        assert_eq!(found(AT_LEAST_ONCE, &lacking), []);
        // An existing log keeps its replicas: the configured number does not matter.
        let exists = BrokerFacts { transaction_log_replicas: Some(1), ..lacking };
        assert_eq!(found(EXACTLY_ONCE, &exists).len(), 1);
        assert_eq!(found(EXACTLY_ONCE, &BrokerFacts::default()), []);
    }

    #[test]
    fn a_group_needs_transactions_with_both_deliveries() {
        let lacking =
            facts(&[("transaction.max.timeout.ms", "9000"), ("transaction.state.log.replication.factor", "3")]);
        let texts = found_for(Scope::Group, AT_LEAST_ONCE, &lacking);
        assert_eq!(texts, found(EXACTLY_ONCE, &lacking));
        // Seats take a shorter timeout from the configuration, and no longer one.
        let with_timeout =
            |timeout| format!("{AT_LEAST_ONCE}\n[kafka.properties]\n\"transaction.timeout.ms\" = {timeout}");
        assert_eq!(found_for(Scope::Group, &with_timeout(60_000), &lacking), texts);
        assert_eq!(found_for(Scope::Group, &with_timeout(9_000), &lacking), texts[1..]);
    }

    #[test]
    fn a_hidden_transaction_log_is_no_error() {
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
        assert_eq!(found(AT_LEAST_ONCE, &hidden), []);
    }

    #[test]
    fn too_few_replicas_of_the_transaction_log_give_a_warning() {
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
        assert_eq!(found(AT_LEAST_ONCE, &embedded), []);
    }

    #[test]
    fn an_unknown_group_protocol_is_an_error() {
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
        assert_eq!(found(AT_LEAST_ONCE, &facts(&[(KEY, "classic")])), []);
    }
}
