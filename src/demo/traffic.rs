//! The products of the demo: sending what the schedule says when it says so.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::scenario::Schedule;
use super::setup::{CLIENT_HEADER, CYCLE, PRODUCTS, SHARE, source_topic};
use watermaster_kafka::probe::TestProducer;

/// How long the last records may take to be acknowledged.
const FLUSH_LIMIT: Duration = Duration::from_secs(10);

/// Sends records to source topics.
pub trait Sender {
    /// Hands one record over, with one header; doesn't wait for the broker.
    ///
    /// # Errors
    /// In words, when the record was not taken.
    fn send(&mut self, topic: &str, header: (&str, &str), value: &[u8]) -> Result<(), String>;

    /// Waits until all is acknowledged.
    ///
    /// # Errors
    /// In words, when something was not acknowledged in time.
    fn flush(&mut self, limit: Duration) -> Result<(), String>;
}

impl Sender for TestProducer {
    fn send(&mut self, topic: &str, header: (&str, &str), value: &[u8]) -> Result<(), String> {
        TestProducer::send(self, topic, header, value).map_err(|error| error.to_string())
    }

    fn flush(&mut self, limit: Duration) -> Result<(), String> {
        TestProducer::flush(self, limit).map_err(|error| error.to_string())
    }
}

/// Records sent, in the order of [`PRODUCTS`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    pub records: [u64; PRODUCTS.len()],
    /// Those of them that were more than the product's default share ([`ShareWindow`]).
    pub above_share: [u64; PRODUCTS.len()],
}

/// The time in which a product that stays within its share sends no more than its share: a cycle and a tenth, since
/// records that are read late come closer together than they were sent.
pub const SHARE_WINDOW: Duration = CYCLE.checked_add(Duration::from_millis(100)).expect("a short time");

/// The last records of one product, as many as its default share.
#[derive(Debug, Default)]
pub struct ShareWindow(VecDeque<Duration>);

impl ShareWindow {
    /// Counts a record sent at this time; whether it is one more than the default share in [`SHARE_WINDOW`].
    pub fn is_above_share(&mut self, at: Duration) -> bool {
        let full = self.0.len() as u64 == SHARE;
        let oldest = if full { self.0.pop_front() } else { None };
        self.0.push_back(at);
        oldest.is_some_and(|oldest| at < oldest + SHARE_WINDOW)
    }
}

/// Sends the schedule, each record at its time, until it ends or somebody hangs up on `stop`. A sender that falls
/// behind catches up at once: the schedule does not wait.
///
/// # Errors
/// The sender's own: the demo can't account for records that may or may not be there.
pub fn send(schedule: Schedule, sender: &mut impl Sender, start: Instant, stop: &Receiver<()>) -> Result<Sent, String> {
    let topics = PRODUCTS.map(source_topic);
    let (mut sent, mut windows) = (Sent::default(), [const { ShareWindow(VecDeque::new()) }; PRODUCTS.len()]);
    for (number, arrival) in schedule.enumerate() {
        let wait = (start + arrival.at).saturating_duration_since(Instant::now());
        if stop.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
            break;
        }
        let product = PRODUCTS[arrival.product];
        let value = format!("{{\"application\":{number},\"product\":\"{product}\"}}");
        sender.send(&topics[arrival.product], (CLIENT_HEADER, product), value.as_bytes())?;
        sent.records[arrival.product] += 1;
        // The time at which it is really sent counts: after falling behind, records come closer together than planned.
        let is_above = windows[arrival.product].is_above_share(start.elapsed());
        sent.above_share[arrival.product] += u64::from(is_above);
    }
    sender.flush(FLUSH_LIMIT)?;
    Ok(sent)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::super::scenario::Scenario;
    use super::*;

    #[derive(Default)]
    struct Recorder(Vec<(String, String)>);

    impl Sender for Recorder {
        fn send(&mut self, topic: &str, header: (&str, &str), _: &[u8]) -> Result<(), String> {
            assert_eq!(header.0, CLIENT_HEADER);
            self.0.push((topic.to_owned(), header.1.to_owned()));
            Ok(())
        }

        fn flush(&mut self, _: Duration) -> Result<(), String> {
            Ok(())
        }
    }

    /// A start that lies so far back that everything is due.
    fn long_ago() -> Instant {
        Instant::now().checked_sub(Duration::from_secs(60)).unwrap()
    }

    #[test]
    fn everything_due_is_sent_to_its_topic() {
        let scenario = Scenario::new(Duration::from_secs(2));
        let mut recorder = Recorder::default();
        let (_running, stop) = mpsc::channel();
        let sent = send(scenario.schedule(1), &mut recorder, long_ago(), &stop).unwrap();
        assert_eq!(sent.records.iter().sum::<u64>(), scenario.schedule(1).count() as u64);
        for (product, count) in PRODUCTS.iter().zip(sent.records) {
            let topic = source_topic(product);
            let found = recorder.0.iter().filter(|(t, client)| *t == topic && client == product).count();
            assert_eq!(found as u64, count);
        }
    }

    #[test]
    fn a_record_beyond_the_share_within_a_window_is_above_it() {
        let mut window = ShareWindow::default();
        let at = |n: u64| SHARE_WINDOW * n as u32 / SHARE as u32;
        assert!((0..3 * SHARE).all(|n| !window.is_above_share(at(n))), "exactly its share in each window");
        assert!(window.is_above_share(at(3 * SHARE) - Duration::from_nanos(1)));
        assert!(!window.is_above_share(at(4 * SHARE)));
    }

    #[test]
    fn hanging_up_stops_it_at_once() {
        let (running, stop) = mpsc::channel();
        drop(running);
        let schedule = Scenario::new(Duration::from_secs(600)).schedule(1);
        let sent = send(schedule, &mut Recorder::default(), Instant::now(), &stop).unwrap();
        assert_eq!(sent, Sent::default());
    }
}
