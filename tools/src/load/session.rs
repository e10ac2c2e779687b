//! A run in progress: one thread sends, one reads back, and the owner of the session keeps the account.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{io, sync::Arc, thread, thread::JoinHandle};

use watermaster_kafka::load::{Arrived, Delivery, LoadProducer, OpenError, Watcher, find_topics};
use watermaster_settings::client_id::HeaderLookup;
use watermaster_settings::{Kafka, Service};

use super::account::{Account, ArrivalTime, Attempt, Event, Outcome};
use super::plan::Plan;
use super::send::{Player, STAMP_HEADER, Start};

/// The header with the reason of a rejection.
const REASON_HEADER: &str = "throttle-reason";
/// Index of the target among the topics that are read back; the other one is the dead-letter topic.
const TARGET: usize = 0;
/// The time that the last records may take to be acknowledged.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(15);
/// The time that the brokers may take to answer at the start.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The time from the creation of the producer to the first record. A producer needs up to a second to connect, which
/// would count as a delay.
const LEAD: Duration = Duration::from_secs(1);

/// A run can't begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("can't start a thread")]
    Thread(#[from] io::Error),
    #[error("the clock is before 1970 or in the far future")]
    Clock,
    #[error("the sending thread panicked")]
    Panicked,
}

/// A run in progress.
pub struct Session {
    pub account: Account,
    /// The name of the run.
    pub run: String,
    pub start: Start,
    events: Receiver<Event>,
    /// The channel for retries; `None` once nothing more is to be sent.
    orders: Option<Sender<Attempt>>,
    /// Retries that were ordered and not sent yet.
    ordered: u64,
    player: JoinHandle<()>,
    /// The thread that reads back, and its signal to stop.
    watch: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl Session {
    /// Starts to send a plan and, with `read_back`, to read the target and the dead-letter topic of the service.
    pub fn start(kafka: &Kafka, service: &Service, plan: Plan, read_back: bool) -> Result<Session, SessionError> {
        let sources: Vec<&str> = plan.clients.iter().map(|client| plan.topics[client.topic].as_str()).collect();
        find_topics(kafka, &sources, CONNECT_TIMEOUT)?;
        let outputs = [service.target.as_str(), &service.dead_letter];
        let watcher = read_back.then(|| Watcher::open(kafka, &outputs, CONNECT_TIMEOUT)).transpose()?;

        let (sender, events) = mpsc::channel();
        let delivered = sender.clone();
        let on_delivery = move |delivery| {
            // The account may be closed already.
            let _ = delivered.send(event_of(delivery));
        };
        let producer = LoadProducer::new(kafka, on_delivery).map_err(OpenError::from)?;
        let start = soon()?;
        let run = format!("{:x}", start.epoch_us);
        let watch = watcher.map(|watcher| watch(watcher, run.clone(), start, sender.clone())).transpose()?;
        let (orders, ordered) = mpsc::channel();
        let (of_player, name) = (plan.clone(), run.clone());
        let play = move || {
            Player::new(&of_player, &name, start, |record| producer.send(record), sender).play(&ordered);
            // The account shows the records that are not acknowledged by then.
            let _ = producer.flush(FLUSH_TIMEOUT);
        };
        let player = thread::Builder::new().name("load".to_owned()).spawn(play)?;
        let account = Account::new(plan);
        Ok(Session { account, run, start, events, orders: Some(orders), ordered: 0, player, watch })
    }

    /// Waits for an event, applies it to the account and orders the retry that follows from it.
    pub fn next_event(&mut self, limit: Duration) -> Result<Event, RecvTimeoutError> {
        let event = self.events.recv_timeout(limit)?;
        self.ordered -= u64::from(matches!(&event, Event::Sent { attempt, .. } if attempt.number > 1));
        if let (Some(retry), Some(orders)) = (self.account.apply(&event), &self.orders) {
            self.ordered += u64::from(orders.send(retry).is_ok());
        }
        Ok(event)
    }

    /// Stops the sending at once.
    pub fn stop_sending(&mut self) {
        (self.orders, self.ordered) = (None, 0);
    }

    /// Reports whether records may still be sent.
    pub fn is_sending(&self) -> bool {
        self.orders.is_some() && (!self.account.played || self.ordered > 0)
    }

    /// Stops both threads and returns the account.
    pub fn finish(mut self) -> Result<Account, SessionError> {
        self.stop_sending();
        self.player.join().map_err(|_| SessionError::Panicked)?;
        if let Some((stop, watch)) = self.watch {
            stop.store(true, Ordering::Relaxed);
            // A thread that panicked has printed its message.
            let _ = watch.join();
        }
        self.events.try_iter().for_each(|event| _ = self.account.apply(&event));
        Ok(self.account)
    }
}

fn event_of(Delivery { number, position }: Delivery) -> Event {
    match position {
        Ok(place) => Event::Delivered { number, place },
        Err(reason) => Event::Undelivered { number, reason: reason.to_string() },
    }
}

fn soon() -> Result<Start, SessionError> {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|_| SessionError::Clock)?;
    let epoch_us = u64::try_from((since_1970 + LEAD).as_micros()).map_err(|_| SessionError::Clock)?;
    Ok(Start { instant: Instant::now() + LEAD, epoch_us })
}

/// Starts to read the target and the dead-letter topic.
fn watch(
    watcher: Watcher, run: String, start: Start, events: Sender<Event>,
) -> io::Result<(Arc<AtomicBool>, JoinHandle<()>)> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let read = move || {
        watcher.read(&stopped, |arrived| {
            if let Some(event) = arrival(arrived, &run, start) {
                // The account may be closed already.
                let _ = events.send(event);
            }
        });
    };
    Ok((stop, thread::Builder::new().name("watch".to_owned()).spawn(read)?))
}

/// Returns the event of a record, unless it is a foreign one in the dead-letter topic.
fn arrival(arrived: &Arrived<'_>, run: &str, start: Start) -> Option<Event> {
    let at = ArrivalTime { appended: arrived.append_ms.map(|ms| start.since_ms(ms)), read: start.instant.elapsed() };
    let header = |name| match arrived.headers.lookup(name) {
        HeaderLookup::Once(value) => value,
        _ => None,
    };
    let in_target = arrived.topic == TARGET;
    let Some(number) = header(STAMP_HEADER).and_then(|stamp| stamped_number(stamp, run)) else {
        return in_target.then_some(Event::Foreign { at });
    };
    let reason = || header(REASON_HEADER).map_or("unknown".into(), String::from_utf8_lossy).into_owned();
    let outcome = if in_target { Outcome::Admitted } else { Outcome::Rejected(reason()) };
    Some(Event::Arrived { number, outcome, at })
}

/// Returns the number of a record that carries this stamp; `None` if another run sent it, or it is no stamp.
fn stamped_number(stamp: &[u8], run: &str) -> Option<usize> {
    let parts: Vec<&str> = str::from_utf8(stamp).ok()?.split('/').collect();
    let [of_run, number, _intended, _attempt] = parts[..] else { return None };
    number.parse().ok().filter(|_| of_run == run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_stamp_of_the_run_has_a_number() {
        assert_eq!(stamped_number(b"a1/17/1700000000000000/2", "a1"), Some(17));
        for other in [&b"a2/17/1/1"[..], b"a1/17/1", b"a1/1/2/3/4", b"a1/x/2/3", b"", b"\xff/1/2/3"] {
            assert_eq!(stamped_number(other, "a1"), None, "{other:?}");
        }
    }
}
