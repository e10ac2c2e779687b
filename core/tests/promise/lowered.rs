//! A capacity that is lowered and restored while records are delayed: records are still admitted, and equal clients
//! stay equal.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_oneof};
use watermaster_core::policy::{Mode, Overflow, Policy};
use watermaster_core::{offset_map::MapBudget, units::Time, window::slice_width};

use crate::case::{Class, name, policies};
use crate::check;
use crate::sim::{Fate, Sim, client};

#[derive(Debug, Clone)]
struct Case {
    policy: Policy,
    clients: usize,
    /// Successive capacities and cycles, each with the time after it in thousandths of the longer cycle.
    changes: Vec<(u64, Duration, u32)>,
}

fn cases(class: Class) -> impl Strategy<Value = Case> {
    let capacity = prop_oneof![1_u64..4, 1_u64..20];
    let change = (capacity, any::<bool>(), 1_u32..5, 1_u32..4_000);
    (policies(class), 2_usize..12, vec(change, 1..4)).prop_map(|(policy, clients, changes)| {
        let mut cycle = policy.cycle;
        let changes = changes
            .into_iter()
            .map(|(capacity, other, factor, after)| {
                if other {
                    cycle = policy.cycle * factor / 2;
                }
                (capacity, cycle, after)
            })
            .collect();
        let policy = Policy {
            mode: Mode::Shape,
            overflow: Overflow::DeadLetter,
            map_budget: MapBudget::default(),
            queue_capacity: 1 << 40,
            queue_bytes: 1 << 40,
            commit_interval: Duration::from_millis(1),
            capacity: policy.capacity.min(20),
            clients: (0..clients).map(|n| client(&name(n), 1.0, None)).collect(),
            ..policy
        };
        Case { policy, clients, changes }
    })
}

/// Checks that after each change a record is admitted within two of the longer cycles. Once the last change is two
/// cycles old, no client is more than two records ahead of another one.
fn admissions_continue(case: Case) {
    let Case { mut policy, clients, changes } = case;
    let mut sim = Sim::new(policy.clone(), 1);
    for n in 0..clients * (700 / clients + 1) {
        sim.read(&name(n % clients), 0);
    }
    let mut cycle = policy.cycle;
    sim.run_for(cycle * 3 / 2);
    for (capacity, next, after) in changes {
        let longer = cycle.max(next);
        policy = Policy { capacity, cycle: next, ..policy };
        sim.throttle.handle_policy(sim.now, policy.clone());
        let changed = sim.now;
        sim.run_for(longer * 2 + slice_width(longer) * 2);
        assert!(admitted_since(&sim, changed) > 0, "no record is admitted for two cycles at {capacity} in {next:?}");
        sim.run_for(longer * after / 1_000);
        cycle = next;
    }
    let settled = sim.now;
    sim.run_for(cycle * 6);
    let since = |client: usize| {
        let life = |life: &&crate::sim::Life| {
            life.client == name(client) && matches!(life.fate, Fate::Admitted { .. }) && life.decided > settled
        };
        sim.lives.values().filter(life).count()
    };
    let counts: Vec<usize> = (0..clients).map(since).collect();
    assert!(sim.throttle.backlog().0 > 0, "the backlog is empty before the end");
    let (most, least) = (counts.iter().max().unwrap(), counts.iter().min().unwrap());
    assert!(most - least <= 2, "{counts:?} at {} in {cycle:?}", policy.capacity);
    assert!(counts.iter().sum::<usize>() > 0, "{counts:?}");
}

fn admitted_since(sim: &Sim, moment: Time) -> usize {
    sim.lives.values().filter(|life| matches!(life.fate, Fate::Admitted { .. }) && life.decided > moment).count()
}

#[test]
fn a_changed_capacity_stops_no_admissions_and_starves_no_client() {
    check("lowered", cases, admissions_continue);
}
