//! Sends each record at its time, independent of the records before it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use std::{collections::BTreeMap, fmt::Display};

use watermaster_kafka::KafkaError;
use watermaster_kafka::load::{Delivery, LoadProducer, LoadRecord};

use super::account::{Attempt, Event, Sent};
use super::plan::Plan;
use super::schedule::{Arrival, Schedule};
use super::stamp::{HEADER, Stamp};

/// The time that the last records may take to be acknowledged.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(15);
/// The pause while the queue of the producer is full.
const QUEUE_FULL_INTERVAL: Duration = Duration::from_millis(2);

/// A producer of records.
pub trait RecordSink {
    type Error: Display;

    /// Hands a record over without waiting. Returns `false` if the queue is full.
    fn send(&mut self, outgoing: &LoadRecord<'_>) -> Result<bool, Self::Error>;

    /// Waits until the fate of all records is known, within a limit.
    fn flush(&mut self, limit: Duration);
}

impl<F: Fn(Delivery) + Send + Sync + 'static> RecordSink for LoadProducer<F> {
    type Error = KafkaError;

    fn send(&mut self, outgoing: &LoadRecord<'_>) -> Result<bool, KafkaError> {
        LoadProducer::send(self, outgoing)
    }

    fn flush(&mut self, limit: Duration) {
        // The account shows the records that are not acknowledged by then.
        let _ = LoadProducer::flush(self, limit);
    }
}

/// The start of a run on both clocks.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    pub instant: Instant,
    /// Microseconds since 1970.
    pub epoch_us: u64,
}

impl Start {
    /// Returns the wall-clock time of a time since the start, in microseconds since 1970.
    pub fn wall_us(&self, at: Duration) -> u64 {
        self.epoch_us.saturating_add(u64::try_from(at.as_micros()).unwrap_or(u64::MAX))
    }

    /// Returns the time since the start of a time in milliseconds since 1970; 0 for times before the start.
    pub fn since_ms(&self, wall_ms: i64) -> Duration {
        let us = u64::try_from(wall_ms).unwrap_or(0).saturating_mul(1_000);
        Duration::from_micros(us.saturating_sub(self.epoch_us))
    }
}

/// Sends the plan and the retries.
pub struct Player<'a, O> {
    plan: &'a Plan,
    run: &'a str,
    start: Start,
    output: O,
    events: Sender<Event>,
    /// The number of records that were sent.
    sent: usize,
    /// Retries by the time at which they are due and their order of arrival.
    retries: BTreeMap<(Duration, usize), Attempt>,
    ordered: usize,
}

impl<'a, O: RecordSink> Player<'a, O> {
    /// Prepares to send a plan.
    pub fn new(plan: &'a Plan, run: &'a str, start: Start, output: O, events: Sender<Event>) -> Player<'a, O> {
        Player { plan, run, start, output, events, sent: 0, retries: BTreeMap::new(), ordered: 0 }
    }

    /// Sends until the other end of `orders`, through which retries come, is dropped.
    pub fn play(mut self, orders: &Receiver<Attempt>) {
        let mut schedule = Schedule::new(self.plan).peekable();
        let mut played = false;
        loop {
            let first = schedule.peek().map(|arrival| arrival.at);
            if first.is_none() && !std::mem::replace(&mut played, true) {
                self.report(Event::Played);
            }
            let retry = self.retries.first_key_value().map(|((due, _), _)| *due);
            let Some(due) = first.into_iter().chain(retry).min() else {
                match orders.recv() {
                    Ok(retry) => self.queue(retry),
                    Err(_) => break,
                }
                continue;
            };
            let wait = (self.start.instant + due).saturating_duration_since(Instant::now());
            match orders.recv_timeout(wait) {
                Ok(retry) => self.queue(retry),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    let attempt = match first {
                        Some(first) if first == due => schedule.next().map(first_attempt),
                        _ => self.retries.pop_first().map(|(_, retry)| retry),
                    };
                    if attempt.is_some_and(|attempt| !self.send(attempt, orders)) {
                        break;
                    }
                }
            }
        }
        self.output.flush(FLUSH_TIMEOUT);
    }

    fn queue(&mut self, retry: Attempt) {
        self.retries.insert((retry.due, self.ordered), retry);
        self.ordered += 1;
    }

    /// Sends one record. Returns `false` if the run was interrupted meanwhile.
    fn send(&mut self, attempt: Attempt, orders: &Receiver<Attempt>) -> bool {
        let number = self.sent;
        self.sent += 1;
        // Reported before the record is sent: otherwise its delivery might be reported first.
        self.report(Event::Sent(Sent { attempt, at: self.start.instant.elapsed() }));
        let client = &self.plan.clients[attempt.client];
        let (key, value) = (client.key(attempt.shape), client.value(attempt.shape, number));
        let intended_us = self.start.wall_us(attempt.intended);
        let stamp = Stamp { run: self.run, number, intended_us, attempt: attempt.number }.to_text();
        let mut headers = vec![(HEADER, stamp.as_str())];
        headers.extend(client.header());
        let topic = &self.plan.topics[client.topic];
        let outgoing = LoadRecord { topic, number, key: key.as_deref(), value: &value, headers: &headers };
        loop {
            match self.output.send(&outgoing) {
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

fn first_attempt(Arrival { at, client, shape }: Arrival) -> Attempt {
    Attempt { client, shape, number: 1, intended: at, due: at }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, sync::mpsc};

    use super::*;
    use super::{super::plan::tests::plan, super::schedule::Shape};

    /// An output that is full every other time, refuses one record, and ends the run with the last one.
    #[derive(Default)]
    struct Recorder<'a> {
        taken: Option<&'a RefCell<Vec<(usize, String)>>>,
        refuse: Option<usize>,
        last: Option<(usize, Sender<Attempt>)>,
        asked: usize,
    }

    impl RecordSink for Recorder<'_> {
        type Error = &'static str;

        fn send(&mut self, outgoing: &LoadRecord<'_>) -> Result<bool, &'static str> {
            self.asked += 1;
            if self.asked % 2 == 1 {
                return Ok(false);
            }
            self.last.take_if(|(last, _)| *last == outgoing.number);
            if self.refuse == Some(outgoing.number) {
                return Err("too large");
            }
            assert_eq!(outgoing.topic, "in");
            let stamp = outgoing.headers.iter().find(|(name, _)| *name == HEADER).unwrap().1;
            if let Some(taken) = self.taken {
                taken.borrow_mut().push((outgoing.number, stamp.to_owned()));
            }
            Ok(true)
        }

        fn flush(&mut self, _: Duration) {}
    }

    const BURST: &str = "[[client]]\nid = \"a\"\n[[client.phase]]\nkind = \"burst\"\nrecords = 20\n";

    /// Returns a start long enough ago that every record is due.
    fn long_ago() -> Start {
        Start { instant: Instant::now().checked_sub(Duration::from_secs(60)).unwrap(), epoch_us: 1_000_000 }
    }

    #[test]
    fn every_due_record_is_sent_once_and_reported() {
        let plan = plan(BURST);
        let taken = RefCell::default();
        let (events, reported) = mpsc::channel();
        let (order, orders) = mpsc::channel();
        let shape = Shape { value_bytes: 5, key: 0 };
        let (intended, due) = (Duration::from_secs(3), Duration::from_secs(4));
        order.send(Attempt { client: 0, shape, number: 2, intended, due }).unwrap();
        let count = Schedule::new(&plan).count() + 1;
        let output = Recorder { taken: Some(&taken), refuse: Some(3), last: Some((count - 1, order)), asked: 0 };
        Player::new(&plan, "run", long_ago(), output, events).play(&orders);

        let taken = taken.into_inner();
        let numbers: Vec<_> = taken.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, (0..count).filter(|number| *number != 3).collect::<Vec<_>>());
        assert!(taken.iter().any(|(_, stamp)| stamp.ends_with("/4000000/2")), "{taken:?}");
        assert!(taken.iter().all(|(number, stamp)| stamp.starts_with(&format!("run/{number}/"))));
        let reported: Vec<_> = reported.iter().collect();
        assert_eq!(reported.iter().filter(|event| matches!(event, Event::Sent(_))).count(), count);
        assert!(reported.contains(&Event::Undelivered { number: 3, reason: "too large".to_owned() }));
    }

    #[test]
    fn a_dropped_sender_of_orders_stops_the_player() {
        let plan = plan(&BURST.replace("records = 20", "records = 20\nfor = \"1h\""));
        let (events, reported) = mpsc::channel();
        let (order, orders) = mpsc::channel();
        drop(order);
        let start = Start { instant: Instant::now(), epoch_us: 0 };
        Player::new(&plan, "run", start, Recorder::default(), events).play(&orders);
        assert_eq!(reported.iter().count(), 0);
    }

    #[test]
    fn times_of_both_clocks_agree() {
        let start = Start { instant: Instant::now(), epoch_us: 5_000_500 };
        assert_eq!(start.wall_us(Duration::from_millis(2)), 5_002_500);
        assert_eq!(start.since_ms(5_002), Duration::from_micros(1_500));
        assert_eq!([start.since_ms(5_000), start.since_ms(-1)], [Duration::ZERO; 2]);
    }
}
