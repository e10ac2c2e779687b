//! The books: every record that was sent, and what became of it. Events in, counts out; no clock and no Kafka.

use std::collections::BTreeMap;
use std::time::Duration;

use super::plan::Plan;
use super::schedule::Shape;
use super::series::{Delays, Series, What};
use watermaster_kafka::load::RecordPosition;

/// How far the clock of whoever stamps what comes out may be behind ours unnoticed: append times are cut to milliseconds.
const CLOCK_TOLERANCE: Duration = Duration::from_millis(2);

/// Something that happened. Times are since the start of the run.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A record was handed to the producer, or refused by it. Numbers count up from 0.
    Sent(Sent),
    /// The source topic has it, at this place.
    Delivered { number: usize, place: RecordPosition },
    /// Nobody knows whether the source topic has it.
    Undelivered { number: usize, why: String },
    /// It came out.
    Arrived { number: usize, outcome: Outcome, at: At },
    /// Somebody else's record came out of the target.
    Foreign { at: At },
    /// The schedule is played: only retries follow.
    Played,
}

/// A record that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    pub client: usize,
    pub shape: Shape,
    /// From 1.
    pub attempt: u32,
    /// When it should have been sent for the first time.
    pub intended: Duration,
    /// When it should have been sent this time.
    pub due: Duration,
    /// When it was.
    pub at: Duration,
}

/// Which topic it came out of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Admitted,
    /// The dead-letter topic, with the reason.
    Rejected(String),
}

/// When something came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    /// The broker's time of appending it, where its topic keeps that.
    pub appended: Option<Duration>,
    /// When our reader had it.
    pub arrived: Duration,
}

impl At {
    /// The best that is known.
    pub fn time(&self) -> Duration {
        self.appended.unwrap_or(self.arrived)
    }
}

/// One record of the books.
#[derive(Debug, Clone, Copy)]
struct Entry {
    sent: Sent,
    place: Option<RecordPosition>,
    /// The producer did not take it, or gave it up.
    undelivered: bool,
    /// It came out.
    seen: bool,
}

/// What is counted of one client. `sent` is always the sum of what became of it:
/// admitted + rejected + waiting + lost + not acknowledged.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    /// All attempts.
    pub sent: u64,
    /// Second and further attempts.
    pub retries: u64,
    pub admitted: u64,
    /// By reason.
    pub rejected: BTreeMap<String, u64>,
    /// In the source topic, but not come out yet.
    pub waiting: u64,
    /// Completed by the throttler, but in neither topic.
    pub lost: u64,
    /// Nobody knows whether the source topic has them, and they did not come out.
    pub not_acknowledged: u64,
    /// Came out more than once; each further time counts.
    pub duplicated: u64,
    /// From the intended time of the first attempt until it came out of the target.
    pub delays: Delays,
    /// When the last was admitted.
    pub last_admitted: Duration,
}

impl Counts {
    /// For all reasons together.
    pub fn rejected_total(&self) -> u64 {
        self.rejected.values().sum()
    }

    /// Adds another's.
    pub fn add(&mut self, other: &Counts) {
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

/// The books of a run.
#[derive(Debug)]
pub struct Account {
    plan: Plan,
    entries: Vec<Entry>,
    clients: Vec<Counts>,
    series: Series,
    /// How late the generator itself was.
    lag: Delays,
    admitted_at: Vec<Duration>,
    foreign_at: Vec<Duration>,
    /// Something was admitted whose topic does not keep append times.
    by_arrival: bool,
    before_sent: u64,
    played: bool,
    open: u64,
    last_trouble: Option<String>,
}

/// A record that is to be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Again {
    pub client: usize,
    pub shape: Shape,
    pub attempt: u32,
    pub intended: Duration,
    /// When.
    pub due: Duration,
}

impl Account {
    /// Nothing was sent yet.
    pub fn new(plan: Plan) -> Account {
        let clients = vec![Counts::default(); plan.clients.len()];
        let series = Series::new(clients.len(), plan.length);
        Account {
            plan,
            entries: Vec::new(),
            clients,
            series,
            lag: Delays::default(),
            admitted_at: Vec::new(),
            foreign_at: Vec::new(),
            by_arrival: false,
            before_sent: 0,
            played: false,
            open: 0,
            last_trouble: None,
        }
    }

    // ## What is known

    /// What was planned.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Each client's counts, in the order of the plan.
    pub fn clients(&self) -> &[Counts] {
        &self.clients
    }

    /// All clients together.
    pub fn total(&self) -> Counts {
        let mut total = Counts::default();
        self.clients.iter().for_each(|client| total.add(client));
        total
    }

    /// What happened over time.
    pub fn series(&self) -> &Series {
        &self.series
    }

    /// How late the generator itself was, beside its schedule.
    pub fn lag(&self) -> &Delays {
        &self.lag
    }

    /// When each of our records was admitted, in no order.
    pub fn admitted_at(&self) -> &[Duration] {
        &self.admitted_at
    }

    /// When each of somebody else's records in the target was, in no order.
    pub fn foreign_at(&self) -> &[Duration] {
        &self.foreign_at
    }

    /// Whether every admitted record has its broker's append time.
    pub fn is_by_append_time(&self) -> bool {
        !self.by_arrival
    }

    /// How many came out before they should have been sent: clocks differ.
    pub fn before_sent(&self) -> u64 {
        self.before_sent
    }

    /// Whether the schedule was played to its end.
    pub fn is_played(&self) -> bool {
        self.played
    }

    /// How many were sent and did not come out, though they may.
    pub fn open(&self) -> u64 {
        self.open
    }

    /// Why the last record that was not delivered was not.
    pub fn last_trouble(&self) -> Option<&str> {
        self.last_trouble.as_deref()
    }

    /// Every delivered record that did not come out: its number, its client's topic, its place.
    pub fn waiting(&self) -> impl Iterator<Item = (usize, usize, RecordPosition)> {
        let waits = |entry: &Entry| entry.place.filter(|_| !entry.seen && !entry.undelivered);
        let entries = self.entries.iter().enumerate();
        entries.filter_map(move |(number, entry)| {
            Some((number, self.plan.clients[entry.sent.client].topic, waits(entry)?))
        })
    }

    // ## What happens

    /// Enters an event; answers with what is to be sent again, if it was rejected and its client is stubborn.
    pub fn apply(&mut self, event: Event) -> Option<Again> {
        match event {
            Event::Sent(sent) => self.sent(sent),
            Event::Delivered { number, place } => self.entries.get_mut(number)?.place = Some(place),
            Event::Undelivered { number, why } => self.undelivered(number, why),
            Event::Arrived { number, outcome, at } => return self.arrived(number, outcome, at),
            Event::Foreign { at } => self.foreign_at.push(at.time()),
            Event::Played => self.played = true,
        }
        None
    }

    /// The throttler has completed this record, which waits, without any output.
    pub fn lose(&mut self, number: usize) {
        if let Some(entry) = self.entries.get_mut(number).filter(|entry| !entry.seen && !entry.undelivered) {
            let counts = &mut self.clients[entry.sent.client];
            (counts.waiting, counts.lost) = (counts.waiting - 1, counts.lost + 1);
            entry.seen = true;
            self.open -= 1;
        }
    }

    fn sent(&mut self, sent: Sent) {
        self.entries.push(Entry { sent, place: None, undelivered: false, seen: false });
        let counts = &mut self.clients[sent.client];
        counts.sent += 1;
        counts.retries += u64::from(sent.attempt > 1);
        counts.waiting += 1;
        self.open += 1;
        self.lag.record(sent.at.saturating_sub(sent.due));
        self.series.count(sent.at, sent.client, What::Sent);
    }

    fn undelivered(&mut self, number: usize, why: String) {
        self.last_trouble = Some(why);
        let Some(entry) = self.entries.get_mut(number).filter(|entry| !entry.undelivered) else { return };
        entry.undelivered = true;
        if !entry.seen {
            let counts = &mut self.clients[entry.sent.client];
            (counts.waiting, counts.not_acknowledged) = (counts.waiting - 1, counts.not_acknowledged + 1);
            self.open -= 1;
        }
    }

    fn arrived(&mut self, number: usize, outcome: Outcome, at: At) -> Option<Again> {
        let entry = self.entries.get_mut(number)?;
        let (sent, client) = (entry.sent, entry.sent.client);
        let counts = &mut self.clients[client];
        if outcome == Outcome::Admitted {
            // A copy is in the service's way too.
            self.admitted_at.push(at.time());
            self.by_arrival |= at.appended.is_none();
        }
        if std::mem::replace(&mut entry.seen, true) {
            counts.duplicated += 1;
            return None;
        }
        if entry.undelivered {
            counts.not_acknowledged -= 1;
        } else {
            counts.waiting -= 1;
            self.open -= 1;
        }
        match outcome {
            Outcome::Admitted => {
                counts.admitted += 1;
                counts.last_admitted = counts.last_admitted.max(at.time());
                self.before_sent += u64::from(at.time() + CLOCK_TOLERANCE < sent.intended);
                let delay = at.time().saturating_sub(sent.intended);
                counts.delays.record(delay);
                self.series.count_admitted(at.time(), client, delay);
                None
            }
            Outcome::Rejected(reason) => {
                *counts.rejected.entry(reason).or_default() += 1;
                self.series.count(at.time(), client, What::Rejected);
                let wait = self.plan.clients[client].retry?.wait_after(sent.attempt)?;
                let (attempt, due) = (sent.attempt + 1, at.arrived + wait);
                Some(Again { client, shape: sent.shape, attempt, intended: sent.intended, due })
            }
        }
    }
}

#[cfg(test)]
mod tests;
