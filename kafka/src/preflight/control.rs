//! Checks the control topic of a service with `scope = "group"`.

use rdkafka::admin::ConfigResource;

use super::problem::Problem;
use crate::ask::TopicFacts;
use crate::control::{COMPACTION_LAG, MAX_MESSAGE_BYTES, REQUIRED_SETTINGS};

/// The reason for what the instances need.
const OTHERWISE: &str = "or they could admit more than the capacity together";

/// Compares a control topic with what a group needs, and with the service's target: a control topic that loses records
/// makes the group forget admissions.
pub(super) fn compare(
    facts: &TopicFacts, config: Option<&ConfigResource>, target: Option<&TopicFacts>,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    if facts.partitions != 1 {
        problems.push(Problem::error(format!("has {} partitions: it needs exactly one", facts.partitions)));
    }
    let value = |name: &str| config?.get(name)?.value.clone();
    for (name, wanted) in REQUIRED_SETTINGS {
        if let Some(found) = value(name).filter(|found| found != wanted) {
            problems.push(Problem::error(format!("{name} is {found}: the instances need {wanted}, {OTHERWISE}")));
        }
    }
    let target_has = |of: fn(&TopicFacts) -> Option<u64>, own: u64| target.and_then(of).filter(|most| own < *most);
    let replicas = facts.replication as u64;
    if let Some(target) = target_has(|facts| Some(facts.replication as u64), replicas) {
        let found = format!("has {replicas} replicas, the target has {target}");
        problems.push(Problem::error(format!("{found}: the instances need as many, {OTHERWISE}")));
    }
    if let Some(insync) = facts.min_insync_replicas {
        if let Some(target) = target_has(TopicFacts::in_sync, insync) {
            let found = format!("min.insync.replicas is {insync}, the target's is {target}");
            problems.push(Problem::error(format!("{found}: the instances need as many, {OTHERWISE}")));
        } else if replicas > 2 && insync == 1 {
            let text = "min.insync.replicas is 1: a broker that dies could take parts of the capacity with it";
            problems.push(Problem::warning(text));
        }
    }
    let is_less = |found: &str, wanted: &str| found.parse::<u64>().ok() < wanted.parse().ok();
    if let Some(found) = value("min.compaction.lag.ms").filter(|found| is_less(found, COMPACTION_LAG)) {
        problems.push(Problem::warning(format!(
            "min.compaction.lag.ms is {found}: set it to {COMPACTION_LAG} or more, or an instance that reads late may \
             miss states of others"
        )));
    }
    if let Some(found) = value("max.message.bytes").filter(|found| is_less(found, MAX_MESSAGE_BYTES)) {
        problems.push(Problem::warning(format!(
            "max.message.bytes is {found}: set it to {MAX_MESSAGE_BYTES} or more, or the loads of many clients do not \
             fit, and those of small ones are told as one sum"
        )));
    }
    problems
}

#[cfg(test)]
mod tests {
    use rdkafka::admin::{ConfigEntry, ConfigSource, OwnedResourceSpecifier};

    use super::super::Severity;
    use super::*;

    fn topic(replication: usize, insync: u64) -> TopicFacts {
        let min_insync_replicas = Some(insync);
        TopicFacts { partitions: 1, replication, min_insync_replicas, ..TopicFacts::default() }
    }

    fn found(facts: &TopicFacts, config: &[(&str, &str)], target: Option<&TopicFacts>) -> Vec<(Severity, String)> {
        let entry = |(name, value): &(&str, &str)| ConfigEntry {
            name: (*name).to_owned(),
            value: Some((*value).to_owned()),
            source: ConfigSource::DynamicTopic,
            is_read_only: false,
            is_default: false,
            is_sensitive: false,
        };
        let specifier = OwnedResourceSpecifier::Topic("control".to_owned());
        let config = ConfigResource { specifier, entries: config.iter().map(entry).collect() };
        let findings = compare(facts, Some(&config), target).into_iter().map(Problem::of_brokers);
        findings.map(|finding| (finding.severity, finding.problem.to_string())).collect()
    }

    #[test]
    fn a_control_topic_as_it_is_made_has_no_problem() {
        let made = crate::control::REQUIRED_SETTINGS.iter().copied();
        let made: Vec<_> = made.chain([("min.compaction.lag.ms", "60000"), ("max.message.bytes", "1048576")]).collect();
        for target in [None, Some(&topic(3, 2)), Some(&topic(1, 3))] {
            assert_eq!(found(&topic(3, 2), &made, target), []);
        }
        assert_eq!(compare(&TopicFacts { partitions: 1, ..TopicFacts::default() }, None, None).len(), 0);
    }

    #[test]
    fn settings_that_lose_states_are_refused() {
        let config = [("cleanup.policy", "compact,delete"), ("unclean.leader.election.enable", "true")];
        let texts = found(&TopicFacts { partitions: 2, ..topic(3, 2) }, &config, None);
        assert!(texts.iter().all(|(severity, _)| *severity == Severity::Error), "{texts:?}");
        let words = ["has 2 partitions", "cleanup.policy is compact,delete", "unclean.leader.election.enable is true"];
        assert_eq!(texts.len(), words.len(), "{texts:?}");
        assert!(texts.iter().zip(words).all(|((_, text), words)| text.contains(words)), "{texts:?}");
    }

    #[test]
    fn fewer_replicas_than_the_target_has_are_refused() {
        let texts = found(&topic(1, 1), &[], Some(&topic(3, 2)));
        assert!(
            matches!(texts.as_slice(), [(Severity::Error, replicas), (Severity::Error, insync)]
                if replicas.contains("has 1 replicas, the target has 3")
                    && insync.contains("min.insync.replicas is 1, the target's is 2")),
            "{texts:?}"
        );
        let texts = found(&topic(3, 1), &[], Some(&topic(3, 1)));
        assert!(
            matches!(texts.as_slice(), [(Severity::Warning, text)] if text.contains("is 1: a broker")),
            "{texts:?}"
        );
    }

    #[test]
    fn early_compaction_and_small_records_give_warnings() {
        let config = [("min.compaction.lag.ms", "59999"), ("max.message.bytes", "1048575")];
        let texts = found(&topic(3, 2), &config, None);
        assert!(
            matches!(texts.as_slice(), [(Severity::Warning, lag), (Severity::Warning, bytes)]
                if lag.contains("is 59999") && bytes.contains("is 1048575")),
            "{texts:?}"
        );
    }
}
