//! Follows the topics of the cluster, for sources by pattern.

use std::{sync::Arc, time::Duration};

use tracing::warn;

use crate::reload::Configuration;
use watermaster_kafka::preflight::PreflightClient;
use watermaster_settings::Kafka;

/// The property of librdkafka that is the interval at which the brokers are asked.
const INTERVAL_PROPERTY: &str = "topic.metadata.refresh.interval.ms";
const DEFAULT_INTERVAL: Duration = Duration::from_secs(30);
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// The longest wait for an answer, for which a thread of its own waits.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Asks for the names of all topics at intervals, while a source has a pattern.
pub(super) fn follow_topics(kafka: &Kafka, configuration: &Arc<Configuration>) {
    let (kafka, configuration) = (kafka.clone(), Arc::clone(configuration));
    super::repeat(interval(&kafka), None, move |client| look(&kafka, &configuration, client));
}

fn interval(kafka: &Kafka) -> Duration {
    let millis = kafka.properties.get(INTERVAL_PROPERTY).and_then(|value| value.parse().ok());
    millis.map_or(DEFAULT_INTERVAL, |millis| Duration::from_millis(millis).max(MIN_INTERVAL))
}

/// Asks once. Returns the connection if it can be used again.
fn look(kafka: &Kafka, configuration: &Configuration, client: Option<PreflightClient>) -> Option<PreflightClient> {
    if !configuration.has_patterns() {
        return None;
    }
    let warn =
        |why: &dyn std::fmt::Display| warn!("the topics that match the patterns of sources are not known: {why}");
    let client = client.filter(|client| !client.has_old_secrets());
    let client = client.map_or_else(|| PreflightClient::connect_within(kafka, Duration::ZERO), Ok);
    let client = client.inspect_err(|why| warn(why)).ok()?;
    let names = client.topic_names(ANSWER_TIMEOUT).inspect_err(|why| warn(why)).ok()?;
    configuration.discovered(names);
    Some(client)
}
