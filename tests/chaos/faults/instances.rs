//! Faults of instances: kills, freezes, joins and leaves.

use std::time::{Duration, Instant};

use super::between;
use crate::outcome::{Effect, Outcome};
use crate::plan::{Mode, now_ms};
use crate::{instances::Metrics, support::generator::Random, support::wait::let_the_fault_last, world::World};

/// Time for an instance to become ready again.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time to wait for an instance with a backlog.
const BACKLOG_TIMEOUT: Duration = Duration::from_secs(60);

/// Picks a permanent instance that is ready and has delayed records, so that its offset maps are not empty; also
/// returns its metrics.
fn victim(world: &World, random: &mut Random) -> Option<(usize, Metrics)> {
    let first = random.below(world.permanent as u64) as usize;
    let mut found = None;
    world.wait(BACKLOG_TIMEOUT, || {
        let order =
            (0..world.permanent).map(|n| (first + n) % world.permanent).filter(|slot| world.fleet.is_ready(*slot));
        // In reject mode almost no record is delayed.
        let is_suitable = |metrics: &Metrics| metrics.backlog() > 0.0 || world.plan.mode == Mode::Reject;
        found = order.map(|slot| (slot, world.fleet.metrics(slot))).find(|(_, metrics)| is_suitable(metrics));
        found.is_some()
    });
    found
}

/// Excludes an instance from the watch while a fault handles it.
pub(super) struct Claim<'w>(&'w World, usize);

impl<'w> Claim<'w> {
    pub(super) fn of(world: &'w World, slot: usize) -> Claim<'w> {
        world.fleet.slot(slot).claimed = true;
        Claim(world, slot)
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.fleet.slot(self.1).claimed = false;
    }
}

fn state(metrics: &Metrics) -> String {
    let held = metrics.sum("watermaster_held_records", &[]);
    let map = metrics.sum("watermaster_map_used_ratio", &[]);
    format!("backlog {} (held {held}, map {:.3})", metrics.backlog(), map)
}

fn wait_ready(world: &World, slot: usize) -> bool {
    world.wait(READY_TIMEOUT, || world.fleet.is_ready(slot))
}

/// Kills an instance with SIGKILL, then starts a process with the same or with a new id.
pub fn kill(world: &World, random: &mut Random, kind: &'static str) -> Outcome {
    let Some((slot, metrics)) = victim(world, random) else { return Outcome::no_target("no instance has a backlog") };
    let _claim = Claim::of(world, slot);
    let began = now_ms();
    let died = world.fleet.kill(slot);
    let_the_fault_last(between(random, 0, 1_500));
    let id = world.fleet.slot(slot).id.clone();
    if kind == "kill_new_id" {
        world.fleet.rename(slot);
    }
    world.fleet.start(slot);
    let ended = now_ms();
    let back = wait_ready(world, slot);
    let effect = format!("died {died} with {}, back {back}", state(&metrics));
    let effect = Effect::when(died && back, effect);
    Outcome::new(id, (began, ended), effect).with_partitions(metrics.partitions(&world.plan))
}

/// Lets an instance end itself in the middle of a round, then starts a process with the same id.
pub fn failpoint(world: &World, random: &mut Random, kind: &'static str) -> Outcome {
    let step = kind.strip_prefix("failpoint_").expect("the names of these kinds have this prefix");
    let Some((slot, metrics)) = victim(world, random) else { return Outcome::no_target("no instance has a backlog") };
    let _claim = Claim::of(world, slot);
    let id = world.fleet.slot(slot).id.clone();
    world.fleet.die_at(slot, step);
    let died = world.fleet.wait_end(slot, Duration::from_secs(30)).is_some();
    let began = now_ms();
    if !died {
        // Otherwise the failpoint would end the process later, outside any fault.
        world.fleet.kill(slot);
    }
    world.fleet.start(slot);
    let ended = now_ms();
    let back = wait_ready(world, slot);
    let effect = format!("died {died} at {step} with {}, back {back}", state(&metrics));
    let effect = Effect::when(died && back, effect);
    Outcome::new(id, (began, ended), effect).with_partitions(metrics.partitions(&world.plan))
}

/// Freezes an instance with SIGSTOP for less than a session, for more than one, for more than a session and a
/// transaction, or for longer than what it announced may be admitted and counts. In a group, the other instances claim
/// its part of the capacity in all but the first of these times. `pause_before_offsets` freezes it between its outputs
/// and their offsets, and `pause_before_state` before it sends a state of its seat: a few milliseconds that the others
/// seldom hit.
pub fn pause(world: &World, random: &mut Random, kind: &'static str) -> Outcome {
    let Some((slot, before)) = victim(world, random) else { return Outcome::no_target("no instance has a backlog") };
    let _claim = Claim::of(world, slot);
    let id = world.fleet.slot(slot).id.clone();
    let others = |what: fn(&Metrics) -> f64| -> f64 {
        world.fleet.all_metrics().iter().filter(|(other, _)| **other != slot).map(|(_, metrics)| what(metrics)).sum()
    };
    let claims = |metrics: &Metrics| metrics.sum("watermaster_group_claims_total", &[]);
    let (rebalances, claimed) = (others(Metrics::rebalances), others(claims));
    // A random delay, so that the freeze sometimes falls into a round.
    let_the_fault_last(between(random, 0, 300));
    let began = now_ms();
    match kind.strip_prefix("pause_before_") {
        Some(step) => {
            world.fleet.freeze_at(slot, &format!("before_{step}"));
            world.wait(Duration::from_secs(30), || world.fleet.is_stopped(slot));
        }
        None => world.fleet.freeze(slot),
    }
    let (session, transaction) = (world.plan.session_ms, world.plan.transaction_ms);
    let time = match kind {
        "pause_short" => between(random, session / 8, session * 2 / 3),
        "pause_session" | "pause_before_offsets" | "pause_before_state" => {
            between(random, session + 1_500, session + 6_000)
        }
        "pause_ahead" => {
            let counts_for = world.plan.ahead_time_ms() + world.plan.cycle_ms;
            between(random, counts_for + session, counts_for + 4 * session)
        }
        _ => between(random, session + transaction + 1_000, session + transaction + 4_000),
    };
    let_the_fault_last(time);
    let stopped = world.fleet.is_stopped(slot);
    let taken_over = || others(Metrics::rebalances) > rebalances && (!world.plan.grouped || others(claims) > claimed);
    // On a busy machine the other instances notice later.
    let is_taken_over = kind == "pause_short" || world.wait(Duration::from_secs(20), taken_over);
    let (rebalanced, claimed) = (others(Metrics::rebalances) - rebalances, others(claims) - claimed);
    world.fleet.thaw(slot);
    let ended = now_ms();
    let back = wait_ready(world, slot);
    let after = world.fleet.metrics(slot);
    let replaced = after.recreations() - before.recreations();
    let effect = format!(
        "stopped {:.1}s with {}, others' rebalances +{rebalanced} and claims +{claimed}, its producers +{replaced}, \
         back {back}",
        (ended - began) as f32 / 1000.0,
        state(&before)
    );
    let outcome = Outcome::new(id, (began, ended), Effect::when(stopped && back && is_taken_over, effect));
    if kind == "pause_short" { outcome } else { outcome.with_partitions(before.partitions(&world.plan)) }
}

/// Starts a second process with the id of an instance. The first one has to stop, because the second one took its seat,
/// or its transactional id twice.
pub fn same_id_twice(world: &World, random: &mut Random, _: &'static str) -> Outcome {
    let Some((slot, metrics)) = victim(world, random) else { return Outcome::no_target("no instance has a backlog") };
    let _claim = Claim::of(world, slot);
    let id = world.fleet.slot(slot).id.clone();
    let Some(mut former) = world.fleet.detach(slot) else { return Outcome::no_target("the instance ended") };
    let began = now_ms();
    world.fleet.start(slot);
    let stopped = former.wait_end(READY_TIMEOUT);
    // The former process may have taken the transactional id back.
    world.fleet.slot(slot).fenced = Some(Instant::now());
    let said = former.log_contains("two instances");
    drop(former);
    let ended = now_ms();
    // If they took the id from each other at the same moments, both have stopped, and one is started again.
    let mut have_both_stopped = false;
    let back = world.wait(READY_TIMEOUT, || {
        if let Some(status) = world.fleet.ended(slot) {
            have_both_stopped = world.fleet.log_contains(slot, "two instances");
            if !have_both_stopped {
                world.note_death(slot, status);
            }
            world.fleet.start(slot);
        }
        world.fleet.is_ready(slot)
    });
    let code = stopped.and_then(|status| status.code());
    let second = if have_both_stopped { "stopped, too, and its successor" } else { "the second one" };
    let effect = format!("the first process ended with {code:?}, reason logged {said}; {second} is ready {back}");
    let effect = Effect::when(code == Some(70) && said && back, effect);
    Outcome::new(id, (began, ended), effect).with_partitions(metrics.partitions(&world.plan))
}

/// Starts an extra instance for a while.
pub fn join(world: &World, random: &mut Random, _: &'static str) -> Outcome {
    let Some(slot) = (world.permanent..world.fleet.len()).find(|slot| !world.fleet.is_running(*slot)) else {
        return Outcome::no_target("no slot for an extra instance");
    };
    let _claim = Claim::of(world, slot);
    let rebalances = |world: &World| world.fleet.all_metrics().values().map(Metrics::rebalances).sum::<f64>();
    let before = rebalances(world);
    let began = now_ms();
    world.fleet.rename(slot);
    world.fleet.start(slot);
    let ready = wait_ready(world, slot);
    let took = |world: &World| world.fleet.metrics(slot).sum("watermaster_records_total", &[]);
    // The instance must have handled records before it leaves.
    world.wait(READY_TIMEOUT, || took(world) > 0.0);
    let_the_fault_last(between(random, 1_000, 5_000));
    let (rebalanced, took) = (rebalances(world) - before, took(world));
    let status = world.fleet.terminate(slot, Duration::from_secs(20)).and_then(|status| status.code());
    let effect = format!("ready {ready}, rebalances +{rebalanced}, took {took} records, left with {status:?}");
    let expected = ready && rebalanced > 0.0 && took > 0.0 && status == Some(0);
    Outcome::new(format!("extra instance {slot}"), (began, now_ms()), Effect::when(expected, effect))
}

/// Ends an instance with SIGTERM and restarts it a little later with the same id. The fault begins when the process has
/// ended: until then it works.
pub fn leave(world: &World, random: &mut Random, _: &'static str) -> Outcome {
    let Some((slot, metrics)) = victim(world, random) else { return Outcome::no_target("no instance has a backlog") };
    let _claim = Claim::of(world, slot);
    let id = world.fleet.slot(slot).id.clone();
    let status = world.fleet.terminate(slot, Duration::from_secs(20)).and_then(|status| status.code());
    let began = now_ms();
    let_the_fault_last(between(random, 1_000, 4_000));
    world.fleet.start(slot);
    let ended = now_ms();
    let back = wait_ready(world, slot);
    let effect = format!("left with {status:?} and {}, back {back}", state(&metrics));
    let effect = Effect::when(back && status == Some(0), effect);
    Outcome::new(id, (began, ended), effect).with_partitions(metrics.partitions(&world.plan))
}
