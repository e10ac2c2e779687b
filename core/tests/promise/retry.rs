//! Reject mode: the `retry_after` of a rejection is right.

use proptest::prelude::Strategy;
use watermaster_core::policy::{Mode, Policy};
use watermaster_core::reason::Reason;

use crate::case::{Class, Step, own_limits, policies, scripts};
use crate::check;
use crate::world::{Origin, World};

#[derive(Debug)]
struct Case {
    policy: Policy,
    script: Vec<Step>,
    /// The index of the rejection that is retried.
    which: usize,
}

fn cases(class: Class) -> impl Strategy<Value = Case> {
    (policies(class), proptest::option::of(own_limits())).prop_flat_map(|(mut policy, limit)| {
        policy.mode = Mode::Reject;
        policy.clients[0].limits = limit.into_iter().collect();
        (scripts(policy.clients.len(), 2, 40), 0_usize..1_000).prop_map(move |(script, which)| Case {
            policy: policy.clone(),
            script,
            which,
        })
    })
}

/// Runs the script on two of three partitions; the third stays empty.
fn run(case: &Case, stop_after: usize) -> World {
    let mut world = World::new(case.policy.clone(), 3, 1, 0);
    world.stop_after = stop_after;
    for step in &case.script {
        if world.decisions.len() >= stop_after {
            break;
        }
        if !matches!(step, Step::Restart { .. }) {
            world.step(*step);
        }
    }
    world
}

/// Checks that a rejected record which is sent again after `retry_after`, with no other record in between, is admitted,
/// unless a cycle has ended, an early allocation has reduced its grant, or a record that catches up is before it.
fn retry_is_admitted(case: Case) {
    let all = run(&case, usize::MAX).decisions;
    let temporary = |reason| matches!(reason, Reason::OverAllocation | Reason::CapacityInUse | Reason::ClientLimit);
    let rejected: Vec<usize> = (0..all.len())
        .filter(|&index| all[index].rejection.is_some_and(|rejection| temporary(rejection.reason)))
        .collect();
    let Some(&index) = rejected.get(case.which % rejected.len().max(1)) else { return };
    let mut world = run(&case, index + 1);
    let decision = world.decisions[index];
    let (Origin::Client(client), Some(rejection)) = (decision.origin, decision.rejection) else {
        panic!("{decision:?}")
    };
    assert!(!rejection.retry_after.is_zero(), "{rejection:?}");
    if world.throttle.backlog().0 > 0 || world.now != decision.at || world.decisions.len() > index + 1 {
        return;
    }
    let known = |world: &World| {
        let known = world.throttle.client(world.name(client)).unwrap();
        (world.throttle.cycle(), known.allowance())
    };
    let before = known(&world);
    world.run_until(decision.at + rejection.retry_after);
    let now = known(&world);
    if now.0 != before.0 || now.1 < before.1 || before.1 == 0 {
        return;
    }
    world.stop_after = usize::MAX;
    world.append(2, decision.origin, 1);
    world.read_only(2);
    let again = world.decisions.last().unwrap();
    assert_eq!((again.record, again.rejection), ((2, 0), None), "after {rejection:?}");
}

#[test]
fn a_record_that_returns_after_retry_after_is_admitted() {
    check("retry", cases, retry_is_admitted);
}
