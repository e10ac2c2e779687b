//! The grounds of a rejection: the quota that was used up, and the rule behind it.

mod sim;
mod support;

use std::num::NonZeroU32;
use std::{sync::Arc, time::Duration};

use sim::{Fate, START_MS, Sim, policy};
use support::rule::{clients, patterns, rule};
use watermaster_core::policy::{Limit, Mode, Policy};
use watermaster_core::reason::{Grounds, Quota, Reason};
use watermaster_core::rules::{Effects, Origin, Rule, RuleLimit, RuleTarget, Rules};
use watermaster_core::throttle::Sender;

const SECOND: Duration = Duration::from_secs(1);

fn group(name: &str) -> RuleTarget {
    RuleTarget::Groups(patterns(&[name]))
}

/// A rule with limits, each of a rate, a time in seconds and a burst.
fn limits(limits: &[(u32, u64, u32)]) -> Effects {
    let count = |number| NonZeroU32::new(number).unwrap();
    let limit = |&(rate, seconds, burst)| RuleLimit {
        limit: Limit { rate: count(rate), per: Duration::from_secs(seconds), burst: count(burst) },
        scales: false,
    };
    Effects { limits: Some(limits.iter().map(limit).collect()), ..Effects::default() }
}

fn hold() -> Effects {
    Effects { hold: Some(true), ..Effects::default() }
}

fn max_delay(delay: Duration) -> Effects {
    Effects { max_delay: Some(delay), ..Effects::default() }
}

fn with_rules(policy: Policy, rules: Vec<Rule>) -> Policy {
    Policy { rules: Arc::new(Rules::new(rules)), names_groups: true, ..policy }.at(START_MS)
}

/// A service in mode `reject` with a cycle of a second and these rules.
fn reject(capacity: u64, rules: Vec<Rule>) -> Sim {
    Sim::new(with_rules(Policy { mode: Mode::Reject, ..policy(capacity, SECOND) }, rules), 1)
}

/// Reads records of a client until one is rejected; returns the number of the others, the reason and the grounds.
fn until_rejected(sim: &mut Sim, client: &str) -> (usize, Reason, Grounds) {
    for number in 0..10_000 {
        if let Fate::Rejected(reason) = sim.read(client, 0) {
            return (number, reason, sim.grounds.clone());
        }
    }
    panic!("no record of {client} is rejected");
}

fn quota(limit: u64, used: u64, time: Duration) -> Option<Quota> {
    Some(Quota { limit, used, time })
}

fn by_rule(name: &str) -> Grounds {
    Grounds { quota: None, rule: Some(name.into()) }
}

#[test]
fn a_client_beyond_its_grant_is_told_the_grant() {
    let mut sim = reject(100, vec![rule("night", clients(&["other"]), hold())]);
    let grounds = Grounds { quota: quota(100, 100, SECOND), rule: None };
    assert_eq!(until_rejected(&mut sim, "a"), (100, Reason::OverAllocation, grounds));
}

#[test]
fn a_borrower_is_told_its_share_and_what_it_used_beyond() {
    let base = Policy { mode: Mode::Reject, ..policy(100, SECOND) };
    let listed = ["a", "b"].map(|name| sim::client(name, 1.0, None));
    let mut sim = Sim::new(Policy { clients: listed.into(), ..base }, 1);
    // The client "b" usually sends its share: room for it is left for a while after it has stopped.
    for _ in 0..5 {
        (0..50).for_each(|_| _ = ["a", "b"].map(|name| sim.read(name, 0)));
        sim.run_for(SECOND * 11 / 10);
    }
    (0..200).for_each(|_| _ = sim.read("a", 0));
    sim.run_for(SECOND * 11 / 10);
    let (admitted, reason, grounds) = until_rejected(&mut sim, "a");
    assert_eq!(reason, Reason::CapacityInUse);
    assert!((51..=90).contains(&admitted), "{admitted}");
    assert_eq!(grounds, Grounds { quota: quota(50, admitted as u64, SECOND), rule: None });
}

/// The limit with the latest room, of the group before the client's own. The burst and the time in which it returns
/// are a rate.
#[test]
fn a_client_beyond_a_limit_is_told_the_limit_and_its_rule() {
    let rules = || {
        vec![
            rule("client.a", clients(&["a"]), limits(&[(10, 1, 10), (100, 60, 5)])),
            rule("each", clients(&["g/*"]), limits(&[(1, 2, 3)])),
            rule("group.g", group("g"), limits(&[(8, 1, 4)])),
        ]
    };
    let mut sim = reject(1_000, rules());
    let grounds = |quota, rule: &str| Grounds { quota, rule: Some(rule.into()) };
    let own = grounds(quota(5, 5, SECOND * 3), "client.a");
    assert_eq!(until_rejected(&mut sim, "a"), (5, Reason::ClientLimit, own));
    let own = grounds(quota(3, 3, SECOND * 6), "each");
    assert_eq!(until_rejected(&mut sim, "g/x"), (3, Reason::ClientLimit, own));
    let of_group = grounds(quota(4, 4, SECOND / 2), "group.g");
    assert_eq!(until_rejected(&mut sim, "g/y"), (1, Reason::ClientLimit, of_group));

    let name = "of-run-time";
    let later = Rule { origin: Origin::RunTime, ..rule(name, clients(&["a"]), limits(&[(2, 1, 2)])) };
    let mut sim = reject(1_000, rules().into_iter().chain([later]).collect());
    assert_eq!(until_rejected(&mut sim, "a"), (2, Reason::ClientLimit, grounds(quota(2, 2, SECOND), name)));
}

#[test]
fn a_held_client_is_told_the_rule() {
    let all = rule("all-go", clients(&["g/*"]), Effects { hold: Some(false), ..Effects::default() });
    let rules = vec![rule("night", group("g"), hold()), all, rule("one", clients(&["a"]), hold())];
    let mut sim = reject(1_000, rules);
    assert_eq!(until_rejected(&mut sim, "a"), (0, Reason::Held, by_rule("one")));
    assert_eq!(until_rejected(&mut sim, "g/x"), (0, Reason::Held, by_rule("night")));
}

/// Records that expire for another reason name no rule: the service's `max_delay`, a rule that expires all records
/// before a time, or a rule that is gone or sets another delay by now.
#[test]
fn an_expired_record_names_the_rule_with_its_delay() {
    let base = || Policy { max_delay: Some(SECOND * 4), ..policy(1, SECOND) };
    let short = |delay| rule("short", clients(&["a"]), max_delay(delay));
    let first_grounds = |later: Option<Vec<Rule>>, client: &str| {
        let mut sim = Sim::new(with_rules(base(), vec![short(SECOND * 2)]), 1);
        (0..10).for_each(|_| _ = sim.read(client, 0));
        if let Some(rules) = later {
            sim.throttle.handle_rules(sim.now, with_rules(base(), rules));
        }
        for _ in 0..50 {
            sim.run_for(SECOND / 10);
            if sim.count(client, |fate| *fate == Fate::Rejected(Reason::Expired)) > 0 {
                return sim.grounds;
            }
        }
        panic!("no record expires");
    };
    assert_eq!(first_grounds(None, "a"), by_rule("short"));
    assert_eq!(first_grounds(None, "b"), Grounds::default());
    assert_eq!(first_grounds(Some(vec![short(SECOND)]), "a"), Grounds::default());
    let other = || rule("other", clients(&["c"]), hold());
    assert_eq!(first_grounds(Some(vec![other()]), "a"), Grounds::default());
    let expire = Effects { expire_before_ms: Some(START_MS + 1), ..Effects::default() };
    let rules = vec![short(SECOND * 2), rule("empty", clients(&["a"]), expire)];
    let mut sim = Sim::new(with_rules(base(), vec![short(SECOND * 2)]), 1);
    (0..10).for_each(|_| _ = sim.read("a", 0));
    sim.run_for(SECOND / 10);
    let later = Policy { rules: Arc::new(Rules::new(rules)), names_groups: true, ..base() }.at(START_MS + 100);
    sim.throttle.handle_rules(sim.now, later);
    sim.act();
    assert!(sim.count("a", |fate| *fate == Fate::Rejected(Reason::Expired)) > 0);
    assert_eq!(sim.grounds, Grounds::default());
}

#[test]
fn other_reasons_have_no_grounds() {
    let mut sim = Sim::new(Policy { queue_capacity: 2, ..policy(1, SECOND) }, 1);
    for client in ["a", "a", "a", "b", "a"] {
        sim.read(client, 0);
    }
    assert_eq!(sim.count("a", |fate| *fate == Fate::Rejected(Reason::QueueFull)), 1);
    assert_eq!(sim.grounds, Grounds::default());
    assert_eq!(sim.read_sized(Sender::Anonymous, 0, 1), Fate::Rejected(Reason::Anonymous));
    assert_eq!(sim.grounds, Grounds::default());
}
