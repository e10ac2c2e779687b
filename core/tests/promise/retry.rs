//! Reject mode: what a rejection says about when to come back is true.

use proptest::prelude::Strategy;
use watermaster_core::policy::{Mode, Policy};
use watermaster_core::reason::Reason;

use crate::case::{Class, Step, own_limits, policies, scripts};
use crate::check;
use crate::world::{Who, World};

#[derive(Debug)]
struct Case {
    policy: Policy,
    script: Vec<Step>,
    /// Which of the rejections is tried again.
    which: usize,
}

fn cases(class: Class) -> impl Strategy<Value = Case> {
    (policies(class), proptest::option::of(own_limits())).prop_flat_map(|(mut policy, limit)| {
        policy.mode = Mode::Reject;
        policy.clients[0].limit = limit;
        (scripts(policy.clients.len(), 2, 40), 0_usize..1_000).prop_map(move |(script, which)| Case {
            policy: policy.clone(),
            script,
            which,
        })
    })
}

/// A script on two partitions; the third is never sent to.
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

/// A record that was rejected comes again when it was told to, and nobody else does: it is admitted, unless a cycle has
/// ended or an early allocation took from its grant since, or somebody who catches up was before it.
fn comes_back_in_time(case: Case) {
    let all = run(&case, usize::MAX).decisions;
    let temporary = |reason| matches!(reason, Reason::OverAllocation | Reason::CapacityInUse | Reason::ClientLimit);
    let rejected: Vec<usize> = (0..all.len())
        .filter(|&index| all[index].rejection.is_some_and(|rejection| temporary(rejection.reason)))
        .collect();
    let Some(&index) = rejected.get(case.which % rejected.len().max(1)) else { return };
    let mut world = run(&case, index + 1);
    let decision = *world.decisions.last().unwrap();
    let (Who::Client(client), Some(rejection)) = (decision.who, decision.rejection) else { panic!("{decision:?}") };
    assert!(!rejection.retry_after.is_zero(), "{rejection:?}");
    if world.throttle.backlog().0 > 0 || world.now != decision.at {
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
    world.append(2, decision.who, 1);
    world.read_only(2);
    let again = world.decisions.last().unwrap();
    assert_eq!((again.record, again.rejection), ((2, 0), None), "after {rejection:?}");
}

#[test]
fn a_record_that_comes_back_when_it_was_told_to_is_admitted() {
    check("retry", cases, comes_back_in_time);
}
