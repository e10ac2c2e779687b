//! An independent allocator: the formulas of `docs/algorithm.md` as written, in rationals. It shares no code with the
//! real one; clients that are alike in all but their names are computed once.

use std::collections::BTreeMap;

use num_bigint::BigInt;
use num_rational::Ratio as Fraction;
use num_traits::{One, Signed, ToPrimitive, Zero};
use proptest::prelude::*;
use watermaster_core::allocator::{Terms, Wants};
use watermaster_core::policy::Lending;

use crate::cases::{Case, Client, any_case, config};

type Exact = Fraction<BigInt>;

/// What the oracle says that a client gets.
#[derive(Debug)]
pub struct Due {
    pub records: BigInt,
    pub exact: Exact,
    pub default_share: Exact,
}

/// What clients with the same weight and wants have in common.
#[derive(Debug)]
struct Class {
    weight: Exact,
    clients: Exact,
    default: Exact,
    floor: Exact,
}

impl Class {
    fn gap(&self) -> Exact {
        &self.default - &self.floor
    }
}

/// Grants by the formulas, in the order of the clients.
pub fn allocate(terms: &Terms, clients: &[Client]) -> Vec<Due> {
    let index_of = class_indices(clients);
    let classes = classes(terms, clients, &index_of);
    let exact = exact_grants(terms.lending, &classes);
    let class = |client: &Client| index_of[&key(client)];
    let mut dues: Vec<Due> = clients
        .iter()
        .map(|client| Due {
            records: exact[class(client)].floor().to_integer(),
            exact: exact[class(client)].clone(),
            default_share: classes[class(client)].default.clone(),
        })
        .collect();
    hand_out_left_overs(terms, clients, &mut dues);
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
    terms: &Terms,
    clients: &[Client],
    index_of: &BTreeMap<(u64, Option<u64>), usize>,
) -> Vec<Class> {
    let total = clients
        .iter()
        .map(|client| u128::from(client.weight))
        .sum::<u128>();
    let reservation = exact(terms.reservation.millionths()) / exact(1_000_000);
    let mut classes: Vec<Class> = index_of
        .keys()
        .map(|&(weight, wants)| {
            let default = exact(terms.capacity) * exact(weight) / exact(total);
            let wants = wants.map_or_else(|| default.clone(), exact);
            let floor = wants.max(&reservation * &default);
            Class {
                weight: exact(weight),
                clients: Exact::zero(),
                default,
                floor,
            }
        })
        .collect();
    for client in clients {
        classes[index_of[&key(client)]].clients += BigInt::one();
    }
    classes
}

fn exact_grants(lending: Lending, classes: &[Class]) -> Vec<Exact> {
    let zero = Exact::zero();
    let sum = |part: &dyn Fn(&Class) -> Exact| {
        classes
            .iter()
            .map(|class| part(class) * &class.clients)
            .sum::<Exact>()
    };
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
            if gap.is_positive() {
                &class.floor + gap / &surplus * &remaining
            } else {
                &class.default + loan
            }
        })
        .collect()
}

fn proportional_loans(classes: &[Class], deficit: &Exact, surplus: &Exact) -> Vec<Exact> {
    classes
        .iter()
        .map(|class| {
            let over = (-class.gap()).max(Exact::zero());
            if over.is_zero() {
                over
            } else {
                over.clone().min(over / deficit * surplus)
            }
        })
        .collect()
}

/// Lets everybody's loan rise at the speed of its weight, from one event (somebody has all that it wants) to the next.
fn max_min_loans(classes: &[Class], surplus: &Exact) -> Vec<Exact> {
    let over = |class: &Class| (-class.gap()).max(Exact::zero());
    let mut rising: Vec<(Exact, &Class)> = classes
        .iter()
        .map(|class| (over(class) / &class.weight, class))
        .collect();
    rising.sort_by(|one, other| one.0.cmp(&other.0));
    let mut speed: Exact = classes
        .iter()
        .map(|class| &class.weight * &class.clients)
        .sum();
    let (mut level, mut left) = (Exact::zero(), surplus.clone());
    for (met_at, class) in rising {
        let rise = (&met_at - &level).min(&left / &speed);
        left -= &rise * &speed;
        level += rise;
        if level < met_at {
            break;
        }
        speed -= &class.weight * &class.clients;
    }
    classes
        .iter()
        .map(|class| over(class).min(&level * &class.weight))
        .collect()
}

fn hand_out_left_overs(terms: &Terms, clients: &[Client], dues: &mut [Due]) {
    let granted: BigInt = dues.iter().map(|due| &due.records).sum();
    let left = BigInt::from(terms.capacity) - granted;
    let claim = |index: usize| {
        let fraction = dues[index].exact.fract();
        fraction + Exact::new(clients[index].credit.to_bits().into(), BigInt::one() << 64)
    };
    // Rationals compare slowly, and a class of clients with one credit has one: rank those first.
    let kind = |index: usize| (key(&clients[index]), clients[index].credit.to_bits());
    let kinds: BTreeMap<_, usize> = (0..clients.len())
        .map(|index| (kind(index), index))
        .collect();
    let mut claims: Vec<Exact> = kinds.values().map(|&index| claim(index)).collect();
    claims.sort();
    claims.dedup();
    let rank_of: BTreeMap<_, usize> = kinds
        .iter()
        .map(|(kind, &index)| {
            (
                *kind,
                claims
                    .binary_search(&claim(index))
                    .expect("it was collected"),
            )
        })
        .collect();
    let mut order: Vec<usize> = (0..clients.len()).collect();
    order.sort_by_key(|&index| {
        (
            std::cmp::Reverse(rank_of[&kind(index)]),
            &clients[index].name,
        )
    });
    for &index in &order[..left.to_usize().expect("fewer left over than clients")] {
        dues[index].records += 1;
    }
}

fn exact(number: impl Into<BigInt>) -> Exact {
    Exact::from_integer(number.into())
}

/// The number in 2⁻⁶⁴ records, rounded down.
fn bits(number: &Exact) -> BigInt {
    (number * exact(BigInt::one() << 64)).floor().to_integer()
}

/// Compares everything that an allocation returns with the oracle.
pub fn check(case: &Case) {
    let grants = case.grants();
    assert_eq!(grants.len(), case.clients.len());
    let dues = allocate(&case.terms, &case.clients);
    for ((client, due), grant) in case.clients.iter().zip(&dues).zip(&grants) {
        let name = &client.name;
        assert_eq!(
            BigInt::from(grant.records),
            due.records,
            "records of {name}"
        );
        assert_eq!(
            BigInt::from(grant.exact.to_bits()),
            bits(&due.exact),
            "exact grant of {name}"
        );
        let default = BigInt::from(grant.default_share.to_bits());
        assert_eq!(default, bits(&due.default_share), "default share of {name}");
        let credit: BigInt =
            BigInt::from(client.credit.to_bits()) + bits(&due.exact) - (&due.records << 64);
        let credit = credit.clamp((-1_i128 << 126).into(), (1_i128 << 126).into());
        assert_eq!(
            BigInt::from(grant.credit.to_bits()),
            credit,
            "credit of {name}"
        );
    }
}

proptest! {
    #![proptest_config(config(6_000))]

    #[test]
    fn every_grant_is_the_oracles(case in any_case()) {
        check(&case);
    }
}
