//! Waits for the members of version 0.2, which do not know the seats. This file goes with version 0.4.

use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::open::TIMEOUT;
use crate::clock::Clock;
use crate::engine::{Job, StopCause};
use watermaster_kafka::consumer::group_id;
use watermaster_kafka::control::FormerLog;

/// The time between two looks for live members.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Waits until no member of the former version is live, and ends their group; returns early if the service is to stop.
///
/// # Errors
/// The former version's control topic can't be read or written.
pub(super) fn wait(job: &Job, clock: &Clock) -> Result<(), StopCause> {
    let service = &job.service.name;
    let topic = job.service.former_control_topic(&job.kafka.group_id);
    let mut log = FormerLog::open(&job.kafka, &group_id(&job.kafka, &job.service), &topic, TIMEOUT)?;
    let mut told = Vec::new();
    while !job.handle.is_stopped() {
        job.handle.heartbeat.beat(Instant::now());
        let live = log.look(|| clock.now())?;
        if live.is_empty() {
            if !told.is_empty() {
                info!(service, "no member of the former version is live any more");
            }
            break;
        }
        if live != told {
            let reason = format!("waiting for members of the former version: {}", live.join(", "));
            warn!(service, "{reason}");
            job.handle.cell.show_trouble(reason);
            told = live;
        }
        thread::sleep(LOOK_INTERVAL);
    }
    Ok(())
}
