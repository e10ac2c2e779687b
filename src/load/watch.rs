//! Reading what came out, and entering it into the books.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

use super::account::{At, Event, Outcome};
use super::send::Start;
use super::stamp::{HEADER, Stamp};
use watermaster_kafka::load::{Arrived, OpenError, Watcher};
use watermaster_settings::client_id::HeaderLookup;
use watermaster_settings::{Kafka, Service};

/// Says why a record was rejected.
const REASON_HEADER: &str = "throttle-reason";
/// What is watched, in this order.
const TARGET: usize = 0;

/// A reader on a thread of its own.
pub struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// Finds the ends of target and dead-letter topic.
///
/// # Errors
/// When no broker answers, or a topic can't be read.
pub fn open(kafka: &Kafka, service: &Service, timeout: Duration) -> Result<Watcher, OpenError> {
    Watcher::open(kafka, &[&service.target, &service.dead_letter], timeout)
}

impl Watch {
    /// Reads on from there; every record is told.
    ///
    /// # Errors
    /// In words, when there is no thread to be had.
    pub fn start(watcher: Watcher, run: &str, start: Start, events: Sender<Event>) -> Result<Watch, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, run) = (Arc::clone(&stop), run.to_owned());
        let read = move || {
            watcher.read(&stopped, |arrived| {
                if let Some(event) = event_of(arrived, &run, start) {
                    // Whoever keeps the books may have closed them.
                    let _ = events.send(event);
                }
            });
        };
        let thread = std::thread::Builder::new().name("watch".to_owned()).spawn(read);
        let thread = thread.map_err(|error| format!("can't start a thread: {error}"))?;
        Ok(Watch { stop, thread })
    }

    /// Stops reading.
    pub fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        // A thread that panicked has said so.
        let _ = self.thread.join();
    }
}

fn event_of(arrived: &Arrived<'_>, run: &str, start: Start) -> Option<Event> {
    let at = At { appended: arrived.append_ms.map(|ms| start.since_ms(ms)), arrived: start.instant.elapsed() };
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
