//! Searches for the capacity of services with `[service.pace]`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tracing::info;
use watermaster_core::pace::{ChangeCause, Control, Pace};
use watermaster_core::policy::Mode;
use watermaster_core::reason::Reason;
use watermaster_core::units::Ratio;
use watermaster_settings::{Kafka, PaceSettings, Service};

use super::{CHECK_INTERVAL, target::Target};
use crate::clock::Clock;
use crate::services::{Change, ServiceHandle};
use crate::snapshot::ServiceSnapshot;

/// With scope instance, another instance that has source partitions for this long ends the search here.
const ALONE_TIMEOUT: Duration = Duration::from_secs(60);
/// The limit of the service follows only a change of this part, but for one to a bound.
const SMALL_CHANGE: u64 = 100;

/// Searches until there are no settings for it.
pub(super) fn search(kafka: &Kafka, service: &Service, handle: &ServiceHandle, stop: &AtomicBool) {
    let ends = || stop.load(Ordering::Relaxed) || handle.is_stopped();
    let Some(mut settings) = handle.pace.lock().settings.clone() else { return };
    let clock = Clock::start();
    let mut pace = Pace::new(settings.params.clone(), clock.now());
    let mut target = Target::new(kafka, service);
    let mut engine = EngineCounts::default();
    while !ends() {
        let next = Instant::now() + settings.poll;
        let configured = handle.pace.lock().settings.clone();
        match configured {
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
        handle.cell.pace.set(Some(Arc::new(view)));
        while Instant::now() < next && !ends() {
            thread::sleep(CHECK_INTERVAL.min(next.saturating_duration_since(Instant::now())));
        }
    }
    handle.pace.lock().limit = None;
    handle.cell.pace.set(None);
}

/// Asks for the offsets, and hands them over.
fn look(pace: &mut Pace, target: &mut Target<'_>, clock: &Clock, admitted: u64, waited: Ratio) {
    let offsets = target.offsets().and_then(|offsets| Some((target.other_ends(&offsets)?, offsets)));
    match offsets {
        Some((other_ends, offsets)) => {
            target.close_tails(pace, clock);
            pace.note_other_ends(other_ends);
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
    let began = std::mem::replace(&mut engine.searches, others.searches) != others.searches;
    if began && others.limit.is_some() || !others.searches {
        pace.handle_other(others.limit);
    }
    if engine.lives != others.lives {
        engine.lives.clone_from(&others.lives);
        pace.forget_rate();
    }
    others.searches
}

fn cuts(pace: &Pace, clock: &Clock) -> u64 {
    pace.view(clock.now()).changes[1][ChangeCause::Late as usize]
}

/// Tells the engine the limit, if it differs from the one in force.
fn tell(pace: &Pace, settings: &PaceSettings, handle: &ServiceHandle, snapshot: &ServiceSnapshot) {
    let (limit, params) = (pace.limit(), &settings.params);
    let in_force = snapshot.figures.capacity;
    let is_bound = [params.floor, params.ceiling, params.capacity].contains(&limit);
    let is_small = limit.abs_diff(in_force) * SMALL_CHANGE < in_force;
    // The limit is told before other settings can come.
    let mut search = handle.pace.lock();
    if search.settings.as_ref() != Some(settings) {
        return;
    }
    search.limit = (params.control == Control::Apply).then_some(limit);
    if params.control == Control::Apply && limit != in_force && (is_bound || !is_small) {
        handle.inbox.leave(Change { capacity: Some(limit), ..Change::default() });
    }
}

/// The engine's figures at the last poll.
#[derive(Default)]
struct EngineCounts {
    rejected: u64,
    /// This instance was the one of its group that searches.
    searches: bool,
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
        let exist: usize = handle.cell.observed.get().partitions.values().sum();
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
