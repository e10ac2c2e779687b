//! What the proxies do to the connections of the instances.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Inflicted, between};
use crate::cluster::NODES;
use crate::plan::now_ms;
use crate::proxy::{Counts, Proxy, Rules};
use crate::support::generator::Random;
use crate::support::wait::let_the_fault_last;
use crate::world::World;

/// Connections through a proxy that is worth a fault.
const IN_USE: usize = 6;

/// The proxy of one broker that is in use, or, in one of three cases, all.
fn some(world: &World, random: &mut Random) -> (Vec<usize>, String) {
    let in_use: Vec<usize> = (0..NODES).filter(|node| world.site.proxies[*node].connections() >= IN_USE).collect();
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

/// Rules for a while; how much the count rose.
fn rule(world: &World, nodes: &[usize], rules: Rules, time: Duration, what: fn(&Counts) -> &AtomicU64) -> u64 {
    let before = sum(world, what);
    each(world, nodes, |proxy| *proxy.rules() = rules);
    let_the_fault_last(time);
    each(world, nodes, |proxy| *proxy.rules() = Rules::default());
    sum(world, what) - before
}

fn told(count: u64, what: &str, time: Duration) -> Result<String, String> {
    let text = format!("{count} {what} in {:.1}s", time.as_secs_f32());
    if count > 0 { Ok(text) } else { Err(text) }
}

/// Every connection is reset, several times in a row.
pub fn cut(world: &World, random: &mut Random, _: &'static str) -> Inflicted {
    let (nodes, target) = some(world, random);
    let began = now_ms();
    let before = sum(world, |counts| &counts.cut);
    let times = 1 + random.below(4);
    for _ in 0..times {
        each(world, &nodes, |proxy| _ = proxy.cut());
        let_the_fault_last(between(random, 50, 700));
    }
    let cut = sum(world, |counts| &counts.cut) - before;
    let ended = now_ms();
    Inflicted::new(target, (began, ended), told(cut, "connections cut", Duration::from_millis(ended - began)))
}

/// Connections are reset, and new ones are for a while.
pub fn reset(world: &World, random: &mut Random, _: &'static str) -> Inflicted {
    let (nodes, target) = some(world, random);
    let time = between(random, 1_000, 6_000);
    let began = now_ms();
    each(world, &nodes, |proxy| {
        proxy.rules().refuse = true;
        proxy.cut();
    });
    let rules = Rules { refuse: true, ..Rules::default() };
    let refused = rule(world, &nodes, rules, time, |counts| &counts.refused);
    Inflicted::new(target, (began, now_ms()), told(refused, "connections refused", time))
}

/// Every request takes longer.
pub fn slow(world: &World, random: &mut Random, _: &'static str) -> Inflicted {
    let (nodes, target) = some(world, random);
    let time = between(random, 4_000, 9_000);
    let began = now_ms();
    let rules = Rules { latency: between(random, 40, 350), ..Rules::default() };
    let delayed = rule(world, &nodes, rules, time, |counts| &counts.delayed);
    Inflicted::new(
        target,
        (began, now_ms()),
        told(delayed, &format!("requests, {:?} later each,", rules.latency), time),
    )
}

/// Nothing passes for a while, then everything that waited; connections stay open.
pub fn blackhole(world: &World, random: &mut Random, _: &'static str) -> Inflicted {
    let (nodes, target) = some(world, random);
    let time = between(random, 1_500, 11_000);
    let began = now_ms();
    let held = rule(world, &nodes, Rules { blackhole: true, ..Rules::default() }, time, |counts| &counts.delayed);
    Inflicted::new(target, (began, now_ms()), told(held, "requests swallowed", time))
}

/// Commits are held back while their senders are cut off and commit again, and arrive in the middle of what comes next.
pub fn hold_end_txn(world: &World, random: &mut Random, _: &'static str) -> Inflicted {
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
    Inflicted::new("all proxies", (began, now_ms()), if held > 0 && late > 0 { Ok(effect) } else { Err(effect) })
}
