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
    let id = world.fleet.slot(slot).id.clone();
    let since = now_ms();
    let died = world.fleet.kill(slot);
    let_the_fault_last(between(random, 0, 1_500));
    if kind == "kill_new_id" {
        world.fleet.rename(slot);
    }
    world.fleet.start(slot, &[]);
    let back = wait_ready(world, slot);
    let effect = if died && back {
        Ok(format!("died with {}", state(&metrics)))
    } else {
        Err(format!("died {died}, back {back}"))
    };
    Inflicted::new(id, since, effect)
}

/// A process that ends itself in the middle of a round, then another with the same id.
pub fn failpoint(world: &World, random: &mut Random, kind: &'static str) -> Inflicted {
    let step = kind.strip_prefix("failpoint_").expect("they are called so");
    let Some((slot, _)) = victim(world, random) else { return Inflicted::none("no instance has a backlog") };
    let _claim = Claim::of(world, slot);
    let id = world.fleet.slot(slot).id.clone();
    world.fleet.terminate(slot, Duration::from_secs(15));
    let nth = 15 + random.below(40);
    world.fleet.start(slot, &[("WATERMASTER_FAILPOINT", &format!("{step}:{nth}"))]);
    let mut last = Metrics::default();
    let ended = world.wait(Duration::from_secs(45), || {
        last = world.fleet.metrics(slot);
        world.fleet.wait_end(slot, Duration::from_millis(200)).is_some()
    });
    let since = now_ms();
    if !ended {
        // Else it would die later, of nobody's fault.
        world.fleet.kill(slot);
    }
    world.fleet.start(slot, &[]);
    let back = wait_ready(world, slot);
    let effect = format!("died at {step}:{nth} with {}", state(&last));
    let expected = ended && back;
    Inflicted::new(id, since, if expected { Ok(effect) } else { Err(format!("{effect}: {ended}, back {back}")) })
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
    let since = now_ms();
    world.fleet.freeze(slot);
    let time = match kind {
        "pause_short" => between(random, 800, 4_000),
        "pause_session" => between(random, 7_500, 9_500),
        _ => between(random, 15_000, 18_000),
    };
    let_the_fault_last(time);
    let stopped = world.fleet.is_stopped(slot);
    let rebalanced = others(Metrics::rebalances) - rebalances;
    world.fleet.thaw(slot);
    let back = wait_ready(world, slot);
    let after = world.fleet.metrics(slot);
    let replaced = after.recreations() - before.recreations();
    let effect = format!(
        "stopped {:.1}s with {}, others' rebalances +{rebalanced}, its producers +{replaced}",
        time.as_secs_f32(),
        state(&before)
    );
    let expected = stopped && back && (kind == "pause_short" || rebalanced > 0.0);
    Inflicted::new(id, since, if expected { Ok(effect) } else { Err(format!("{effect}, back {back}")) })
}

/// One more instance comes, stays a while, and leaves.
pub fn join(world: &World, random: &mut Random, _: &'static str) -> Inflicted {
    let Some(slot) = (world.staff..world.fleet.len()).find(|slot| !world.fleet.is_running(*slot)) else {
        return Inflicted::none("no place for another instance");
    };
    let _claim = Claim::of(world, slot);
    let rebalances = |world: &World| world.fleet.all_metrics().values().map(Metrics::rebalances).sum::<f64>();
    let before = rebalances(world);
    let since = now_ms();
    world.fleet.rename(slot);
    world.fleet.start(slot, &[]);
    let ready = wait_ready(world, slot);
    let_the_fault_last(between(random, 4_000, 8_000));
    let rebalanced = rebalances(world) - before;
    let took = world.fleet.metrics(slot).sum("watermaster_records_total", &[]);
    let status = world.fleet.terminate(slot, Duration::from_secs(20)).and_then(|status| status.code());
    let effect = format!("ready {ready}, rebalances +{rebalanced}, took {took} records, left with {status:?}");
    let expected = ready && rebalanced > 0.0 && status == Some(0);
    Inflicted::new(format!("guest {slot}"), since, if expected { Ok(effect) } else { Err(effect) })
}

/// SIGTERM, and back a little later under the same id.
pub fn leave(world: &World, random: &mut Random, _: &'static str) -> Inflicted {
    let Some((slot, metrics)) = victim(world, random) else { return Inflicted::none("no instance has a backlog") };
    let _claim = Claim::of(world, slot);
    let id = world.fleet.slot(slot).id.clone();
    let since = now_ms();
    let status = world.fleet.terminate(slot, Duration::from_secs(20)).and_then(|status| status.code());
    let_the_fault_last(between(random, 1_000, 4_000));
    world.fleet.start(slot, &[]);
    let back = wait_ready(world, slot);
    let effect = format!("left with {status:?} and {}", state(&metrics));
    Inflicted::new(
        id,
        since,
        if back && status == Some(0) { Ok(effect) } else { Err(format!("{effect}, back {back}")) },
    )
}
