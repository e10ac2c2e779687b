//! Shape mode: new ids never delay a configured client that stays within its share.

use std::{collections::VecDeque, time::Duration};

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, prop_oneof};
use watermaster_core::policy::{Mode, Overflow, Policy};
use watermaster_core::units::{Ratio, Time, Weight};
use watermaster_core::{offset_map::MapBudget, window::slice_width};

use crate::case::{Class, name, policies};
use crate::check;
use crate::sim::{Fate, Sim};

/// A step of the unlisted clients ("strangers"). Times are in thousandths of a cycle.
#[derive(Debug, Clone, Copy)]
enum Strangers {
    /// Ids that are used once, at a constant rate of `per_cycle` records.
    Once { per_cycle: u32, cycles: u32 },
    /// A burst of ids that are used once.
    Burst { records: u32, then: u32 },
    /// Used ids return all at once.
    Return { ids: u32, each: u32, then: u32 },
    /// No records.
    Quiet { then: u32 },
}

#[derive(Debug, Clone)]
struct Case {
    policy: Policy,
    script: Vec<Strangers>,
    /// Number of records that a configured client sends at a time.
    at_once: Vec<u64>,
}

fn cases(class: Class) -> impl Strategy<Value = Case> {
    let strangers = prop_oneof![
        4 => (1_u32..1_000, 1_u32..1_500).prop_map(|(per_cycle, cycles)| Strangers::Once { per_cycle, cycles }),
        2 => (1_u32..400, 1_u32..900).prop_map(|(records, then)| Strangers::Burst { records, then }),
        2 => (1_u32..150, 1_u32..3, 1_u32..900)
            .prop_map(|(ids, each, then)| Strangers::Return { ids, each, then }),
        1 => (1_u32..1_500).prop_map(|then| Strangers::Quiet { then }),
    ];
    let unlisted = prop_oneof![3 => Just(1_000_u64), 1 => 1_u64..100_000];
    let timeouts = prop_oneof![2_u32..5, Just(100)];
    let rest = (unlisted, timeouts, 1_usize..8, 0_u32..100_000, 5_u64..100);
    (policies(class), rest, vec(strangers, 1..4), vec(1_u64..50, 1..6)).prop_map(
        |(policy, (unlisted, timeout, clients, burst, capacity), script, at_once)| {
            let mut policy = Policy {
                mode: Mode::Shape,
                overflow: Overflow::DeadLetter,
                map_budget: MapBudget::default(),
                queue_capacity: 1 << 40,
                queue_bytes: 1 << 40,
                burst: Ratio::from_millionths(burst).unwrap(),
                commit_interval: policy.cycle / 1_000,
                client_idle_timeout: policy.cycle * timeout,
                unlisted_weight: Weight::from_thousandths(unlisted).unwrap(),
                ..policy
            };
            policy.clients.truncate(clients);
            policy.capacity = capacity;
            Case { policy, script, at_once }
        },
    )
}

/// A configured client that sends as fast as its share allows, some records at a time.
struct Modest {
    name: String,
    /// The default share beside the maximum number of strangers, in whole records.
    share: u64,
    at_once: u64,
    sent: VecDeque<Time>,
}

impl Modest {
    /// Returns the time at which the next records may be sent without exceeding the share in any window of a cycle.
    fn next(&self, cycle: Duration) -> Option<Time> {
        let at_once = self.at_once.min(self.share);
        if at_once == 0 {
            return None;
        }
        let kept = self.share - at_once;
        let sent = self.sent.len() as u64;
        Some(if sent <= kept { Time::ZERO } else { self.sent[(sent - kept - 1) as usize] + cycle })
    }
}

struct World {
    sim: Sim,
    cycle: Duration,
    modest: Vec<Modest>,
    strangers: u32,
}

impl World {
    /// Lets time pass; the configured clients send whenever their shares allow.
    fn run_until(&mut self, until: Time) {
        loop {
            let cycle = self.cycle;
            let due = self.modest.iter().filter_map(|one| one.next(cycle)).min();
            let Some(due) = due.filter(|due| *due <= until) else { break };
            self.sim.run_until(due);
            let now = self.sim.now;
            for one in &mut self.modest {
                if one.next(cycle).is_some_and(|next| next <= now) {
                    for _ in 0..one.at_once.min(one.share) {
                        one.sent.push_back(now);
                        self.sim.read(&one.name, 0);
                    }
                    while one.sent.front().is_some_and(|at| *at + cycle <= now) {
                        one.sent.pop_front();
                    }
                }
            }
        }
        self.sim.run_until(until);
    }

    fn stranger_sends(&mut self, number: u32) {
        self.sim.read(&format!("stranger-{number}"), 1);
    }

    fn step(&mut self, step: Strangers) {
        let later = |world: &World, thousandths: u32| world.sim.now + world.cycle * thousandths / 1_000;
        let then = match step {
            Strangers::Once { per_cycle, cycles } => {
                for _ in 0..(u64::from(per_cycle) * u64::from(cycles) / 1_000).min(250) {
                    self.strangers += 1;
                    self.stranger_sends(self.strangers);
                    let next = self.sim.now + self.cycle / per_cycle;
                    self.run_until(next);
                }
                return;
            }
            Strangers::Burst { records, then } => {
                for _ in 0..records {
                    self.strangers += 1;
                    self.stranger_sends(self.strangers);
                }
                then
            }
            Strangers::Return { ids, each, then } => {
                for number in 0..(ids * each) {
                    self.stranger_sends(self.strangers.saturating_sub(number % ids));
                }
                then
            }
            Strangers::Quiet { then } => then,
        };
        let until = later(self, then);
        self.run_until(until);
    }
}

/// Checks that each record of a configured client within its share is admitted within a cycle. A client that sends its
/// whole share at once after lending it waits a little longer for the last record: the window counts up to a slice too
/// much, the share is recalled by an early allocation (one in a hundredth of a cycle), and each other backlogged client
/// has one record that is served first. A burst slows the next cycle down, by a tenth or by `burst`.
fn the_modest_are_served(case: Case) {
    let Case { policy, script, at_once } = case;
    let (cycle, capacity, clients) = (policy.cycle, policy.capacity, policy.clients.len());
    let burst = cycle * policy.burst.millionths().max(100_000) / 1_000_000;
    let weights = policy.clients.iter().map(|client| client.weight.thousandths());
    let all = weights.clone().sum::<u64>() + policy.unlisted_weight.thousandths();
    let shares: Vec<u64> = weights.map(|weight| (u128::from(capacity * weight) / u128::from(all)) as u64).collect();
    let sim = Sim::new(policy, 2);
    let modest = (0..clients)
        .map(|n| Modest { name: name(n), share: shares[n], at_once: at_once[n % at_once.len()], sent: VecDeque::new() })
        .collect();
    let mut world = World { sim, cycle, modest, strangers: 0 };
    for step in script {
        world.step(step);
    }
    let end = world.sim.now;
    world.sim.run_for(cycle * 2);
    let slack = burst + slice_width(cycle) * 3 + cycle / 50 + cycle * (clients as u32 + 1) / capacity as u32;
    for life in world.sim.lives.values().filter(|life| life.client.starts_with("client-")) {
        let Fate::Admitted { waited } = life.fate else { panic!("{life:?} at {end:?}") };
        assert!(waited <= cycle + slack, "{waited:?} of {cycle:?} and {slack:?}: {life:?}");
    }
}

#[test]
fn no_stranger_delays_a_configured_client_within_its_share() {
    check("newcomers", cases, the_modest_are_served);
}
