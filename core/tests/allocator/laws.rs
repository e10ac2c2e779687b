//! Laws of every allocation, independent of the formulas.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use watermaster_core::allocator::{AllocationParams, Credit, Fixed, Grant, Wants, default_share};
use watermaster_core::{policy::Lending, units::Ratio};

use crate::cases::{Case, Client, any_case, config};

proptest! {
    #![proptest_config(config(6_000))]

    #[test]
    fn the_laws_hold(case in any_case()) {
        let grants = case.grants();
        let granted = grants.iter().map(|grant| u128::from(grant.records)).sum::<u128>();
        prop_assert_eq!(granted, u128::from(case.terms.capacity));
        no_client_gets_less_than_its_own(&case, &grants)?;
        wanting_more_costs_at_most_a_record(&case, &grants)?;
        rounding_moves_less_than_a_record(&case, &grants)?;
    }
}

proptest! {
    #![proptest_config(config(1_500))]

    #[test]
    fn the_order_of_clients_is_irrelevant(case in any_case(), seed in any::<u64>()) {
        let mut shuffled = case.clone();
        shuffle(&mut shuffled.clients, seed);
        prop_assert_eq!(by_name(&case, &case.grants()), by_name(&shuffled, &shuffled.grants()));
    }

    #[test]
    fn names_only_break_ties(case in any_case(), seed in any::<u64>()) {
        let mut names: Vec<String> = case.clients.iter().map(|client| client.name.clone()).collect();
        shuffle(&mut names, seed);
        let mut renamed = case.clone();
        for (client, name) in renamed.clients.iter_mut().zip(names) {
            client.name = name;
        }
        let (grants, other) = (case.grants(), renamed.grants());
        let mut tied = BTreeSet::new();
        for ((client, grant), other) in case.clients.iter().zip(&grants).zip(&other) {
            prop_assert_eq!(grant.exact, other.exact);
            if grant.records != other.records {
                tied.insert(client.credit.to_bits() + i128::from(grant.exact.fraction()));
            }
        }
        prop_assert!(tied.len() <= 1, "grants of untied clients changed: {:?}", tied);
    }

    #[test]
    fn credits_only_order_the_left_overs(case in any_case()) {
        let mut without = case.clone();
        for client in &mut without.clients {
            client.credit = Credit::ZERO;
        }
        for (with, without) in case.grants().iter().zip(without.grants()) {
            prop_assert_eq!(with.exact, without.exact);
            prop_assert!(with.records.abs_diff(without.records) <= 1);
        }
    }

    #[test]
    fn no_client_starves_among_equals(clients in 1..60_u64, capacity in 1..60_u64, wants in 0..9_u64) {
        let granted = granted_to_equals(clients, capacity, wants, clients);
        for records in granted {
            prop_assert!(records.abs_diff(capacity) <= 1, "{} of {} records", records, capacity);
        }
    }
}

fn no_client_gets_less_than_its_own(case: &Case, grants: &[Grant]) -> Result<(), TestCaseError> {
    let total: u128 = case.clients.iter().map(|client| u128::from(client.weight)).sum();
    for (client, grant) in case.clients.iter().zip(grants) {
        let share = u128::from(case.terms.capacity) * u128::from(client.weight);
        let default = share / total;
        let kept = match client.wants {
            Wants::Records(wants) => default.min(u128::from(wants)),
            Wants::DefaultShare => default,
        };
        let reserved = share * u128::from(case.terms.reservation.millionths()) / (total * 1_000_000);
        prop_assert!(u128::from(grant.records) >= kept.max(reserved), "{} got {:?}", client.name, grant);
        prop_assert_eq!(grant.default_share, default_share(case.terms.capacity, client.weight, total));
        prop_assert_eq!(u128::from(grant.default_share.floor()), default);
    }
    Ok(())
}

/// Among clients of the same weight, a client that wants more never gets less, except for one record of rounding.
fn wanting_more_costs_at_most_a_record(case: &Case, grants: &[Grant]) -> Result<(), TestCaseError> {
    let mut equals: BTreeMap<u64, Vec<(u64, &Grant)>> = BTreeMap::new();
    for (client, grant) in case.clients.iter().zip(grants) {
        if let Wants::Records(wants) = client.wants {
            equals.entry(client.weight).or_default().push((wants, grant));
        }
    }
    for group in equals.values_mut() {
        group.sort_by_key(|(wants, _)| *wants);
        let (mut most, mut most_exact) = (0, Fixed::ZERO);
        for (wants, grant) in group {
            prop_assert!(grant.records + 1 >= most, "a client that wants {} got {:?}, another {}", wants, grant, most);
            prop_assert!(grant.exact >= most_exact, "a client that wants {} is due {:?}", wants, grant);
            most = most.max(grant.records);
            most_exact = grant.exact;
        }
    }
    Ok(())
}

fn rounding_moves_less_than_a_record(case: &Case, grants: &[Grant]) -> Result<(), TestCaseError> {
    for (client, grant) in case.clients.iter().zip(grants) {
        let up = grant.records - grant.exact.floor();
        prop_assert!(up <= 1, "{} got {:?}", client.name, grant);
        let owed = i128::from(grant.exact.fraction()) - (i128::from(up) << 64);
        prop_assert_eq!(grant.credit.to_bits(), Credit::from_bits(client.credit.to_bits() + owed).to_bits());
    }
    Ok(())
}

#[test]
fn ten_equals_take_turns_for_four_records() {
    let granted = granted_to_equals(10, 4, 5, 10);
    assert!(granted.iter().all(|records| (3..=5).contains(records)), "{granted:?}");
}

/// Returns the total grants of `clients` equal clients over `cycles` cycles, with credits carried over.
fn granted_to_equals(clients: u64, capacity: u64, wants: u64, cycles: u64) -> Vec<u64> {
    let reservation = Ratio::from_millionths(100_000).unwrap();
    let terms = AllocationParams { capacity, reservation, lending: Lending::Proportional };
    let client =
        |index| Client { name: format!("c{index}"), weight: 1_000, wants: Wants::Records(wants), credit: Credit::ZERO };
    let mut case = Case { terms, clients: (0..clients).map(client).collect() };
    let mut granted = vec![0; case.clients.len()];
    for _ in 0..cycles {
        let grants = case.grants();
        for ((client, granted), grant) in case.clients.iter_mut().zip(&mut granted).zip(&grants) {
            *granted += grant.records;
            client.credit = grant.credit;
        }
    }
    granted
}

fn by_name(case: &Case, grants: &[Grant]) -> BTreeMap<String, Grant> {
    case.clients.iter().map(|client| client.name.clone()).zip(grants.iter().copied()).collect()
}

/// Fisher-Yates with a linear congruential generator.
fn shuffle<T>(items: &mut [T], mut seed: u64) {
    for last in (1..items.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        items.swap(last, (seed >> 33) as usize % (last + 1));
    }
}
