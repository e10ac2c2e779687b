//! The laws that hold at every step of any script; `world.rs` states them.

use std::time::Duration;

use proptest::option;
use proptest::prelude::Strategy;
use watermaster_core::policy::{Limit, Policy};

use crate::case::{Class, Step, own_limits, policies, scripts};
use crate::world::World;
use crate::check_class;

#[derive(Debug, Clone)]
struct Case {
    policy: Policy,
    partitions: usize,
    batch: usize,
    in_flight: u32,
    script: Vec<Step>,
}

fn cases(class: Class) -> impl Strategy<Value = Case> {
    let rest = (1_usize..5, 1_usize..20, 0_u32..20, option::weighted(0.2, own_limits()), 0_u8..16);
    (policies(class), rest).prop_flat_map(|(policy, (partitions, batch, in_flight, limit, rare))| {
        let policy = with_rarities(policy, limit, rare);
        scripts(policy.clients.len(), partitions, 40)
            .prop_map(move |script| Case { policy: policy.clone(), partitions, batch, in_flight, script })
    })
}

fn with_rarities(mut policy: Policy, limit: Option<Limit>, rare: u8) -> Policy {
    policy.clients[0].limit = limit;
    match rare {
        0 => policy.max_delay = policy.cycle * 3 / 2,
        1 => policy.max_clients = policy.clients.len() + 5,
        2 => policy.client_idle_timeout = policy.cycle * 2,
        3 => policy.commit_interval = policy.cycle / 10,
        4 => policy.commit_interval = Duration::from_millis(1),
        _ => {}
    }
    policy
}

fn run(case: Case) {
    let mut world = World::new(case.policy, case.partitions, case.batch, case.in_flight);
    for step in case.script {
        world.step(step);
    }
    world.finish();
}

macro_rules! whatever_comes {
    ($($test:ident: $class:ident,)*) => {
        $(
            #[test]
            fn $test() {
                check_class("scripts", Class::$class, cases, run);
            }
        )*
    };
}

whatever_comes! {
    the_promise_holds: Ordinary,
    the_promise_holds_for_more_clients_than_capacity: MoreClientsThanCapacity,
    the_promise_holds_with_nothing_reserved: NothingReserved,
    the_promise_holds_with_everything_reserved: AllReserved,
    the_promise_holds_for_weights_a_million_apart: WideWeights,
    the_promise_holds_for_a_thousand_clients: ThousandClients,
}
