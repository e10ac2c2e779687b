//! Random scripts; `world.rs` states the laws that hold at every step.

use std::time::Duration;

use proptest::option;
use proptest::prelude::{Strategy, any};
use watermaster_core::offset_map::MapBudget;
use watermaster_core::policy::{Limit, Policy};

use crate::case::{Class, Step, grouped_policies, own_limits, scripts};
use crate::{check, check_class, world::World};

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
    (grouped_policies(class), rest).prop_flat_map(|(policy, (partitions, batch, in_flight, limit, rare))| {
        let policy = with_rarities(policy, limit, rare);
        scripts(policy.clients.len(), partitions, 40).prop_map(move |script| Case {
            policy: policy.clone(),
            partitions,
            batch,
            in_flight,
            script,
        })
    })
}

fn with_rarities(mut policy: Policy, limit: Option<Limit>, rare: u8) -> Policy {
    policy.clients[0].limits = limit.into_iter().collect();
    match rare {
        0 => policy.max_delay = Some(policy.cycle * 3 / 2),
        1 => policy.max_clients = policy.clients.len() + 5,
        2 => policy.client_idle_timeout = policy.cycle * 2,
        3 => policy.commit_interval = policy.cycle / 10,
        4 => policy.commit_interval = Duration::from_millis(1),
        _ => {}
    }
    policy
}

/// Generates small queues and maps, and scripts of alternating clients.
fn tight(class: Class) -> impl Strategy<Value = Case> {
    let bounds = (1_u64..30, 200_u64..4_000, 24_usize..44, any::<bool>(), 1_u64..20);
    (grouped_policies(class), bounds, 1_usize..3, 1_usize..9).prop_flat_map(
        |(mut policy, bounds, partitions, batch)| {
            let (queue, bytes, chars, few_bytes, capacity) = bounds;
            policy.queue_capacity = queue;
            policy.queue_bytes = if few_bytes { bytes } else { 1 << 40 };
            policy.map_budget = MapBudget::Chars(chars);
            policy.capacity = policy.capacity.min(capacity);
            scripts(policy.clients.len().min(4), partitions, 150).prop_map(move |script| {
                let script = script.into_iter().map(shortened).collect();
                Case { policy: policy.clone(), partitions, batch, in_flight: batch as u32, script }
            })
        },
    )
}

fn shortened(step: Step) -> Step {
    match step {
        Step::Send { client, partition, records, bytes } => {
            Step::Send { client, partition, records: 1 + records % 4, bytes }
        }
        Step::Unknown { allowed, partition, records } => Step::Unknown { allowed, partition, records: 1 + records % 3 },
        Step::Flood { ids, partition } => Step::Flood { ids: 1 + ids % 3, partition },
        Step::Wait { cycles } => Step::Wait { cycles: cycles / 5 },
        step => step,
    }
}

fn run(case: Case) {
    let mut world = World::new(case.policy, case.partitions, case.batch, case.in_flight);
    for step in case.script {
        world.step(step);
    }
    world.finish();
}

#[test]
fn small_bounds_lose_and_block_no_record() {
    check("tight", tight, run);
}

macro_rules! promise_tests {
    ($($test:ident: $class:ident,)*) => {
        $(
            #[test]
            fn $test() {
                check_class("scripts", Class::$class, cases, run);
            }
        )*
    };
}

promise_tests! {
    the_promise_holds: Ordinary,
    the_promise_holds_for_more_clients_than_capacity: MoreClientsThanCapacity,
    the_promise_holds_with_nothing_reserved: NothingReserved,
    the_promise_holds_with_everything_reserved: AllReserved,
    the_promise_holds_for_weights_a_million_apart: WideWeights,
    the_promise_holds_for_a_thousand_clients: ThousandClients,
}
