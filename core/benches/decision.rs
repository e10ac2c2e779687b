//! The decision of a record, its departure from the backlog if it was delayed, and the end of a cycle.
//!
//! The figures are means over all operations. On a busy machine the medians of `count` (`benches/workload/count.rs`)
//! are more accurate, and instruction counts are most accurate.

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
                    // All batches but the last have the same size.
                    each.iter().sum::<std::time::Duration>().mul_f64(iterations as f64 / each.len() as f64)
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, decision);
criterion_main!(benches);
