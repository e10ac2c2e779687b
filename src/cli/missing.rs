//! Prints what makes the missing topics: commands for Kafka's own tool, or resources for Strimzi.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::ValueEnum;
use watermaster_kafka::preflight::MissingTopic;

/// The tool that makes topics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TopicTool {
    /// Commands for kafka-topics.sh
    Kafka,
    /// KafkaTopic resources for kubectl
    Strimzi,
}

/// Returns the addresses for Kafka's own tool, and its option for a login if these properties have one: without it, the
/// tool waits for a minute, and does not say why.
pub fn brokers(bootstrap_servers: &str, properties: &BTreeMap<String, String>) -> String {
    let is_plain = properties.get("security.protocol").is_none_or(|name| name.eq_ignore_ascii_case("plaintext"));
    format!("{bootstrap_servers}{}", if is_plain { "" } else { " --command-config client.properties" })
}

/// Returns the texts that make these topics with a tool, one each.
pub fn texts(tool: TopicTool, brokers: &str, missing: &[MissingTopic]) -> Vec<String> {
    let one = |topic| match tool {
        TopicTool::Kafka => command(brokers, topic),
        TopicTool::Strimzi => resource(topic),
    };
    missing.iter().map(one).collect()
}

fn command(brokers: &str, topic: &MissingTopic) -> String {
    let MissingTopic { name, partitions, replicas, settings } = topic;
    let mut text = format!(
        "kafka-topics.sh --bootstrap-server {brokers} --create --topic {name} --partitions {partitions} \
         --replication-factor {replicas}"
    );
    settings.iter().for_each(|(setting, value)| _ = write!(text, " \\\n  --config {setting}={value}"));
    text
}

fn resource(topic: &MissingTopic) -> String {
    let MissingTopic { name, partitions, replicas, settings } = topic;
    // Names of resources have neither underscores nor capitals.
    let resource = name.to_lowercase().replace('_', "-");
    let mut text = format!(
        "---\napiVersion: kafka.strimzi.io/v1\nkind: KafkaTopic\nmetadata:\n  name: {resource}\n  labels:\n    \
         strimzi.io/cluster: my-cluster\nspec:\n  topicName: {name}\n  partitions: {partitions}\n  replicas: \
         {replicas}\n  config:"
    );
    settings.iter().for_each(|(setting, value)| _ = write!(text, "\n    {setting}: {value:?}"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_tools_get_all_settings() {
        let settings = [("cleanup.policy", "delete".to_owned()), ("retention.ms", "60000".to_owned())].into();
        let topic = MissingTopic { name: "kyc_Dead".to_owned(), partitions: 6, replicas: 3, settings };
        let topics = [topic.clone(), topic];
        let create = "kafka-topics.sh --bootstrap-server a:1 --create --topic kyc_Dead --partitions 6 \
                      --replication-factor 3 \\\n  --config cleanup.policy=delete \\\n  --config retention.ms=60000";
        assert_eq!(texts(TopicTool::Kafka, "a:1", &topics), [create; 2]);
        let secured = [("security.protocol".to_owned(), "SASL_SSL".to_owned())].into();
        assert_eq!(brokers("a:1", &[].into()), "a:1");
        assert_eq!(brokers("a:1", &secured), "a:1 --command-config client.properties");
        let [strimzi] = &texts(TopicTool::Strimzi, "a:1", &topics[..1])[..] else { panic!("one topic is missing") };
        let parts = ["  name: kyc-dead\n", "  topicName: kyc_Dead\n", "    retention.ms: \"60000\""];
        assert!(parts.iter().all(|part| strimzi.contains(part)), "{strimzi}");
    }
}
