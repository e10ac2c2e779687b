//! Sends each record at its time, independent of the records before it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use std::{collections::BTreeMap, fmt::Display};

use watermaster_kafka::load::LoadRecord;

use super::account::{Attempt, Event};
use super::{plan::Plan, schedule::schedule};

/// The header that marks a record of a run and comes out with it on the other side: `RUN/NUMBER/INTENDED/ATTEMPT`, with
/// the intended time of the first attempt in microseconds since 1970, and attempts from 1.
pub const STAMP_HEADER: &str = "watermaster-load";
/// The pause while the queue of the producer is full.
const QUEUE_FULL_INTERVAL: Duration = Duration::from_millis(2);

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
pub struct Player<'a, F> {
    plan: &'a Plan,
    run: &'a str,
    start: Start,
    produce: F,
    events: Sender<Event>,
    /// Attempts by the time at which they are due and their order of arrival. Of the first attempts, only the next one
    /// is among them.
    pending: BTreeMap<(Duration, usize), Attempt>,
    queued: usize,
    /// The number of records that were sent.
    sent: usize,
}

impl<'a, E: Display, F: FnMut(&LoadRecord<'_>) -> Result<bool, E>> Player<'a, F> {
    /// Prepares to send a plan. `produce` hands a record over without waiting; it returns `false` if the queue is full.
    pub fn new(plan: &'a Plan, run: &'a str, start: Start, produce: F, events: Sender<Event>) -> Player<'a, F> {
        Player { plan, run, start, produce, events, pending: BTreeMap::new(), queued: 0, sent: 0 }
    }

    /// Sends until the other end of `orders`, through which retries come, is dropped.
    pub fn play(mut self, orders: &Receiver<Attempt>) {
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

    fn advance(&mut self, schedule: &mut impl Iterator<Item = Attempt>) {
        match schedule.next() {
            Some(first) => self.queue(first),
            None => self.report(Event::Played),
        }
    }

    fn queue(&mut self, attempt: Attempt) {
        self.pending.insert((attempt.due, self.queued), attempt);
        self.queued += 1;
    }

    /// Sends one record. Returns `false` if the run was interrupted meanwhile.
    fn send(&mut self, attempt: Attempt, orders: &Receiver<Attempt>) -> bool {
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
    use std::sync::mpsc;

    use super::super::{plan::tests::plan, schedule::Shape};
    use super::*;

    const BURST: &str = "[[client]]\nid = \"a\"\n[[client.phase]]\nkind = \"burst\"\nrecords = 20\n";

    /// Returns a start long enough ago that every record is due.
    fn long_ago() -> Start {
        Start { instant: Instant::now().checked_sub(Duration::from_secs(60)).unwrap(), epoch_us: 1_000_000 }
    }

    /// The queue of the producer is full every other time, one record is refused, and the run ends with the last one.
    #[test]
    fn every_due_record_is_sent_once_and_reported() {
        let plan = plan(BURST);
        let (events, reported) = mpsc::channel();
        let (order, orders) = mpsc::channel();
        let shape = Shape { value_bytes: 5, key: 0 };
        let (intended, due) = (Duration::from_secs(3), Duration::from_secs(4));
        order.send(Attempt { client: 0, shape, number: 2, intended, due }).unwrap();
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
        let start = Start { instant: Instant::now(), epoch_us: 0 };
        Player::new(&plan, "run", start, |_: &LoadRecord<'_>| Ok::<_, String>(true), events).play(&orders);
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
