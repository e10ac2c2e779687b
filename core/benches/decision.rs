//! One record's decision by itself, its departure from the backlog if it was delayed, and a cycle's edge.
//!
//! Means over all that ran: on a machine that does other things too, the medians of `count`
//! (`benches/workload/count.rs`) say more, and instructions most.

#[allow(dead_code, reason = "the binary `count` uses the rest")]
mod workload;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use workload::{Case, Service};

const CLIENTS: [usize; 4] = [16, 1_000, 100_000, 1_000_000];

fn decision(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decision");
    for (name, case) in Case::ALL {
        for clients in CLIENTS {
            let mut service = Service::new(case, clients);
            group.bench_function(BenchmarkId::new(name, clients), |bencher| {
                bencher.iter_custom(|iterations| {
                    let each = service.run(iterations);
                    // Batches are of one size but for the last.
                    each.iter().sum::<std::time::Duration>().mul_f64(iterations as f64 / each.len() as f64)
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, decision);
criterion_main!(benches);
