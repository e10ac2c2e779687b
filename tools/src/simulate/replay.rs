//! Replays a trace through the core in simulated time: the throttle of `run`, with the times of the trace.
//!
//! Each record is handed over at its time, and the throttle's timeouts and actions every 10 ms. A paused partition is
//! not read: its records wait in the topic, and that wait counts as part of their delays.

use std::collections::VecDeque;
use std::time::Duration;

use watermaster_core::offset_map::OffsetMap;
use watermaster_core::policy::Policy;
use watermaster_core::reason::Reason;
use watermaster_core::slot::Slot;
use watermaster_core::throttle::{Action, Arrival, Throttle, Verdict};
use watermaster_core::units::Time;

use super::retries::Returning;
use super::senders::Senders;
use super::service::{OpenRecord, ServiceModel, ServiceOutcome, ServiceQueue};
use super::tally::{ClientResult, SimulatedAttempt, SimulatedBacklog, Tally};
use crate::trace_file::{Contents, FIRST_CLIENT, TraceError, TraceReader, TraceRecord};

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
    /// The service behind the target; `None` for one that takes all that is admitted.
    pub service: Option<ServiceModel>,
}

/// The result of a simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The part of the capacity that was used, from the first counted record to the last record of the trace.
    pub used: f64,
    /// The most records admitted in any window of one cycle. It may be half a percent of a cycle's too large.
    pub largest_window: u64,
    /// The modelled service.
    pub service: Option<ServiceOutcome>,
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
    unread: VecDeque<SimulatedAttempt>,
}

/// A simulation under way.
pub struct Replay<'t> {
    throttle: Throttle,
    /// The policy of the configuration, and the next time at which other rules of it are valid.
    policy: Policy,
    next_rules: Time,
    senders: &'t Senders,
    options: ReplayOptions,
    start: Time,
    /// The time of the next look at the throttle.
    tick: Time,
    counted_from: Time,
    /// Admissions since then.
    admitted: u64,
    logs: Vec<Log>,
    /// Partitions that may have unread records and are not paused.
    resumed: VecDeque<u32>,
    /// By slot.
    waiting: Vec<SimulatedAttempt>,
    returning: Returning,
    service: Option<ServiceQueue>,
    backlog: SimulatedBacklog,
    largest_backlog: SimulatedBacklog,
    /// By client of the trace.
    tallies: Vec<Tally>,
}

fn time(at_ms: u64) -> Time {
    Time::from_nanos(at_ms.saturating_mul(NANOS_PER_MILLI))
}

/// Returns the time at which other rules are valid than at this one.
fn next_rules(policy: &Policy, now_ms: i64) -> Time {
    let next = policy.rules.next_change(now_ms).and_then(|next| u64::try_from(next).ok());
    next.map_or(Time::NEVER, time)
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
        let first_ms = i64::try_from(contents.first_ms).unwrap_or(i64::MAX);
        let mut replay = Replay {
            throttle: Throttle::new(policy.at(first_ms), start),
            next_rules: next_rules(&policy, first_ms),
            policy,
            senders,
            options,
            start,
            tick: start,
            counted_from,
            admitted: 0,
            logs: logs.collect(),
            resumed: VecDeque::new(),
            waiting: Vec::new(),
            returning: Returning::default(),
            service: options.service.map(|model| ServiceQueue::new(model, options.threshold, counted_from)),
            backlog: SimulatedBacklog::default(),
            largest_backlog: SimulatedBacklog::default(),
            tallies: (0..clients).map(|_| Tally::default()).collect(),
        };
        for (number, log) in (0u32..).zip(&replay.logs) {
            let offset = log.next_offset;
            replay.throttle.handle_assigned(start, number, offset, &OffsetMap::default(), offset);
            replay.throttle.handle_sole_client(number, senders.sole_client(number));
        }
        replay
    }

    /// Replays the whole trace, and goes on until no record waits.
    pub fn run(mut self, trace: &mut TraceReader) -> Result<Outcome, TraceError> {
        let mut block = Vec::new();
        while trace.next_block(&mut block)? {
            for record in &block {
                if record.retried && self.options.drop_retried {
                    continue;
                }
                let TraceRecord { at_ms, client, partition, bytes, .. } = *record;
                let at = time(at_ms);
                while self.step(at) {}
                self.arrive(SimulatedAttempt { client, partition, bytes, number: 1, sent: at, arrived: at });
            }
        }
        let end = time(trace.contents().last_ms);
        let admitted = self.admitted;
        while self.tick < Time::NEVER && (self.backlog.records > 0 || self.returning.due().is_some()) {
            self.step(Time::NEVER);
        }
        self.work(Time::NEVER);
        Ok(self.outcome(admitted, end))
    }

    /// Does the next thing that is due at `end` or earlier: a look at the throttle, or a record that comes back.
    /// Returns false if there is none.
    #[inline]
    fn step(&mut self, end: Time) -> bool {
        let next = |replay: &Self| replay.returning.due().map_or(end, |due| due.min(end));
        if self.tick <= next(self) {
            self.look(self.tick);
            self.tick = self.next_look(self.tick, next(self));
            return true;
        }
        let returned = self.returning.pop(end);
        returned.is_some_and(|attempt| {
            self.arrive(attempt);
            true
        })
    }

    /// Returns the next time at which something may happen, on the grid of steps.
    #[inline]
    fn next_look(&mut self, now: Time, next_record: Time) -> Time {
        let next = now + self.options.step;
        if next > next_record {
            return next;
        }
        let due = self.throttle.poll_timeout(now).min(next_record).min(self.next_rules);
        let step = self.options.step.as_nanos() as u64;
        let steps = due.nanos_since(self.start).div_ceil(step);
        next.max(Time::from_nanos(self.start.as_nanos().saturating_add(steps.saturating_mul(step))))
    }

    /// Carries out what is due.
    fn look(&mut self, now: Time) {
        if now >= self.next_rules {
            let now_ms = (now.as_nanos() / NANOS_PER_MILLI) as i64;
            self.throttle.handle_rules(now, self.policy.at(now_ms));
            self.next_rules = next_rules(&self.policy, now_ms);
        }
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
            Action::Admit { slot, .. } => {
                let attempt = self.end_wait(slot);
                self.admit(now, &attempt);
            }
            Action::Reject { slot, rejection, .. } => {
                let attempt = self.end_wait(slot);
                let was_delayed = matches!(rejection.reason, Reason::QueueFull | Reason::Expired);
                if !was_delayed && attempt.sent >= self.counted_from {
                    // The record only waited for room in the offset map, to be rejected.
                    self.tallies[attempt.client as usize].delayed -= 1;
                }
                self.reject(now, &attempt, rejection.reason);
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
            let Some(attempt) = log.unread.pop_front() else { return };
            self.count_leaving(&attempt);
            self.decide(now, number, &attempt);
        }
        self.resumed.push_back(number);
    }

    #[inline]
    fn arrive(&mut self, attempt: SimulatedAttempt) {
        if attempt.number == 1 && attempt.sent >= self.counted_from {
            self.tallies[attempt.client as usize].records += 1;
        }
        let number = if self.senders.shadow { attempt.client } else { attempt.partition };
        let log = &mut self.logs[number as usize];
        if log.paused || !log.unread.is_empty() {
            log.unread.push_back(attempt);
            self.count_waiting(&attempt);
        } else {
            self.decide(attempt.arrived, number, &attempt);
        }
    }

    /// Has the throttle decide on a record that is read now.
    #[inline]
    fn decide(&mut self, now: Time, partition: u32, attempt: &SimulatedAttempt) {
        let log = &mut self.logs[partition as usize];
        let offset = log.next_offset;
        log.next_offset += 1;
        let arrival =
            Arrival { partition, offset, bytes: attempt.bytes, sender: self.senders.of(attempt), written_ms: None };
        match self.throttle.handle_record(now, &arrival) {
            // An offset comes once.
            Verdict::Skip => {}
            Verdict::Admit(_) => self.admit(now, attempt),
            Verdict::Reject(rejection) => self.reject(now, attempt, rejection.reason),
            Verdict::Delay(slot) => {
                if attempt.sent >= self.counted_from {
                    self.tallies[attempt.client as usize].delayed += 1;
                }
                self.begin_wait(slot, attempt);
            }
        }
    }

    #[inline]
    fn admit(&mut self, now: Time, attempt: &SimulatedAttempt) {
        self.admitted += u64::from(now >= self.counted_from);
        if attempt.sent >= self.counted_from {
            self.tallies[attempt.client as usize].admit(attempt, now, self.options.threshold);
        }
        self.work(now);
        if let Some(service) = &mut self.service {
            service.add(OpenRecord { client: attempt.client, sent: attempt.sent, admitted: now });
        }
    }

    #[inline]
    fn reject(&mut self, now: Time, attempt: &SimulatedAttempt, reason: Reason) {
        let returns = self.returning.add(self.senders.retry_of(attempt.client), attempt, now);
        if attempt.sent >= self.counted_from {
            let reason = (!returns).then_some(reason);
            self.tallies[attempt.client as usize].reject(reason, attempt, now, self.options.threshold);
        }
    }

    /// Has the modelled service work until this time.
    #[inline]
    fn work(&mut self, until: Time) {
        let Some(service) = &mut self.service else { return };
        let (tallies, counted_from) = (&mut self.tallies, self.counted_from);
        service.advance(until, |record, now| {
            if record.sent >= counted_from {
                tallies[record.client as usize].finished.record(now.since(record.sent));
            }
        });
    }

    fn begin_wait(&mut self, slot: Slot, attempt: &SimulatedAttempt) {
        let index = slot.0 as usize;
        if index >= self.waiting.len() {
            self.waiting.resize(index + 1, *attempt);
        }
        self.waiting[index] = *attempt;
        self.count_waiting(attempt);
    }

    fn end_wait(&mut self, slot: Slot) -> SimulatedAttempt {
        let attempt = self.waiting[slot.0 as usize];
        self.count_leaving(&attempt);
        attempt
    }

    fn count_waiting(&mut self, attempt: &SimulatedAttempt) {
        self.backlog.add(attempt.bytes, &mut self.largest_backlog);
        let tally = &mut self.tallies[attempt.client as usize];
        tally.waiting.add(attempt.bytes, &mut tally.largest);
    }

    fn count_leaving(&mut self, attempt: &SimulatedAttempt) {
        self.backlog.remove(attempt.bytes);
        self.tallies[attempt.client as usize].waiting.remove(attempt.bytes);
    }

    fn outcome(mut self, admitted: u64, end: Time) -> Outcome {
        let policy = self.throttle.policy();
        let room = policy.capacity as f64 * end.since(self.counted_from).as_secs_f64() / policy.cycle.as_secs_f64();
        let mut total = Tally::default();
        self.tallies.iter().for_each(|tally| total.merge(tally));
        let clients = (0u32..).zip(&self.tallies).filter(|(_, tally)| tally.records > 0);
        Outcome {
            used: if room > 0.0 { (admitted as f64 / room * 1e4).round() / 1e4 } else { 0.0 },
            clients: clients.map(|(client, tally)| tally.result(self.senders.shown(client))).collect(),
            total: ClientResult { backlog: self.largest_backlog, seconds_above: None, ..total.result("all") },
            largest_window: self.throttle.window_admitted(end).1,
            service: self.service.as_ref().map(ServiceQueue::outcome),
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
