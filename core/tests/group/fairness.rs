//! Real throttles in a group, beside a single one with the same arrivals: the capacity holds over the group, hardly any
//! of it is wasted, and each client gets the share that it would get from one instance.

use std::time::Duration;

use watermaster_core::policy::{Policy, Scope};
use watermaster_core::units::Time;

use crate::live::Group;
use crate::shares::{Admitted, CLIENTS, Delays, Rates, WARM_UP, poisson};
use crate::support::random::Random;

/// The part of the capacity that is used at least under saturating demand.
pub const LEAST_USED: f64 = 0.96;
const STEP: Duration = Duration::from_millis(10);
/// `rates_at` gives the rates at a time in cycles. The instances are up before the warm-up begins.
pub fn run(policy: &Policy, rates_at: impl Fn(f64) -> Rates, cycles: u32, seed: u64) -> Admitted {
    let begin = Time::ZERO + Duration::from_secs(1_000);
    let instances = rates_at(0.0).len();
    let mut group = Group::new(policy, instances, &CLIENTS, begin, seed);
    let mut single = Group::new(policy, instances, &CLIENTS, begin, seed);
    let alone = single.start("single", Scope::Instance);
    for instance in 0..instances {
        let index = group.start(&format!("wm-{instance}"), Scope::Group);
        group.assign(instance, Some(index));
        single.assign(instance, Some(alone));
    }
    let start = begin + Duration::from_secs(10);
    let warm = start + policy.cycle * WARM_UP;
    let end = warm + policy.cycle * cycles;
    let mut random = Random::stream(seed, 21);
    let mut admitted =
        Admitted { group: Delays::default(), single: Delays::default(), fullest: 0, rejected: Vec::new() };
    let steps = policy.cycle.as_secs_f64() / STEP.as_secs_f64();
    while group.now() < end {
        let now = group.now();
        let rates = rates_at(now.since(start).as_secs_f64() / policy.cycle.as_secs_f64());
        for (instance, rates) in rates.iter().enumerate().filter(|_| now >= start) {
            for (client, rate) in rates.iter().enumerate() {
                for _ in 0..poisson(&mut random, rate / steps) {
                    group.arrive(instance, client);
                    single.arrive(instance, client);
                }
            }
        }
        group.step(STEP);
        single.step(STEP);
        for (admitted, group) in [(&mut admitted.group, &mut group), (&mut admitted.single, &mut single)] {
            let all = group.take_admitted().into_iter().filter(|_| now >= warm);
            all.for_each(|(client, waited)| admitted[client].push(waited));
        }
    }
    admitted.fullest = group.fullest;
    admitted.rejected = group.rejected;
    admitted
}
