//! Faults of the network, which the proxies inject into the connections of the instances.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::between;
use crate::outcome::{Effect, Outcome};
use crate::proxy::{Counts, Proxy, Rules};
use crate::{
    cluster::NODES, plan::now_ms, support::generator::Random, support::wait::let_the_fault_last, world::World,
};

/// A proxy with at least this many connections is in use.
const MIN_CONNECTIONS: usize = 6;

/// Picks the proxy of one broker that is in use, or, in one of three cases, all proxies; also returns the name of the
/// target.
fn pick_proxies(world: &World, random: &mut Random) -> (Vec<usize>, String) {
    let in_use: Vec<usize> =
        (0..NODES).filter(|node| world.site.proxies[*node].connections() >= MIN_CONNECTIONS).collect();
    match random.below(3) {
        1 | 2 if !in_use.is_empty() => {
            let node = in_use[random.below(in_use.len() as u64) as usize];
            (vec![node], format!("proxy {}", node + 1))
        }
        _ => ((0..NODES).collect(), "all proxies".to_owned()),
    }
}

fn sum(world: &World, what: fn(&Counts) -> &AtomicU64) -> u64 {
    world.site.proxies.iter().map(|proxy| what(&proxy.counts).load(Ordering::Relaxed)).sum()
}

fn each(world: &World, nodes: &[usize], change: impl Fn(&Proxy)) {
    nodes.iter().for_each(|node| change(&world.site.proxies[*node]));
}

/// Applies rules for a while; returns the increase of the count.
fn apply(world: &World, nodes: &[usize], rules: Rules, time: Duration, what: fn(&Counts) -> &AtomicU64) -> u64 {
    let before = sum(world, what);
    each(world, nodes, |proxy| *proxy.rules() = rules);
    let_the_fault_last(time);
    each(world, nodes, |proxy| *proxy.rules() = Rules::default());
    sum(world, what) - before
}

fn counted(count: u64, what: &str, time: Duration) -> Effect {
    Effect::when(count > 0, format!("{count} {what} in {:.1}s", time.as_secs_f32()))
}

/// Resets every connection, several times in a row.
pub fn cut(world: &World, random: &mut Random, _: &'static str) -> Outcome {
    let (nodes, target) = pick_proxies(world, random);
    let began = now_ms();
    let before = sum(world, |counts| &counts.cut);
    let times = 1 + random.below(4);
    for _ in 0..times {
        each(world, &nodes, |proxy| _ = proxy.cut());
        let_the_fault_last(between(random, 50, 700));
    }
    let cut = sum(world, |counts| &counts.cut) - before;
    let ended = now_ms();
    Outcome::new(target, (began, ended), counted(cut, "connections cut", Duration::from_millis(ended - began)))
}

/// Resets every connection, and each new one for a while.
pub fn reset(world: &World, random: &mut Random, _: &'static str) -> Outcome {
    let (nodes, target) = pick_proxies(world, random);
    let time = between(random, 1_000, 6_000);
    let began = now_ms();
    each(world, &nodes, |proxy| {
        proxy.rules().refuse = true;
        proxy.cut();
    });
    let rules = Rules { refuse: true, ..Rules::default() };
    let refused = apply(world, &nodes, rules, time, |counts| &counts.refused);
    Outcome::new(target, (began, now_ms()), counted(refused, "connections refused", time))
}

/// Delays every request.
pub fn slow(world: &World, random: &mut Random, _: &'static str) -> Outcome {
    let (nodes, target) = pick_proxies(world, random);
    let time = between(random, 4_000, 9_000);
    let began = now_ms();
    let rules = Rules { latency: between(random, 40, 350), ..Rules::default() };
    let delayed = apply(world, &nodes, rules, time, |counts| &counts.delayed);
    Outcome::new(
        target,
        (began, now_ms()),
        counted(delayed, &format!("requests delayed by {:?} each", rules.latency), time),
    )
}

/// Holds all traffic for a while and then releases it; connections stay open.
pub fn blackhole(world: &World, random: &mut Random, _: &'static str) -> Outcome {
    let (nodes, target) = pick_proxies(world, random);
    let time = between(random, 1_500, 11_000);
    let began = now_ms();
    let held = apply(world, &nodes, Rules { blackhole: true, ..Rules::default() }, time, |counts| &counts.delayed);
    Outcome::new(target, (began, now_ms()), counted(held, "requests swallowed", time))
}

/// Blocks the clients of the control topic, of all instances.
pub fn control_away(world: &World, _: &mut Random, kind: &'static str) -> Outcome {
    let all: Vec<usize> = (0..NODES).collect();
    let time = Duration::from_secs(if kind == "control_away_5s" { 5 } else { 30 });
    let began = now_ms();
    let rules = Rules { blocked_clients: Some(".control"), ..Rules::default() };
    let held = apply(world, &all, rules, time, |counts| &counts.delayed);
    Outcome::new("all proxies", (began, now_ms()), counted(held, "requests about the control topic held", time))
}

/// Holds commits back and cuts their senders off, so that the commits arrive late, during the retry or the next
/// transaction.
pub fn hold_end_txn(world: &World, random: &mut Random, _: &'static str) -> Outcome {
    let all: Vec<usize> = (0..NODES).collect();
    let began = now_ms();
    let time = between(random, 200, 3_500);
    let counts = |world: &World| (sum(world, |counts| &counts.held), sum(world, |counts| &counts.delivered_late));
    let (held, late) = counts(world);
    each(world, &all, |proxy| proxy.rules().hold_end_txn = Some(time));
    let_the_fault_last(Duration::from_secs(2));
    each(world, &all, |proxy| proxy.rules().hold_end_txn = None);
    let all_late = || {
        let (held_now, late_now) = counts(world);
        late_now - late >= held_now - held
    };
    world.wait(time + Duration::from_secs(1), all_late);
    let (held, late) = (counts(world).0 - held, counts(world).1 - late);
    let effect = format!("{held} EndTxn held for {:.1}s, {late} answered late", time.as_secs_f32());
    Outcome::new("all proxies", (began, now_ms()), Effect::when(held > 0 && late > 0, effect))
}
