//! Replays a trace through the core in simulated time: the throttle of `run`, with the times of the trace.
//!
//! Each record is handed over at its time, and the throttle's timeouts and actions every 10 ms. A paused partition is
//! not read: its records wait in the topic, and that wait counts as part of their delays.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{Read, Seek};
use std::time::Duration;

use watermaster_core::offset_map::OffsetMap;
use watermaster_core::policy::{Overflow, Policy, Scope};
use watermaster_core::reason::Reason;
use watermaster_core::slot::Slot;
use watermaster_core::throttle::{Action, Arrival, Sender, Throttle, Verdict};
use watermaster_core::units::Time;
use watermaster_settings::Service;

use super::tally::{Backlog, ClientResult, Tally};
use crate::trace_file::{ANONYMOUS, Contents, FIRST_CLIENT, OVERSIZED, TraceError, TraceReader, TraceRecord, ids};

/// The most records that are read between two looks at the throttle's actions, as in the engine.
const MAX_UNTIMED_RECORDS: usize = 64;
const NANOS_PER_MILLI: u64 = 1_000_000;

/// The choices that all simulations of a trace have in common.
#[derive(Debug, Clone, Copy)]
pub struct ReplayOptions {
    /// The time between two looks at the throttle's timeouts and actions.
    pub step: Duration,
    /// Cycles at the start in which records are not counted.
    pub warm_up: u32,
    /// A record that waits for longer counts as above the threshold.
    pub threshold: Duration,
    /// A time, in milliseconds since 1970, at which a cycle begins; `None` for the time of the first record.
    pub cycle_start_ms: Option<u64>,
    /// Leave out records that had been rejected before.
    pub drop_retried: bool,
}

/// The senders of a trace as a service sees them.
#[derive(Debug)]
pub struct Senders {
    /// The names of the clients in the trace.
    names: Vec<String>,
    /// The ids of configured clients in place of their hashes.
    shown: Vec<String>,
    hashed: bool,
    /// For each partition, the clients that its source allows; `None` for all.
    allowed: Vec<Option<Vec<bool>>>,
    /// The service only counts its decisions: the offset maps of commits delay nothing.
    shadow: bool,
}

impl Senders {
    /// Fits the clients of a trace to the sources of a service.
    pub fn new(contents: &Contents, service: &Service) -> Senders {
        let hashed = contents.hashed_ids;
        let allowed = contents.partitions.iter().map(|partition| {
            let source = service.sources.iter().find(|source| source.topic == partition.topic)?;
            let listed: BTreeSet<String> =
                source.allowed_clients.as_ref()?.iter().map(|id| named(id, hashed)).collect();
            Some(contents.clients.iter().map(|name| listed.contains(name)).collect())
        });
        let configured = service.policy.clients.iter().map(|client| (named(&client.name, hashed), client.name.clone()));
        let configured: BTreeMap<String, String> = configured.collect();
        let shown = contents.clients.iter().map(|name| configured.get(name).unwrap_or(name).clone());
        Senders {
            names: contents.clients.clone(),
            shown: shown.collect(),
            hashed,
            allowed: allowed.collect(),
            shadow: !service.policy.enforce,
        }
    }

    /// Returns the policy to simulate. Shadow mode is simulated as if its decisions were carried out, and
    /// the capacity is that of one instance.
    fn policy(&self, policy: &Policy) -> Policy {
        let mut policy = Policy { enforce: true, scope: Scope::Instance, ..policy.clone() };
        if self.shadow {
            policy.overflow = Overflow::DeadLetter;
        }
        policy.clients.iter_mut().for_each(|client| client.name = named(&client.name, self.hashed));
        policy
    }

    /// Returns the name of a client for people.
    fn shown(&self, client: u32) -> &str {
        match client {
            ANONYMOUS => "(no id)",
            OVERSIZED => "(too many headers)",
            client => &self.shown[(client - FIRST_CLIENT) as usize],
        }
    }

    #[inline]
    fn of(&self, record: &TraceRecord) -> Sender<'_> {
        match record.client {
            ANONYMOUS => Sender::Anonymous,
            OVERSIZED => Sender::Oversized,
            client => {
                let index = (client - FIRST_CLIENT) as usize;
                match &self.allowed[record.partition as usize] {
                    Some(allowed) if !allowed[index] => Sender::NotAllowed(&self.names[index]),
                    _ => Sender::Client(&self.names[index]),
                }
            }
        }
    }
}

/// The result of a simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The part of the capacity that was used, from the first counted record to the last record of the trace.
    pub used: f64,
    /// The most records admitted in any window of one cycle. It may be half a percent of a cycle's too large.
    pub largest_window: u64,
    pub total: ClientResult,
    /// Clients with a record, in the order of the trace.
    pub clients: Vec<ClientResult>,
}

/// A partition of the trace.
#[derive(Debug, Default)]
struct Log {
    next_offset: i64,
    paused: bool,
    /// Records that came while the partition was paused.
    unread: VecDeque<TraceRecord>,
}

/// A delayed record.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    client: u32,
    arrived: Time,
}

/// A simulation under way.
pub struct Replay<'t> {
    throttle: Throttle,
    senders: &'t Senders,
    options: ReplayOptions,
    start: Time,
    counted_from: Time,
    /// Admissions since then.
    admitted: u64,
    logs: Vec<Log>,
    /// Partitions that may have unread records and are not paused.
    resumed: VecDeque<u32>,
    /// By slot.
    waiting: Vec<Waiting>,
    backlog: Backlog,
    largest_backlog: Backlog,
    /// By client of the trace.
    tallies: Vec<Tally>,
}

/// Returns the name that a trace has for a client.
fn named(id: &str, hashed: bool) -> String {
    if hashed { ids::hashed(id) } else { id.to_owned() }
}

fn time(at_ms: u64) -> Time {
    Time::from_nanos(at_ms.saturating_mul(NANOS_PER_MILLI))
}

/// Returns the time from the beginning of a cycle to `now`, if a cycle begins at `start`, earlier or later.
fn into_cycle(now: Time, start: Time, cycle: Duration) -> Duration {
    let nanos = |time: Time| i128::from(time.as_nanos());
    let since = (nanos(now) - nanos(start)).rem_euclid(cycle.as_nanos() as i128);
    Duration::from_nanos(since as u64)
}

impl<'t> Replay<'t> {
    /// Begins a simulation that knows no client yet.
    pub fn new(policy: &Policy, contents: &Contents, senders: &'t Senders, options: ReplayOptions) -> Replay<'t> {
        let (first_record, policy) = (time(contents.first_ms), senders.policy(policy));
        let counted_from = first_record + policy.cycle * options.warm_up;
        let into_cycle = |at_ms| into_cycle(first_record, time(at_ms), policy.cycle);
        let start = first_record - options.cycle_start_ms.map_or(Duration::ZERO, into_cycle);
        let clients = FIRST_CLIENT as usize + contents.clients.len();
        // In shadow mode no record waits for another one's completion. With a partition for each client none does here.
        let partitions = if senders.shadow { clients } else { contents.partitions.len() };
        let first = |at: usize| contents.partitions.get(at).filter(|_| !senders.shadow).map_or(0, |at| at.first_offset);
        let logs = (0..partitions).map(|at| Log { next_offset: first(at), ..Log::default() });
        let mut replay = Replay {
            throttle: Throttle::new(policy, start),
            senders,
            options,
            start,
            counted_from,
            admitted: 0,
            logs: logs.collect(),
            resumed: VecDeque::new(),
            waiting: Vec::new(),
            backlog: Backlog::default(),
            largest_backlog: Backlog::default(),
            tallies: (0..clients).map(|_| Tally::default()).collect(),
        };
        for (number, log) in (0u32..).zip(&replay.logs) {
            let offset = log.next_offset;
            replay.throttle.handle_assigned(start, number, offset, &OffsetMap::default(), offset);
        }
        replay
    }

    /// Replays the whole trace, and goes on until no record waits.
    ///
    /// # Errors
    /// The trace can't be read, or is damaged.
    pub fn run<R: Read + Seek>(mut self, trace: &mut TraceReader<R>) -> Result<Outcome, TraceError> {
        let (mut block, mut tick) = (Vec::new(), self.start);
        while trace.next_block(&mut block)? {
            for record in &block {
                if record.retried && self.options.drop_retried {
                    continue;
                }
                let at = time(record.at_ms);
                while tick <= at {
                    self.look(tick);
                    tick = self.next_look(tick, at);
                }
                self.arrive(at, record);
            }
        }
        let end = time(trace.contents().last_ms);
        let admitted = self.admitted;
        while self.backlog.records > 0 && tick < Time::NEVER {
            self.look(tick);
            tick = self.next_look(tick, Time::NEVER);
        }
        Ok(self.outcome(admitted, end))
    }

    /// Returns the next time at which something may happen, on the grid of steps.
    #[inline]
    fn next_look(&mut self, now: Time, next_record: Time) -> Time {
        let next = now + self.options.step;
        if next > next_record {
            return next;
        }
        let due = self.throttle.poll_timeout(now).min(next_record);
        let step = self.options.step.as_nanos() as u64;
        let steps = due.nanos_since(self.start).div_ceil(step);
        next.max(Time::from_nanos(self.start.as_nanos().saturating_add(steps.saturating_mul(step))))
    }

    /// Carries out what is due.
    fn look(&mut self, now: Time) {
        self.throttle.handle_timeout(now);
        loop {
            while let Some(action) = self.throttle.poll_action(now) {
                self.act(now, action);
            }
            if self.resumed.is_empty() {
                return;
            }
            self.read_on(now);
        }
    }

    fn act(&mut self, now: Time, action: Action) {
        match action {
            Action::Admit { slot, bytes, .. } => {
                let Waiting { client, arrived } = self.end_wait(slot, bytes);
                self.admit(now, client, arrived);
            }
            Action::Reject { slot, bytes, rejection, .. } => {
                let Waiting { client, arrived } = self.end_wait(slot, bytes);
                if !matches!(rejection.reason, Reason::QueueFull | Reason::Expired) && arrived >= self.counted_from {
                    self.tallies[client as usize].undo_delay();
                }
                self.reject(now, client, arrived, rejection.reason);
            }
            Action::Pause { partition } => self.logs[partition as usize].paused = true,
            Action::Resume { partition } => {
                self.logs[partition as usize].paused = false;
                self.resumed.push_back(partition);
            }
        }
    }

    /// Reads some of the unread records of a partition that was resumed.
    fn read_on(&mut self, now: Time) {
        let Some(number) = self.resumed.pop_front() else { return };
        for _ in 0..MAX_UNTIMED_RECORDS {
            let log = &mut self.logs[number as usize];
            if log.paused {
                return;
            }
            let Some(record) = log.unread.pop_front() else { return };
            self.count_leaving(record.client, record.bytes);
            self.decide(now, time(record.at_ms), number, &record);
        }
        self.resumed.push_back(number);
    }

    #[inline]
    fn arrive(&mut self, now: Time, record: &TraceRecord) {
        if now >= self.counted_from {
            self.tallies[record.client as usize].arrive();
        }
        let number = if self.senders.shadow { record.client } else { record.partition };
        let log = &mut self.logs[number as usize];
        if log.paused || !log.unread.is_empty() {
            log.unread.push_back(*record);
            self.count_waiting(record.client, record.bytes);
        } else {
            self.decide(now, now, number, record);
        }
    }

    /// Has the throttle decide on a record that is read now.
    #[inline]
    fn decide(&mut self, now: Time, arrived: Time, partition: u32, record: &TraceRecord) {
        let log = &mut self.logs[partition as usize];
        let (offset, client, bytes) = (log.next_offset, record.client, record.bytes);
        log.next_offset += 1;
        let arrival = Arrival { partition, offset, bytes, sender: self.senders.of(record) };
        match self.throttle.handle_record(now, &arrival) {
            // An offset comes once.
            Verdict::Skip => {}
            Verdict::Admit(_) => self.admit(now, client, arrived),
            Verdict::Reject(rejection) => self.reject(now, client, arrived, rejection.reason),
            Verdict::Delay(slot) => {
                if arrived >= self.counted_from {
                    self.tallies[client as usize].delay();
                }
                self.begin_wait(slot, Waiting { client, arrived }, bytes);
            }
        }
    }

    #[inline]
    fn admit(&mut self, now: Time, client: u32, arrived: Time) {
        self.admitted += u64::from(now >= self.counted_from);
        if arrived >= self.counted_from {
            self.tallies[client as usize].admit(arrived, now, self.options.threshold);
        }
    }

    #[inline]
    fn reject(&mut self, now: Time, client: u32, arrived: Time, reason: Reason) {
        if arrived >= self.counted_from {
            self.tallies[client as usize].reject(reason, arrived, now, self.options.threshold);
        }
    }

    fn begin_wait(&mut self, slot: Slot, waiting: Waiting, bytes: u32) {
        let index = slot.0 as usize;
        if index >= self.waiting.len() {
            self.waiting.resize(index + 1, waiting);
        }
        self.waiting[index] = waiting;
        self.count_waiting(waiting.client, bytes);
    }

    fn end_wait(&mut self, slot: Slot, bytes: u32) -> Waiting {
        let waiting = self.waiting[slot.0 as usize];
        self.count_leaving(waiting.client, bytes);
        waiting
    }

    fn count_waiting(&mut self, client: u32, bytes: u32) {
        self.backlog.add(bytes, &mut self.largest_backlog);
        self.tallies[client as usize].begin_wait(bytes);
    }

    fn count_leaving(&mut self, client: u32, bytes: u32) {
        self.backlog.remove(bytes);
        self.tallies[client as usize].end_wait(bytes);
    }

    fn outcome(mut self, admitted: u64, end: Time) -> Outcome {
        let policy = self.throttle.policy();
        let room = policy.capacity as f64 * end.since(self.counted_from).as_secs_f64() / policy.cycle.as_secs_f64();
        let mut total = Tally::default();
        self.tallies.iter().for_each(|tally| total.merge(tally));
        let clients = (0u32..).zip(&self.tallies).filter(|(_, tally)| !tally.is_empty());
        Outcome {
            used: if room > 0.0 { (admitted as f64 / room * 1e4).round() / 1e4 } else { 0.0 },
            clients: clients.map(|(client, tally)| tally.result(self.senders.shown(client))).collect(),
            total: ClientResult { backlog: self.largest_backlog, seconds_above: None, ..total.result("all") },
            largest_window: self.throttle.window_admitted(end).1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_begins_at_multiples_of_its_length_around_a_time() {
        let cycle = Duration::from_secs(10);
        for (now, start, expected) in [(100_000, 100_000, 0), (103_000, 80_000, 3_000), (103_000, 181_000, 2_000)] {
            assert_eq!(into_cycle(time(now), time(start), cycle), Duration::from_millis(expected), "{now} {start}");
        }
    }
}
