//! Groups of clients: one share for all of them, which they lend to each other first, and one limit.

mod sim;

use std::num::NonZeroU32;
use std::time::Duration;

use sim::{Fate, Sim, client, granted, policy};
use watermaster_core::policy::{ClientPattern, GroupPolicy, Limit, Mode, Policy, Scope};
use watermaster_core::reason::Reason;
use watermaster_core::throttle::GroupPart;
use watermaster_core::units::Weight;

const SECOND: Duration = Duration::from_secs(1);

fn group(name: &str, clients: &[&str]) -> GroupPolicy {
    let clients = clients.iter().map(|text| ClientPattern::new(text)).collect();
    GroupPolicy { name: name.to_owned(), weight: Weight::ONE, limits: Vec::new(), hold: false, clients }
}

fn limit(rate: u32, per: Duration, burst: u32) -> Option<Limit> {
    Some(Limit { rate: NonZeroU32::new(rate).unwrap(), per, burst: NonZeroU32::new(burst).unwrap() })
}

/// The longest wait of any record of a client that was read after the first seconds; a held one waits still.
fn longest_wait(sim: &Sim, name: &str) -> Duration {
    let settled = sim.lives.values().next().expect("a record").read + 3 * SECOND;
    let lives = sim.lives.values().filter(|life| life.client == name && life.read >= settled);
    let wait = |life: &sim::Life| {
        if life.fate == Fate::Held { sim.now.since(life.read) } else { life.decided.since(life.read) }
    };
    lives.map(wait).max().expect("records of the client")
}

/// Two groups of 100 records a second each. In the first one, `a/flood` sends ten times the capacity beside `a/calm`,
/// which sends 40 % of the group's share; in the other one, `b/one` and `b/two` send their shares.
fn flood(mode: Mode) -> Sim {
    let groups = vec![group("a", &[]), group("b", &[])];
    let mut sim = Sim::new(Policy { mode, groups, names_groups: true, ..policy(200, SECOND) }, 1);
    for step in 0..10_000_u64 {
        for (name, every) in [("a/flood", 1), ("a/calm", 50), ("b/one", 40), ("b/two", 40)] {
            if step % every == 0 {
                sim.read(name, 0);
            }
        }
        sim.run_for(Duration::from_millis(1));
    }
    sim
}

#[test]
fn a_flood_delays_neither_its_siblings_nor_other_groups() {
    let sim = flood(Mode::Shape);
    for name in ["a/calm", "b/one", "b/two"] {
        let wait = longest_wait(&sim, name);
        assert!(wait <= Duration::from_millis(60), "{name} waits for {wait:?}");
    }
    // The flood gets all that the others leave: 200 − 20 − 25 − 25 a second.
    let admitted = sim.count("a/flood", |fate| matches!(fate, Fate::Admitted { .. }));
    assert!((1_200..=1_320).contains(&admitted), "{admitted} admitted");
}

#[test]
fn in_reject_mode_a_flood_has_no_record_of_its_siblings_or_of_other_groups_rejected() {
    let sim = flood(Mode::Reject);
    for name in ["a/calm", "b/one", "b/two"] {
        assert_eq!(sim.count(name, |fate| matches!(fate, Fate::Rejected(_))), 0, "{name}");
    }
    assert!(sim.count("a/flood", |fate| matches!(fate, Fate::Rejected(_))) > 8_000);
}

/// Three clients flood: two of them share one half, however many they are.
#[test]
fn groups_share_by_their_weights_and_not_by_the_number_of_their_clients() {
    let groups = vec![group("a", &["a*"]), group("b", &["b"])];
    let mut sim = Sim::new(Policy { groups, ..policy(200, SECOND) }, 1);
    for _ in 0..5_000 {
        for name in ["a1", "a2", "b"] {
            sim.read(name, 0);
        }
        sim.run_for(Duration::from_millis(1));
    }
    let admitted = |name| sim.count(name, |fate| matches!(fate, Fate::Admitted { .. })) as u64;
    let (a1, a2, b) = (admitted("a1"), admitted("a2"), admitted("b"));
    assert!(a1.abs_diff(a2) <= 20 && (a1 + a2).abs_diff(b) <= 20, "{a1} + {a2}, {b}");
}

/// A token bucket of 10 with 5 a second, for two clients together: 10 go at once, of 2 more 200 ms later one, and 1.2 s
/// later six are back.
#[test]
fn the_limit_of_a_group_holds_for_all_its_clients_together() {
    let mut limited = group("a", &["a*"]);
    limited.limits = limit(5, SECOND, 10).into_iter().collect();
    let mut sim = Sim::new(Policy { mode: Mode::Reject, groups: vec![limited], ..policy(1_000, SECOND) }, 1);
    let send = |sim: &mut Sim, records: u32| {
        let fates = (0..records).map(|number| sim.read(if number % 2 == 0 { "a1" } else { "a2" }, 0));
        fates.filter(|fate| matches!(fate, Fate::Admitted { .. })).count()
    };
    assert_eq!(send(&mut sim, 12), 10);
    assert_eq!(sim.read("other", 0), Fate::Admitted { waited: Duration::ZERO });
    sim.run_for(Duration::from_millis(200));
    assert_eq!(send(&mut sim, 2), 1);
    sim.run_for(Duration::from_millis(1_200));
    assert_eq!(send(&mut sim, 12), 6);
    assert!(sim.count("a1", |fate| *fate == Fate::Rejected(Reason::ClientLimit)) > 0);
}

#[test]
fn a_group_that_waits_for_its_limit_holds_up_no_other_client() {
    let mut limited = group("a", &["a*"]);
    limited.limits = limit(10, SECOND, 1).into_iter().collect();
    let mut sim = Sim::new(Policy { groups: vec![limited], ..policy(200, SECOND) }, 1);
    for step in 0..5_000_u64 {
        sim.read(if step % 2 == 0 { "a1" } else { "a2" }, 0);
        if step % 10 == 0 {
            sim.read("other", 0);
        }
        sim.run_for(Duration::from_millis(1));
    }
    let admitted = |name| sim.count(name, |fate| matches!(fate, Fate::Admitted { .. })) as u64;
    let (a1, a2) = (admitted("a1"), admitted("a2"));
    assert!((48..=51).contains(&(a1 + a2)) && a1.abs_diff(a2) <= 2, "{a1} + {a2} of 10 a second");
    let wait = longest_wait(&sim, "other");
    assert!(wait <= Duration::from_millis(30), "{wait:?}");
}

/// Clients that wait change their groups with a reload: none is lost, and the grants add up.
#[test]
fn a_reload_moves_clients_to_other_groups() {
    let before = Policy { clients: vec![client("listed", 2.0, None)], ..policy(100, SECOND) };
    let mut sim = Sim::new(before.clone(), 1);
    let flood = |sim: &mut Sim| {
        for _ in 0..500 {
            for name in ["a1", "a2", "b", "listed"] {
                sim.read(name, 0);
            }
            sim.run_for(Duration::from_millis(1));
        }
    };
    flood(&mut sim);
    let mut limited = group("b", &["b", "listed"]);
    limited.limits = limit(1, SECOND, 1).into_iter().collect();
    for groups in [vec![group("a", &["a*"])], vec![limited.clone(), group("a", &["a1"])], vec![], vec![limited], vec![]]
    {
        sim.throttle.handle_policy(sim.now, Policy { groups, ..before.clone() });
        sim.act();
        assert_eq!(granted(&sim.throttle), 100);
        flood(&mut sim);
    }
    while sim.lives.values().any(|life| life.fate == Fate::Held) {
        sim.run_for(SECOND);
    }
    assert!(sim.lives.values().all(|life| matches!(life.fate, Fate::Admitted { .. })));
}

/// A member of a group of instances learns its parts with the next split. The bug: until then a new group had no weight,
/// nor had a new configured client. A record of either that went meanwhile put its flow behind all others, and it
/// starved for as long as another client had a backlog.
#[test]
fn a_new_group_and_a_new_client_have_weights_before_the_next_split() {
    let base = Policy { scope: Scope::Group, groups: vec![group("a", &["a"])], ..policy(300, SECOND) };
    let mut sim = Sim::new(base.clone(), 1);
    let until = sim.now + SECOND * 100;
    let part = GroupPart { limit: 300, pace: 300, until, admitted: u64::MAX, rejects: true, ..GroupPart::NONE };
    sim.throttle.handle_part(sim.now, part);
    let flood = |sim: &mut Sim, names: &[&str], milliseconds: u64| {
        for _ in 0..milliseconds {
            for name in names {
                sim.read(name, 0);
            }
            sim.run_for(Duration::from_millis(1));
        }
    };
    flood(&mut sim, &["a", "b"], 500);
    let groups = vec![group("a", &["a"]), group("b", &["b"])];
    sim.throttle.handle_policy(sim.now, Policy { clients: vec![client("c", 1.0, None)], groups, ..base });
    flood(&mut sim, &["a", "b", "c"], 100);
    sim.throttle.handle_parts(sim.now, |_| None, |_| None);
    let admitted =
        |sim: &Sim| ["a", "b", "c"].map(|name| sim.count(name, |fate| matches!(fate, Fate::Admitted { .. })));
    let before = admitted(&sim);
    flood(&mut sim, &["a", "b", "c"], 3_000);
    for (after, before) in admitted(&sim).into_iter().zip(before) {
        assert!((280..=320).contains(&(after - before)), "{:?} after {before:?}", admitted(&sim));
    }
}

#[test]
fn the_group_of_a_client_is_the_one_that_it_names_or_else_the_most_literal_pattern() {
    let groups =
        vec![group("cards", &["card-*", "a*z"]), group("gold", &["card-gold-*", "\\*"]), group("axes", &["a*z"])];
    let of = |policy: &Policy, client: &str| policy.group_of(client).map(|index| policy.groups[index].name.clone());
    let by_pattern = Policy { groups: groups.clone(), ..policy(100, SECOND) };
    for (client, expected) in [
        ("card-1", Some("cards")),
        ("card-gold-1", Some("gold")),
        ("abcz", Some("axes")),
        ("az", Some("axes")),
        ("*", Some("gold")),
        ("x", None),
        ("gold/card-1", None),
    ] {
        assert_eq!(of(&by_pattern, client).as_deref(), expected, "{client}");
    }
    let by_name = Policy { names_groups: true, ..by_pattern };
    for (client, expected) in [("gold/card-1", Some("gold")), ("card-1", Some("cards")), ("none/card-1", None)] {
        assert_eq!(of(&by_name, client).as_deref(), expected, "{client}");
    }
}
