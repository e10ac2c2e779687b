//! Policies that change while records flow: no record is lost, decided twice or overtaken, and no window holds more
//! than the largest capacity in force in it.

use std::{collections::BTreeMap, time::Duration};

use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_oneof};
use watermaster_core::rules::Rule;
use watermaster_core::{offset_map::MapBudget, policy::Policy, units::Time};

use crate::case::{Class, grouped_policies, name, own_limits, rules, with_rules};
use crate::check;
use crate::sim::{Fate, Sim, unregistered};

#[derive(Debug, Clone)]
enum Step {
    Send {
        client: usize,
        partition: u32,
        records: u32,
    },
    /// Time passes, in thousandths of a cycle.
    Wait {
        cycles: u32,
    },
    Change(Box<Policy>),
    Rules(Vec<Rule>),
    /// A partition was not fetched for a while: `records` more records are catching up.
    FetchGap {
        partition: u32,
        records: i64,
    },
}

#[derive(Debug, Clone)]
struct Case {
    policy: Policy,
    script: Vec<Step>,
}

const PARTITIONS: u32 = 3;
const IN_FLIGHT: u32 = 2;

fn cases(class: Class) -> impl Strategy<Value = Case> {
    changing(class).prop_flat_map(move |policy| {
        let budget = policy.map_budget;
        let change = changing(class).prop_map(move |other| {
            // The offset maps that were written must still fit.
            Step::Change(Box::new(Policy { map_budget: budget, ..other }))
        });
        let send = (0_usize..12, 0..PARTITIONS, prop_oneof![1_u32..8, 1_u32..80])
            .prop_map(|(client, partition, records)| Step::Send { client, partition, records });
        let wait = prop_oneof![1_u32..60, 1_u32..1_500].prop_map(|cycles| Step::Wait { cycles });
        let rules = rules(policy.capacity).prop_map(Step::Rules);
        let gap = (0..PARTITIONS, 1_i64..9).prop_map(|(partition, records)| Step::FetchGap { partition, records });
        vec(prop_oneof![8 => send, 4 => wait, 2 => change, 2 => rules, 1 => gap], 1..60)
            .prop_map(move |script| Case { policy: policy.clone(), script })
    })
}

fn changing(class: Class) -> impl Strategy<Value = Policy> {
    let rest = (proptest::option::weighted(0.3, own_limits()), any::<u8>(), 24_usize..44);
    (grouped_policies(class), rest).prop_map(|(mut policy, (limit, rare, chars))| {
        policy.clients[0].limits = limit.into_iter().collect();
        policy.enforce = rare % 4 != 0;
        if rare < 80 {
            // The map is sometimes full.
            policy.map_budget = MapBudget::Chars(chars);
        }
        if rare % 8 == 1 {
            policy.max_delay = Some(policy.cycle * 3 / 2);
        }
        policy
    })
}

/// A throttle with a changing policy, and the history of its policies.
struct World {
    sim: Sim,
    /// The policy of the configuration, and the rules in force.
    base: Policy,
    rules: Vec<Rule>,
    /// The policy of the configuration at the last change.
    former: Policy,
    /// Each policy with the time from which it was in force.
    history: Vec<(Time, Policy)>,
}

impl World {
    fn step(&mut self, step: Step) {
        match step {
            Step::Send { client, partition, records } => {
                for n in 0..records {
                    // Records in flight at the pause still arrive.
                    if n < IN_FLIGHT || !self.sim.paused[partition as usize] {
                        self.sim.read(&name(client), partition);
                    }
                }
            }
            Step::Wait { cycles } => self.sim.run_for(self.policy().cycle * cycles / 1_000),
            Step::Change(policy) => {
                self.base = *policy;
                self.change();
            }
            Step::Rules(rules) => {
                self.rules = rules;
                self.change();
            }
            Step::FetchGap { partition, records } => {
                let end = self.sim.lives.range((partition, 0)..(partition + 1, 0)).count() as i64;
                self.sim.throttle.handle_fetch_gap(partition, end + records);
            }
        }
        for partition in 0..PARTITIONS {
            self.sim.throttle.commit_without(self.sim.now, partition, &[]).expect("the map fits in its budget");
        }
    }

    fn policy(&self) -> &Policy {
        &self.history.last().expect("the history is never empty").1
    }

    /// Puts the policy and the rules in force.
    fn change(&mut self) {
        // Separates the decisions of the two policies.
        self.sim.run_for(Duration::from_nanos(1));
        let policy = with_rules(&self.base, &self.rules).at(1);
        // Another policy may be taken over as other rules are, if it differs in no more than those.
        if std::mem::replace(&mut self.former, self.base.clone()) == self.base {
            self.sim.throttle.handle_rules(self.sim.now, policy.clone());
        } else {
            self.sim.throttle.handle_policy(self.sim.now, policy.clone());
        }
        let granted = crate::sim::granted(&self.sim.throttle);
        assert_eq!(granted, policy.capacity, "the grants add up to the capacity");
        for client in &policy.clients {
            assert!(self.sim.throttle.client(&client.name).is_some_and(|known| known.configured), "{}", client.name);
        }
        self.sim.act();
        let held = self.sim.lives.values().filter(|life| life.fate == Fate::Held).count();
        if !policy.enforce {
            assert_eq!(held, 0, "shadow mode delays no record");
        }
        self.history.push((self.sim.now, policy));
    }

    /// Returns the policies in force at some time in (from, until].
    fn in_force(&self, from: Time, until: Time) -> impl Iterator<Item = &Policy> {
        let ends = self.history.iter().skip(1).map(|(at, _)| *at).chain([Time::NEVER]);
        let within = move |(begin, end): (Time, Time)| begin <= until && end > from;
        self.history
            .iter()
            .zip(ends)
            .filter(move |((begin, _), end)| within((*begin, *end)))
            .map(|((_, policy), _)| policy)
    }

    /// Returns the length of the longest window that ends at `until` and is as long as the shortest cycle in force in
    /// it.
    fn window(&self, until: Time) -> Duration {
        let mut length =
            self.in_force(until, until).map(|policy| policy.cycle).min().expect("some policy is always in force");
        loop {
            let shortest = self.in_force(earlier(until, length), until).map(|policy| policy.cycle).min();
            match shortest.filter(|shortest| *shortest < length) {
                Some(shortest) => length = shortest,
                None => return length,
            }
        }
    }

    fn no_window_holds_too_much(&self) {
        let times = self.sim.admissions();
        for (last, &until) in times.iter().enumerate() {
            let from = earlier(until, self.window(until));
            // Records admitted in shadow mode count against those that come after it.
            if self.in_force(until, until).any(|policy| !policy.enforce) {
                continue;
            }
            // The window may be shorter than the present cycle, because a former policy had a shorter one. A rule that
            // lowers the capacity counts by the mean over the present cycle.
            let cycle = self.in_force(until, until).map(|policy| policy.cycle).max().expect("some policy is in force");
            let since = from.min(earlier(until, cycle));
            let policies = self.in_force(since, until);
            let capacity = policies.map(|policy| policy.capacity).max().expect("some policy is always in force");
            let first = times.partition_point(|at| *at <= from);
            assert!((last + 1 - first) as u64 <= capacity, "{} of {capacity} in a window", last + 1 - first);
        }
    }

    fn no_record_is_overtaken(&self) {
        let mut turns: BTreeMap<(&str, u32), usize> = BTreeMap::new();
        for ((partition, offset), life) in &self.sim.lives {
            if matches!(life.fate, Fate::Admitted { .. }) {
                let before = turns.insert((&life.client, *partition), life.turn);
                assert!(before.is_none_or(|before| before < life.turn), "{partition}/{offset} of {}", life.client);
            }
        }
    }

    /// Checks that every record is decided in the end, and counted once.
    fn finish(&mut self) {
        // A rule may hold clients for ever.
        self.rules = Vec::new();
        self.change();
        let (records, policy) = (self.sim.lives.len() as u64, self.policy().clone());
        if records / policy.capacity < 150 {
            let cycles = u32::try_from(records / policy.capacity + 3).expect("the number of cycles is small");
            let slowest = policy.clients.iter().flat_map(|client| &client.limits).map(|limit| limit.per).max();
            self.sim.run_for(policy.cycle * cycles * 21 / 20 + slowest.unwrap_or_default() * records as u32);
            let held = self.sim.lives.values().filter(|life| life.fate == Fate::Held).count();
            assert_eq!(held, 0, "records are undecided in the end");
        }
        let (mut admitted, mut rejected) = (0, 0);
        let unregistered = unregistered(&self.sim.throttle).0;
        for counts in self.sim.throttle.clients().iter().map(|(_, client)| client.counts).chain([unregistered]) {
            admitted += counts.admitted;
            rejected += counts.rejected.total();
        }
        assert_eq!(admitted, self.sim.admissions().len() as u64, "admitted");
        let rejections = self.sim.lives.values().filter(|life| matches!(life.fate, Fate::Rejected(_))).count();
        assert_eq!(rejected, rejections as u64, "rejected");
    }
}

fn earlier(time: Time, by: Duration) -> Time {
    Time::from_nanos(time.as_nanos() - u64::try_from(by.as_nanos()).expect("a cycle fits in 64 bits of nanoseconds"))
}

fn run(case: Case) {
    let sim = Sim::new(case.policy.clone(), PARTITIONS);
    let (base, former) = (case.policy.clone(), case.policy.clone());
    let mut world = World { history: vec![(sim.now, case.policy)], sim, base, former, rules: Vec::new() };
    for step in case.script {
        world.step(step);
    }
    world.finish();
    world.no_window_holds_too_much();
    world.no_record_is_overtaken();
}

#[test]
fn policies_change_while_records_flow() {
    check("change", cases, run);
}
