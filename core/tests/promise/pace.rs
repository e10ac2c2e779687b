//! Shape mode: while somebody waits, nearly all of the capacity is used.

use proptest::collection::vec;
use proptest::prelude::Strategy;
use watermaster_core::offset_map::MapBudget;
use watermaster_core::policy::{Mode, Overflow, Policy};

use crate::case::{Class, policies};
use crate::check;
use crate::world::{Who, World};

/// A policy under which only capacity holds anybody back.
pub fn only_capacity(mut policy: Policy) -> Policy {
    policy.mode = Mode::Shape;
    policy.overflow = Overflow::DeadLetter;
    (policy.queue_capacity, policy.queue_bytes, policy.map_budget) = (1 << 40, 1 << 40, MapBudget::default());
    policy.capacity = policy.capacity.min(400);
    policy
}

#[derive(Debug)]
struct Case {
    policy: Policy,
    /// Before: records, then thousandths of a cycle.
    before: Vec<(usize, u32, u32)>,
    cycles: u32,
    /// Whose records keep it busy.
    who: Vec<usize>,
    stops: Vec<u32>,
}

fn cases(class: Class) -> impl Strategy<Value = Case> {
    policies(class).prop_map(only_capacity).prop_flat_map(|policy| {
        let client = 0..policy.clients.len();
        let before = vec((client.clone(), 1_u32..300, 1_u32..900), 0..6);
        (before, 1_u32..4, vec(client, 1..6), vec(1_u32..400, 1..6))
            .prop_map(move |(before, cycles, who, stops)| Case { policy: policy.clone(), before, cycles, who, stops })
    })
}

/// From T0 to T0 + n cycles somebody waits throughout: then at least 98 % of n · capacity were admitted between T0 −
/// cycle and the end, but for the one record that is not due yet. (What was admitted in the cycle before T0 counts
/// because it is what still fills the window at T0.)
fn keeps_busy(case: Case) {
    let Case { policy, before, cycles, who, stops } = case;
    let (capacity, cycle) = (policy.capacity, policy.cycle);
    let mut world = World::new(policy, 1, 7, 0);
    for (client, records, wait) in before {
        (0..records).for_each(|_| world.append(0, Who::Client(client), 10));
        world.run_until(world.later(wait));
    }
    let start = world.now;
    for n in 0..capacity * u64::from(cycles + 1) + 1 {
        world.append(0, Who::Client(who[n as usize % who.len()]), 10);
    }
    let end = start + cycle * cycles;
    for stop in stops.into_iter().cycle() {
        let next = world.later(stop).min(end);
        world.run_until(next);
        assert!(world.throttle.backlog().0 > 0, "somebody waits");
        if next == end {
            break;
        }
    }
    let counts = |at: &watermaster_core::units::Time| *at + cycle > start;
    let used = world.decisions.iter().filter(|decision| decision.rejection.is_none() && counts(&decision.at)).count();
    let due = capacity * u64::from(cycles) * 98 / 100;
    assert!(used as u64 + 1 >= due, "{used} of {due} in {cycles} cycles");
}

#[test]
fn while_somebody_waits_nearly_all_of_the_capacity_is_used() {
    check("busy", cases, keeps_busy);
}
