//! Checks the consumer group of a service's target, which the search for the capacity follows.

use std::time::Duration;

use watermaster_settings::{Kafka, Service};

use super::problem::Problem;
use crate::ask::{AskError, Asker};
use crate::consumer::group_id;

/// Looks for offsets that the group committed in the target.
pub(super) fn check(kafka: &Kafka, service: &Service, timeout: Duration) -> Option<Problem> {
    let group = service.consumer_group.clone().filter(|_| service.pace.is_some())?;
    match count(kafka, service, &group, timeout) {
        Ok(0) => Some(Problem::NothingCommitted { group }),
        Ok(_) => None,
        Err(why) => Some(Problem::GroupUnanswered { group, reason: why.to_string() }),
    }
}

/// Returns the number of partitions in which the group committed.
fn count(kafka: &Kafka, service: &Service, group: &str, timeout: Duration) -> Result<usize, AskError> {
    let asker = Asker::silent(kafka, &group_id(kafka, service))?;
    let partitions = asker.partitions(&service.target, timeout)?;
    Ok(asker.offsets(group, &service.target, partitions, timeout)?.len())
}
