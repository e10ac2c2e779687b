//! Bounds the open records of services with `max_open`: those that were admitted, and that the service's own consumer
//! group has not committed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};
use watermaster_core::throttle::OpenRoom;
use watermaster_settings::{Kafka, Service};

use super::{CHECK_INTERVAL, target::Target};
use crate::services::{Change, ServiceHandle};

/// The interval between two counts. A service that commits at once gets `max_open` records in each.
const COUNT_INTERVAL: Duration = Duration::from_millis(200);
/// After this time without a count there is no bound.
const LOST_AFTER: Duration = Duration::from_secs(10);

/// Counts the open records, and tells the engine the room, until there is no bound.
pub(super) fn bound(kafka: &Kafka, service: &Service, handle: &ServiceHandle, stop: &AtomicBool) {
    let mut target = Target::new(kafka, service);
    let (mut counted_at, mut is_lost) = (Instant::now(), false);
    let tell = |room| handle.inbox.leave(Change { open_room: Some(room), ..Change::default() });
    let name = &service.name;
    while let Some(max_open) = handle.open.max().filter(|_| !stop.load(Ordering::Relaxed) && !handle.is_stopped()) {
        let next = Instant::now() + COUNT_INTERVAL;
        // Admissions that arrive meanwhile count twice, so there is never too much room.
        let admitted = handle.open.delivered();
        let offsets = target.offsets();
        let open = offsets.map(|all| all.iter().map(|one| u64::try_from(one.end - one.committed).unwrap_or(0)).sum());
        handle.open.set_counted(open);
        if let Some(open) = open {
            tell(Some(OpenRoom { admitted, records: max_open.saturating_sub(open) }));
            counted_at = Instant::now();
            if std::mem::take(&mut is_lost) {
                info!(service = name, open, max_open, "the open records are counted again, and bounded");
            }
        } else if !is_lost && counted_at.elapsed() > LOST_AFTER {
            tell(None);
            is_lost = true;
            let seconds = LOST_AFTER.as_secs();
            warn!(service = name, max_open, "no count of the open records for {seconds} s: they are not bounded");
        }
        while Instant::now() < next && !stop.load(Ordering::Relaxed) {
            thread::sleep(CHECK_INTERVAL.min(next.saturating_duration_since(Instant::now())));
        }
    }
    handle.open.set_counted(None);
    tell(None);
}
