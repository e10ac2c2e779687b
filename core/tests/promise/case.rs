//! Random policies and scripts.

use std::{sync::Arc, time::Duration};

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use watermaster_core::offset_map::MapBudget;
use watermaster_core::policy::{
    CatchUp, ClientPattern, ClientPolicy, GroupPolicy, Lending, Limit, Mode, Overflow, Policy, Window,
};
use watermaster_core::rules::{Effects, Field, Origin, Rule, RuleLimit, RuleTarget, Rules};
use watermaster_core::units::{Ratio, Weight};

/// A class of cases; all of its policies have the property in its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    Ordinary,
    MoreClientsThanCapacity,
    NothingReserved,
    AllReserved,
    /// Weights 1 : 10⁶.
    WideWeights,
    ThousandClients,
}

impl Class {
    pub const ALL: [Class; 6] = [
        Class::Ordinary,
        Class::MoreClientsThanCapacity,
        Class::NothingReserved,
        Class::AllReserved,
        Class::WideWeights,
        Class::ThousandClients,
    ];

    /// Returns whether a policy is of this class.
    pub fn holds(self, policy: &Policy) -> bool {
        let weights = || policy.clients.iter().map(|client| client.weight);
        match self {
            Class::Ordinary => true,
            Class::MoreClientsThanCapacity => policy.clients.len() as u64 > policy.capacity,
            Class::NothingReserved => policy.reservation == Ratio::ZERO,
            Class::AllReserved => policy.reservation == Ratio::ONE,
            Class::WideWeights => {
                weights().max().map(Weight::thousandths) == weights().min().map(|least| least.thousandths() * 1_000_000)
            }
            Class::ThousandClients => policy.clients.len() >= 1_000,
        }
    }

    fn reservation(self) -> impl Strategy<Value = Ratio> {
        let millionths = match self {
            Class::NothingReserved => 0..=0,
            Class::AllReserved => 1_000_000..=1_000_000,
            _ => 0..=1_000_000_u32,
        };
        millionths.prop_map(|millionths| Ratio::from_millionths(millionths).unwrap())
    }

    fn capacity_and_clients(self) -> impl Strategy<Value = (u64, usize)> {
        match self {
            Class::ThousandClients => (30_u64..3_000, 1_000_usize..1_200).boxed(),
            Class::MoreClientsThanCapacity => {
                (1_u64..12).prop_flat_map(|capacity| (Just(capacity), capacity as usize + 1..=24)).boxed()
            }
            _ => (prop_oneof![1_u64..12, 10_u64..200, 200_u64..2_000], 2_usize..10).boxed(),
        }
    }
}

/// Returns the name of the n-th client.
pub fn name(index: usize) -> String {
    format!("client-{index:04}")
}

/// Generates policies of a class: any modes, weights and bounds, no client limits.
pub fn policies(class: Class) -> impl Strategy<Value = Policy> {
    let cycles =
        prop_oneof![Just(100_000_000_u64), Just(1_000_000_000), Just(10_000_000_000), 100_000_000_u64..3_000_000_000];
    let shapes = (any::<[bool; 5]>(), class.reservation(), prop_oneof![Just(0_u32), Just(10_000), 0_u32..=1_000_000]);
    let small = prop_oneof![3 => Just(None), 1 => (1_u64..40).prop_map(Some)];
    let bounds = (small, prop_oneof![3 => Just(1_u64 << 40), 1 => 500_u64..5_000], budgets());
    (class.capacity_and_clients(), cycles, shapes, bounds, vec(weights(), 1..8)).prop_map(
        move |((capacity, clients), cycle, (choice, reservation, burst), (queue, queue_bytes, map_budget), weights)| {
            let cycle = Duration::from_nanos(cycle);
            let mut weights: Vec<u64> = (0..clients).map(|index| weights[index % weights.len()]).collect();
            if class == Class::WideWeights {
                (weights[0], weights[1]) = (1_000, 1_000_000_000);
                weights.iter_mut().for_each(|weight| *weight = (*weight).clamp(1_000, 1_000_000_000));
            }
            let policy = Policy {
                reservation,
                lending: if choice[0] { Lending::Proportional } else { Lending::MaxMin },
                mode: if choice[1] { Mode::Shape } else { Mode::Reject },
                window: if choice[2] { Window::Sliding } else { Window::Fixed },
                catch_up: if choice[3] { CatchUp::Delay } else { CatchUp::Reject },
                overflow: match (choice[4], choice[3]) {
                    (true, true) => Overflow::DeadLetter,
                    (true, false) => Overflow::Auto,
                    (false, _) => Overflow::Pause,
                },
                burst: Ratio::from_millionths(burst).unwrap(),
                queue_capacity: queue.unwrap_or(1 << 40),
                queue_bytes,
                map_budget,
                clients: (0..).zip(weights).map(|(index, weight)| configured(index, weight)).collect(),
                ..crate::sim::policy(capacity, cycle)
            };
            assert!(class.holds(&policy), "{class:?}");
            policy
        },
    )
}

fn configured(index: usize, weight: u64) -> ClientPolicy {
    ClientPolicy { name: name(index), weight: Weight::from_thousandths(weight).unwrap(), limits: Vec::new() }
}

/// Generates policies of a class, half of them with groups.
pub fn grouped_policies(class: Class) -> impl Strategy<Value = Policy> {
    let groups = proptest::option::of((weights(), weights()));
    (policies(class), groups).prop_map(|(policy, groups)| {
        let groups = groups.map(|(half, one)| vec![every_second(half), the_last(one)]).unwrap_or_default();
        Policy { groups, ..policy }
    })
}

/// Returns a group of half of all clients.
fn every_second(weight: u64) -> GroupPolicy {
    let clients = ["*0", "*2", "*4", "*6", "*8"].map(ClientPattern::new).into();
    let weight = Weight::from_thousandths(weight).unwrap();
    GroupPolicy { name: "half".to_owned(), weight, limits: Vec::new(), hold: false, clients }
}

/// Returns a group of one client at most.
fn the_last(weight: u64) -> GroupPolicy {
    let weight = Weight::from_thousandths(weight).unwrap();
    GroupPolicy {
        name: "one".to_owned(),
        weight,
        limits: Vec::new(),
        hold: false,
        clients: vec![ClientPattern::new("client-0001")],
    }
}

fn weights() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(1_000_u64), 3 => 1_u64..10_000, 1 => 1_u64..=1_000_000_000]
}

fn budgets() -> impl Strategy<Value = MapBudget> {
    prop_oneof![
        3 => Just(MapBudget::default()),
        1 => (40_usize..300).prop_map(MapBudget::Chars),
        1 => (64_usize..300).prop_map(MapBudget::Bytes),
    ]
}

/// Generates client limits near the client's part of the capacity.
pub fn own_limits() -> impl Strategy<Value = Limit> {
    (1_u32..60, 1_u64..4_000, 1_u32..30).prop_map(|(rate, millis, burst)| Limit {
        rate: rate.try_into().unwrap(),
        per: Duration::from_millis(millis),
        burst: burst.try_into().unwrap(),
    })
}

/// Generates rules for clients, groups and the service.
pub fn rules(capacity: u64) -> impl Strategy<Value = Vec<Rule>> {
    let names = ["client-0000", "client-0001", "client-*2", "client-000*", "*"];
    let id = (0..names.len()).prop_map(move |at| ClientPattern::new(names[at]));
    let target = prop_oneof![
        4 => id.prop_map(|id| RuleTarget::Clients { patterns: vec![id], in_groups: None }),
        1 => Just(RuleTarget::Clients {
            patterns: vec![ClientPattern::new("*")],
            in_groups: Some(vec![ClientPattern::new("half")]),
        }),
        1 => Just(RuleTarget::Groups(vec![ClientPattern::new("half")])),
        1 => Just(RuleTarget::Groups(vec![ClientPattern::new("*")])),
        1 => Just(RuleTarget::Service),
    ];
    let limits = vec((own_limits(), any::<bool>()), 0..3);
    let effects = (0_u8..8, weights(), limits, 1_u64..3_000).prop_map(move |(field, weight, limits, number)| {
        let limits = limits.into_iter().map(|(limit, scales)| RuleLimit { limit, scales }).collect();
        let nothing = Effects::default();
        match field {
            0 | 1 => Effects { weight: Weight::from_thousandths(weight), ..nothing },
            2 => Effects { limits: Some(limits), ..nothing },
            3 => Effects { max_delay: Some(Duration::from_millis(number)), ..nothing },
            4 => Effects { hold: Some(number % 4 > 0), ..nothing },
            5 => Effects { expire_before_ms: Some(number as i64 % 2), ..nothing },
            6 => Effects { group: Some(["half", "one", ""][number as usize % 3].to_owned()), ..nothing },
            _ => Effects { capacity: Some(1 + number * capacity / 1_500), ..nothing },
        }
    });
    vec((target, effects, -1_i16..2), 0..6).prop_map(|rules| {
        let rule = |(number, (target, effects, priority)): (usize, (RuleTarget, Effects, i16))| {
            let of_service = target == RuleTarget::Service;
            let applies = if of_service { Field::OF_SERVICE } else { Field::OF_CLIENT };
            let effects = if applies.iter().any(|field| effects.set(*field)) { effects } else { Effects::default() };
            rule_of(&format!("rule-{number}"), target, priority, effects)
        };
        rules.into_iter().enumerate().map(rule).collect()
    })
}

fn rule_of(name: &str, target: RuleTarget, priority: i16, effects: Effects) -> Rule {
    Rule { origin: Origin::RunTime, priority, ..crate::support::rule::rule(name, target, effects) }
}

/// Returns a policy with these rules beside those of its tables.
pub fn with_rules(policy: &Policy, rules: &[Rule]) -> Policy {
    let limits = |limits: &[Limit]| limits.iter().map(|&limit| RuleLimit { limit, scales: false }).collect();
    let table = |name: String, target, weight, own: &[Limit]| {
        let effects = Effects { weight: Some(weight), limits: Some(limits(own)), ..Effects::default() };
        rule_of(&name, target, 0, effects)
    };
    let id = |id: &str| vec![ClientPattern::new(id)];
    let of_client = |client: &ClientPolicy| {
        let target = RuleTarget::Clients { patterns: id(&client.name), in_groups: None };
        table(format!("client.{}", client.name), target, client.weight, &client.limits)
    };
    let of_group = |group: &GroupPolicy| {
        table(format!("group.{}", group.name), RuleTarget::Groups(id(&group.name)), group.weight, &group.limits)
    };
    let tables = policy.clients.iter().map(of_client).chain(policy.groups.iter().map(of_group));
    Policy { rules: Arc::new(Rules::new(tables.chain(rules.iter().cloned()).collect())), ..policy.clone() }
}

/// A step of a script.
#[derive(Debug, Clone, Copy)]
pub enum Step {
    /// A client sends to a partition.
    Send { client: usize, partition: usize, records: u32, bytes: u32 },
    /// `ids` new clients send a record each.
    Flood { ids: u32, partition: usize },
    /// Anonymous records, or records of a client that is not allowed.
    Unknown { allowed: bool, partition: usize, records: u32 },
    /// Rejected records are sent again.
    Storm { partition: usize, records: u32 },
    /// Offsets without records.
    Hole { partition: usize, offsets: u32 },
    /// Time passes, in thousandths of a cycle.
    Wait { cycles: u32 },
    /// Time passes without a call to the throttle.
    Stall { cycles: u32 },
    /// A round is committed.
    Commit,
    /// The process ends after a commit, the next one starts later.
    Restart { cycles: u32 },
    /// A partition is revoked after a commit and assigned again later.
    Reassign { partition: usize, cycles: u32 },
    /// A partition was not fetched for a while.
    FetchGap { partition: usize },
}

/// Generates scripts for these numbers of clients and partitions.
pub fn scripts(clients: usize, partitions: usize, longest: usize) -> impl Strategy<Value = Vec<Step>> {
    vec(steps(clients, partitions), 1..longest)
}

fn steps(clients: usize, partitions: usize) -> impl Strategy<Value = Step> {
    let (client, partition) = (0..clients.min(12), 0..partitions);
    let send = (client, partition.clone(), prop_oneof![1_u32..8, 1_u32..80], 0_u32..200)
        .prop_map(|(client, partition, records, bytes)| Step::Send { client, partition, records, bytes });
    let flood = (1_u32..30, partition.clone()).prop_map(|(ids, partition)| Step::Flood { ids, partition });
    let unknown = (any::<bool>(), partition.clone(), 1_u32..12)
        .prop_map(|(allowed, partition, records)| Step::Unknown { allowed, partition, records });
    let storm = (partition.clone(), 1_u32..60).prop_map(|(partition, records)| Step::Storm { partition, records });
    let hole = (partition.clone(), 1_u32..9).prop_map(|(partition, offsets)| Step::Hole { partition, offsets });
    let cycles = || prop_oneof![1_u32..60, 1_u32..1_500];
    let reassign = (partition.clone(), prop_oneof![Just(0), cycles()])
        .prop_map(|(partition, cycles)| Step::Reassign { partition, cycles });
    prop_oneof![
        12 => send,
        2 => flood,
        2 => unknown,
        2 => storm,
        1 => hole,
        9 => cycles().prop_map(|cycles| Step::Wait { cycles }),
        1 => (500_u32..5_000).prop_map(|cycles| Step::Wait { cycles }),
        1 => (1_u32..4_000).prop_map(|cycles| Step::Stall { cycles }),
        2 => Just(Step::Commit),
        1 => prop_oneof![Just(0), cycles()].prop_map(|cycles| Step::Restart { cycles }),
        1 => reassign,
        1 => partition.prop_map(|partition| Step::FetchGap { partition }),
    ]
}
