//! The allocation on two levels: its formulas in rationals, its laws, and the example of the documents.

use num_traits::Zero;
use proptest::prelude::*;
use proptest::{collection::vec, sample::select};
use watermaster_core::allocator::{
    AllocationParams, Claim, Credit, Grant, GroupClaim, LevelAllocator, LevelClaims, Wants,
};
use watermaster_core::{policy::Lending, units::Ratio};

use crate::cases::{Case, Client, config};
use crate::oracle::{self, Exact, exact, whole};

/// A group, or a client that stands alone: then it has one client and no group's claim.
#[derive(Debug, Clone)]
struct Group {
    name: String,
    weight: u64,
    credit: Credit,
    is_group: bool,
    clients: Vec<Client>,
}

#[derive(Debug, Clone)]
struct Levels {
    terms: AllocationParams,
    groups: Vec<Group>,
}

impl Levels {
    /// Returns the grants of the groups, in their order, and those of each group's clients.
    fn grants(&self) -> (Vec<u64>, Vec<Vec<Grant>>) {
        let claim = |client: &Client, weight| Claim { weight, wants: client.wants, credit: client.credit };
        let (mut claims, mut of, mut names) = (Vec::new(), Vec::new(), Vec::new());
        let true_groups: Vec<usize> = (0..self.groups.len()).filter(|&index| self.groups[index].is_group).collect();
        for (index, group) in self.groups.iter().enumerate() {
            for client in &group.clients {
                claims.push(claim(client, if group.is_group { client.weight } else { group.weight }));
                of.push(true_groups.iter().position(|&known| known == index));
                names.push(client.name.as_str());
            }
        }
        let group_claim =
            |&index: &usize| GroupClaim { weight: self.groups[index].weight, credit: self.groups[index].credit };
        let group_claims: Vec<GroupClaim> = true_groups.iter().map(group_claim).collect();
        let input = LevelClaims {
            clients: &claims,
            group_of: |client: usize| of[client],
            name_of: |client: usize| names[client],
            groups: &group_claims,
            group_name_of: |group: usize| self.groups[true_groups[group]].name.as_str(),
        };
        let (mut grants, mut group_grants) = (Vec::new(), Vec::new());
        LevelAllocator::default().allocate(&self.terms, &input, &mut grants, &mut group_grants);
        let mut rest = grants.into_iter();
        let clients: Vec<Vec<Grant>> =
            self.groups.iter().map(|group| rest.by_ref().take(group.clients.len()).collect()).collect();
        let records = |index: usize| match true_groups.iter().position(|&known| known == index) {
            Some(place) => group_grants[place].records,
            None => clients[index][0].records,
        };
        ((0..self.groups.len()).map(records).collect(), clients)
    }

    /// Computes the same by the formulas.
    fn by_formulas(&self) -> (Vec<u64>, Vec<Vec<u64>>) {
        let total: u128 = self.groups.iter().map(|group| u128::from(group.weight)).sum();
        let share = |group: &Group| exact(self.terms.capacity) * exact(group.weight) / exact(total);
        let ratio = exact(self.terms.reservation.millionths()) / exact(1_000_000);
        let reserved = |group: &Group| whole(&(share(group) * &ratio));
        let part = |group: &Group, client: &Client| exact(client.weight) / exact(inner(group));
        let due = |group: &Group, client: &Client| match client.wants {
            Wants::Records(wants) => wants,
            Wants::DefaultShare => whole(&(share(group) * part(group, client)).ceil()),
        };
        let upper: Vec<Client> = self
            .groups
            .iter()
            .map(|group| {
                if let [client] = &group.clients[..] {
                    return Client { weight: group.weight, ..client.clone() };
                }
                let newcomers = group.clients.iter().all(|client| client.wants == Wants::DefaultShare);
                let least =
                    |client: &Client| exact(due(group, client)).max(exact(reserved(group)) * part(group, client));
                let sum: Exact = group.clients.iter().map(least).fold(Exact::zero(), |sum, wants| sum + wants);
                let wants = match newcomers && !group.clients.is_empty() {
                    true => Wants::DefaultShare,
                    false => Wants::Records(whole(&sum.ceil().min(exact(1_u64 << 63)))),
                };
                Client { name: group.name.clone(), weight: group.weight, wants, credit: group.credit }
            })
            .collect();
        let granted: Vec<u64> = oracle::allocate(&self.terms, &upper).iter().map(|due| due.records).collect();
        let clients = self.groups.iter().zip(&granted).map(|(group, &granted)| match &group.clients[..] {
            [_] => vec![granted],
            clients if granted == 0 || clients.is_empty() => vec![0; clients.len()],
            clients => {
                let terms = AllocationParams { capacity: granted, ..self.terms };
                let asked = |client: &Client| Client { wants: Wants::Records(due(group, client)), ..client.clone() };
                let clients: Vec<Client> = clients.iter().map(asked).collect();
                let kept = exact(reserved(group)) / exact(granted);
                oracle::share_out(&terms, &kept, &clients).iter().map(|due| due.records).collect()
            }
        });
        let clients = clients.collect();
        (granted, clients)
    }
}

fn inner(group: &Group) -> u128 {
    group.clients.iter().map(|client| u128::from(client.weight)).sum()
}

fn any_levels() -> impl Strategy<Value = Levels> {
    let weight = || prop_oneof![4 => select(vec![500_u64, 1_000, 2_000, 3_000]), 1 => 1..=1_000_000_000_u64];
    let wants = prop_oneof![
        1 => Just(Wants::DefaultShare),
        2 => Just(Wants::Records(0)),
        4 => (0..60_u64).prop_map(Wants::Records),
        4 => (0..2_000_u64).prop_map(Wants::Records),
        1 => (0..=1_u64 << 63).prop_map(Wants::Records),
    ];
    let credit = || prop_oneof![3 => Just(Credit::ZERO), 1 => (-(1_i128 << 64)..1 << 64).prop_map(Credit::from_bits)];
    let sizes = select(vec![0_usize, 1, 1, 2, 3, 6, 12]);
    let clients = sizes.prop_flat_map(move |size| vec((weight(), wants.clone(), credit()), size));
    let group = (weight(), credit(), any::<bool>(), clients);
    let capacity = prop_oneof![select(vec![1_u64, 7, 40, 200, 2_000]), 1..1_000_000_u64, 1..=1_000_000_000_000_u64];
    let reservation =
        prop_oneof![select(vec![0_u32, 100_000, 250_000, 500_000, 999_999, 1_000_000]), 0..=1_000_000_u32];
    let lending = select(vec![Lending::Proportional, Lending::MaxMin]);
    (vec(group, 1..9), capacity, reservation, lending).prop_map(|(groups, capacity, reservation, lending)| {
        let group = |(index, (weight, credit, alone, clients)): (usize, (u64, Credit, bool, Vec<_>))| {
            let is_group = !alone || clients.len() != 1;
            let client = |(place, (weight, wants, credit)): (usize, (u64, Wants, Credit))| Client {
                name: format!("g{index}/c{place}"),
                weight,
                wants,
                credit,
            };
            let clients = clients.into_iter().enumerate().map(client).collect();
            Group { name: format!("g{index}/"), weight, credit, is_group, clients }
        };
        let groups = groups.into_iter().enumerate().map(group).collect();
        let reservation = Ratio::from_millionths(reservation).expect("a ratio");
        Levels { terms: AllocationParams { capacity, reservation, lending }, groups }
    })
}

proptest! {
    #![proptest_config(config(6_000))]

    #[test]
    fn every_grant_matches_the_formulas(levels in any_levels()) {
        let (groups, clients) = levels.grants();
        let records: Vec<Vec<u64>> =
            clients.iter().map(|grants| grants.iter().map(|grant| grant.records).collect()).collect();
        prop_assert_eq!((groups, records), levels.by_formulas());
    }

    #[test]
    fn the_laws_hold(levels in any_levels()) {
        let (groups, clients) = levels.grants();
        prop_assert_eq!(groups.iter().map(|&records| u128::from(records)).sum::<u128>(), u128::from(levels.terms.capacity));
        let total: u128 = levels.groups.iter().map(|group| u128::from(group.weight)).sum();
        let reservation = u128::from(levels.terms.reservation.millionths());
        for ((group, &granted), clients) in levels.groups.iter().zip(&groups).zip(&clients) {
            if !group.clients.is_empty() {
                prop_assert_eq!(clients.iter().map(|grant| grant.records).sum::<u64>(), granted);
            }
            let share = u128::from(levels.terms.capacity) * u128::from(group.weight);
            let (whole_share, reserved) = (share / total, share * reservation / (total * 1_000_000));
            prop_assert!(u128::from(granted) >= reserved, "{} keeps its reservation", group.name);
            let wants = |client: &Client| match client.wants {
                Wants::Records(wants) => u128::from(wants),
                Wants::DefaultShare => (share * u128::from(client.weight)).div_ceil(total * inner(group)),
            };
            let wanted: u128 = group.clients.iter().map(wants).sum();
            prop_assert!(u128::from(granted) >= wanted.min(whole_share), "{} loses a wanted part of its share", group.name);
            for (client, grant) in group.clients.iter().zip(clients) {
                let mine = whole_share * u128::from(client.weight) / inner(group);
                let kept = reserved * u128::from(client.weight) / inner(group);
                prop_assert!(u128::from(grant.records) >= wants(client).min(mine).max(kept), "{} {:?}", client.name, grant);
            }
        }
    }

    /// Groups of one client are those clients: their grants, with credits, are those of the flat allocation.
    #[test]
    fn groups_of_one_change_nothing(levels in any_levels()) {
        let singles: Vec<Group> = levels
            .groups
            .iter()
            .flat_map(|group| group.clients.iter().cloned().map(|client| Group { clients: vec![client], ..group.clone() }))
            .collect();
        let clients = |group: &Group| Client { weight: group.weight, ..group.clients[0].clone() };
        let flat = Case { terms: levels.terms, clients: singles.iter().map(clients).collect() };
        let (_, grants) = Levels { groups: singles, ..levels }.grants();
        prop_assert_eq!(grants.concat(), flat.grants());
    }

    #[test]
    fn the_order_of_groups_and_clients_is_irrelevant(levels in any_levels()) {
        let mut turned = levels.clone();
        turned.groups.reverse();
        turned.groups.iter_mut().for_each(|group| group.clients.reverse());
        let (mut groups, mut clients) = turned.grants();
        groups.reverse();
        clients.reverse();
        clients.iter_mut().for_each(|grants| grants.reverse());
        prop_assert_eq!((groups, clients), levels.grants());
    }
}

/// Left-over records go round among groups, and among the clients of each.
#[test]
fn left_over_records_go_round_at_both_levels() {
    let client =
        |name: &str| Client { name: name.into(), weight: 1_000, wants: Wants::Records(100), credit: Credit::ZERO };
    let group = |name: &str, weight, clients: &[&str]| {
        let clients = clients.iter().map(|name| client(name)).collect();
        Group { name: name.into(), weight, credit: Credit::ZERO, is_group: true, clients }
    };
    let terms = AllocationParams { capacity: 10, reservation: Ratio::ZERO, lending: Lending::MaxMin };
    let groups = vec![group("x/", 1_000, &["x1", "x2", "x3"]), group("y/", 2_000, &["y1", "y2", "y3", "y4"])];
    let mut levels = Levels { terms, groups };
    let (cycles, mut sums) = (300_u64, vec![vec![0_u64; 3], vec![0; 4]]);
    for _ in 0..cycles {
        let (groups, clients) = levels.grants();
        let due = [10.0 / 3.0, 20.0 / 3.0];
        for (index, group) in levels.groups.iter_mut().enumerate() {
            let owed = ((due[index] - groups[index] as f64) * 2_f64.powi(64)) as i128;
            group.credit = Credit::from_bits(group.credit.to_bits() + owed);
            for (place, (client, grant)) in group.clients.iter_mut().zip(&clients[index]).enumerate() {
                (client.credit, sums[index][place]) = (grant.credit, sums[index][place] + grant.records);
            }
        }
    }
    for (sums, due) in sums.iter().zip([cycles * 10 / 9, cycles * 20 / 12]) {
        assert!(sums.iter().all(|sum| sum.abs_diff(due) <= 2), "{sums:?} of {due}");
    }
}

/// The nightly batch of home-loan wants 5 000: its siblings keep what they want, and no other product notices.
#[test]
fn a_batch_takes_from_its_own_group_first() {
    let client = |(name, weight, wants): (&str, u64, u64)| Client {
        name: name.into(),
        weight: weight * 1_000,
        wants: Wants::Records(wants),
        credit: Credit::ZERO,
    };
    let group = |name: &str, clients: &[(&str, u64, u64)]| {
        let clients = clients.iter().copied().map(client).collect();
        Group { name: name.into(), weight: 1_000, credit: Credit::ZERO, is_group: true, clients }
    };
    let reservation = Ratio::from_millionths(100_000).expect("a tenth");
    let levels = Levels {
        terms: AllocationParams { capacity: 2_000, reservation, lending: Lending::Proportional },
        groups: vec![
            group("home-loan/", &[("web", 2, 300), ("branch", 1, 120), ("batch", 1, 5_000)]),
            group("car-loan/", &[("web", 1, 350), ("partner", 1, 100)]),
            group("credit-card/", &[("web", 1, 200), ("app", 1, 250), ("campaign", 1, 0)]),
            group("personal-loan/", &[("app", 1, 380)]),
        ],
    };
    let (groups, clients) = levels.grants();
    assert_eq!(groups, [703, 450, 467, 380]);
    let records: Vec<Vec<u64>> =
        clients.iter().map(|grants| grants.iter().map(|grant| grant.records).collect()).collect();
    assert_eq!(records, [vec![300, 120, 283], vec![350, 100], vec![200, 250, 17], vec![380]]);
}
