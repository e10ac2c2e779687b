//! The account of every record that was sent. Events go in, counts come out; the module uses no clock and no Kafka.

use std::{collections::BTreeMap, time::Duration};

use hdrhistogram::Histogram;
use serde::Serialize;
use watermaster_core::units::nanos;
use watermaster_kafka::load::RecordPosition;

use super::{plan::Plan, schedule::RecordShape};

/// The unnoticed lag of the clock that stamps admitted records behind this machine's: append times are cut to
/// milliseconds.
const CLOCK_TOLERANCE: Duration = Duration::from_millis(2);

/// An event of a run. Times are since the start of the run, records are numbered from 0.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A record is about to be handed to the producer.
    Sent { attempt: SendAttempt, at: Duration },
    /// The source topic has the record.
    Delivered { number: usize, place: RecordPosition },
    /// The source topic may or may not have the record.
    Undelivered { number: usize, reason: String },
    /// The record came out of the target or the dead-letter topic.
    Arrived { number: usize, outcome: Outcome, at: ArrivalTime },
    /// A record of another producer came out of the target.
    Foreign { at: ArrivalTime },
    /// All first attempts are sent: only retries follow.
    Played,
}

/// One attempt to get a record through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendAttempt {
    /// Index into the clients of the plan.
    pub client: usize,
    pub shape: RecordShape,
    /// Counts from 1.
    pub number: u32,
    /// The time at which the first attempt should be sent.
    pub intended: Duration,
    /// The time at which this attempt should be sent.
    pub due: Duration,
}

/// The topic that a record came out of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Admitted,
    /// The dead-letter topic, with the reason.
    Rejected(String),
}

/// The time at which a record came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArrivalTime {
    /// The append time of the broker, if the topic keeps it.
    pub appended: Option<Duration>,
    /// The time at which the watcher read the record.
    pub read: Duration,
}

impl ArrivalTime {
    /// Returns the more exact of both times.
    pub fn best(&self) -> Duration {
        self.appended.unwrap_or(self.read)
    }
}

/// The state of one attempt.
#[derive(Debug, Clone, Copy)]
struct AttemptState {
    attempt: SendAttempt,
    place: Option<RecordPosition>,
    /// The producer refused the record or gave it up.
    undelivered: bool,
    /// The record came out, or is known to be lost.
    closed: bool,
}

impl AttemptState {
    fn is_waiting(&self) -> bool {
        !self.closed && !self.undelivered
    }
}

/// Counts of one client. `sent` is always the sum of admitted, rejected, waiting, lost and not acknowledged.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ClientCounts {
    /// All attempts.
    pub sent: u64,
    /// Second and further attempts.
    pub retries: u64,
    pub admitted: u64,
    /// Rejected attempts by reason.
    pub rejected: BTreeMap<String, u64>,
    /// Attempts that did not come out yet.
    pub waiting: u64,
    /// Attempts that the throttler completed without an output.
    pub lost: u64,
    /// Attempts that the source topic may or may not have, and that did not come out.
    pub not_acknowledged: u64,
    /// Further outputs of attempts that had come out before.
    pub duplicated: u64,
    /// Times from the intended time of the first attempt until the record came out of the target.
    #[serde(skip)]
    pub delays: Delays,
    #[serde(skip)]
    pub last_admitted: Duration,
}

impl ClientCounts {
    pub fn rejected_total(&self) -> u64 {
        self.rejected.values().sum()
    }

    fn add(&mut self, other: &ClientCounts) {
        self.sent += other.sent;
        self.retries += other.retries;
        self.admitted += other.admitted;
        for (reason, count) in &other.rejected {
            *self.rejected.entry(reason.clone()).or_default() += count;
        }
        self.waiting += other.waiting;
        self.lost += other.lost;
        self.not_acknowledged += other.not_acknowledged;
        self.duplicated += other.duplicated;
        self.delays.add(&other.delays);
        self.last_admitted = self.last_admitted.max(other.last_admitted);
    }
}

/// The account of a run.
#[derive(Debug, Default)]
pub struct Account {
    pub plan: Plan,
    /// Counts of each client, in the order of the plan.
    pub clients: Vec<ClientCounts>,
    pub series: Series,
    /// Times by which records were sent later than due.
    pub lateness: Delays,
    /// The times at which records of this run were admitted, in no order.
    pub admitted_at: Vec<Duration>,
    /// The times at which records of other producers were admitted, in no order.
    pub foreign_at: Vec<Duration>,
    /// Some admitted record does not have the append time of its broker.
    pub by_arrival: bool,
    /// Records that came out before they were due: the clocks differ.
    pub before_due: u64,
    /// All first attempts are sent.
    pub played: bool,
    /// The reason why the last undelivered record was not delivered.
    pub last_failure: Option<String>,
    entries: Vec<AttemptState>,
}

impl Account {
    pub fn new(plan: Plan) -> Account {
        let clients = vec![ClientCounts::default(); plan.clients.len()];
        let series = Series::new(plan.clients.iter().map(|client| client.load.id.as_str()));
        Account { plan, clients, series, ..Account::default() }
    }

    /// Returns the number of attempts that may still come out.
    pub fn open(&self) -> u64 {
        self.clients.iter().map(|client| client.waiting).sum()
    }

    pub fn total(&self) -> ClientCounts {
        let mut total = ClientCounts::default();
        self.clients.iter().for_each(|client| total.add(client));
        total
    }

    /// Lists the delivered attempts that did not come out: number, topic of the client, place.
    pub fn waiting(&self) -> impl Iterator<Item = (usize, usize, RecordPosition)> {
        let entries = self.entries.iter().enumerate().filter(|(_, entry)| entry.is_waiting());
        entries
            .filter_map(|(number, entry)| Some((number, self.plan.clients[entry.attempt.client].topic, entry.place?)))
    }

    /// Applies an event. Returns the next attempt, if a record was rejected and its client retries.
    pub fn apply(&mut self, event: &Event) -> Option<SendAttempt> {
        match event {
            Event::Sent { attempt, at } => self.sent(*attempt, *at),
            Event::Delivered { number, place } => self.entries.get_mut(*number)?.place = Some(*place),
            Event::Undelivered { number, reason } => self.undelivered(*number, reason),
            Event::Arrived { number, outcome, at } => return self.arrived(*number, outcome, *at),
            Event::Foreign { at } => self.foreign_at.push(at.best()),
            Event::Played => self.played = true,
        }
        None
    }

    /// Counts a waiting attempt as lost: the throttler completed it without an output.
    pub fn lose(&mut self, number: usize) {
        if let Some(entry) = self.entries.get_mut(number).filter(|entry| entry.is_waiting()) {
            let counts = &mut self.clients[entry.attempt.client];
            (counts.waiting, counts.lost) = (counts.waiting - 1, counts.lost + 1);
            entry.closed = true;
        }
    }

    fn sent(&mut self, attempt: SendAttempt, at: Duration) {
        self.entries.push(AttemptState { attempt, place: None, undelivered: false, closed: false });
        let counts = &mut self.clients[attempt.client];
        counts.sent += 1;
        counts.retries += u64::from(attempt.number > 1);
        counts.waiting += 1;
        self.lateness.record(at.saturating_sub(attempt.due));
        let bucket = self.series.bucket(at);
        self.series.clients[attempt.client].sent[bucket] += 1;
    }

    fn undelivered(&mut self, number: usize, reason: &str) {
        self.last_failure = Some(reason.to_owned());
        let Some(entry) = self.entries.get_mut(number).filter(|entry| !entry.undelivered) else { return };
        entry.undelivered = true;
        if !entry.closed {
            let counts = &mut self.clients[entry.attempt.client];
            (counts.waiting, counts.not_acknowledged) = (counts.waiting - 1, counts.not_acknowledged + 1);
        }
    }

    fn arrived(&mut self, number: usize, outcome: &Outcome, at: ArrivalTime) -> Option<SendAttempt> {
        let entry = self.entries.get_mut(number)?;
        let attempt = entry.attempt;
        let counts = &mut self.clients[attempt.client];
        if *outcome == Outcome::Admitted {
            // A duplicate takes capacity of the service, too.
            self.admitted_at.push(at.best());
            self.by_arrival |= at.appended.is_none();
        }
        if std::mem::replace(&mut entry.closed, true) {
            counts.duplicated += 1;
            return None;
        }
        if entry.undelivered {
            counts.not_acknowledged -= 1;
        } else {
            counts.waiting -= 1;
        }
        let bucket = self.series.bucket(at.best());
        let series = &mut self.series.clients[attempt.client];
        match outcome {
            Outcome::Admitted => {
                let delay = at.best().saturating_sub(attempt.intended);
                series.admitted[bucket] += 1;
                self.series.delays[bucket].record(delay);
                counts.admitted += 1;
                counts.delays.record(delay);
                counts.last_admitted = counts.last_admitted.max(at.best());
                self.before_due += u64::from(at.best() + CLOCK_TOLERANCE < attempt.intended);
                None
            }
            Outcome::Rejected(reason) => {
                series.rejected[bucket] += 1;
                *counts.rejected.entry(reason.clone()).or_default() += 1;
                let wait = self.plan.clients[attempt.client].load.retry?.wait_after(attempt.number)?;
                Some(SendAttempt { number: attempt.number + 1, due: at.read + wait, ..attempt })
            }
        }
    }
}

/// Delays in microseconds.
pub type Delays = RecordTimes<1_000>;

/// Times of records, in units of `NANOS` nanoseconds. A quantile is exact to three digits.
#[derive(Debug, Clone)]
pub struct RecordTimes<const NANOS: u64> {
    histogram: Histogram<u64>,
    /// The largest time, exactly.
    largest: u64,
}

impl<const NANOS: u64> Default for RecordTimes<NANOS> {
    fn default() -> Self {
        Self::with_digits(3)
    }
}

impl<const NANOS: u64> RecordTimes<NANOS> {
    fn with_digits(digits: u8) -> Self {
        Self { histogram: Histogram::new(digits).expect("1 to 5 digits are allowed"), largest: 0 }
    }

    #[inline]
    pub fn record(&mut self, time: Duration) {
        let units = nanos(time) / NANOS;
        // A saturating record would not let the histogram grow.
        self.histogram.record(units).expect("the histogram resizes itself");
        self.largest = self.largest.max(units);
    }

    pub fn add(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("the histogram resizes itself");
        self.largest = self.largest.max(other.largest);
    }

    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the time in seconds that this part of the times (0 to 1) does not exceed; 0 if there is none.
    pub fn quantile(&self, quantile: f64) -> f64 {
        // The histogram returns the end of a range, which may lie beyond the largest value.
        self.histogram.value_at_quantile(quantile).min(self.largest) as f64 / (1e9 / NANOS as f64)
    }
}

/// The records of one client in each bucket.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ClientSeries {
    pub name: String,
    pub sent: Vec<u64>,
    pub admitted: Vec<u64>,
    pub rejected: Vec<u64>,
}

impl ClientSeries {
    fn columns(&mut self) -> [&mut Vec<u64>; 3] {
        [&mut self.sent, &mut self.admitted, &mut self.rejected]
    }
}

/// Counts over time, in buckets without a gap from the start of the run.
#[derive(Debug, Default)]
pub struct Series {
    pub width: Duration,
    pub clients: Vec<ClientSeries>,
    /// Delays of the records that were admitted, in each bucket.
    pub delays: Vec<Delays>,
}

/// The width of the buckets at first.
const MIN_WIDTH: Duration = Duration::from_millis(250);
/// The most buckets, each a point of a plot and a row of its table; instead of one more, the width doubles.
const MAX_BUCKETS: u32 = 120;

impl Series {
    pub fn new<'n>(clients: impl Iterator<Item = &'n str>) -> Series {
        let empty = |name: &str| ClientSeries { name: name.to_owned(), ..ClientSeries::default() };
        Series { width: MIN_WIDTH, clients: clients.map(empty).collect(), delays: Vec::new() }
    }

    /// Returns the index of the bucket of a time since the start.
    pub fn bucket(&mut self, time: Duration) -> usize {
        while time >= self.width * MAX_BUCKETS {
            self.double_width();
        }
        let index = (time.as_nanos() / self.width.as_nanos()) as usize;
        if index >= self.delays.len() {
            // Two digits are enough for a plot and take much less memory.
            self.delays.resize(index + 1, Delays::with_digits(2));
            self.clients.iter_mut().flat_map(ClientSeries::columns).for_each(|column| column.resize(index + 1, 0));
        }
        index
    }

    fn double_width(&mut self) {
        self.width *= 2;
        for column in self.clients.iter_mut().flat_map(ClientSeries::columns) {
            *column = column.chunks(2).map(|pair| pair.iter().sum()).collect();
        }
        let merged = |pair: &[Delays]| {
            let mut sum = pair[0].clone();
            pair[1..].iter().for_each(|delays| sum.add(delays));
            sum
        };
        self.delays = self.delays.chunks(2).map(merged).collect();
    }
}

#[cfg(test)]
pub mod tests;
