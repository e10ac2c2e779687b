//! What the throttle does, by example.

mod sim;

use std::time::Duration;

use sim::{Fate, Sim, client, policy};
use watermaster_core::policy::{CatchUp, Limit, Mode, Overflow, Window};
use watermaster_core::reason::Reason;
use watermaster_core::throttle::Sender;

const SECOND: Duration = Duration::from_secs(1);
const AT_ONCE: Fate = Fate::Admitted { waited: Duration::ZERO };

fn names(policy: &mut watermaster_core::policy::Policy, names: &[&str]) {
    policy.clients = names.iter().map(|name| client(name, 1.0, None)).collect();
}

/// The rows of the worked table in docs/algorithm.md: wants, then grants.
fn worked_table() -> Vec<(Vec<u64>, Vec<u64>)> {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/algorithm.md")).unwrap();
    let header = "| cycle | wants A B C D | granted next A B C D |";
    let numbers = |cell: &str| cell.split_whitespace().map(|n| n.parse().unwrap()).collect::<Vec<u64>>();
    let rows = text.lines().skip_while(|line| line.trim() != header).skip(2).take_while(|line| line.starts_with('|'));
    let rows: Vec<_> = rows
        .map(|row| {
            let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
            (numbers(cells[1]), numbers(cells[2]))
        })
        .collect();
    assert!(rows.len() >= 3, "the worked table is in the document");
    rows
}

#[test]
fn the_documents_worked_table_holds_for_any_cycle() {
    const CLIENTS: [&str; 4] = ["A", "B", "C", "D"];
    for cycle in [1, 10, 60].map(Duration::from_secs) {
        for (wants, granted) in worked_table() {
            let mut policy = policy(40, cycle);
            policy.mode = Mode::Reject;
            names(&mut policy, &CLIENTS);
            let mut sim = Sim::new(policy, 4);
            for round in 0..wants.iter().copied().max().unwrap() {
                for (n, name) in CLIENTS.iter().enumerate() {
                    if round < wants[n] {
                        sim.read(name, n as u32);
                    }
                }
            }
            sim.run_until(sim::START + cycle);
            assert_eq!(sim.grants(&CLIENTS), granted, "wants {wants:?}, cycle {cycle:?}");
        }
    }
}

#[test]
fn a_burst_is_delayed_not_dropped_and_paced_at_capacity() {
    let mut sim = Sim::new(policy(100, SECOND), 1);
    for _ in 0..250 {
        sim.read("flood", 0);
    }
    sim.run_for(3 * SECOND);
    assert_eq!(sim.count("flood", |fate| matches!(fate, Fate::Admitted { .. })), 250);
    assert!(sim.most_in_a_window(SECOND) <= 100);
    assert!(sim.most_in_a_window(SECOND) >= 98);
}

#[test]
fn a_recalled_lender_does_not_wait_behind_a_flood() {
    let mut policy = policy(100, SECOND);
    names(&mut policy, &["flood", "lender"]);
    let mut sim = Sim::new(policy, 2);
    for _ in 0..10_000 {
        sim.read("flood", 0);
    }
    sim.run_for(5 * SECOND);
    sim.read("lender", 1);
    sim.run_for(SECOND / 10);
    let waited = sim.lives.values().find(|life| life.client == "lender").unwrap().fate;
    assert!(matches!(waited, Fate::Admitted { waited } if waited <= Duration::from_millis(25)), "{waited:?}");
}

#[test]
fn reject_mode_says_over_allocation_above_the_grant_and_capacity_in_use_below_it() {
    let mut policy = policy(10, SECOND);
    policy.mode = Mode::Reject;
    names(&mut policy, &["busy", "idle"]);
    let mut sim = Sim::new(policy, 2);
    sim.run_for(SECOND);
    for _ in 0..10 {
        sim.read("busy", 0);
    }
    sim.run_for(SECOND + SECOND / 2);
    // It was granted almost everything and uses it.
    let fates: Vec<Fate> = (0..12).map(|_| sim.read("busy", 0)).collect();
    let admitted = fates.iter().filter(|fate| **fate == AT_ONCE).count();
    assert!(admitted >= 9, "{fates:?}");
    assert_eq!(*fates.last().unwrap(), Fate::Rejected(Reason::OverAllocation));
    // The lender is below its share, but the window is full or nearly so.
    let recalled: Vec<Fate> = (0..5).map(|_| sim.read("idle", 1)).collect();
    assert_eq!(*recalled.last().unwrap(), Fate::Rejected(Reason::CapacityInUse));
    sim.run_for(SECOND + SECOND / 50);
    assert_eq!(sim.read("idle", 1), AT_ONCE, "the room comes back as the window frees");
}

#[test]
fn a_fixed_window_begins_anew_at_each_edge_but_the_service_keeps_its_promise() {
    let mut policy = policy(10, SECOND);
    (policy.mode, policy.window) = (Mode::Reject, Window::Fixed);
    names(&mut policy, &["a", "b"]);
    let mut sim = Sim::new(policy, 1);
    sim.run_for(SECOND * 9 / 10);
    let before: Vec<Fate> = (0..6).map(|_| sim.read("a", 0)).collect();
    assert_eq!(before.iter().filter(|fate| **fate == AT_ONCE).count(), 5);
    sim.run_for(SECOND * 2 / 10);
    let after = (0..6).filter(|_| sim.read("a", 0) == AT_ONCE).count();
    assert_eq!(after, 5, "twice the grant around an edge");
    assert!(sim.most_in_a_window(SECOND) <= 10);
}

#[test]
fn what_was_waiting_when_a_partition_came_is_delayed_in_reject_mode() {
    let mut policy = policy(10, SECOND);
    policy.mode = Mode::Reject;
    names(&mut policy, &["a", "b"]);
    for (catch_up, held) in [(CatchUp::Delay, 50), (CatchUp::Reject, 0)] {
        policy.catch_up = catch_up;
        let mut sim = Sim::new(policy.clone(), 1);
        sim.throttle.handle_revoked(0);
        sim.throttle.handle_assigned(sim.now, 0, 0, &watermaster_core::map::Map::default(), 50);
        for _ in 0..50 {
            sim.read("a", 0);
        }
        let rejected = sim.count("a", |fate| matches!(fate, Fate::Rejected(_)));
        assert_eq!(rejected, 50 - held.max(5), "{catch_up:?}");
        sim.run_for(20 * SECOND);
        if catch_up == CatchUp::Delay {
            assert_eq!(sim.count("a", |fate| matches!(fate, Fate::Admitted { .. })), 50);
        }
    }
}

#[test]
fn a_full_queue_turns_the_oldest_of_its_client_away() {
    let mut policy = policy(1, SECOND);
    policy.queue_capacity = 3;
    let mut sim = Sim::new(policy, 1);
    for _ in 0..6 {
        sim.read("a", 0);
    }
    let fates: Vec<Fate> = sim.lives.values().map(|life| life.fate).collect();
    let full = Fate::Rejected(Reason::QueueFull);
    assert_eq!(fates, [AT_ONCE, full, full, Fate::Held, Fate::Held, Fate::Held]);
}

#[test]
fn queue_bytes_are_shed_by_whoever_is_furthest_above_its_share() {
    let mut policy = policy(1, SECOND);
    policy.queue_bytes = 100_000;
    names(&mut policy, &["flood", "modest"]);
    let mut sim = Sim::new(policy, 2);
    for _ in 0..10 {
        sim.read_sized(Sender::Client("modest"), 1, 1_000);
    }
    for _ in 0..500 {
        sim.read_sized(Sender::Client("flood"), 0, 1_000);
    }
    assert_eq!(sim.count("modest", |fate| matches!(fate, Fate::Rejected(_))), 0);
    assert!(sim.throttle.backlog().1 <= 100_000);
    assert!(sim.count("flood", |fate| *fate == Fate::Rejected(Reason::QueueFull)) >= 400);
}

#[test]
fn pausing_loses_nothing_and_resumes_at_half() {
    let mut policy = policy(100, SECOND);
    (policy.queue_capacity, policy.overflow) = (10, Overflow::Pause);
    let mut sim = Sim::new(policy, 1);
    while !sim.paused[0] {
        sim.read("a", 0);
    }
    assert_eq!(sim.throttle.backlog().0, 10);
    while sim.paused[0] {
        sim.run_for(SECOND / 100);
    }
    assert_eq!(sim.throttle.backlog().0, 5);
    assert_eq!(sim.count("a", |fate| matches!(fate, Fate::Rejected(_))), 0);
}

#[test]
fn what_waits_too_long_expires() {
    let mut policy = policy(1, SECOND);
    policy.max_delay = 5 * SECOND / 2;
    let mut sim = Sim::new(policy, 1);
    for _ in 0..6 {
        sim.read("a", 0);
    }
    sim.run_for(10 * SECOND);
    let expired = sim.lives.values().filter(|life| life.fate == Fate::Rejected(Reason::Expired));
    let at: Vec<Duration> = expired.map(|life| life.decided.since(life.read)).collect();
    assert_eq!(at, [5 * SECOND / 2; 3]);
}

#[test]
fn an_own_limit_delays_in_shape_and_rejects_in_reject_and_charges_nobody() {
    let limit = Limit { rate: 2.try_into().unwrap(), per: SECOND, burst: 1.try_into().unwrap() };
    let mut policy = policy(100, SECOND);
    policy.clients = vec![client("slow", 1.0, Some(limit)), client("other", 1.0, None)];
    let mut shaped = Sim::new(policy.clone(), 2);
    for _ in 0..5 {
        shaped.read("slow", 0);
    }
    assert_eq!(shaped.read("other", 1), AT_ONCE, "nobody waits behind a client's own limit");
    shaped.run_for(2 * SECOND);
    assert_eq!(shaped.count("slow", |fate| matches!(fate, Fate::Admitted { .. })), 5);
    policy.mode = Mode::Reject;
    let mut strict = Sim::new(policy, 2);
    assert_eq!(strict.read("slow", 0), AT_ONCE);
    assert_eq!(strict.read("slow", 0), Fate::Rejected(Reason::ClientLimit));
    assert_eq!(strict.throttle.window_admitted(strict.now).0, 1);
}

#[test]
fn passthrough_admits_everything_and_counts_what_would_have_been() {
    let mut policy = policy(10, SECOND);
    policy.enforce = false;
    policy.queue_capacity = 20;
    let mut sim = Sim::new(policy, 1);
    for _ in 0..100 {
        assert_eq!(sim.read("a", 0), AT_ONCE);
    }
    assert_eq!(sim.read_sized(Sender::Anonymous, 0, 10), AT_ONCE);
    sim.run_for(10 * SECOND);
    let client = sim.throttle.client("a").unwrap();
    assert_eq!((client.counts.admitted, client.counts.delayed), (100, 0));
    assert_eq!(client.shadow.rejected.get(Reason::QueueFull), 79);
    assert_eq!(client.shadow.admitted, 21);
    assert_eq!(client.shadow.delayed, 99);
    let (real, shadow) = sim.throttle.unregistered();
    assert_eq!((real.admitted, shadow.rejected.get(Reason::Anonymous)), (1, 1));
    assert_eq!(sim.throttle.window_admitted(sim.now).1, 101);
}

#[test]
fn senders_that_can_not_be_known_are_turned_away() {
    let mut policy = policy(10, SECOND);
    policy.max_clients = 1;
    let mut sim = Sim::new(policy, 1);
    assert_eq!(sim.read_sized(Sender::Anonymous, 0, 1), Fate::Rejected(Reason::Anonymous));
    assert_eq!(sim.read_sized(Sender::NotAllowed("x"), 0, 1), Fate::Rejected(Reason::UnknownClient));
    assert_eq!(sim.read("first", 0), AT_ONCE);
    assert_eq!(sim.read("second", 0), Fate::Rejected(Reason::TooManyClients));
}

#[test]
fn a_restart_does_not_admit_a_second_capacity() {
    let policy = policy(100, SECOND);
    let mut sim = Sim::new(policy.clone(), 2);
    for n in 0..500 {
        sim.read("a", n % 2);
    }
    for _ in 0..20 {
        sim.run_for(Duration::from_millis(130));
        sim.restart(policy.clone());
    }
    sim.run_for(5 * SECOND);
    assert_eq!(sim.count("a", |fate| matches!(fate, Fate::Admitted { .. })), 500);
    assert!(sim.most_in_a_window(SECOND) <= 100, "{}", sim.most_in_a_window(SECOND));
}
