//! A run in progress: one thread sends, one reads back, and the owner of the session keeps the account.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{collections::BTreeMap, fmt::Display, io, sync::Arc, thread, thread::JoinHandle};

use watermaster_kafka::ask::Asker;
use watermaster_kafka::headers;
use watermaster_kafka::load::{Arrived, Fate, LoadProducer, LoadRecord, NAME, Watcher};
use watermaster_settings::client_id::HeaderLookup;
use watermaster_settings::{Kafka, Service};

use super::account::{Account, ArrivalTime, Event, Outcome, SendAttempt};
use super::{plan::Plan, schedule::schedule};
use crate::cli::{CONNECT_TIMEOUT, Failure};

/// The header that marks a record of a run and comes out with it on the other side: `RUN/NUMBER/INTENDED/ATTEMPT`, with
/// the intended time of the first attempt in microseconds since 1970, and attempts from 1.
const STAMP_HEADER: &str = "watermaster-load";
/// The pause while the queue of the producer is full.
const QUEUE_FULL_INTERVAL: Duration = Duration::from_millis(2);
/// The time that the last records may take to be acknowledged.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(15);

/// The time from the creation of the producer to the first record. A producer needs up to a second to connect, which
/// would count as a delay.
const LEAD: Duration = Duration::from_secs(1);

/// A run in progress.
pub struct Session {
    pub account: Account,
    /// The name of the run.
    pub run: String,
    pub start: RunStart,
    events: Receiver<Event>,
    /// The channel for retries; `None` once nothing more is to be sent.
    orders: Option<Sender<SendAttempt>>,
    /// Retries that were ordered and not sent yet.
    ordered: u64,
    player: JoinHandle<()>,
    /// The thread that reads back, and its signal to stop.
    watch: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl Session {
    /// Starts to send a plan and, with `read_back`, to read the targets and the dead-letter topics of the service.
    pub fn start(kafka: &Kafka, service: &Service, plan: Plan, read_back: bool) -> Result<Session, Failure> {
        let sources: Vec<&str> = plan.clients.iter().map(|client| plan.topics[client.topic].as_str()).collect();
        let asker = Asker::named(kafka, NAME)?;
        sources.iter().try_for_each(|topic| asker.partitions(topic, CONNECT_TIMEOUT).map(drop))?;
        let targets = service.targets();
        let outputs = [&targets[..], &service.dead_letters()].concat();
        let watcher = read_back.then(|| Watcher::open(kafka, &outputs, CONNECT_TIMEOUT)).transpose()?;

        let (sender, events) = mpsc::channel();
        let delivered = sender.clone();
        let on_delivery = move |number, fate: Fate| {
            let undelivered = |reason| Event::Undelivered { number, reason };
            let event = fate.map(|place| Event::Delivered { number, place });
            // The account may be closed already.
            let _ = delivered.send(event.unwrap_or_else(|reason| undelivered(reason.to_string())));
        };
        let producer = LoadProducer::new(kafka, on_delivery)?;
        let start = soon()?;
        let run = format!("{:x}", start.epoch_us);
        let watch = watcher.map(|watcher| watch(watcher, targets.len(), run.clone(), start, sender.clone()));
        let watch = watch.transpose().map_err(no_thread)?;
        let (orders, ordered) = mpsc::channel();
        let (of_player, name) = (plan.clone(), run.clone());
        let play = move || {
            Player::new(&of_player, &name, start, |record| producer.send(record), sender).play(&ordered);
            // The account shows the records that are not acknowledged by then.
            let _ = producer.flush(FLUSH_TIMEOUT);
        };
        let player = thread::Builder::new().name("load".to_owned()).spawn(play).map_err(no_thread)?;
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

    pub fn stop_sending(&mut self) {
        (self.orders, self.ordered) = (None, 0);
    }

    /// Reports whether records may still be sent.
    pub fn is_sending(&self) -> bool {
        self.orders.is_some() && (!self.account.played || self.ordered > 0)
    }

    /// Stops both threads and returns the account.
    pub fn finish(mut self) -> Result<Account, Failure> {
        self.stop_sending();
        self.player.join().map_err(|_| Failure::stopped("the sending thread panicked"))?;
        if let Some((stop, watch)) = self.watch {
            stop.store(true, Ordering::Relaxed);
            // A thread that panicked has printed its message.
            let _ = watch.join();
        }
        self.events.try_iter().for_each(|event| _ = self.account.apply(&event));
        Ok(self.account)
    }
}

fn no_thread(error: io::Error) -> Failure {
    Failure::stopped(format_args!("can't start a thread: {error}"))
}

fn soon() -> Result<RunStart, Failure> {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).ok();
    let epoch_us = since_1970.and_then(|time| u64::try_from((time + LEAD).as_micros()).ok());
    let wrong = "the clock is before 1970 or in the far future";
    let epoch_us = epoch_us.ok_or_else(|| Failure::stopped(wrong))?;
    Ok(RunStart { instant: Instant::now() + LEAD, epoch_us })
}

/// Starts to read the targets, which come first among the topics, and the dead-letter topics.
fn watch(
    watcher: Watcher, targets: usize, run: String, start: RunStart, events: Sender<Event>,
) -> io::Result<(Arc<AtomicBool>, JoinHandle<()>)> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let read = move || {
        watcher.read(&stopped, |arrived| {
            if let Some(event) = arrival(arrived, arrived.topic < targets, &run, start) {
                // The account may be closed already.
                let _ = events.send(event);
            }
        });
    };
    Ok((stop, thread::Builder::new().name("watch".to_owned()).spawn(read)?))
}

/// Returns the event of a record, unless it is a foreign one in a dead-letter topic.
fn arrival(arrived: &Arrived<'_>, in_target: bool, run: &str, start: RunStart) -> Option<Event> {
    let at = ArrivalTime { appended: arrived.append_ms.map(|ms| start.since_ms(ms)), read: start.instant.elapsed() };
    let header = |name| match arrived.headers.lookup(name) {
        HeaderLookup::Once(value) => value,
        _ => None,
    };
    let Some(number) = header(STAMP_HEADER.as_bytes()).and_then(|stamp| stamped_number(stamp, run)) else {
        return in_target.then_some(Event::Foreign { at });
    };
    let reason = || header(headers::REASON).map_or("unknown".into(), String::from_utf8_lossy).into_owned();
    let outcome = if in_target { Outcome::Admitted } else { Outcome::Rejected(reason()) };
    Some(Event::Arrived { number, outcome, at })
}

/// Returns the number of a record that carries this stamp; `None` if another run sent it, or it is no stamp.
fn stamped_number(stamp: &[u8], run: &str) -> Option<usize> {
    let parts: Vec<&str> = str::from_utf8(stamp).ok()?.split('/').collect();
    let [of_run, number, _intended, _attempt] = parts[..] else { return None };
    number.parse().ok().filter(|_| of_run == run)
}

/// The start of a run on both clocks.
#[derive(Debug, Clone, Copy)]
pub struct RunStart {
    pub instant: Instant,
    /// Microseconds since 1970.
    pub epoch_us: u64,
}

impl RunStart {
    /// Returns the wall-clock time of a time since the start, in microseconds since 1970.
    fn wall_us(&self, at: Duration) -> u64 {
        self.epoch_us.saturating_add(u64::try_from(at.as_micros()).unwrap_or(u64::MAX))
    }

    /// Returns the time since the start of a time in milliseconds since 1970; 0 for times before the start.
    fn since_ms(&self, wall_ms: i64) -> Duration {
        let us = u64::try_from(wall_ms).unwrap_or(0).saturating_mul(1_000);
        Duration::from_micros(us.saturating_sub(self.epoch_us))
    }
}

/// Sends each record at its time, independent of the records before it.
struct Player<'a, F> {
    plan: &'a Plan,
    run: &'a str,
    start: RunStart,
    produce: F,
    events: Sender<Event>,
    /// Attempts by the time at which they are due and their order of arrival. Of the first attempts, only the next one
    /// is among them.
    pending: BTreeMap<(Duration, usize), SendAttempt>,
    queued: usize,
    /// The number of records that were sent.
    sent: usize,
}

impl<'a, E: Display, F: FnMut(&LoadRecord<'_>) -> Result<bool, E>> Player<'a, F> {
    /// Makes a player. `produce` hands a record over without waiting; it returns `false` if the queue is full.
    fn new(plan: &'a Plan, run: &'a str, start: RunStart, produce: F, events: Sender<Event>) -> Player<'a, F> {
        Player { plan, run, start, produce, events, pending: BTreeMap::new(), queued: 0, sent: 0 }
    }

    /// Sends until the other end of `orders`, through which retries come, is dropped.
    fn play(mut self, orders: &Receiver<SendAttempt>) {
        let mut schedule = schedule(self.plan);
        self.advance(&mut schedule);
        loop {
            let due = self.pending.first_key_value().map(|((due, _), _)| self.start.instant + *due);
            let wait = due.map_or(Duration::MAX, |due| due.saturating_duration_since(Instant::now()));
            match orders.recv_timeout(wait) {
                Ok(retry) => self.queue(retry),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    let Some((_, attempt)) = self.pending.pop_first() else { continue };
                    if !self.send(attempt, orders) {
                        return;
                    }
                    if attempt.number == 1 {
                        self.advance(&mut schedule);
                    }
                }
            }
        }
    }

    fn advance(&mut self, schedule: &mut impl Iterator<Item = SendAttempt>) {
        match schedule.next() {
            Some(first) => self.queue(first),
            None => self.report(Event::Played),
        }
    }

    fn queue(&mut self, attempt: SendAttempt) {
        self.pending.insert((attempt.due, self.queued), attempt);
        self.queued += 1;
    }

    /// Sends one record. Returns `false` if the run was interrupted meanwhile.
    fn send(&mut self, attempt: SendAttempt, orders: &Receiver<SendAttempt>) -> bool {
        let number = self.sent;
        self.sent += 1;
        // Reported before the record is sent: otherwise its delivery might be reported first.
        self.report(Event::Sent { attempt, at: self.start.instant.elapsed() });
        let client = &self.plan.clients[attempt.client];
        let (key, value) = (client.key(attempt.shape), client.value(attempt.shape, number));
        let intended_us = self.start.wall_us(attempt.intended);
        let stamp = format!("{}/{number}/{intended_us}/{}", self.run, attempt.number);
        let mut headers = vec![(STAMP_HEADER, stamp.as_str())];
        headers.extend(client.header());
        let topic = &self.plan.topics[client.topic];
        let outgoing = LoadRecord { topic, number, key: key.as_deref(), value: &value, headers: &headers };
        loop {
            match (self.produce)(&outgoing) {
                Ok(true) => return true,
                Err(error) => {
                    self.report(Event::Undelivered { number, reason: error.to_string() });
                    return true;
                }
                Ok(false) => match orders.recv_timeout(QUEUE_FULL_INTERVAL) {
                    Ok(retry) => self.queue(retry),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => {
                        self.report(Event::Undelivered { number, reason: "the run was interrupted".to_owned() });
                        return false;
                    }
                },
            }
        }
    }

    fn report(&self, event: Event) {
        // The account may be closed already.
        let _ = self.events.send(event);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{plan::tests::plan, schedule::RecordShape};
    use super::*;

    #[test]
    fn only_a_stamp_of_the_run_has_a_number() {
        assert_eq!(stamped_number(b"a1/17/1700000000000000/2", "a1"), Some(17));
        for other in [&b"a2/17/1/1"[..], b"a1/17/1", b"a1/1/2/3/4", b"a1/x/2/3", b"", b"\xff/1/2/3"] {
            assert_eq!(stamped_number(other, "a1"), None, "{other:?}");
        }
    }

    const BURST: &str = "[[client]]\nid = \"a\"\n[[client.phase]]\nkind = \"burst\"\nrecords = 20\n";

    /// Returns a start long enough ago that every record is due.
    fn long_ago() -> RunStart {
        RunStart { instant: Instant::now().checked_sub(Duration::from_secs(60)).unwrap(), epoch_us: 1_000_000 }
    }

    /// The queue of the producer is full every other time, one record is refused, and the run ends with the last one.
    #[test]
    fn every_due_record_is_sent_once_and_reported() {
        let plan = plan(BURST);
        let (events, reported) = mpsc::channel();
        let (order, orders) = mpsc::channel();
        let shape = RecordShape { value_bytes: 5, key: 0 };
        let (intended, due) = (Duration::from_secs(3), Duration::from_secs(4));
        order.send(SendAttempt { client: 0, shape, number: 2, intended, due }).unwrap();
        let count = schedule(&plan).count() + 1;
        let (mut taken, mut asked, mut order) = (Vec::new(), 0, Some(order));
        let produce = |record: &LoadRecord<'_>| {
            asked += 1;
            if asked % 2 == 1 {
                return Ok(false);
            }
            order.take_if(|_| record.number == count - 1);
            if record.number == 3 {
                return Err("too large");
            }
            assert_eq!(record.topic, "in");
            let stamp = record.headers.iter().find(|(name, _)| *name == STAMP_HEADER).unwrap().1;
            taken.push((record.number, stamp.to_owned()));
            Ok(true)
        };
        Player::new(&plan, "run", long_ago(), produce, events).play(&orders);

        let numbers: Vec<_> = taken.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, (0..count).filter(|number| *number != 3).collect::<Vec<_>>());
        assert!(taken.iter().any(|(_, stamp)| stamp.ends_with("/4000000/2")), "{taken:?}");
        assert!(taken.iter().all(|(number, stamp)| stamp.starts_with(&format!("run/{number}/"))));
        let reported: Vec<_> = reported.iter().collect();
        assert_eq!(reported.iter().filter(|event| matches!(event, Event::Sent { .. })).count(), count);
        assert!(reported.contains(&Event::Undelivered { number: 3, reason: "too large".to_owned() }));
    }

    #[test]
    fn a_dropped_sender_of_orders_stops_the_player() {
        let plan = plan(&BURST.replace("records = 20", "records = 20\nfor = \"1h\""));
        let (events, reported) = mpsc::channel();
        let (order, orders) = mpsc::channel();
        drop(order);
        let start = RunStart { instant: Instant::now(), epoch_us: 0 };
        Player::new(&plan, "run", start, |_: &LoadRecord<'_>| Ok::<_, String>(true), events).play(&orders);
        assert_eq!(reported.iter().count(), 0);
    }

    #[test]
    fn times_of_both_clocks_agree() {
        let start = RunStart { instant: Instant::now(), epoch_us: 5_000_500 };
        assert_eq!(start.wall_us(Duration::from_millis(2)), 5_002_500);
        assert_eq!(start.since_ms(5_002), Duration::from_micros(1_500));
        assert_eq!([start.since_ms(5_000), start.since_ms(-1)], [Duration::ZERO; 2]);
    }
}
