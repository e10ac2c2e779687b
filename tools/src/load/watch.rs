//! Reads the target and the dead-letter topic, and reports every record to the account.

use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, sync::Arc, sync::mpsc::Sender, thread::JoinHandle};

use watermaster_kafka::load::{Arrived, Watcher};
use watermaster_settings::client_id::HeaderLookup;

use super::account::{ArrivalTime, Event, Outcome};
use super::send::Start;
use super::stamp::{HEADER, Stamp};

/// The header with the reason of a rejection.
const REASON_HEADER: &str = "throttle-reason";
/// Index of the target among the topics that are watched; the other one is the dead-letter topic.
const TARGET: usize = 0;

/// A thread that reads both topics.
pub struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Watch {
    /// Starts to read.
    pub fn start(watcher: Watcher, run: String, start: Start, events: Sender<Event>) -> io::Result<Watch> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let read = move || {
            watcher.read(&stopped, |arrived| {
                if let Some(event) = event_of(arrived, &run, start) {
                    // The account may be closed already.
                    let _ = events.send(event);
                }
            });
        };
        Ok(Watch { stop, thread: std::thread::Builder::new().name("watch".to_owned()).spawn(read)? })
    }

    /// Stops reading.
    pub fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        // A thread that panicked has printed its message.
        let _ = self.thread.join();
    }
}

/// Returns the event of a record, unless it is a foreign one in the dead-letter topic.
fn event_of(arrived: &Arrived<'_>, run: &str, start: Start) -> Option<Event> {
    let at = ArrivalTime { appended: arrived.append_ms.map(|ms| start.since_ms(ms)), read: start.instant.elapsed() };
    let in_target = arrived.topic == TARGET;
    let stamp = match arrived.headers.lookup(HEADER) {
        HeaderLookup::Once(Some(value)) => Stamp::read(value).filter(|stamp| stamp.run == run),
        _ => None,
    };
    let Some(stamp) = stamp else { return in_target.then_some(Event::Foreign { at }) };
    let outcome = if in_target { Outcome::Admitted } else { Outcome::Rejected(reason(arrived)) };
    Some(Event::Arrived { number: stamp.number, outcome, at })
}

fn reason(arrived: &Arrived<'_>) -> String {
    match arrived.headers.lookup(REASON_HEADER) {
        HeaderLookup::Once(Some(reason)) => String::from_utf8_lossy(reason).into_owned(),
        _ => "unknown".to_owned(),
    }
}
