//! Opens the control log of a service.

use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::former;
use crate::clock::Clock;
use crate::engine::{Job, StopCause};
use watermaster_kafka::consumer::group_id;
use watermaster_kafka::control::{SeatLog, ensure_topic};
use watermaster_kafka::producer::seat_id_prefix;

/// The longest wait for an answer about the control topic.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);
/// The time between two attempts.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// An attempt in so many is logged.
const LOGGED_ATTEMPTS: u64 = 10;

/// Opens the log, and makes its topic if it is missing. Calls `wait` in between if the former version's topic is there.
///
/// # Errors
/// The topic is missing and can't be made, or no broker answers, or `wait` fails.
pub(super) fn open(job: &Job, wait: impl FnOnce() -> Result<(), StopCause>) -> Result<SeatLog, StopCause> {
    let (service, topic) = (&job.service.name, &job.service.control_topic);
    let target = job.facts.topics.get(&job.service.target);
    let former = job.service.former_control_topic(&job.kafka.group_id);
    let ensured = ensure_topic(&job.kafka, topic, &former, target, TIMEOUT)?;
    if ensured.created {
        info!(service, topic, "made the control topic: one partition, compacted");
    }
    if ensured.missing_replicas > 0 {
        let missing = ensured.missing_replicas;
        warn!(service, topic, missing, "the cluster has too few brokers for three replicas of the control topic");
    }
    if ensured.former_exists {
        wait()?;
    }
    let (group, prefix) = (group_id(&job.kafka, &job.service), seat_id_prefix(&job.kafka, &job.service));
    Ok(SeatLog::open(&job.kafka, &group, topic, &prefix, TIMEOUT)?)
}

/// Opens the log as soon as brokers answer and no member of the former version is live; `None` if the service is to
/// stop before.
///
/// # Errors
/// The topic is missing and can't be made, or the former version's can't be read or written.
pub(super) fn wait_for(job: &Job, clock: &Clock) -> Result<Option<SeatLog>, StopCause> {
    for attempt in 0.. {
        match open(job, || former::wait(job, clock)) {
            Err(cause) if passes_by(&cause) && attempt % LOGGED_ATTEMPTS == 0 => {
                warn!(service = job.service.name, "waiting for the control topic: {cause}");
            }
            Err(cause) if passes_by(&cause) => {}
            opened => return opened.map(Some),
        }
        if job.handle.is_stopped() {
            break;
        }
        job.handle.heartbeat.beat(Instant::now());
        thread::sleep(RETRY_INTERVAL);
    }
    Ok(None)
}

/// Returns whether another attempt may succeed.
pub(super) fn passes_by(cause: &StopCause) -> bool {
    match cause {
        StopCause::Control(error) => error.passes_by(),
        StopCause::ControlTopic(error) => error.passes_by(),
        _ => false,
    }
}
