//! The redrive jobs of a service, found by their consumer groups.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer as _;
use watermaster_settings::{Kafka, Service};

use super::Job;
use super::reader::{Reader, position_client};
use crate::assign::{self, remaining};
use crate::client::KafkaError;
use crate::record::SourceIndex;
use crate::topics::{SourcePartition, Topics};

/// The committed offsets of a job with their metadata, by partition of the dead-letter topic (0) and of the parking
/// topic (1).
pub type JobPositions = BTreeMap<SourcePartition, (i64, String)>;

/// Returns the positions of each job that the brokers know. `reader` reads the service's dead letters.
///
/// Each job takes a client of its own, since a client asks only about the offsets of one group. A list of all groups
/// comes with their members, and rdkafka loses the memory of a list that lacks the answer of a broker: so the list
/// should be asked for seldom, and after an error even less often.
///
/// # Errors
/// A broker does not answer within `timeout`, or refuses.
pub fn job_positions(
    kafka: &Kafka, service: &Service, reader: &Reader, timeout: Duration,
) -> Result<BTreeMap<String, JobPositions>, KafkaError> {
    let deadline = Instant::now() + timeout;
    let topics = [service.dead_letter.clone(), service.parked()];
    let topics = Topics::new(topics.iter().map(String::as_str));
    let of_topic = |topic| (0..reader.partition_count()).map(move |partition| (SourceIndex(topic), partition));
    let partitions: Vec<SourcePartition> = of_topic(0).chain(of_topic(1)).collect();
    let groups = reader.consumer.fetch_group_list(None, timeout)?;
    let prefix = Job::group(kafka, service, "");
    let mut jobs = BTreeMap::new();
    for group in groups.groups().iter().filter(|group| group.name().starts_with(&prefix)) {
        let client = position_client(kafka, group.name())?;
        let committed = assign::committed(&client, &topics, &partitions, remaining(deadline))?;
        let text = |metadata: Vec<u8>| String::from_utf8_lossy(&metadata).into_owned();
        let positions = committed.into_iter().filter_map(|(partition, committed)| {
            Some((partition, committed.map(|(offset, data)| (offset, text(data)))?))
        });
        jobs.insert(group.name().to_owned(), positions.collect());
    }
    Ok(jobs)
}
