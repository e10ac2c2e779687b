//! Known allocations.

use watermaster_core::allocator::{AllocationParams, Allocator, Credit, MAX_WEIGHT, Wants, default_share};
use watermaster_core::policy::Lending;
use watermaster_core::units::{MAX_CAPACITY, Ratio};

use crate::cases::{Case, Client};
use crate::oracle;

/// Builds a case with clients A, B, C …, with weights in thousandths.
fn case(capacity: u64, reservation: u32, lending: Lending, clients: &[(u64, Wants)]) -> Case {
    let clients = ('A'..).zip(clients).map(|(name, &(weight, wants))| Client {
        name: name.to_string(),
        weight,
        wants,
        credit: Credit::ZERO,
    });
    let reservation = Ratio::from_millionths(reservation).unwrap();
    Case { terms: AllocationParams { capacity, reservation, lending }, clients: clients.collect() }
}

fn records(case: &Case) -> Vec<u64> {
    case.grants().iter().map(|grant| grant.records).collect()
}

fn equals(wants: &[u64]) -> Vec<(u64, Wants)> {
    wants.iter().map(|&wants| (1_000, Wants::Records(wants))).collect()
}

#[test]
fn grants_match_the_worked_table() {
    for (wants, granted) in
        [([2, 15, 10, 10], [5, 15, 10, 10]), ([3, 15, 50, 10], [3, 11, 16, 10]), ([0, 15, 50, 5], [1, 12, 22, 5])]
    {
        assert_eq!(records(&case(40, 100_000, Lending::Proportional, &equals(&wants))), granted, "{wants:?}");
    }
}

#[test]
fn max_min_lends_a_flood_no_more_than_its_neighbour() {
    let lent = |lending, wants: &[u64]| records(&case(40, 100_000, lending, &equals(wants)));
    // A lends 7. B wants 5 more than its share, C floods.
    assert_eq!(lent(Lending::MaxMin, &[3, 15, 50, 10]), [3, 14, 13, 10]);
    assert_eq!(lent(Lending::MaxMin, &[3, 15, 5_000, 10]), [3, 14, 13, 10]);
    assert_eq!(lent(Lending::Proportional, &[3, 15, 5_000, 10]), [3, 10, 17, 10]);
    // The wants of B are met before the surplus is used up; C gets the rest.
    assert_eq!(lent(Lending::MaxMin, &[3, 12, 50, 10]), [3, 12, 15, 10]);
    // The surplus meets all wants: both kinds of lending agree.
    assert_eq!(lent(Lending::MaxMin, &[2, 15, 10, 10]), [5, 15, 10, 10]);
}

/// Three clients are due a fraction of exactly 0.6, and two records are left over. 64-bit floats would see no tie and
/// grant 28 18 27 66 13 16.
#[test]
fn floats_would_give_other_grants() {
    let weights = [2_300, 1_500, 2_300, 3_000, 1_100, 1_300];
    let wants = [0, 0, 0, 66, 0, 0];
    let clients: Vec<_> = weights.into_iter().zip(wants.map(Wants::Records)).collect();
    let granted = records(&case(168, 200_000, Lending::Proportional, &clients));
    assert_eq!(granted, [28, 18, 28, 66, 13, 15]);
}

#[test]
fn a_newcomer_gets_its_default_share_unrounded() {
    let clients = [(1_000, Wants::DefaultShare), (1_000, Wants::Records(0)), (1_000, Wants::Records(900))];
    for lending in [Lending::Proportional, Lending::MaxMin] {
        let grants = case(100, 0, lending, &clients).grants();
        assert_eq!(grants[0].exact, default_share(100, 1, 3));
        assert_eq!(grants[0].exact, grants[0].default_share);
        assert_eq!((grants[0].exact.floor(), grants[0].exact.fraction() > 0), (33, true));
    }
}

/// Thirds are infinite in binary: the credit of A makes the claims of A (1/3) and B (2/3) equal down to 2⁻⁶⁴ records;
/// below that, B is due more.
#[test]
fn fractions_below_the_last_bit_count_before_the_name() {
    let clients = [(1, Wants::DefaultShare), (2, Wants::DefaultShare)];
    let mut case = case(1, 0, Lending::Proportional, &clients);
    let third = case.grants()[0].exact.fraction();
    let two_thirds = case.grants()[1].exact.fraction();
    case.clients[0].credit = Credit::from_bits(i128::from(two_thirds - third));
    assert_eq!(records(&case), [0, 1]);
    oracle::check(&case);
}

#[test]
fn no_client_gets_no_grant_and_one_client_gets_all() {
    assert_eq!(records(&case(40, 100_000, Lending::MaxMin, &[])), [0; 0]);
    for wants in [Wants::Records(0), Wants::Records(u64::MAX), Wants::DefaultShare] {
        assert_eq!(records(&case(40, 100_000, Lending::MaxMin, &[(7, wants)])), [40]);
    }
}

#[test]
fn buffers_of_another_allocation_leave_no_trace() {
    let (mut allocator, mut grants) = (Allocator::default(), Vec::new());
    for case in [many_clients(300, Lending::MaxMin), case(40, 100_000, Lending::MaxMin, &equals(&[3, 15, 50, 10]))] {
        case.allocate(&mut allocator, &mut grants);
        assert_eq!(grants, case.grants());
    }
}

#[test]
fn ten_thousand_different_clients_are_exact() {
    for lending in [Lending::Proportional, Lending::MaxMin] {
        let mut case = many_clients(10_000, lending);
        oracle::check(&case);
        case.terms.capacity = 999_999;
        oracle::check(&case);
    }
}

/// Tests the maximum of all inputs, for which the arithmetic has the least headroom.
#[test]
fn the_ends_of_the_ranges_do_not_overflow() {
    for lending in [Lending::Proportional, Lending::MaxMin] {
        for lenders in [0, 1, 500] {
            let mut case = many_clients(1_000, lending);
            case.terms =
                AllocationParams { capacity: MAX_CAPACITY, reservation: Ratio::from_millionths(1).unwrap(), lending };
            for (index, client) in case.clients.iter_mut().enumerate() {
                client.weight = MAX_WEIGHT - (index as u64 % 2);
                client.wants = Wants::Records(if index < lenders { 0 } else { u64::MAX - (index as u64 % 3) });
            }
            oracle::check(&case);
        }
    }
}

/// Builds clients that differ in all fields, by a fixed pattern; their wants together exceed the capacity.
fn many_clients(count: u64, lending: Lending) -> Case {
    let client = |index: u64| {
        let mixed = index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Client {
            name: format!("client-{mixed:x}"),
            weight: 1 + (mixed >> 40) % 997,
            wants: Wants::Records((mixed >> 20) % 4_001),
            credit: Credit::from_bits(i128::from(mixed as i64)),
        }
    };
    let reservation = Ratio::from_millionths(123_456).unwrap();
    let terms = AllocationParams { capacity: 1_500 * count, reservation, lending };
    Case { terms, clients: (0..count).map(client).collect() }
}
