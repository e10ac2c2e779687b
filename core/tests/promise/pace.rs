//! Shape mode: while there is a backlog, nearly all of the capacity is used.

use proptest::{collection::vec, prelude::Strategy};
use watermaster_core::offset_map::MapBudget;
use watermaster_core::policy::{Mode, Overflow, Policy};

use crate::case::{Class, policies};
use crate::check;
use crate::world::{Origin, World};

/// Changes a policy so that only the capacity delays records.
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
    /// Steps before the test: client, number of its records, then a wait in thousandths of a cycle.
    before: Vec<(usize, u32, u32)>,
    cycles: u32,
    /// The clients of the backlog, in turn.
    senders: Vec<usize>,
    stops: Vec<u32>,
}

fn cases(class: Class) -> impl Strategy<Value = Case> {
    policies(class).prop_map(only_capacity).prop_flat_map(|policy| {
        let client = 0..policy.clients.len();
        let before = vec((client.clone(), 1_u32..300, 1_u32..900), 0..6);
        (before, 1_u32..4, vec(client, 1..6), vec(1_u32..400, 1..6)).prop_map(
            move |(before, cycles, senders, stops)| Case { policy: policy.clone(), before, cycles, senders, stops },
        )
    })
}

/// Checks that, with a backlog from T0 to T0 + n cycles, at least 98 % of n · capacity are admitted between T0 − cycle
/// and the end, except for the one record that is not due yet. (Admissions of the cycle before T0 count because they
/// still fill the window at T0.)
fn keeps_busy(case: Case) {
    let Case { policy, before, cycles, senders, stops } = case;
    let (capacity, cycle) = (policy.capacity, policy.cycle);
    let mut world = World::new(policy, 1, 7, 0);
    for (client, records, wait) in before {
        (0..records).for_each(|_| world.append(0, Origin::Client(client), 10));
        world.run_until(world.later(wait));
    }
    let start = world.now;
    for n in 0..capacity * u64::from(cycles + 1) + 1 {
        world.append(0, Origin::Client(senders[n as usize % senders.len()]), 10);
    }
    let end = start + cycle * cycles;
    for stop in stops.into_iter().cycle() {
        let next = world.later(stop).min(end);
        world.run_until(next);
        assert!(world.throttle.backlog().0 > 0, "the backlog is empty");
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
fn a_backlog_uses_nearly_all_of_the_capacity() {
    check("busy", cases, keeps_busy);
}
