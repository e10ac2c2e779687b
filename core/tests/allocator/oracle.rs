//! An independent allocator: the formulas of `docs/design/algorithm.md` as written, in rationals. It shares no code
//! with the real one. Clients with equal weight and wants are computed once.

use std::collections::BTreeMap;

use num_bigint::BigInt;
use num_rational::Ratio as Fraction;
use num_traits::{One, Signed, ToPrimitive, Zero};
use proptest::prelude::*;
use watermaster_core::allocator::{AllocationParams, Credit, Fixed, Grant, Wants};
use watermaster_core::policy::Lending;

use crate::cases::{Case, Client, any_case, config};

pub type Exact = Fraction<BigInt>;

/// The grant of a client by the oracle; fractions in 2⁻⁶⁴ records, rounded down.
#[derive(Debug)]
pub struct Due {
    pub records: u64,
    exact: u128,
    default_share: u128,
}

/// The clients with the same weight and wants.
#[derive(Debug)]
struct Class {
    weight: Exact,
    clients: u64,
    default: Exact,
    floor: Exact,
}

impl Class {
    fn gap(&self) -> Exact {
        &self.default - &self.floor
    }
}

/// Computes the grants by the formulas, in the order of the clients.
pub fn allocate(terms: &AllocationParams, clients: &[Client]) -> Vec<Due> {
    share_out(terms, &(exact(terms.reservation.millionths()) / exact(1_000_000)), clients)
}

/// Computes the grants with any fraction of the default shares as the reservation.
pub fn share_out(terms: &AllocationParams, reservation: &Exact, clients: &[Client]) -> Vec<Due> {
    let index_of = class_indices(clients);
    let class_of: Vec<usize> = clients.iter().map(|client| index_of[&key(client)]).collect();
    let mut classes = classes(terms, reservation, clients, &index_of);
    for &class in &class_of {
        classes[class].clients += 1;
    }
    let exact = exact_grants(terms.lending, &classes);
    let rounded: Vec<(u64, u128, u128)> =
        classes.iter().zip(&exact).map(|(class, exact)| (whole(exact), bits(exact), bits(&class.default))).collect();
    let mut dues: Vec<Due> = class_of
        .iter()
        .map(|&class| rounded[class])
        .map(|(records, exact, default_share)| Due { records, exact, default_share })
        .collect();
    hand_out_left_overs(terms, clients, &class_of, &exact, &mut dues);
    dues
}

fn key(client: &Client) -> (u64, Option<u64>) {
    match client.wants {
        Wants::Records(wants) => (client.weight, Some(wants)),
        Wants::DefaultShare => (client.weight, None),
    }
}

fn class_indices(clients: &[Client]) -> BTreeMap<(u64, Option<u64>), usize> {
    let mut indices: BTreeMap<_, _> = clients.iter().map(|client| (key(client), 0)).collect();
    for (index, value) in indices.values_mut().enumerate() {
        *value = index;
    }
    indices
}

fn classes(
    terms: &AllocationParams, reservation: &Exact, clients: &[Client], index_of: &BTreeMap<(u64, Option<u64>), usize>,
) -> Vec<Class> {
    let total = clients.iter().map(|client| u128::from(client.weight)).sum::<u128>();
    index_of
        .keys()
        .map(|&(weight, wants)| {
            let default = exact(terms.capacity) * exact(weight) / exact(total);
            let wants = wants.map_or_else(|| default.clone(), exact);
            let floor = wants.max(reservation * &default);
            Class { weight: exact(weight), clients: 0, default, floor }
        })
        .collect()
}

fn exact_grants(lending: Lending, classes: &[Class]) -> Vec<Exact> {
    let zero = Exact::zero();
    let sum =
        |part: &dyn Fn(&Class) -> Exact| classes.iter().map(|class| part(class) * exact(class.clients)).sum::<Exact>();
    let deficit = sum(&|class| (-class.gap()).max(zero.clone()));
    let surplus = sum(&|class| class.gap().max(zero.clone()));
    let remaining = (&surplus - &deficit).max(zero.clone());
    let loans = match lending {
        Lending::Proportional => proportional_loans(classes, &deficit, &surplus),
        Lending::MaxMin => max_min_loans(classes, &surplus),
    };
    classes
        .iter()
        .zip(loans)
        .map(|(class, loan)| {
            let gap = class.gap();
            if gap.is_positive() { &class.floor + gap / &surplus * &remaining } else { &class.default + loan }
        })
        .collect()
}

fn proportional_loans(classes: &[Class], deficit: &Exact, surplus: &Exact) -> Vec<Exact> {
    classes
        .iter()
        .map(|class| {
            let over = (-class.gap()).max(Exact::zero());
            if over.is_zero() { over } else { over.clone().min(over / deficit * surplus) }
        })
        .collect()
}

/// Raises all loans at the speed of their clients' weights, from one event (the wants of a client are met) to the next.
fn max_min_loans(classes: &[Class], surplus: &Exact) -> Vec<Exact> {
    let over = |class: &Class| (-class.gap()).max(Exact::zero());
    let mut rising: Vec<(Exact, &Class)> = classes.iter().map(|class| (over(class) / &class.weight, class)).collect();
    rising.sort_by(|one, other| one.0.cmp(&other.0));
    let mut speed: Exact = classes.iter().map(|class| &class.weight * exact(class.clients)).sum();
    let (mut level, mut left) = (Exact::zero(), surplus.clone());
    for (met_at, class) in rising {
        let rise = (&met_at - &level).min(&left / &speed);
        left -= &rise * &speed;
        level += rise;
        if level < met_at {
            break;
        }
        speed -= &class.weight * exact(class.clients);
    }
    classes.iter().map(|class| over(class).min(&level * &class.weight)).collect()
}

fn hand_out_left_overs(
    terms: &AllocationParams, clients: &[Client], class_of: &[usize], exact: &[Exact], dues: &mut [Due],
) {
    let left = terms.capacity - dues.iter().map(|due| due.records).sum::<u64>();
    // Comparing rationals is slow, and clients with the same class and credit have the same claim: rank the claims
    // first.
    let kind = |index: usize| (class_of[index], clients[index].credit.to_bits());
    let mut kinds: Vec<_> = (0..clients.len()).map(kind).collect();
    kinds.sort();
    kinds.dedup();
    let claim =
        |&(class, credit): &(usize, i128)| exact[class].fract() + Exact::new(credit.into(), BigInt::one() << 64);
    let mut ranked: Vec<_> = kinds.iter().map(|kind| (claim(kind), *kind)).collect();
    ranked.sort_by(|one, other| other.0.cmp(&one.0));
    let mut rank_of = BTreeMap::new();
    let mut rank = 0;
    for (index, (claim, kind)) in ranked.iter().enumerate() {
        if index > 0 && *claim != ranked[index - 1].0 {
            rank += 1;
        }
        rank_of.insert(*kind, rank);
    }
    let mut order: Vec<usize> = (0..clients.len()).collect();
    order.sort_by_cached_key(|&index| (rank_of[&kind(index)], &clients[index].name));
    for &index in &order[..left as usize] {
        dues[index].records += 1;
    }
}

pub fn exact(number: impl Into<BigInt>) -> Exact {
    Exact::from_integer(number.into())
}

pub fn whole(number: &Exact) -> u64 {
    number.floor().to_integer().to_u64().expect("a grant is at most the capacity")
}

/// Returns the number in 2⁻⁶⁴ records, rounded down.
fn bits(number: &Exact) -> u128 {
    let bits = (number * exact(BigInt::one() << 64)).floor().to_integer();
    bits.to_u128().expect("a grant is at most the capacity")
}

/// Compares all results of an allocation with the oracle.
pub fn check(case: &Case) {
    let grants = case.grants();
    assert_eq!(grants.len(), case.clients.len());
    let dues = allocate(&case.terms, &case.clients);
    for ((client, due), grant) in case.clients.iter().zip(&dues).zip(&grants) {
        let owed = due.exact as i128 - (i128::from(due.records) << 64);
        let credit = (client.credit.to_bits() + owed).clamp(-1 << 126, 1 << 126);
        let expected = Grant {
            records: due.records,
            exact: Fixed::from_bits(due.exact),
            default_share: Fixed::from_bits(due.default_share),
            credit: Credit::from_bits(credit),
        };
        assert_eq!(*grant, expected, "{} wants {:?}", client.name, client.wants);
    }
}

proptest! {
    #![proptest_config(config(6_000))]

    #[test]
    fn every_grant_matches_the_oracle(case in any_case()) {
        check(&case);
    }
}
