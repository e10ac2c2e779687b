//! One record's decision, all that follows from it included: its cycle's share of edges and allocations, its admission from
//! the backlog if it was delayed.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use watermaster_core::map::{Map, MapBudget};
use watermaster_core::policy::{CatchUp, Lending, Mode, Overflow, Policy, Window};
use watermaster_core::throttle::{Arrival, Sender, Throttle};
use watermaster_core::units::{Ratio, Time, Weight};

const CLIENTS: [usize; 3] = [10, 1_000, 100_000];
const CYCLE: Duration = Duration::from_secs(1);
/// Two records of somebody come every so often: a hundredth less than the capacity of the paced case.
const STEP: Duration = Duration::from_nanos(2_020);

fn decision(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decision");
    group.throughput(Throughput::Elements(2));
    for clients in CLIENTS {
        let cases = [
            ("shape/nothing delayed", policy(Mode::Shape, 100_000_000, clients)),
            ("shape/half delayed", policy(Mode::Shape, 1_000_000, clients)),
            ("reject/nothing rejected", policy(Mode::Reject, 100_000_000, clients)),
            ("reject/half rejected", policy(Mode::Reject, 500_000, clients)),
        ];
        for (name, policy) in cases {
            let mut service = Service::new(policy, clients);
            group.bench_function(BenchmarkId::new(name, clients), |bencher| bencher.iter(|| service.step()));
        }
    }
    group.finish();
}

fn policy(mode: Mode, capacity: u64, clients: usize) -> Policy {
    Policy {
        capacity,
        cycle: CYCLE,
        reservation: Ratio::from_millionths(100_000).expect("a tenth is a ratio"),
        lending: Lending::Proportional,
        mode,
        enforce: true,
        window: Window::Sliding,
        catch_up: CatchUp::Delay,
        max_clients: clients,
        unlisted_weight: Weight::ONE,
        client_idle_timeout: CYCLE * 1_000_000,
        clients: Vec::new(),
        queue_capacity: 10_000,
        queue_bytes: 256 << 20,
        max_delay: CYCLE * 60,
        overflow: Overflow::DeadLetter,
        burst: Ratio::ZERO,
        // So that the bucket is a record deep, and the second of two records waits.
        commit_interval: Duration::from_nanos(1),
        map_budget: MapBudget::default(),
    }
}

/// A service that two records reach at a time, from clients in random order.
struct Service {
    throttle: Throttle,
    names: Vec<String>,
    random: u64,
    now: Time,
    offset: i64,
}

impl Service {
    /// All clients are known, and a few cycles have passed.
    fn new(policy: Policy, clients: usize) -> Service {
        let now = Time::from_nanos(1_700_000_000_000_000_000);
        let mut throttle = Throttle::new(policy, now);
        throttle.handle_assigned(now, 0, 0, &Map::default(), 0);
        let names = (0..clients).map(|client| format!("client-{client:08}")).collect();
        let mut service = Service { throttle, names, random: 1, now, offset: 0 };
        for client in 0..clients {
            service.send(client);
            service.pass(STEP);
        }
        for _ in 0..3 {
            service.pass(CYCLE);
        }
        service
    }

    fn step(&mut self) {
        for _ in 0..2 {
            // Xorshift: cheap beside what is measured.
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            self.send((self.random >> 20) as usize % self.names.len());
        }
        self.pass(STEP / 2);
        self.pass(STEP / 2);
    }

    fn send(&mut self, client: usize) {
        let sender = Sender::Client(&self.names[client]);
        let arrival = Arrival { partition: 0, offset: self.offset, bytes: 256, sender };
        self.offset += 1;
        black_box(self.throttle.handle_record(self.now, &arrival));
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.throttle.handle_timeout(self.now);
        while let Some(action) = self.throttle.poll_action(self.now) {
            black_box(action);
        }
    }
}

criterion_group!(benches, decision);
criterion_main!(benches);
