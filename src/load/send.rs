//! Sending: each record at its time, whatever becomes of those before it.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use super::account::{Again, Event, Sent};
use super::plan::Plan;
use super::schedule::Schedule;
use super::stamp::{HEADER, Stamp};
use watermaster_kafka::load::{Delivery, LoadProducer, LoadRecord};

/// How long the last records may take to be acknowledged.
const FLUSH_LIMIT: Duration = Duration::from_secs(15);
/// How long a full queue is left alone.
const FULL: Duration = Duration::from_millis(2);

/// Takes records towards Kafka.
pub trait Line {
    /// Hands one over without waiting. `false`: it was not taken, for now.
    ///
    /// # Errors
    /// In words, when it never will be.
    fn send(&mut self, outgoing: &LoadRecord<'_>) -> Result<bool, String>;

    /// Waits until the fate of all is known, within a limit.
    fn flush(&mut self, limit: Duration);
}

impl<F: Fn(Delivery) + Send + Sync + 'static> Line for LoadProducer<F> {
    fn send(&mut self, outgoing: &LoadRecord<'_>) -> Result<bool, String> {
        LoadProducer::send(self, outgoing).map_err(|error| error.to_string())
    }

    fn flush(&mut self, limit: Duration) {
        // What is still unknown then is told as not acknowledged.
        let _ = LoadProducer::flush(self, limit);
    }
}

/// The clock of a run: both ways of telling the moment at which it began.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    pub instant: Instant,
    /// Microseconds since 1970.
    pub epoch_us: u64,
}

impl Start {
    /// So long after the start, as microseconds since 1970.
    pub fn wall_us(&self, at: Duration) -> u64 {
        self.epoch_us.saturating_add(u64::try_from(at.as_micros()).unwrap_or(u64::MAX))
    }

    /// How long after the start a moment was that is told in milliseconds since 1970; the start, if it was before.
    pub fn since_ms(&self, wall_ms: i64) -> Duration {
        let us = u64::try_from(wall_ms).unwrap_or(0).saturating_mul(1_000);
        Duration::from_micros(us.saturating_sub(self.epoch_us))
    }
}

/// Plays the plan, and what is to be sent again, until whoever gives `orders` hangs up.
pub struct Player<'a, L> {
    plan: &'a Plan,
    run: &'a str,
    start: Start,
    line: L,
    events: Sender<Event>,
    /// Counts what was sent.
    number: usize,
    /// What is to be sent again: when, and in which order it was asked for.
    again: BTreeMap<(Duration, usize), Again>,
    asked: usize,
}

impl<'a, L: Line> Player<'a, L> {
    /// Ready to play.
    pub fn new(plan: &'a Plan, run: &'a str, start: Start, line: L, events: Sender<Event>) -> Player<'a, L> {
        Player { plan, run, start, line, events, number: 0, again: BTreeMap::new(), asked: 0 }
    }

    /// Plays to the end.
    pub fn play(mut self, orders: &Receiver<Again>) {
        let mut schedule = Schedule::new(self.plan).peekable();
        let mut played = false;
        loop {
            let first = schedule.peek().map(|arrival| arrival.at);
            if first.is_none() && !std::mem::replace(&mut played, true) {
                self.tell(Event::Played);
            }
            let second = self.again.first_key_value().map(|((due, _), _)| *due);
            let Some(due) = first.into_iter().chain(second).min() else {
                match orders.recv() {
                    Ok(again) => self.remember(again),
                    Err(_) => break,
                }
                continue;
            };
            let wait = (self.start.instant + due).saturating_duration_since(Instant::now());
            match orders.recv_timeout(wait) {
                Ok(again) => self.remember(again),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    let again = if first.is_some_and(|first| first == due) {
                        schedule.next().map(|arrival| {
                            let (client, shape) = (arrival.client, arrival.shape);
                            Again { client, shape, attempt: 1, intended: due, due }
                        })
                    } else {
                        self.again.pop_first().map(|(_, again)| again)
                    };
                    if again.is_some_and(|again| !self.send(again, orders)) {
                        break;
                    }
                }
            }
        }
        self.line.flush(FLUSH_LIMIT);
    }

    fn remember(&mut self, again: Again) {
        self.again.insert((again.due, self.asked), again);
        self.asked += 1;
    }

    /// Sends one record; `false`: somebody hung up meanwhile.
    fn send(&mut self, record: Again, orders: &Receiver<Again>) -> bool {
        let number = self.number;
        self.number += 1;
        let Again { client: index, shape, attempt, intended, due } = record;
        // Told before it is sent, or its delivery might be told first.
        let at = self.start.instant.elapsed();
        self.tell(Event::Sent(Sent { client: index, shape, attempt, intended, due, at }));
        let client = &self.plan.clients[index];
        let (key, value) = (client.key(shape), client.value(shape, number));
        let stamp = Stamp { run: self.run, number, intended_us: self.start.wall_us(intended), attempt }.to_text();
        let mut headers = vec![(HEADER, stamp.as_str())];
        headers.extend(client.header());
        let topic = &self.plan.topics[client.topic];
        let outgoing = LoadRecord { topic, number, key: key.as_deref(), value: &value, headers: &headers };
        loop {
            match self.line.send(&outgoing) {
                Ok(true) => return true,
                Err(why) => {
                    self.tell(Event::Undelivered { number, why });
                    return true;
                }
                Ok(false) => match orders.recv_timeout(FULL) {
                    Ok(again) => self.remember(again),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => {
                        self.tell(Event::Undelivered { number, why: "the run was interrupted".to_owned() });
                        return false;
                    }
                },
            }
        }
    }

    fn tell(&self, event: Event) {
        // Whoever keeps the books may have closed them.
        let _ = self.events.send(event);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::mpsc;

    use super::super::plan::tests::plan;
    use super::super::schedule::Shape;
    use super::*;

    /// Is full every other time, refuses one record for good, and hangs up when it has the last one.
    #[derive(Default)]
    struct Recorder<'a> {
        taken: Option<&'a RefCell<Vec<(usize, String)>>>,
        refuse: Option<usize>,
        last: Option<(usize, Sender<Again>)>,
        asked: usize,
    }

    impl Line for Recorder<'_> {
        fn send(&mut self, outgoing: &LoadRecord<'_>) -> Result<bool, String> {
            self.asked += 1;
            if self.asked % 2 == 1 {
                return Ok(false);
            }
            self.last.take_if(|(last, _)| *last == outgoing.number);
            if self.refuse == Some(outgoing.number) {
                return Err("too large".to_owned());
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

    /// A start so long ago that everything is due.
    fn long_ago() -> Start {
        Start { instant: Instant::now().checked_sub(Duration::from_secs(60)).unwrap(), epoch_us: 1_000_000 }
    }

    #[test]
    fn everything_due_is_sent_once_and_told() {
        let plan = plan(BURST);
        let taken = RefCell::default();
        let (events, told) = mpsc::channel();
        let (order, orders) = mpsc::channel();
        let (shape, attempt) = (Shape { value_bytes: 5, key: 0 }, 2);
        let (intended, due) = (Duration::from_secs(3), Duration::from_secs(4));
        order.send(Again { client: 0, shape, attempt, intended, due }).unwrap();
        let count = Schedule::new(&plan).count() + 1;
        let line = Recorder { taken: Some(&taken), refuse: Some(3), last: Some((count - 1, order)), asked: 0 };
        Player::new(&plan, "run", long_ago(), line, events).play(&orders);

        let taken = taken.into_inner();
        let numbers: Vec<_> = taken.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, (0..count).filter(|number| *number != 3).collect::<Vec<_>>());
        assert!(taken.iter().any(|(_, stamp)| stamp.ends_with("/4000000/2")), "{taken:?}");
        assert!(taken.iter().all(|(number, stamp)| stamp.starts_with(&format!("run/{number}/"))));
        let told: Vec<_> = told.iter().collect();
        assert_eq!(told.iter().filter(|event| matches!(event, Event::Sent(_))).count(), count);
        assert!(told.contains(&Event::Undelivered { number: 3, why: "too large".to_owned() }));
    }

    #[test]
    fn hanging_up_stops_it() {
        let plan = plan(&BURST.replace("records = 20", "records = 20\nfor = \"1h\""));
        let (events, told) = mpsc::channel();
        let (order, orders) = mpsc::channel();
        drop(order);
        let start = Start { instant: Instant::now(), epoch_us: 0 };
        Player::new(&plan, "run", start, Recorder::default(), events).play(&orders);
        assert_eq!(told.iter().count(), 0);
    }

    #[test]
    fn times_of_both_clocks_meet() {
        let start = Start { instant: Instant::now(), epoch_us: 5_000_500 };
        assert_eq!(start.wall_us(Duration::from_millis(2)), 5_002_500);
        assert_eq!(start.since_ms(5_002), Duration::from_micros(1_500));
        assert_eq!([start.since_ms(5_000), start.since_ms(-1)], [Duration::ZERO; 2]);
    }
}
