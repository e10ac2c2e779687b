//! One allocation: everyday claims, claims at the ends of the ranges, and equal claims (all tied).

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use watermaster_core::allocator::{AllocationParams, Allocator, Claim, Credit, MAX_WEIGHT, Wants};
use watermaster_core::policy::Lending;
use watermaster_core::units::{MAX_CAPACITY, Ratio};

const SIZES: [usize; 3] = [10, 1_000, 100_000];
const LENDINGS: [(&str, Lending); 2] = [("proportional", Lending::Proportional), ("max_min", Lending::MaxMin)];

/// A client's weight, wants and credit.
type Made = (u64, u64, Credit);

fn allocation(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("allocation");
    for (lending_name, lending) in LENDINGS {
        for size in SIZES {
            let capacity = 37 * size as u64;
            measure(&mut group, format!("everyday/{lending_name}"), size, capacity, lending, everyday);
        }
        measure(&mut group, format!("extreme/{lending_name}"), 100_000, MAX_CAPACITY, lending, extreme);
        measure(&mut group, format!("equal/{lending_name}"), 100_000, 50_000, lending, equal);
    }
    group.finish();
}

fn measure(
    group: &mut criterion::BenchmarkGroup<'_, criterion::measurement::WallTime>, name: String, size: usize,
    capacity: u64, lending: Lending, make: fn(&mut dyn FnMut() -> u64) -> Made,
) {
    let mut random = random_numbers();
    let names: Vec<String> = (0..size).map(|_| format!("client-{:016x}", random())).collect();
    let mut claim = || {
        let (weight, wants, credit) = make(&mut random);
        Claim { weight, wants: Wants::Records(wants), credit }
    };
    let claims: Vec<Claim> = (0..size).map(|_| claim()).collect();
    let reservation = Ratio::from_millionths(100_000).expect("a tenth is a ratio");
    let terms = AllocationParams { capacity, reservation, lending };
    let (mut allocator, mut grants) = (Allocator::default(), Vec::new());
    group.bench_function(BenchmarkId::new(name, size), |bencher| {
        bencher.iter(|| allocator.allocate(&terms, black_box(&claims), |index| &names[index], &mut grants));
    });
}

/// Generates claims with a few weights, wants around the default share, some floods, credits below a record.
fn everyday(random: &mut dyn FnMut() -> u64) -> Made {
    let weight = [1_000, 1_000, 1_000, 1_500, 2_000][random() as usize % 5];
    let wants = if random().is_multiple_of(20) { random() % 10_000 } else { random() % 70 };
    (weight, wants, Credit::from_bits(i128::from(random() as i64)))
}

/// Generates claims with any weight and wants up to 2⁶³: the widest arithmetic.
fn extreme(random: &mut dyn FnMut() -> u64) -> Made {
    let wants = if random().is_multiple_of(2) { random() >> 1 } else { 0 };
    (1 + random() % MAX_WEIGHT, wants, Credit::from_bits(i128::from(random() as i64)))
}

fn equal(_: &mut dyn FnMut() -> u64) -> Made {
    (1_000, 1, Credit::ZERO)
}

/// Returns a SplitMix64 generator: the same claims in every run.
fn random_numbers() -> impl FnMut() -> u64 {
    let mut state = 0_u64;
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

criterion_group!(benches, allocation);
criterion_main!(benches);
