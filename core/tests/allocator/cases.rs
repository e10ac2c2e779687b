//! Random allocations: often at the ends of the ranges, and often nearly tied.

use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, TestRunner};
use proptest::{collection::vec, sample::select, strategy::ValueTree};
use watermaster_core::allocator::{AllocationParams, Allocator, Claim, Credit, Grant, MAX_WEIGHT, Wants};
use watermaster_core::policy::Lending;
use watermaster_core::units::{MAX_CAPACITY, Ratio};

/// A client of a test case.
#[derive(Debug, Clone, PartialEq)]
pub struct Client {
    pub name: String,
    pub weight: u64,
    pub wants: Wants,
    pub credit: Credit,
}

/// The input of one allocation.
#[derive(Debug, Clone)]
pub struct Case {
    pub terms: AllocationParams,
    pub clients: Vec<Client>,
}

impl Case {
    pub fn grants(&self) -> Vec<Grant> {
        let mut grants = Vec::new();
        self.allocate(&mut Allocator::default(), &mut grants);
        grants
    }

    pub fn allocate(&self, allocator: &mut Allocator, grants: &mut Vec<Grant>) {
        let claim = |client: &Client| Claim { weight: client.weight, wants: client.wants, credit: client.credit };
        let claims: Vec<Claim> = self.clients.iter().map(claim).collect();
        allocator.allocate(&self.terms, &claims, |index| &self.clients[index].name, grants);
    }
}

/// Returns the settings of all properties: the number of cases, and a file for failures beside the tests.
pub fn config(cases: u32) -> ProptestConfig {
    let kept = FileFailurePersistence::Direct("tests/allocator/proptest-regressions.txt");
    ProptestConfig { failure_persistence: Some(Box::new(kept)), ..ProptestConfig::with_cases(cases) }
}

/// Generates any allocation. Clients come in up to twelve kinds, so that a thousand of them shrink quickly and many
/// are tied.
pub fn any_case() -> impl Strategy<Value = Case> {
    let lending = select(vec![Lending::Proportional, Lending::MaxMin]);
    (any_kinds(), any_size(), any_capacity(), any_reservation(), lending).prop_map(
        |(kinds, size, capacity, reservation, lending)| {
            let count = size.clients(kinds.len());
            let terms = AllocationParams { capacity: capacity.records(count), reservation, lending };
            Case { terms, clients: clients(&kinds, count, terms.capacity) }
        },
    )
}

/// A weight, wants and a credit.
type Kind = (u64, AnyWants, Credit);

#[derive(Debug, Clone, Copy)]
enum AnyWants {
    Wants(Wants),
    /// Thousandths of the default share: slightly more or less than it.
    Thousandths(u64),
}

#[derive(Debug, Clone, Copy)]
enum Size {
    /// Number of clients of each kind.
    OfEach(usize),
    InAll(usize),
}

#[derive(Debug, Clone, Copy)]
enum Capacity {
    Records(u64),
    /// Fewer records than clients.
    Scarce(usize),
}

impl Size {
    fn clients(self, kinds: usize) -> usize {
        match self {
            Size::OfEach(count) => count * kinds,
            Size::InAll(count) => count,
        }
    }
}

impl Capacity {
    fn records(self, clients: usize) -> u64 {
        match self {
            Capacity::Records(records) => records,
            Capacity::Scarce(seed) => 1 + (seed % clients.saturating_sub(1).max(1)) as u64,
        }
    }
}

fn clients(kinds: &[Kind], count: usize, capacity: u64) -> Vec<Client> {
    let kinds = || kinds.iter().cycle().take(count);
    let total: u128 = kinds().map(|kind| u128::from(kind.0)).sum();
    kinds()
        .enumerate()
        .map(|(index, &(weight, wants, credit))| {
            // 7919 is prime: all names differ, and their order is independent of the order of the clients.
            let name = format!("c{}", index * 7919 % count.max(1));
            let default = u128::from(capacity) * u128::from(weight) / total;
            let wants = match wants {
                AnyWants::Wants(wants) => wants,
                AnyWants::Thousandths(part) => Wants::Records((default * u128::from(part) / 1_000) as u64),
            };
            Client { name, weight, wants, credit }
        })
        .collect()
}

fn any_kinds() -> impl Strategy<Value = Vec<Kind>> {
    let few = select(vec![500, 1_000, 1_100, 1_300, 1_500, 2_300, 3_000]);
    let any = prop_oneof![Just(1), Just(MAX_WEIGHT), 1..=MAX_WEIGHT];
    let far_apart = kinds(prop_oneof![Just(1_000_000_000), 1..=1_000_000_000_u64], 2).prop_map(|mut kinds| {
        kinds[0].0 = 1;
        kinds[1].0 = kinds[1].0.max(1_000_000);
        kinds
    });
    prop_oneof![3 => kinds(Just(1_000), 1), 4 => kinds(few, 1), 3 => far_apart, 1 => kinds(any, 1)]
}

fn kinds(weight: impl Strategy<Value = u64>, least: usize) -> impl Strategy<Value = Vec<Kind>> {
    vec((weight, any_wants(), any_credit()), least..=12)
}

fn any_wants() -> impl Strategy<Value = AnyWants> {
    let records = |range| (range as std::ops::RangeInclusive<u64>).prop_map(Wants::Records);
    prop_oneof![
        4 => records(0..=60).prop_map(AnyWants::Wants),
        6 => (0..=2_000_u64).prop_map(AnyWants::Thousandths),
        2 => Just(AnyWants::Thousandths(1_000)),
        2 => records(0..=2 * MAX_CAPACITY).prop_map(AnyWants::Wants),
        1 => records(1 << 62..=1 << 63).prop_map(AnyWants::Wants),
        1 => Just(AnyWants::Wants(Wants::DefaultShare)),
    ]
}

fn any_credit() -> impl Strategy<Value = Credit> {
    let record = 1_i128 << 64;
    prop_oneof![
        6 => Just(0),
        3 => -record..=record,
        1 => select(vec![-record, record / 2, record, 3 * record, i128::MIN, i128::MAX]),
    ]
    .prop_map(Credit::from_bits)
}

fn any_size() -> impl Strategy<Value = Size> {
    prop_oneof![
        6 => Just(Size::OfEach(1)),
        1 => (2..=30_usize).prop_map(Size::OfEach),
        1 => (1_000..=1_100_usize).prop_map(Size::InAll),
    ]
}

fn any_capacity() -> impl Strategy<Value = Capacity> {
    prop_oneof![
        2 => any::<usize>().prop_map(Capacity::Scarce),
        3 => (1..=200_u64).prop_map(Capacity::Records),
        2 => (1..=100_000_u64).prop_map(Capacity::Records),
        1 => (1..=MAX_CAPACITY).prop_map(Capacity::Records),
        1 => Just(Capacity::Records(MAX_CAPACITY)),
    ]
}

fn any_reservation() -> impl Strategy<Value = Ratio> {
    let millionths = prop_oneof![
        1 => Just(0),
        1 => Just(1_000_000),
        1 => select(vec![100_000, 200_000, 500_000, 333_333]),
        2 => 0..=1_000_000_u32,
    ];
    millionths
        .prop_map(|millionths| Ratio::from_millionths(millionths).expect("a ratio is at most a million millionths"))
}

/// Checks that the strategy generates enough hard cases.
#[test]
fn at_least_a_tenth_of_the_cases_are_hard_in_each_way() {
    const SAMPLES: usize = 4_000;
    type Way = (&'static str, fn(&Case) -> bool);
    let hard: [Way; 7] = [
        ("more clients than capacity", |case| case.clients.len() as u64 > case.terms.capacity),
        ("reservation 0", |case| case.terms.reservation == Ratio::ZERO),
        ("reservation 1", |case| case.terms.reservation == Ratio::ONE),
        ("weights 1 : 10^6", |case| {
            let weights = || case.clients.iter().map(|client| client.weight);
            weights().max().map(|most| most / 1_000_000) >= weights().min()
        }),
        ("1 000 clients", |case| case.clients.len() >= 1_000),
        ("wants of 2^62", |case| {
            case.clients.iter().any(|client| matches!(client.wants, Wants::Records(wants) if wants >= 1 << 62))
        }),
        ("a newcomer", |case| case.clients.iter().any(|client| client.wants == Wants::DefaultShare)),
    ];
    let mut counts = [0; 7];
    let mut runner = TestRunner::deterministic();
    for _ in 0..SAMPLES {
        let case = any_case().new_tree(&mut runner).expect("the strategy filters no value").current();
        for (count, (_, is_hard)) in counts.iter_mut().zip(hard) {
            *count += usize::from(is_hard(&case));
        }
    }
    for (count, (name, _)) in counts.into_iter().zip(hard) {
        assert!(count * 10 >= SAMPLES, "{name}: only {count} of {SAMPLES} cases");
    }
}
