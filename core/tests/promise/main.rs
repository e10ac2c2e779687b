//! The throttle's guarantees as laws over random policies and random scripts, in simulated time.
//!
//! - `case.rs`: random policies and scripts, by [`case::Class`]
//! - `world.rs`: the logs, the engine's part and the laws that hold at every step
//! - one file for each law that needs another world

mod case;
mod change;
mod clock;
mod fairness;
mod forecast;
mod limits;
mod lowered;
mod newcomers;
mod own_share;
mod pace;
mod retry;
mod rounds;
mod scripts;
mod shadow;
#[path = "../sim/mod.rs"]
mod sim;
#[path = "../support/mod.rs"]
mod support;
mod world;

use std::fmt::Debug;

use case::Class;
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};

/// Number of cases of each law in each class.
const CASES: [(&str, u32); 17] = [
    ("scripts", 1_800),
    ("tight", 400),
    ("busy", 200),
    ("recall", 200),
    ("shares", 200),
    ("equals", 40),
    ("limit_reject", 300),
    ("limit_shape", 200),
    ("shadow", 300),
    ("retry", 500),
    ("change", 120),
    ("own_share", 1_700),
    ("clock", 1_700),
    ("lowered", 1_700),
    ("rounds", 1_700),
    ("newcomers", 1_700),
    ("forecast", 300),
];

/// Runs a law over random cases of every class.
fn check<S: Strategy<Value: Debug>>(law: &str, cases: impl Fn(Class) -> S, holds: impl Fn(S::Value)) {
    for class in Class::ALL {
        check_class(law, class, &cases, &holds);
    }
}

/// Runs a law over random cases of one class.
fn check_class<S: Strategy<Value: Debug>>(
    law: &str, class: Class, cases: impl Fn(Class) -> S, holds: impl Fn(S::Value),
) {
    let (_, count) = CASES.iter().find(|(name, _)| *name == law).expect("every law has an entry in CASES");
    let regressions = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/promise/proptest-regressions.txt");
    let config = Config {
        cases: std::env::var("PROMISE_CASES").map_or(*count, |text| text.parse().unwrap()),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(regressions))),
        max_shrink_iters: 20_000,
        max_shrink_time: 20_000,
        ..Config::default()
    };
    let outcome = TestRunner::new(config).run(&cases(class), |case| {
        holds(case);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{law}, {class:?}: {error}");
    }
}

/// Each law runs the same number of cases of each class, so the number of classes bounds the part of each.
#[test]
fn there_are_enough_cases_and_enough_of_each_class() {
    let total: u32 = CASES.iter().map(|(_, cases)| cases * Class::ALL.len() as u32).sum();
    assert!(total >= 10_000, "{total}");
    assert!(Class::ALL.len() <= 10, "each class is at least a tenth of all cases");
}
