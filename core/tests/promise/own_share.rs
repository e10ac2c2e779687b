//! Reject mode: a client that stays within its default share is never rejected for what others borrowed or used.

use std::collections::VecDeque;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, prop_oneof};
use watermaster_core::map::MapBudget;
use watermaster_core::policy::{Mode, Policy};
use watermaster_core::reason::Reason;
use watermaster_core::units::Time;

use crate::case::{Class, name, policies};
use crate::check;
use crate::sim::{Fate, Sim};

/// What happens next.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Time passes, in thousandths of a cycle.
    Wait(u32),
    /// Time passes until the oldest of the client's records is exactly a cycle old.
    WaitForTheOldest,
    /// The client sends up to this many records, as far as its share allows.
    Own(u32),
    /// Another client sends this many.
    Other { client: usize, records: u32 },
}

#[derive(Debug, Clone)]
struct Case {
    policy: Policy,
    script: Vec<Step>,
}

fn cases(class: Class) -> impl Strategy<Value = Case> {
    policies(class).prop_flat_map(|mut policy| {
        policy.mode = Mode::Reject;
        (policy.queue_capacity, policy.queue_bytes, policy.map_budget) = (1 << 40, 1 << 40, MapBudget::default());
        let clients = policy.clients.len();
        let step = prop_oneof![
            3 => prop_oneof![1_u32..20, 1_u32..400, 1_u32..1_500].prop_map(Step::Wait),
            3 => Just(Step::WaitForTheOldest),
            6 => prop_oneof![Just(1_u32), 1_u32..40, Just(5_000)].prop_map(Step::Own),
            3 => (1..clients, prop_oneof![1_u32..10, 1_u32..400]).prop_map(|(client, records)| Step::Other { client, records }),
        ];
        vec(step, 1..60).prop_map(move |script| Case { policy: policy.clone(), script })
    })
}

/// The moments of the client's records in the last cycle.
struct Sent(VecDeque<Time>);

impl Sent {
    fn within(&mut self, now: Time, cycle: Duration) -> u64 {
        while self.0.front().is_some_and(|at| *at + cycle <= now) {
            self.0.pop_front();
        }
        self.0.len() as u64
    }
}

/// Client 0 sends no more than its default share in any window of a cycle: no record of it is `over_allocation`, and one
/// that is refused all the same finds the service's window full.
fn within_its_share_is_never_over_allocation(case: Case) {
    let Case { policy, script } = case;
    let (cycle, capacity) = (policy.cycle, policy.capacity);
    let mut sim = Sim::new(policy, 1);
    let share = sim.throttle.client(&name(0)).expect("a configured client").grant.default_share.floor();
    let mut sent = Sent(VecDeque::new());
    for step in script {
        match step {
            Step::Wait(thousandths) => sim.run_for(cycle * thousandths / 1_000),
            Step::WaitForTheOldest => {
                if let Some(&oldest) = sent.0.front() {
                    sim.run_until(oldest + cycle);
                }
            }
            Step::Other { client, records } => {
                for _ in 0..records.min(2 * capacity as u32) {
                    sim.read(&name(client), 0);
                }
            }
            Step::Own(records) => {
                for _ in 0..records {
                    if sent.within(sim.now, cycle) >= share {
                        break;
                    }
                    sent.0.push_back(sim.now);
                    match sim.read(&name(0), 0) {
                        Fate::Admitted { .. } => {}
                        Fate::Rejected(reason) => {
                            assert_eq!(reason, Reason::CapacityInUse, "record {} of {share}", sent.0.len());
                            let (held, _) = sim.throttle.window_admitted(sim.now);
                            assert!(held >= capacity, "{held} of {capacity} in the window");
                        }
                        Fate::Held => panic!("nothing is catching up"),
                    }
                }
            }
        }
    }
}

#[test]
fn a_client_within_its_share_is_never_over_allocation() {
    check("own_share", cases, within_its_share_is_never_over_allocation);
}
