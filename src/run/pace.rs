//! Searches for the capacity of services with `[service.pace]`: a thread for each, with a client of its own, reads how
//! far the service's own consumer group has committed in the target.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tracing::{info, warn};
use watermaster_core::pace::{ChangeCause, Control, Offsets, Pace};
use watermaster_core::policy::Mode;
use watermaster_core::reason::Reason;
use watermaster_core::units::Ratio;
use watermaster_kafka::log_limiter::LogLimiter;
use watermaster_kafka::{KafkaError, observer::Observer};
use watermaster_settings::{Kafka, PaceSettings, Service};

use super::CHECK_INTERVAL;
use crate::clock::Clock;
use crate::services::{Change, ServiceHandle};
use crate::snapshot::ServiceSnapshot;

/// The longest wait for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest wait for a record in the tail of a partition.
const TAIL_TIMEOUT: Duration = Duration::from_secs(2);
/// The interval at which the partitions of the target are counted, and at which tails are asked about again.
const RENEW_INTERVAL: Duration = Duration::from_secs(60);
/// A client that got no answer for this long is replaced: its credentials may be old.
const REPLACE_INTERVAL: Duration = Duration::from_secs(30);
/// With scope instance, another instance that has source partitions for this long ends the search here.
const ALONE_TIMEOUT: Duration = Duration::from_secs(60);
/// The limit of the service follows only a change of this part, but for one to a bound.
const SMALL_CHANGE: u64 = 100;

/// The threads that search, by the name of the service.
#[derive(Default)]
pub(super) struct Followers(BTreeMap<String, JoinHandle<()>>);

impl Followers {
    /// Starts a thread for each service whose capacity is to be found. Each ends when that is no longer so, when its
    /// service ends, or when the program stops.
    pub(super) fn follow(&mut self, kafka: &Kafka, services: &[(Service, ServiceHandle)], stop: &Arc<AtomicBool>) {
        self.0.retain(|_, thread| !thread.is_finished());
        for (service, handle) in services.iter().filter(|(_, handle)| handle.pace.settings().is_some()) {
            if self.0.contains_key(&service.name) {
                continue;
            }
            let (kafka, service, handle, stop) = (kafka.clone(), service.clone(), handle.clone(), Arc::clone(stop));
            let name = service.name.clone();
            let thread = thread::Builder::new().name(format!("pace-{name}"));
            match thread.spawn(move || search(&kafka, &service, &handle, &stop)) {
                Ok(thread) => _ = self.0.insert(name, thread),
                Err(why) => warn!(service = name, "no thread searches for the capacity: {why}"),
            }
        }
    }
}

/// Searches until there are no settings for it.
fn search(kafka: &Kafka, service: &Service, handle: &ServiceHandle, stop: &AtomicBool) {
    let ends = || stop.load(Ordering::Relaxed) || handle.is_stopped();
    let Some(mut settings) = handle.pace.settings() else { return };
    let clock = Clock::start();
    let mut pace = Pace::new(settings.params.clone(), clock.now());
    let mut target = Target::new(kafka, service);
    let mut engine = EngineCounts::default();
    while !ends() {
        let next = Instant::now() + settings.poll;
        match handle.pace.settings() {
            None => break,
            Some(changed) if changed != settings => {
                settings = changed;
                pace.change(settings.params.clone(), clock.now());
            }
            Some(_) => {}
        }
        let cuts = cuts(&pace, &clock);
        let snapshot = handle.cell.get();
        if searches(&snapshot, handle, &mut engine, &mut pace) {
            pace.expect_markers(target.markers(1 + snapshot.group.others.lives.len() as u32));
            look(&mut pace, &mut target, &clock, engine.total(&snapshot), engine.waited(&snapshot));
        }
        tell(&pace, &settings, handle, &snapshot);
        let view = pace.view(clock.now());
        if cuts != view.changes[1][ChangeCause::Late as usize] {
            let (late_seconds, capacity) = (view.late.as_secs_f64(), view.found);
            info!(service = service.name, late_seconds, capacity, "the service was late: its capacity is found anew");
        }
        handle.cell.set_pace(Some(view));
        while Instant::now() < next && !ends() {
            thread::sleep(CHECK_INTERVAL.min(next.saturating_duration_since(Instant::now())));
        }
    }
    handle.pace.set_limit(None);
    handle.cell.set_pace(None);
}

/// Asks for the offsets, and hands them over.
fn look(pace: &mut Pace, target: &mut Target<'_>, clock: &Clock, admitted: u64, waited: Ratio) {
    match target.offsets() {
        Some(offsets) => {
            target.close_tails(pace, clock);
            pace.handle_offsets(clock.now(), &offsets, admitted, waited);
        }
        None => pace.handle_no_signal(clock.now()),
    }
}

/// Returns whether this instance is the one that searches. Otherwise it takes over the limit of the one that does.
fn searches(snapshot: &ServiceSnapshot, handle: &ServiceHandle, engine: &mut EngineCounts, pace: &mut Pace) -> bool {
    if snapshot.group.figures.state.is_none() {
        let alone = engine.is_alone(snapshot, handle);
        if !alone {
            pace.handle_other(None);
        }
        return alone;
    }
    let others = &snapshot.group.others;
    let began = std::mem::replace(&mut engine.is_first, others.is_first) != others.is_first;
    if began && others.limit.is_some() || !others.is_first {
        pace.handle_other(others.limit);
    }
    if engine.lives != others.lives {
        engine.lives.clone_from(&others.lives);
        pace.forget_rate();
    }
    others.is_first
}

fn cuts(pace: &Pace, clock: &Clock) -> u64 {
    pace.view(clock.now()).changes[1][ChangeCause::Late as usize]
}

/// Tells the engine the limit, if it differs from the one in force.
fn tell(pace: &Pace, settings: &PaceSettings, handle: &ServiceHandle, snapshot: &ServiceSnapshot) {
    let (limit, params) = (pace.limit(), &settings.params);
    handle.pace.set_limit((params.control == Control::Apply).then_some(limit));
    let in_force = snapshot.figures.capacity;
    let is_bound = [params.floor, params.ceiling, params.capacity].contains(&limit);
    let is_small = limit.abs_diff(in_force) * SMALL_CHANGE < in_force;
    if limit != in_force && (is_bound || !is_small) {
        handle.inbox.leave(Change { capacity: Some(limit), ..Change::default() });
    }
}

/// The engine's figures at the last poll.
#[derive(Default)]
struct EngineCounts {
    rejected: u64,
    /// This instance was the first member of its group.
    is_first: bool,
    /// The lives of the other members.
    lives: Vec<u64>,
    /// Scope instance: some source partitions have not been here since this time.
    shared_since: Option<Instant>,
}

impl EngineCounts {
    /// Returns the number of records that all instances have admitted.
    fn total(&self, snapshot: &ServiceSnapshot) -> u64 {
        snapshot.throttle.totals.delays.counts.iter().sum::<u64>() + snapshot.group.others.admitted
    }

    /// Returns whether all partitions of the sources were here at some time in the last minute.
    fn is_alone(&mut self, snapshot: &ServiceSnapshot, handle: &ServiceHandle) -> bool {
        let exist: usize = handle.cell.observed().partitions.values().sum();
        if snapshot.partitions.len() >= exist {
            self.shared_since = None;
            return true;
        }
        self.shared_since.get_or_insert_with(Instant::now).elapsed() < ALONE_TIMEOUT
    }

    /// Returns all of the time since the last poll if records wait now, or were rejected since for lack of capacity.
    fn waited(&mut self, snapshot: &ServiceSnapshot) -> Ratio {
        let mut waits = snapshot.throttle.oldest_held_seconds > 0.0 || snapshot.group.others.wait;
        if snapshot.figures.mode == Mode::Reject.into_str() {
            let lacks = |reason: &Reason| matches!(reason, Reason::OverAllocation | Reason::CapacityInUse);
            let of = |client: &crate::snapshot::ClientSnapshot| -> u64 {
                client.counts.rejected.iter().filter(|(reason, _)| lacks(reason)).map(|(_, count)| count).sum()
            };
            let rejected = snapshot.clients.iter().map(of).sum();
            waits |= rejected > self.rejected;
            self.rejected = rejected;
        }
        if waits { Ratio::ONE } else { Ratio::ZERO }
    }
}

/// The target of a service, as its consumer group reads it.
struct Target<'a> {
    kafka: &'a Kafka,
    service: &'a Service,
    observer: Option<Observer>,
    /// The number of partitions, and when they were counted.
    partitions: Option<(usize, Instant)>,
    answered_at: Instant,
    /// Tails that were asked about, and whether a record was found.
    tails: BTreeMap<i32, (Offsets, bool)>,
    log_limiter: LogLimiter,
}

impl<'a> Target<'a> {
    fn new(kafka: &'a Kafka, service: &'a Service) -> Target<'a> {
        let (answered_at, tails) = (Instant::now(), BTreeMap::new());
        Target {
            kafka,
            service,
            observer: None,
            partitions: None,
            answered_at,
            tails,
            log_limiter: LogLimiter::default(),
        }
    }

    /// Returns the offsets of all partitions in which the group committed; `None` if they can't be read, or if it has
    /// committed none.
    fn offsets(&mut self) -> Option<Vec<Offsets>> {
        match self.ask() {
            Ok(offsets) => {
                self.answered_at = Instant::now();
                Some(offsets).filter(|offsets| !offsets.is_empty())
            }
            Err(why) => {
                if self.answered_at.elapsed() > REPLACE_INTERVAL {
                    (self.observer, self.answered_at) = (None, Instant::now());
                }
                self.warn("offsets", &why);
                None
            }
        }
    }

    /// Returns the most markers that the transactions of these instances write per second: one for each partition.
    fn markers(&self, instances: u32) -> u64 {
        let partitions = self.partitions.map_or(0, |(partitions, _)| partitions);
        let transactions = f64::from(instances) * self.kafka.transactions_per_second();
        (partitions as f64 * transactions).ceil() as u64
    }

    fn ask(&mut self) -> Result<Vec<Offsets>, KafkaError> {
        self.observer.take_if(|observer| observer.has_old_secrets());
        let observer = match &mut self.observer {
            Some(observer) => observer,
            none => none.insert(Observer::new(self.kafka, self.service)?),
        };
        let target = &self.service.target;
        let counted = self.partitions.filter(|(_, at)| at.elapsed() < RENEW_INTERVAL);
        let (partitions, _) = match counted {
            Some(counted) => counted,
            None => {
                self.tails.clear();
                *self.partitions.insert((observer.partitions(target, ANSWER_TIMEOUT)?, Instant::now()))
            }
        };
        observer.offsets(target, partitions, ANSWER_TIMEOUT)
    }

    /// Looks for records in the tails that may hold markers of transactions only, once for each.
    fn close_tails(&mut self, pace: &mut Pace, clock: &Clock) {
        let tails: Vec<Offsets> = pace.doubtful_tails(clock.now()).collect();
        for tail in tails {
            let known = self.tails.get(&tail.partition).filter(|(known, _)| *known == tail);
            let known = known.map(|(_, has_record)| *has_record);
            let has_record = known.unwrap_or_else(|| self.has_record(tail));
            self.tails.insert(tail.partition, (tail, has_record));
            if !has_record {
                pace.handle_empty_tail(tail);
            }
        }
    }

    /// Asks about a tail. Without an answer it counts as open.
    fn has_record(&mut self, tail: Offsets) -> bool {
        let Some(observer) = &self.observer else { return true };
        let found = observer.has_record(&self.service.target, tail, TAIL_TIMEOUT);
        found.unwrap_or_else(|why| {
            self.warn("a tail", &why);
            true
        })
    }

    fn warn(&mut self, what: &'static str, why: &KafkaError) {
        let (service, group) = (&self.service.name, self.service.consumer_group.as_deref().unwrap_or_default());
        self.log_limiter.warn(what, |suppressed| {
            warn!(service, group, suppressed, "the brokers do not tell how far the service is: {why}");
        });
    }
}
