//! The topics that a configuration needs and the cluster lacks, with the settings that they should be made with.

use std::collections::BTreeMap;
use std::time::Duration;

use watermaster_settings::{Service, Settings};

use super::topics::HEADER_ROOM;
use super::{Problem, Report};
use crate::ask::TopicFacts;
use crate::control::{MORE_SETTINGS, REQUIRED_SETTINGS};

/// The settings where no topic of the service tells better ones: Kafka's limit, and those for three brokers or more.
const PARTITIONS: usize = 6;
const REPLICAS: usize = 3;
const MAX_BYTES: u64 = 1_048_588;
const WEEK: Duration = Duration::from_secs(7 * 86_400);

/// A topic that is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingTopic {
    pub name: String,
    pub partitions: usize,
    pub replicas: usize,
    pub settings: BTreeMap<&'static str, String>,
}

/// Returns the missing topics of a report, in the order of their names. Each has the partitions, the replicas and the
/// limit for records of the other topics of its service.
pub(super) fn topics(settings: &Settings, report: &Report) -> Vec<MissingTopic> {
    let is_missing = |problem: &Problem| matches!(problem, Problem::MissingTopic | Problem::ControlMissing);
    let missing = report.findings.iter().filter(|finding| is_missing(&finding.problem));
    let plan = missing.filter_map(|finding| {
        let named = |service: &&Service| Some(&service.name) == finding.service.as_ref();
        let topic = finding.topic.as_deref()?;
        Some((topic, of_service(settings.services.iter().find(named)?, topic, report)))
    });
    // Two services may share a topic.
    plan.collect::<BTreeMap<_, _>>().into_values().collect()
}

fn of_service(service: &Service, name: &str, report: &Report) -> MissingTopic {
    let facts: Vec<&TopicFacts> = super::topics::of(service).filter_map(|topic| report.topics.get(topic)).collect();
    let partitions = facts.iter().map(|facts| facts.partitions).max().unwrap_or(PARTITIONS);
    let most = if report.brokers == 0 { REPLICAS } else { report.brokers.min(REPLICAS) };
    let replicas = facts.iter().map(|facts| facts.replication).max().unwrap_or(most);
    let bytes = facts.iter().filter_map(|facts| facts.max_message_bytes).max().unwrap_or(MAX_BYTES);
    // One replica may be away without an effect.
    let mut settings = BTreeMap::from([("min.insync.replicas", (replicas.max(2) - 1).to_string())]);
    let partitions = if name == service.control_topic {
        let own = REQUIRED_SETTINGS.iter().chain(MORE_SETTINGS);
        settings.extend(own.map(|(setting, value)| (*setting, (*value).to_owned())));
        1
    } else {
        let is_dead_letter = service.dead_letters().contains(&name);
        // Rejected records gain headers, and wait until a person has looked at them.
        let (room, retention) = if is_dead_letter { (HEADER_ROOM, 4 * WEEK) } else { (0, WEEK) };
        settings.insert("cleanup.policy", "delete".to_owned());
        settings.insert("unclean.leader.election.enable", "false".to_owned());
        settings.insert("max.message.bytes", bytes.saturating_add(room).to_string());
        settings.insert("retention.ms", retention.as_millis().to_string());
        partitions
    };
    MissingTopic { name: name.to_owned(), partitions, replicas, settings }
}

#[cfg(test)]
mod tests {
    use watermaster_settings::config::Config;

    use super::super::Finding;
    use super::*;

    const CONFIG: &str = "[[service]]\nname = \"kyc\"\ntarget = \"kyc\"\ndead_letter = \"dead\"\ncapacity = 5\n\
                          [[service.source]]\ntopic = \"home\"\n[[service.source]]\ntopic = \"car\"\n";

    #[test]
    fn missing_topics_are_like_those_of_the_service() {
        let path = std::path::Path::new("a.toml");
        let settings = Config::parse(CONFIG, path, [], crate::PROPERTY_RULES).unwrap().settings;
        let missing = |topic: &str| Problem::MissingTopic.of_topic("kyc", topic);
        let control = Problem::ControlMissing.of_topic("kyc", "watermaster.kyc.seats");
        let report = |findings: Vec<Finding>, topics| Report { findings, topics, ..Report::default() };
        let facts =
            TopicFacts { partitions: 9, replication: 2, max_message_bytes: Some(2_000), ..TopicFacts::default() };
        let found = report(vec![missing("kyc"), missing("dead"), control], [("home".to_owned(), facts)].into());
        let planned = topics(&settings, &found);
        let shown: Vec<_> = planned
            .iter()
            .map(|topic| (&*topic.name, topic.partitions, topic.replicas, &*topic.settings["max.message.bytes"]))
            .collect();
        assert_eq!(shown, [("dead", 9, 2, "4048"), ("kyc", 9, 2, "2000"), ("watermaster.kyc.seats", 1, 2, "1048576")]);
        assert_eq!(planned[2].settings["cleanup.policy"], "compact");
        // Where no topic exists, the defaults hold; a topic is planned once.
        let found = report(vec![missing("home"), missing("home")], BTreeMap::new());
        let [home] = &topics(&settings, &found)[..] else { panic!("one topic") };
        assert_eq!((home.partitions, home.replicas, &*home.settings["min.insync.replicas"]), (6, 3, "2"));
        // A broker makes no topic with more replicas than there are brokers.
        for (brokers, expected) in [(1, (1, "1")), (2, (2, "1")), (5, (3, "2"))] {
            let found = Report { brokers, ..found.clone() };
            let [home] = &topics(&settings, &found)[..] else { panic!("one topic") };
            assert_eq!((home.replicas, &*home.settings["min.insync.replicas"]), expected);
        }
    }
}
