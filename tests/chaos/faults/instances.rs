//! Instances that are killed, stopped, or come and go.

use std::time::Duration;

use super::{Inflicted, between};
use crate::instances::Metrics;
use crate::plan::{Mode, now_ms};
use crate::support::generator::Random;
use crate::support::wait::let_the_fault_last;
use crate::world::World;

/// How long an instance may take until it is ready again.
const READY: Duration = Duration::from_secs(60);
/// How long to wait for one that has something to lose.
const BACKLOG: Duration = Duration::from_secs(60);

/// An instance of the staff that is ready and has delayed records, with its metrics: its maps are not empty.
fn victim(world: &World, random: &mut Random) -> Option<(usize, Metrics)> {
    let first = random.below(world.staff as u64) as usize;
    let mut found = None;
    world.wait(BACKLOG, || {
        let order = (0..world.staff).map(|n| (first + n) % world.staff).filter(|slot| world.fleet.is_ready(*slot));
        // In reject mode hardly anything ever waits.
        let fits = |metrics: &Metrics| metrics.backlog() > 0.0 || world.plan.mode == Mode::Reject;
        found = order.map(|slot| (slot, world.fleet.metrics(slot))).find(|(_, metrics)| fits(metrics));
        found.is_some()
    });
    found
}

/// Keeps the watch off an instance while a fault has it.
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
    world.wait(READY, || world.fleet.is_ready(slot))
}

/// kill -9, then a new process with the same or with a new id.
pub fn kill(world: &World, random: &mut Random, kind: &'static str) -> Inflicted {
    let Some((slot, metrics)) = victim(world, random) else { return Inflicted::none("no instance has a backlog") };
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
    let effect = if died && back { Ok(effect) } else { Err(effect) };
    Inflicted::new(id, (began, ended), effect).of(metrics.partitions(&world.plan))
}

/// A process that ends itself in the middle of a round, then another with the same id.
pub fn failpoint(world: &World, random: &mut Random, kind: &'static str) -> Inflicted {
    let step = kind.strip_prefix("failpoint_").expect("they are called so");
    let Some((slot, metrics)) = victim(world, random) else { return Inflicted::none("no instance has a backlog") };
    let _claim = Claim::of(world, slot);
    let id = world.fleet.slot(slot).id.clone();
    world.fleet.die_at(slot, step);
    let died = world.fleet.wait_end(slot, Duration::from_secs(30)).is_some();
    let began = now_ms();
    if !died {
        // Else it would die later, of nobody's fault.
        world.fleet.kill(slot);
    }
    world.fleet.start(slot);
    let ended = now_ms();
    let back = wait_ready(world, slot);
    let effect = format!("died {died} at {step} with {}, back {back}", state(&metrics));
    let effect = if died && back { Ok(effect) } else { Err(effect) };
    Inflicted::new(id, (began, ended), effect).of(metrics.partitions(&world.plan))
}

/// SIGSTOP for less than a session, for more, or for more than a transaction lasts.
pub fn pause(world: &World, random: &mut Random, kind: &'static str) -> Inflicted {
    let Some((slot, before)) = victim(world, random) else { return Inflicted::none("no instance has a backlog") };
    let _claim = Claim::of(world, slot);
    let id = world.fleet.slot(slot).id.clone();
    let others = |what: fn(&Metrics) -> f64| -> f64 {
        world.fleet.all_metrics().iter().filter(|(other, _)| **other != slot).map(|(_, metrics)| what(metrics)).sum()
    };
    let rebalances = others(Metrics::rebalances);
    // Now and then exactly while a round is on its way.
    let_the_fault_last(between(random, 0, 300));
    let began = now_ms();
    world.fleet.freeze(slot);
    let (session, transaction) = (world.plan.session_ms, world.plan.transaction_ms);
    let time = match kind {
        "pause_short" => between(random, session / 8, session * 2 / 3),
        "pause_session" => between(random, session + 1_500, session + 3_500),
        _ => between(random, session + transaction + 1_000, session + transaction + 4_000),
    };
    let_the_fault_last(time);
    let stopped = world.fleet.is_stopped(slot);
    let taken_over = || others(Metrics::rebalances) > rebalances;
    // On a busy machine the others hear of it later.
    if kind != "pause_short" {
        world.wait(Duration::from_secs(20), taken_over);
    }
    let rebalanced = others(Metrics::rebalances) - rebalances;
    world.fleet.thaw(slot);
    let ended = now_ms();
    let back = wait_ready(world, slot);
    let after = world.fleet.metrics(slot);
    let replaced = after.recreations() - before.recreations();
    let effect = format!(
        "stopped {:.1}s with {}, others' rebalances +{rebalanced}, its producers +{replaced}, back {back}",
        (ended - began) as f32 / 1000.0,
        state(&before)
    );
    let expected = stopped && back && (kind == "pause_short" || rebalanced > 0.0);
    let inflicted = Inflicted::new(id, (began, ended), if expected { Ok(effect) } else { Err(effect) });
    if kind == "pause_short" { inflicted } else { inflicted.of(before.partitions(&world.plan)) }
}

/// One more instance comes, stays a while, and leaves.
pub fn join(world: &World, random: &mut Random, _: &'static str) -> Inflicted {
    let Some(slot) = (world.staff..world.fleet.len()).find(|slot| !world.fleet.is_running(*slot)) else {
        return Inflicted::none("no place for another instance");
    };
    let _claim = Claim::of(world, slot);
    let rebalances = |world: &World| world.fleet.all_metrics().values().map(Metrics::rebalances).sum::<f64>();
    let before = rebalances(world);
    let began = now_ms();
    world.fleet.rename(slot);
    world.fleet.start(slot);
    let ready = wait_ready(world, slot);
    let took = |world: &World| world.fleet.metrics(slot).sum("watermaster_records_total", &[]);
    // It has work of its own before it goes.
    world.wait(READY, || took(world) > 0.0);
    let_the_fault_last(between(random, 1_000, 5_000));
    let (rebalanced, took) = (rebalances(world) - before, took(world));
    let status = world.fleet.terminate(slot, Duration::from_secs(20)).and_then(|status| status.code());
    let effect = format!("ready {ready}, rebalances +{rebalanced}, took {took} records, left with {status:?}");
    let expected = ready && rebalanced > 0.0 && took > 0.0 && status == Some(0);
    Inflicted::new(format!("guest {slot}"), (began, now_ms()), if expected { Ok(effect) } else { Err(effect) })
}

/// SIGTERM, and back a little later under the same id. It begins when the process has ended: until then it works.
pub fn leave(world: &World, random: &mut Random, _: &'static str) -> Inflicted {
    let Some((slot, metrics)) = victim(world, random) else { return Inflicted::none("no instance has a backlog") };
    let _claim = Claim::of(world, slot);
    let id = world.fleet.slot(slot).id.clone();
    let status = world.fleet.terminate(slot, Duration::from_secs(20)).and_then(|status| status.code());
    let began = now_ms();
    let_the_fault_last(between(random, 1_000, 4_000));
    world.fleet.start(slot);
    let ended = now_ms();
    let back = wait_ready(world, slot);
    let effect = format!("left with {status:?} and {}, back {back}", state(&metrics));
    let effect = if back && status == Some(0) { Ok(effect) } else { Err(effect) };
    Inflicted::new(id, (began, ended), effect).of(metrics.partitions(&world.plan))
}
