//! The limits of clients and of their groups over three instances: split by demand, they hold for all together.
//!
//! Over any time the instances admit no more than the rate, and a burst for each. In reject mode the demand of random
//! arrivals is estimated anew all the time, and each member knows its own sooner than that of the others: the parts add
//! up to a little more or less than the limit, and a twentieth more is allowed. The limit is used, and the others are
//! not held back by it. `WATERMASTER_TEST_LONG` runs more seeds.

use std::num::NonZeroU32;
use std::time::Duration;

use watermaster_core::policy::{ClientPattern, ClientPolicy, GroupPolicy, Limit, Mode, Policy, Scope};
use watermaster_core::units::{Time, Weight};

use crate::live::Group;
use crate::planted::RuleMistake;
use crate::shares::{poisson, quantile};
use crate::support::random::Random;

const INSTANCES: usize = 3;
/// The first two are limited, the next two in another group, and the last one is in none.
const CLIENTS: [&str; 5] = ["card-a", "card-b", "home-a", "home-b", "other"];
const LIMITED: usize = 2;
const CYCLE: Duration = Duration::from_secs(10);
const CAPACITY: u64 = 2_000;
/// 40 a second: a fifth of the capacity.
const RATE: u32 = 40;
const BURST: u32 = 30;
const STEP: Duration = Duration::from_millis(10);
const WARM_UP: Duration = Duration::from_secs(30);
const LENGTH: Duration = Duration::from_secs(100);

/// Rates of arrivals, in records per second, by instance and client.
type Rates = [[f64; CLIENTS.len()]; INSTANCES];

/// The target of the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// The group of the first two clients.
    Group,
    /// The first client alone.
    Client,
}

fn policy(mode: Mode, target: Target, burst: u32) -> Policy {
    let number = |number| NonZeroU32::new(number).expect("it is not 0");
    let limits = vec![Limit { rate: number(RATE), per: Duration::from_secs(1), burst: number(burst) }];
    let group = |name: &str, limits: Vec<Limit>, pattern: &str| GroupPolicy {
        name: name.to_owned(),
        weight: Weight::ONE,
        limits,
        hold: false,
        clients: vec![ClientPattern::new(pattern)],
    };
    let homes = group("homes", Vec::new(), "home-*");
    let card = |limits| ClientPolicy { name: CLIENTS[0].to_owned(), weight: Weight::ONE, limits };
    let (clients, groups) = match target {
        Target::Group => (Vec::new(), vec![group("cards", limits, "card-*"), homes]),
        Target::Client => (vec![card(limits)], vec![homes]),
    };
    Policy {
        mode,
        scope: Scope::Group,
        clients,
        groups,
        queue_capacity: 1 << 30,
        queue_bytes: 1 << 40,
        max_delay: None,
        ..Policy::new(CAPACITY, CYCLE)
    }
}

const TARGETS: [Target; 2] = [Target::Group, Target::Client];

/// The settings of a run.
#[derive(Debug, Clone, Copy)]
struct Case {
    mode: Mode,
    target: Target,
    /// Each second the instances take another burst over, in turn.
    changes: bool,
    seed: u64,
    mistake: Option<RuleMistake>,
}

/// The figures of a run, after the warm-up.
#[derive(Debug, Default)]
struct Outcome {
    /// The most by which the limited clients exceeded the rate, over any time.
    excess: f64,
    /// The used part of the rate.
    used: f64,
    /// The part of the other clients' records that was admitted, and the 99th percentile of their waits in seconds.
    others: f64,
    waits: f64,
    fullest: u64,
}

/// Runs a group of instances. `rates_at` gives the rates at a time since the warm-up, in seconds.
fn run(case: Case, rates_at: impl Fn(f64) -> Rates) -> Outcome {
    let Case { mode, target, changes, seed, mistake } = case;
    let begin = Time::ZERO + Duration::from_secs(1_000);
    let first = policy(mode, target, BURST);
    let mut group = Group::new(&first, INSTANCES, &CLIENTS, begin, seed);
    for instance in 0..INSTANCES {
        let index = group.start_with(&format!("wm-{instance}"), first.clone(), mistake);
        group.assign(instance, Some(index));
    }
    let mut random = Random::stream(seed, 37);
    let (warm, end) = (begin + WARM_UP, begin + WARM_UP + LENGTH);
    let mut outcome = Outcome::default();
    let (mut debt, mut sent, mut arrived, mut waits, mut steps) = (0.0_f64, 0, 0, Vec::new(), 0);
    while group.now() < end {
        let now = group.now();
        let is_warm = now >= warm;
        let rates = rates_at(now.since(begin).as_secs_f64() - WARM_UP.as_secs_f64());
        for (instance, rates) in rates.iter().enumerate() {
            for (client, rate) in rates.iter().enumerate() {
                let records = poisson(&mut random, rate * STEP.as_secs_f64());
                (0..records).for_each(|_| group.arrive(instance, client));
                arrived += if is_warm && client >= LIMITED { records } else { 0 };
            }
        }
        steps += 1;
        if changes && steps % 33 == 0 {
            let instance = group.instances[steps / 33 % INSTANCES].as_mut().expect("a live instance");
            instance.take_rules(now, &group.params, policy(mode, target, BURST - (steps / 99 % 2) as u32));
        }
        group.step(STEP);
        debt = (debt - f64::from(RATE) * STEP.as_secs_f64()).max(0.0);
        for (client, waited) in group.take_admitted() {
            if client < LIMITED {
                debt += 1.0;
                sent += u64::from(is_warm);
            } else if is_warm {
                waits.push(waited);
            }
        }
        outcome.excess = outcome.excess.max(debt);
    }
    outcome.used = sent as f64 / (f64::from(RATE) * LENGTH.as_secs_f64());
    (outcome.others, outcome.fullest) = (waits.len() as f64 / arrived as f64, group.fullest);
    outcome.waits = quantile(&mut waits, 0.99);
    outcome
}

/// The rates of all clients; the limited ones' are by instance. The others together want 60 % of the capacity, each
/// within its share.
fn rates(target: Target, limited: [f64; INSTANCES]) -> Rates {
    let second = if target == Target::Group { 0.4 } else { 0.0 };
    limited.map(|rate| [rate * (1.0 - second), rate * second, 10.0, 10.0, 20.0])
}

fn seeds() -> std::ops::Range<u64> {
    0..if std::env::var_os("WATERMASTER_TEST_LONG").is_some() { 20 } else { 1 }
}

/// Runs both modes and both targets. `limited_at` gives the rates of the limited clients. In the mean of the seeds, at
/// least `least` of the limit is used; in mode reject 5 % less. There, records that meet no room do not wait, and where the
/// demand moves some come before the parts have followed.
fn check(name: &str, changes: bool, least: f64, limited_at: impl Fn(f64) -> [f64; INSTANCES]) {
    for (mode, target) in [Mode::Shape, Mode::Reject].into_iter().flat_map(|mode| TARGETS.map(|target| (mode, target)))
    {
        let mut all_used = 0.0;
        for seed in seeds() {
            let outcome =
                run(Case { mode, target, changes, seed, mistake: None }, |time| rates(target, limited_at(time)));
            println!("{name}, {mode:?}, {target:?}, seed {seed}: {outcome:?}");
            let Outcome { excess, used, others, waits, fullest } = outcome;
            assert!(fullest <= CAPACITY, "{fullest} records in a window");
            let bursts = f64::from(INSTANCES as u32 * BURST);
            let all = f64::from(RATE) * (WARM_UP + LENGTH).as_secs_f64();
            let most = if mode == Mode::Shape { bursts } else { bursts + all / 20.0 };
            assert!(excess <= most, "{excess} records beyond the rate");
            all_used += used;
            let least = if mode == Mode::Shape { 0.999 } else { 0.965 };
            let most = if mode == Mode::Shape { 1.0 } else { 2.5 };
            assert!(others >= least && waits <= most, "{others} of the others' records, after {waits} s");
        }
        let used = all_used / seeds().count() as f64;
        let least = if mode == Mode::Shape { least } else { least - 0.05 };
        assert!(used >= least, "{used} of the limit is used");
    }
}

#[test]
fn a_limit_holds_over_all_instances_and_is_used() {
    check("even", false, 0.95, |_| [60.0; 3]);
    check("a little more than the limit", false, 0.95, |_| [15.0; 3]);
    check("most at one", false, 0.95, |_| [160.0, 8.0, 8.0]);
    check("all at one", false, 0.95, |_| [160.0, 0.0, 0.0]);
}

/// The parts of members with little demand came on top of those of the others once, up to a quarter of the limit.
#[test]
fn members_with_little_demand_have_no_more_than_their_part_of_a_limit() {
    check("rare at two", false, 0.95, |_| [160.0, 1.0, 1.0]);
}

/// A part that became smaller forgave its debt once, so that a limit was exceeded with each move. And a group that was
/// blocked under a small part stayed blocked for as long as that part took for a record.
#[test]
fn a_limit_holds_while_its_demand_moves_and_is_used() {
    for (period, rate) in [(10.0, 120.0), (3.0, 120.0), (1.0, 450.0)] {
        let at = |time: f64| {
            let mut limited = [1.0; INSTANCES];
            limited[(time.max(0.0) / period) as usize % INSTANCES] = rate;
            limited
        };
        check(&format!("{rate} at one for {period} s"), false, 0.9, at);
    }
}

/// A limit that changed was whole on each instance until the next split.
#[test]
fn a_limit_holds_while_it_changes() {
    check("changes", true, 0.95, |_| [60.0; 3]);
}

#[test]
fn a_limit_that_is_not_split_is_found() {
    for mode in [Mode::Shape, Mode::Reject] {
        let mistake = Some(RuleMistake::LimitNotSplit);
        let case = Case { mode, target: Target::Group, changes: false, seed: 0, mistake };
        let Outcome { excess, .. } = run(case, |_| rates(Target::Group, [60.0; 3]));
        println!("{mode:?}: {excess} records beyond the rate");
        assert!(excess > f64::from(INSTANCES as u32 * BURST), "{excess} records beyond the rate");
    }
}
