//! The waits of clients within their shares beside a flood, by the form of the traffic:
//! `cargo test --release -p watermaster-core --test group waits -- --ignored --nocapture`.

use std::time::Duration;

use watermaster_core::policy::Policy;

use crate::fairness::run;
use crate::shares::{Admitted, CLIENTS, Delays, Rates, WARM_UP, quantile};

/// The form of the traffic. Client `card` floods with three times the capacity after the warm-up.
struct Traffic {
    name: &'static str,
    /// The rates, in capacities per cycle, by the number of instances and the time in cycles.
    rates: fn(usize, f64) -> Rates,
    /// The clients within their shares.
    polite: &'static [usize],
    cycles: u32,
}

const TRAFFIC: [Traffic; 5] = [
    Traffic { name: "even", rates: even, polite: &[0, 2, 3], cycles: 8 },
    Traffic { name: "one", rates: one, polite: &[0, 2, 3], cycles: 8 },
    Traffic { name: "skew", rates: skew, polite: &[0, 2, 3], cycles: 8 },
    Traffic { name: "recall", rates: recall, polite: &[0, 2], cycles: 1 },
    Traffic { name: "recall by one", rates: recall_by_one, polite: &[0, 2], cycles: 1 },
];

fn after_warm_up(cycles: f64, before: f64, after: f64) -> f64 {
    if cycles < f64::from(WARM_UP) { before } else { after }
}

/// All clients send to all instances.
fn even(instances: usize, cycles: f64) -> Rates {
    let card = after_warm_up(cycles, 0.3, 3.0);
    vec![[0.1, card, 0.2, 0.22].map(|rate| rate / instances as f64); instances]
}

/// Client `home` sends to the last instance only.
fn one(instances: usize, cycles: f64) -> Rates {
    let mut rates = even(instances, cycles);
    rates.iter_mut().for_each(|of| of[2] = 0.0);
    rates[instances - 1][2] = 0.2;
    rates
}

/// The flood comes in at the first instance, and client `personal` sends mostly to the second one.
fn skew(instances: usize, cycles: f64) -> Rates {
    let mut rates = vec![[0.0, 0.0, 0.2 / instances as f64, 0.0]; instances];
    rates[0][1] = after_warm_up(cycles, 0.3, 3.0);
    rates[1 % instances][0] = 0.1;
    let weight = |instance: usize| 0.5_f64.powi(instance as i32);
    let sum: f64 = (0..instances).map(weight).sum();
    (0..instances).for_each(|instance| rates[(instance + 1) % instances][3] = 0.22 * weight(instance) / sum);
    rates
}

/// Client `home` begins when the flood has all, at all instances.
fn recall(instances: usize, cycles: f64) -> Rates {
    let home = after_warm_up(cycles, 0.0, 0.2);
    vec![[0.1, 3.0, home, 0.0].map(|rate| rate / instances as f64); instances]
}

/// Client `home` begins when the flood has all, at an instance without any demand.
fn recall_by_one(instances: usize, cycles: f64) -> Rates {
    let mut rates = vec![[0.1, 3.0, 0.0, 0.0].map(|rate| rate / (instances - 1) as f64); instances];
    rates[instances - 1] = [0.0, 0.0, after_warm_up(cycles, 0.0, 0.2), 0.0];
    rates
}

/// A member that had never held its small target took a later rise of the target for the one of its start. It paced its
/// records as if the hold had grown long ago: the client waited for 3.3 s, and 78 % of the capacity was used (in one of 60
/// seeds, the fourth).
#[test]
fn a_client_that_comes_back_at_an_idle_instance_hardly_waits() {
    let policy = Policy { max_delay: None, ..Policy::new(2_000, Duration::from_secs(10)) };
    let rates = |cycles: f64| {
        let rates = recall_by_one(10, cycles).into_iter();
        rates.map(|of| of.map(|rate| rate * 2_000.0)).collect()
    };
    for seed in 0..6 {
        let mut admitted = run(&policy, rates, 1, seed);
        let used = Admitted::counts(&admitted.group).iter().sum::<u64>();
        let waited = quantile(&mut admitted.group[2], 0.99);
        println!("seed {seed}: {used} of 2000 used, p99 {waited:.2} s");
        assert!(used >= 1_860 && waited <= 1.0, "seed {seed}: {used} of 2000 used, p99 {waited:.2} s");
    }
}

#[test]
#[ignore = "a table of measurements"]
fn waits() {
    for (capacity, cycle, instances) in
        [(800, 2, 3), (2_000, 10, 3), (20_000, 60, 3), (2_000, 10, 10), (20_000, 10, 10)]
    {
        for traffic in &TRAFFIC {
            let policy = Policy {
                queue_capacity: 1 << 30,
                queue_bytes: 1 << 40,
                ..Policy::new(capacity, Duration::from_secs(cycle))
            };
            let policy = Policy { max_delay: None, ..policy };
            let rates = |cycles: f64| {
                let rates = (traffic.rates)(instances, cycles).into_iter();
                rates.map(|of| of.map(|rate| rate * capacity as f64)).collect()
            };
            let mut runs: Vec<Admitted> = (0..3).map(|seed| run(&policy, rates, traffic.cycles, seed)).collect();
            let all = (capacity * u64::from(traffic.cycles)) as f64;
            let used = |delays: &Delays| Admitted::counts(delays).iter().sum::<u64>() as f64 / all;
            let least_used = runs.iter().map(|run| used(&run.group)).fold(f64::MAX, f64::min);
            let alone = runs.iter().map(|run| used(&run.single)).fold(f64::MAX, f64::min);
            print!("{:<13} {capacity:>6}/{cycle:<2} x{instances:<2} used {least_used:.3} ({alone:.3})", traffic.name);
            for &client in traffic.polite {
                let p99 =
                    |delays: &mut Vec<Duration>| if delays.is_empty() { f64::NAN } else { quantile(delays, 0.99) };
                let group = runs.iter_mut().map(|run| p99(&mut run.group[client])).fold(0.0, f64::max);
                let single = runs.iter_mut().map(|run| p99(&mut run.single[client])).fold(0.0, f64::max);
                print!(", {} {group:.2} ({single:.2})", CLIENTS[client]);
            }
            println!();
            assert!(runs.iter().all(|run| run.fullest <= capacity));
        }
    }
}
