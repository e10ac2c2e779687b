//! The order of clients: a recalled lender, backlogged clients by weight, more equal clients than capacity.

use std::{collections::HashMap, time::Duration};

use proptest::collection::vec;
use proptest::prelude::{Strategy, any};
use watermaster_core::policy::{Mode, Policy};
use watermaster_core::units::Ratio;

use crate::case::{Class, name, policies};
use crate::world::{Fate, Origin, World};
use crate::{check, check_class, pace::only_capacity};

#[derive(Debug)]
struct Recall {
    policy: Policy,
    competitors: usize,
    /// Number of records of the lender before it lends.
    early: u32,
    /// Additional idle time, in thousandths of a cycle.
    idle: u32,
    batch: usize,
}

fn recalls(class: Class) -> impl Strategy<Value = Recall> {
    let rest = (1_usize..9, 0_u32..4, 0_u32..1_000, 1_usize..9);
    (policies(class).prop_map(only_capacity), rest).prop_map(|(policy, (competitors, early, idle, batch))| Recall {
        competitors: competitors.min(policy.clients.len() - 1),
        policy,
        early,
        idle,
        batch,
    })
}

/// Checks the recall for a lender (client 0) that sends nothing for three cycles in which others have a backlog:
/// between the arrival of its next record and its admission, each competitor is admitted at most once. (Three cycles,
/// and a share of at least one record if it was ever served, suffice for the virtual time to pass the lender's, so that
/// its record is next.)
fn lender_goes_first(case: Recall) {
    let Recall { policy, competitors, early, idle, batch } = case;
    let capacity = policy.capacity;
    let mut world = World::new(policy, 2, batch, 0);
    let share = world.throttle.client(&name(0)).unwrap().grant.default_share.floor();
    let early = if share == 0 { 0 } else { u64::from(early).min(share) };
    (0..early).for_each(|_| world.append(1, Origin::Client(0), 10));
    world.run_until(world.later(1_000));
    assert_eq!(world.held_of(0), 0);
    for n in 0..capacity as usize * 5 + competitors * 3 + 150 {
        world.append(0, Origin::Client(1 + n % competitors), 10);
    }
    world.run_until(world.later(3_000 + idle));
    let before = world.decisions.len();
    // More than one record, if the backlog of the others outlasts them.
    let records = if share > 0 && capacity / share <= 20 { 3 } else { 1 };
    (0..records).for_each(|_| world.append(1, Origin::Client(0), 10));
    let at = (1, early as usize);
    let last = (1, early as usize + records - 1);
    while !matches!(world.record(last.0, last.1).fate, Fate::Admitted) {
        world.run_until(world.later(20));
        assert!(world.throttle.backlog().0 > 0);
    }
    let mut served: HashMap<Origin, u32> = HashMap::new();
    for decision in world.decisions[before..].iter().take_while(|decision| decision.record != at) {
        *served.entry(decision.origin).or_default() += 1;
    }
    assert!(served.values().all(|&records| records <= 1), "{served:?}");
    // The weights of all others together are at most the sum of their grants and their default shares.
    let turn = 2 * capacity * (records as u64 - 1) / share.max(1);
    let others = world.decisions[before..].iter().take_while(|decision| decision.record != last);
    let others = others.filter(|decision| decision.origin != Origin::Client(0)).count() as u64;
    assert!(others <= turn + 2 * competitors as u64, "{others} before its last record");
}

#[test]
fn a_recalled_lender_waits_at_most_one_record_of_each_competitor() {
    check("recall", recalls, lender_goes_first);
}

/// Checks that, while all clients have a backlog, grants are default shares, and any two clients are served in
/// proportion to these: never further apart than one record of each (the bound of start-time fair queueing).
fn shares_are_fair((policy, batch): (Policy, usize)) {
    const CYCLES: f64 = 2.0;
    let clients = policy.clients.len();
    // With a burst, all records of the first client might be admitted at once.
    let policy = Policy { burst: Ratio::ZERO, commit_interval: Duration::from_micros(1), ..policy };
    let mut world = World::new(policy, 1, batch, 0);
    let weights: Vec<f64> =
        (0..clients).map(|n| world.throttle.client(&name(n)).unwrap().grant.default_share.as_f64()).collect();
    for (client, weight) in weights.iter().enumerate() {
        let records = (weight * (CYCLES + 1.0)).ceil() as u32 + 3;
        (0..records).for_each(|_| world.append(0, Origin::Client(client), 10));
    }
    world.read();
    let start = world.decisions.len();
    let mut served = vec![0.0_f64; clients];
    let mut counted = start;
    for _ in 0..(CYCLES * 20.0) as u32 {
        world.run_until(world.later(50));
        if (0..clients).any(|client| world.held_of(client) == 0) {
            break;
        }
        for decision in &world.decisions[counted..] {
            if let Origin::Client(client) = decision.origin {
                served[client] += 1.0;
            }
        }
        counted = world.decisions.len();
        let normal = || served.iter().zip(&weights);
        let most = normal().map(|(served, weight)| (served - 1.0) / weight).fold(f64::MIN, f64::max);
        let least = normal().map(|(served, weight)| (served + 1.0) / weight).fold(f64::MAX, f64::min);
        assert!(most <= least * (1.0 + 1e-9), "{most} beside {least}: {served:?} for {weights:?}");
    }
    assert!(counted > start, "no client was served");
}

#[test]
fn backlogged_clients_are_served_in_proportion_to_their_weights() {
    let cases = |class| (policies(class).prop_map(only_capacity), 1_usize..9);
    check("shares", cases, shares_are_fair);
}

#[derive(Debug)]
struct Equals {
    policy: Policy,
    capacity: u64,
    order: Vec<usize>,
    offset: u32,
}

fn equals(class: Class) -> impl Strategy<Value = Equals> {
    let order = proptest::sample::subsequence((0..10_usize).collect::<Vec<_>>(), 10).prop_shuffle();
    (policies(class), 1_u64..10, order, 1_u32..9, vec(any::<bool>(), 1)).prop_map(
        |(mut policy, capacity, order, offset, shape)| {
            let mode = if shape[0] { Mode::Shape } else { Mode::Reject };
            policy.clients = (0..10).map(|n| crate::sim::client(&name(n), 1.0, None)).collect();
            policy = Policy { mode, capacity, ..only_capacity(policy) };
            Equals { policy, capacity, order, offset }
        },
    )
}

/// Checks ten equal clients with constant demand and a capacity of c: each gets a record in c of 10 cycles, ± 1.
fn equals_take_turns(case: Equals) {
    let Equals { policy, capacity, order, offset } = case;
    let cycle = policy.cycle;
    let mut world = World::new(policy, 1, 1, 0);
    let start = world.now + cycle * 2;
    world.run_until(world.later(offset));
    while world.now < start + cycle * 10 {
        for &client in &order {
            if world.held_of(client) < 20 {
                world.append(0, Origin::Client(client), 10);
            }
        }
        world.run_until(world.later(10));
    }
    let mut got = [[false; 10]; 10];
    for decision in world.decisions.iter().filter(|decision| decision.rejection.is_none() && decision.at >= start) {
        let number = (decision.at.since(start).as_nanos() / cycle.as_nanos()) as usize;
        if let Origin::Client(client) = decision.origin
            && number < 10
        {
            got[client][number] = true;
        }
    }
    let cycles: Vec<u64> = got.iter().map(|got| got.iter().filter(|got| **got).count() as u64).collect();
    assert!(cycles.iter().all(|&cycles| cycles.abs_diff(capacity) <= 1), "{cycles:?} of {capacity}");
}

#[test]
fn no_client_starves_among_equals() {
    check_class("equals", Class::Ordinary, equals, equals_take_turns);
    check_class("equals", Class::NothingReserved, equals, equals_take_turns);
    check_class("equals", Class::AllReserved, equals, equals_take_turns);
}
