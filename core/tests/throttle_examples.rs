//! Examples of the throttle's behaviour.

mod sim;

use std::time::Duration;

use sim::{Fate, Sim, client, policy, unregistered};
use watermaster_core::offset_map::{MAX_SPAN, MapBudget, OffsetMap, TopicTag};
use watermaster_core::policy::{CatchUp, Lending, Limit, Mode, Overflow, Policy, Scope, Window};
use watermaster_core::throttle::{Action, Arrival, GroupPart, Growth, Sender, Throttle, Verdict};
use watermaster_core::units::{Ratio, Time};
use watermaster_core::{offset_runs::OffsetRuns, reason::Reason};

const SECOND: Duration = Duration::from_secs(1);
const AT_ONCE: Fate = Fate::Admitted { waited: Duration::ZERO };

fn names(policy: &mut watermaster_core::policy::Policy, names: &[&str]) {
    policy.clients = names.iter().map(|name| client(name, 1.0, None)).collect();
}

/// Reads the rows of the worked table in docs/algorithm.md: wants, then grants.
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
    assert!(rows.len() >= 3, "docs/algorithm.md lacks the worked table");
    rows
}

#[test]
fn the_worked_table_of_the_document_holds_for_any_cycle() {
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

/// A record each 50 ms goes, after four at once; a commit interval has 100 ms.
#[test]
fn waits_of_one_commit_interval_or_more_are_delays_of_the_client() {
    let mut sim = Sim::new(policy(200, 10 * SECOND), 1);
    for _ in 0..8 {
        sim.read("A", 0);
    }
    sim.run_for(Duration::from_millis(30));
    let client = sim.throttle.client("A").unwrap();
    assert_eq!(sim.throttle.oldest_of(client, sim.now), Duration::from_millis(30));
    assert_eq!((client.admitted_in_cycle(), client.last_admitted, client.backlog().0), (4, 0, 4));
    sim.run_for(SECOND);
    let client = sim.throttle.client("A").unwrap();
    assert_eq!(sim.throttle.oldest_of(client, sim.now), Duration::ZERO);
    let delays = client.counts.delays;
    // After the burst of four, the pace is 197 in a cycle: the records go after 51, 102, 152 and 203 ms.
    assert_eq!((client.counts.delayed, delays.counts[0], delays.counts[1]), (4, 0, 3), "51 ms is no delay");
    assert_eq!((delays.sum / 1_000, delays.longest / 1_000), (456, 203));
    sim.run_for(10 * SECOND);
    let client = sim.throttle.client("A").unwrap();
    assert_eq!((client.admitted_in_cycle(), client.last_admitted), (0, 8));
    assert_eq!(sim.throttle.clients().newcomers, 1);
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
fn in_reject_mode_a_lender_waits_for_its_share_and_a_borrower_is_rejected() {
    let mut policy = policy(10, SECOND);
    policy.mode = Mode::Reject;
    names(&mut policy, &["busy", "idle"]);
    let mut sim = Sim::new(policy, 2);
    sim.run_for(SECOND);
    for _ in 0..10 {
        sim.read("busy", 0);
    }
    sim.run_for(SECOND + SECOND / 2);
    // Client "busy" is granted nearly all of the capacity and uses it.
    let fates: Vec<Fate> = (0..12).map(|_| sim.read("busy", 0)).collect();
    let admitted = fates.iter().filter(|fate| **fate == AT_ONCE).count();
    assert!(admitted >= 9, "{fates:?}");
    assert_eq!(*fates.last().unwrap(), Fate::Rejected(Reason::OverAllocation));
    // The lender is below its share, but the window is full or nearly so: the last of its records waits.
    let recalled: Vec<Fate> = (0..5).map(|_| sim.read("idle", 1)).collect();
    assert_eq!(*recalled.last().unwrap(), Fate::Held);
    sim.run_for(SECOND + SECOND / 50);
    assert_eq!(sim.count("idle", |fate| matches!(fate, Fate::Admitted { .. })), 5, "old admissions left the window");
}

#[test]
fn a_fixed_window_restarts_each_cycle_but_no_window_exceeds_the_capacity() {
    let mut policy = policy(10, SECOND);
    (policy.mode, policy.window) = (Mode::Reject, Window::Fixed);
    names(&mut policy, &["a", "b"]);
    let mut sim = Sim::new(policy, 1);
    sim.run_for(SECOND * 9 / 10);
    let before: Vec<Fate> = (0..6).map(|_| sim.read("a", 0)).collect();
    assert_eq!(before.iter().filter(|fate| **fate == AT_ONCE).count(), 5);
    sim.run_for(SECOND * 2 / 10);
    let after = (0..6).filter(|_| sim.read("a", 0) == AT_ONCE).count();
    assert_eq!(after, 5, "twice the grant around the end of a cycle");
    assert!(sim.most_in_a_window(SECOND) <= 10);
}

#[test]
fn records_unread_at_the_assignment_are_delayed_in_reject_mode() {
    let mut policy = policy(10, SECOND);
    policy.mode = Mode::Reject;
    names(&mut policy, &["a", "b"]);
    for (catch_up, held) in [(CatchUp::Delay, 50), (CatchUp::Reject, 0)] {
        policy.catch_up = catch_up;
        let mut sim = Sim::new(policy.clone(), 1);
        sim.throttle.handle_revoked(0);
        sim.throttle.handle_assigned(sim.now, 0, 0, &watermaster_core::offset_map::OffsetMap::default(), 50);
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
fn a_full_backlog_evicts_the_oldest_record_of_its_client() {
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
fn excess_bytes_are_evicted_from_the_client_furthest_above_its_share() {
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
fn pausing_rejects_no_record_and_resumes_at_half() {
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
fn records_delayed_too_long_expire() {
    let mut policy = policy(1, SECOND);
    policy.max_delay = Some(5 * SECOND / 2);
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
fn a_client_limit_delays_in_shape_mode_rejects_in_reject_mode_and_delays_no_other_client() {
    let limit = Limit { rate: 2.try_into().unwrap(), per: SECOND, burst: 1.try_into().unwrap() };
    let mut policy = policy(100, SECOND);
    policy.clients = vec![client("slow", 1.0, Some(limit)), client("other", 1.0, None)];
    let mut shaped = Sim::new(policy.clone(), 2);
    for _ in 0..5 {
        shaped.read("slow", 0);
    }
    assert_eq!(shaped.read("other", 1), AT_ONCE, "a client limit delays no other client");
    shaped.run_for(2 * SECOND);
    assert_eq!(shaped.count("slow", |fate| matches!(fate, Fate::Admitted { .. })), 5);
    policy.mode = Mode::Reject;
    let mut strict = Sim::new(policy, 2);
    assert_eq!(strict.read("slow", 0), AT_ONCE);
    assert_eq!(strict.read("slow", 0), Fate::Rejected(Reason::ClientLimit));
    assert_eq!(strict.throttle.window_admitted(strict.now).0, 1);
}

#[test]
fn shadow_mode_admits_all_records_and_counts_enforced_decisions() {
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
    let (real, shadow) = unregistered(&sim.throttle);
    assert_eq!((real.admitted, shadow.rejected.get(Reason::Anonymous)), (1, 1));
    assert_eq!(sim.throttle.window_admitted(sim.now).1, 101);
}

/// A record with more headers than are read cannot be forwarded unchanged: not in shadow mode either, nor when the
/// capacity is used up.
#[test]
fn an_oversized_record_is_undeliverable_in_every_mode() {
    for (mode, enforce) in [(Mode::Shape, true), (Mode::Reject, true), (Mode::Shape, false), (Mode::Reject, false)] {
        let mut policy = policy(1, SECOND);
        (policy.mode, policy.enforce) = (mode, enforce);
        let mut sim = Sim::new(policy, 1);
        let undeliverable = Fate::Rejected(Reason::Undeliverable);
        assert_eq!(sim.read_sized(Sender::Oversized, 0, 1), undeliverable, "{mode:?} {enforce}");
        sim.read("a", 0);
        sim.read("a", 0);
        assert_eq!(sim.read_sized(Sender::Oversized, 0, 1), undeliverable, "{mode:?} {enforce}");
        let (real, shadow) = unregistered(&sim.throttle);
        let counted = [real, shadow].map(|counts| (counts.admitted, counts.rejected.get(Reason::Undeliverable)));
        assert_eq!(counted, [(0, 2), (0, 0)], "{mode:?} {enforce}");
        let left = if enforce && mode == Mode::Shape { 2 } else { 4 };
        assert_eq!(sim.throttle.ledger().partition(0).unwrap().base, left, "{mode:?} {enforce}");
    }
}

#[test]
fn unknown_senders_are_rejected() {
    let mut policy = policy(10, SECOND);
    policy.max_clients = 1;
    let mut sim = Sim::new(policy, 1);
    assert_eq!(sim.read_sized(Sender::Anonymous, 0, 1), Fate::Rejected(Reason::Anonymous));
    assert_eq!(sim.read_sized(Sender::NotAllowed("x"), 0, 1), Fate::Rejected(Reason::UnknownClient));
    assert_eq!(sim.read("first", 0), AT_ONCE);
    assert_eq!(sim.read("second", 0), Fate::Rejected(Reason::TooManyClients));
}

/// The bug: ids that were used once kept all other ids out until client_idle_timeout had passed.
#[test]
fn a_full_registry_forgets_the_unlisted_client_that_has_been_idle_longest() {
    let mut policy = policy(10, SECOND);
    policy.max_clients = 4;
    names(&mut policy, &["configured"]);
    let mut sim = Sim::new(policy, 1);
    assert_eq!(sim.read("first", 0), AT_ONCE);
    sim.run_for(SECOND / 2);
    assert_eq!(sim.read("second", 0), AT_ONCE);
    for _ in 0..60 {
        sim.read("busy", 0);
    }
    sim.run_for(SECOND);
    assert_eq!(sim.read("too-early", 0), Fate::Rejected(Reason::TooManyClients), "no client was idle for two cycles");
    sim.run_for(SECOND);
    assert_ne!(sim.read("third", 0), Fate::Rejected(Reason::TooManyClients));
    let known = |sim: &Sim, name: &str| sim.throttle.client(name).is_some();
    assert!(!known(&sim, "first"), "client \"first\" was idle longest");
    assert!(known(&sim, "second") && known(&sim, "configured"));
    sim.run_for(SECOND);
    assert!(sim.throttle.client("busy").unwrap().backlog().0 > 0);
    assert_ne!(sim.read("fourth", 0), Fate::Rejected(Reason::TooManyClients));
    assert!(!known(&sim, "second") && known(&sim, "busy"), "a client with a backlog stays");
    let granted: u64 = sim.throttle.clients().iter().map(|(_, client)| client.grant.records).sum();
    assert!(granted > 0 && sim.throttle.clients().len() == 4, "{granted}");
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

/// The bug: a process that started before its wall clock was set, or that was suspended, wrote admissions that looked
/// too old, and its successor admitted a second capacity. The same happened if the clock of the successor was set late.
#[test]
fn a_wrong_clock_at_the_start_does_not_admit_a_second_capacity() {
    let policy = policy(100, SECOND);
    let wall = |at: Duration| (Time::ZERO + Duration::from_secs(1_700_000_000) + at).as_nanos() as i64 / 1_000_000;
    let hours = Duration::from_secs(7_200);
    // The start times of the two processes by their own clocks.
    let clocks = [(hours, hours * 3), (hours * 3, hours)];
    for (mine, successors) in clocks {
        let admit = |throttle: &mut Throttle, now: Time, from: i64| {
            let arrival =
                |offset| Arrival { partition: 0, offset, bytes: 1, sender: Sender::Client("a"), written_ms: None };
            for offset in from..from + 200 {
                throttle.handle_record(now, &arrival(offset));
            }
            let mut now = now;
            for _ in 0..20 {
                now = now + SECOND / 100;
                while throttle.poll_action(now).is_some() {}
            }
            throttle.client("a").unwrap().counts.admitted
        };
        let mut first = Throttle::new(Policy { burst: Ratio::ONE, ..policy.clone() }, Time::ZERO + mine);
        first.handle_assigned(Time::ZERO + mine, 0, 0, &OffsetMap::default(), 0);
        assert_eq!(admit(&mut first, Time::ZERO + mine, 0), 100);
        let now = Time::ZERO + mine + SECOND / 5;
        first.handle_wall_clock(now, wall(SECOND / 5));
        let (base, text) = first.commit_without(now, 0, &[]).unwrap();
        let map = watermaster_core::offset_map::decode(base, text.as_bytes()).unwrap();

        let start = Time::ZERO + successors;
        let mut second = Throttle::new(Policy { burst: Ratio::ONE, ..policy.clone() }, start);
        second.handle_wall_clock(start, wall(SECOND / 2));
        second.handle_assigned(start, 0, base, &map, 200);
        assert_eq!(admit(&mut second, start, base), 0, "{mine:?}, then {successors:?}");
        assert_eq!(second.window_admitted(start + SECOND / 5).0, 100);
        assert_eq!(second.window_admitted(start + SECOND / 2 + SECOND / 50).0, 0, "one cycle after the admissions");
    }
}

#[test]
fn a_full_map_waits_for_its_first_record_instead_of_exceeding_its_budget() {
    // Reject mode: records unread at the assignment are delayed, later ones are admitted before them.
    let mut policy = policy(40, SECOND);
    (policy.mode, policy.map_budget) = (Mode::Reject, MapBudget::Chars(40));
    names(&mut policy, &["behind", "ahead", "newcomer"]);
    let mut sim = Sim::new(policy, 1);
    sim.throttle.handle_fetch_gap(0, 200);
    for n in 0..2_000 {
        match n % 3 {
            0 => sim.read("behind", 0),
            1 => sim.read(if n < 200 { "ahead" } else { "newcomer" }, 0),
            _ => sim.read_sized(Sender::Anonymous, 0, 1),
        };
        sim.assert_the_map_fits(0);
    }
    sim.run_for(100 * SECOND);
    assert_eq!(sim.throttle.backlog().0, 0, "records are stuck in the backlog");
    assert!(!sim.paused[0]);
}

#[test]
fn records_completed_behind_a_delayed_one_count_as_read() {
    let mut policy = policy(40, SECOND);
    names(&mut policy, &["flood", "other"]);
    let mut sim = Sim::new(policy, 1);
    for _ in 0..100 {
        sim.read("flood", 0);
    }
    for _ in 0..5 {
        assert_eq!(sim.read("other", 0), Fate::Held);
    }
    sim.run_for(SECOND);
    let view = sim.throttle.ledger().partition(0).unwrap();
    assert_eq!(
        sim.count("other", |fate| matches!(fate, Fate::Admitted { .. })),
        5,
        "admissions of \"other\" behind the flood"
    );
    assert_eq!((view.next, view.held), (105, 65));
    assert_eq!(view.next - view.base, 65 + 5, "the lag, although all records are read");
}

#[test]
fn anonymous_records_wait_for_a_full_map_under_overflow_pause() {
    let mut policy = policy(1, SECOND);
    (policy.overflow, policy.map_budget) = (Overflow::Pause, MapBudget::Chars(40));
    let mut sim = Sim::new(policy, 1);
    for _ in 0..200 {
        sim.read("slow", 0);
        sim.read_sized(Sender::Anonymous, 0, 1);
        sim.assert_the_map_fits(0);
    }
    assert!(sim.paused[0]);
    sim.run_for(250 * SECOND);
    assert_eq!(sim.count("", |fate| *fate == Fate::Rejected(Reason::Anonymous)), 200);
    assert_eq!(sim.count("slow", |fate| matches!(fate, Fate::Admitted { .. })), 200);
    assert!(!sim.paused[0]);
}

#[test]
fn a_full_backlog_makes_room_in_the_map_before_it_evicts() {
    let mut policy = policy(1, SECOND);
    (policy.queue_capacity, policy.map_budget) = (3, MapBudget::Chars(40));
    names(&mut policy, &["patient", "flood", "other"]);
    let mut sim = Sim::new(policy, 1);
    for n in 0..3_000 {
        sim.read(["patient", "flood", "flood", "other", "flood"][n * n % 5], 0);
        sim.assert_the_map_fits(0);
    }
}

#[test]
fn the_smallest_map_budget_holds_the_recent_admissions() {
    let mut policy = policy(1_000, SECOND);
    policy.map_budget = MapBudget::Bytes(64);
    let mut sim = Sim::new(policy.clone(), 1);
    for _ in 0..3_000 {
        sim.read("a", 0);
    }
    for _ in 0..10 {
        sim.run_for(Duration::from_millis(170));
        sim.restart(policy.clone());
    }
    sim.run_for(5 * SECOND);
    assert_eq!(sim.count("a", |fate| matches!(fate, Fate::Admitted { .. })), 3_000);
    assert!(sim.most_in_a_window(SECOND) <= 1_000);
}

/// The bug: a reload that lowered a bound put all excess records into one round, which never ended in time.
#[test]
fn a_full_round_leaves_evictions_to_the_next_one() {
    let before = policy(1, SECOND);
    let mut throttle = Throttle::new(before.clone(), sim::START);
    throttle.handle_assigned(sim::START, 0, 0, &OffsetMap::default(), 0);
    for offset in 0..1_000 {
        let sender = Sender::Client("a");
        throttle.handle_record(sim::START, &Arrival { partition: 0, offset, bytes: 1, sender, written_ms: None });
    }
    throttle.handle_policy(sim::START, Policy { queue_capacity: 10, ..before });
    let round = |throttle: &mut Throttle| {
        let actions = std::iter::from_fn(|| throttle.poll_action(sim::START)).take(100);
        let evicted = actions.filter(|action| matches!(action, Action::Reject { .. })).count();
        (evicted, throttle.commit_without(sim::START, 0, &[]).unwrap().0)
    };
    assert_eq!(throttle.commit_without(sim::START, 0, &[]).unwrap().0, 1, "a record outside the round is completed");
    assert_eq!(round(&mut throttle), (100, 101));
    assert_eq!(round(&mut throttle), (100, 201));
    assert_eq!(throttle.poll_timeout(sim::START), sim::START, "the next evictions are due at once");
    let rest: usize = std::iter::repeat_with(|| round(&mut throttle).0).take_while(|evicted| *evicted > 0).sum();
    assert_eq!((rest, throttle.backlog().0), (789, 10));
}

/// The bug: a client that only a typing error had named kept its share for `client_idle_timeout` after the error was
/// mended.
#[test]
fn a_client_without_records_is_forgotten_with_its_table() {
    let mended = Policy { clients: vec![client("a", 1.0, None)], ..policy(100, SECOND) };
    let wrong = [client("a", 1.0, None), client("b", 1.0, None), client("typo", 2.0, None)].to_vec();
    let mut sim = Sim::new(Policy { clients: wrong, ..mended.clone() }, 1);
    sim.read("a", 0);
    sim.read("b", 0);
    sim.run_for(SECOND);
    sim.throttle.handle_policy(sim.now, mended);
    sim.run_for(SECOND);
    let known = ["a", "b", "typo"].map(|name| sim.throttle.client(name).is_some());
    assert_eq!(known, [true, true, false], "a client with counts stays");
}

/// The bug: while a whole surplus was evicted in rounds of ten thousand records, no record was decided for seconds, and
/// a client within its share was rejected as queue_full.
#[test]
fn a_surplus_is_evicted_in_steps_and_new_records_one_for_one() {
    let before = policy(100, SECOND);
    let mut sim = Sim::new(before.clone(), 1);
    for _ in 0..5_000 {
        sim.read("flood", 0);
    }
    sim.throttle.handle_policy(sim.now, Policy { queue_capacity: 10, ..before });
    let full = |sim: &Sim| sim.count("flood", |fate| *fate == Fate::Rejected(Reason::QueueFull));
    sim.act();
    assert_eq!(full(&sim), 1_000, "evicted at once");
    for _ in 0..7 {
        sim.read("flood", 0);
    }
    assert_eq!(full(&sim), 1_007, "one eviction for each new record");
    sim.run_for(SECOND / 100);
    assert_eq!(full(&sim), 2_007, "evicted a commit interval later");
    // A late call evicts no more records than one in time.
    sim.now = sim.now + SECOND;
    sim.act();
    assert_eq!(full(&sim), 3_007);
    sim.run_for(SECOND / 10);
    assert!(sim.throttle.backlog().0 <= 10);
}

#[test]
fn a_cycle_grants_nothing_to_evicted_clients() {
    let mut policy = policy(10, SECOND);
    policy.client_idle_timeout = 2 * SECOND;
    let mut sim = Sim::new(policy, 1);
    sim.read("gone", 0);
    for _ in 0..40 {
        sim.run_for(SECOND / 10);
        sim.read("here", 0);
        let granted: u64 = sim.throttle.clients().iter().map(|(_, client)| client.grant.records).sum();
        assert!(granted >= 10, "{granted}");
    }
    assert!(sim.throttle.client("gone").is_none());
}

#[test]
fn wants_equal_to_the_surplus_are_met() {
    for lending in [Lending::Proportional, Lending::MaxMin] {
        let mut policy = policy(13, SECOND);
        (policy.mode, policy.lending, policy.reservation) = (Mode::Reject, lending, Ratio::ZERO);
        names(&mut policy, &["busy", "idle"]);
        let mut sim = Sim::new(policy, 1);
        for _ in 0..13 {
            sim.read("busy", 0);
        }
        sim.run_for(SECOND);
        assert_eq!(sim.grants(&["busy", "idle"]), [13, 0]);
    }
}

#[test]
fn retry_after_of_a_former_borrower_is_when_enough_admissions_have_left_the_window() {
    let mut policy = policy(40, SECOND);
    (policy.mode, policy.reservation) = (Mode::Reject, Ratio::ZERO);
    names(&mut policy, &["borrower", "lender"]);
    let mut throttle = Throttle::new(policy, sim::START);
    throttle.handle_assigned(sim::START, 0, 0, &OffsetMap::default(), 0);
    let mut offset = -1;
    let mut send = |client: &str, millis: u64, records: u64| {
        let now = sim::START + Duration::from_millis(millis);
        let mut verdict = Verdict::Skip;
        for _ in 0..records {
            offset += 1;
            let sender = Sender::Client(client);
            verdict =
                throttle.handle_record(now, &Arrival { partition: 0, offset, bytes: 1, sender, written_ms: None });
        }
        verdict
    };
    send("borrower", 0, 40);
    assert!(matches!(send("borrower", 1_200, 10), Verdict::Admit(_)));
    assert!(matches!(send("borrower", 1_600, 28), Verdict::Admit(_)));
    send("lender", 1_700, 40);
    // The borrower's grant is 20 again and it has used 38: the ten records of 1.2 s are not enough, those of 1.6 s are.
    let Verdict::Reject(rejection) = send("borrower", 2_100, 1) else {
        panic!("the borrower has used more than its grant")
    };
    assert_eq!(rejection.reason, Reason::OverAllocation);
    assert_eq!(rejection.retry_after, Duration::from_millis(2_600 - 2_100));
}

#[test]
fn a_map_filled_by_a_former_owner_does_not_pause_its_partition_for_ever() {
    let mut policy = policy(1, SECOND);
    (policy.overflow, policy.map_budget) = (Overflow::Pause, MapBudget::Chars(40));
    let mut throttle = Throttle::new(policy.clone(), sim::START);
    throttle.handle_assigned(sim::START, 0, 0, &OffsetMap::default(), 0);
    // Every other offset is completed, so that more than three quarters of the budget are used.
    let mut completed = OffsetRuns::new();
    (1..200).step_by(2).for_each(|offset| completed.push(offset..offset + 1));
    throttle.handle_revoked(0);
    throttle.handle_assigned(sim::START, 0, 0, &OffsetMap { completed, ..OffsetMap::default() }, 0);
    let mut now = sim::START;
    let mut paused = false;
    for offset in (0..200).step_by(2) {
        let sender = Sender::Client("a");
        throttle.handle_record(now, &Arrival { partition: 0, offset, bytes: 1, sender, written_ms: None });
        for _ in 0..30 {
            throttle.handle_timeout(now);
            while let Some(action) = throttle.poll_action(now) {
                match action {
                    Action::Pause { .. } => paused = true,
                    Action::Resume { .. } => paused = false,
                    Action::Admit { .. } | Action::Reject { .. } => {}
                }
            }
            now = now + SECOND / 10;
        }
        assert!(!paused, "paused at {offset}");
    }
}

#[test]
fn an_undone_decision_is_not_counted_but_stays_charged() {
    let mut policy = policy(10, SECOND);
    names(&mut policy, &["a"]);
    let mut sim = Sim::new(policy, 1);
    assert_eq!(sim.read("a", 0), AT_ONCE);
    sim.read_sized(Sender::Anonymous, 0, 1);
    sim.throttle.handle_revoked(0);
    sim.throttle.handle_undone(Some("a"), None);
    sim.throttle.handle_undone(None, Some(Reason::Anonymous));
    assert_eq!(sim.throttle.client("a").unwrap().counts.admitted, 0);
    assert_eq!(unregistered(&sim.throttle).0.rejected.total(), 0);
    assert_eq!(sim.throttle.window_admitted(sim.now).0, 1);
}

/// Without this commit, the committed offset of an idle partition stays before the end of its log.
#[test]
fn an_offset_that_moves_only_over_holes_is_committed() {
    let mut throttle = Throttle::new(policy(10, SECOND), sim::START);
    let mut completed = OffsetRuns::default();
    completed.push(6..8);
    throttle.handle_assigned(sim::START, 0, 5, &OffsetMap { completed, ..OffsetMap::default() }, 8);
    // Offset 5 turns out to be a hole.
    let arrival = Arrival { partition: 0, offset: 6, bytes: 100, sender: Sender::Client("a"), written_ms: None };
    assert_eq!(throttle.handle_record(sim::START, &arrival), Verdict::Skip);
    assert_eq!(throttle.touched().collect::<Vec<_>>(), [0]);
    assert_eq!(throttle.commit_without(sim::START, 0, &[]).unwrap().0, 8);
}

/// The bug: a rejected record that waited for room in the map named the client that had its client's index by then, and
/// a record of a client that was never registered named none. Its grounds are those of the rejection, too.
#[test]
fn a_pending_rejection_names_its_client() {
    let mut policy = Policy { mode: Mode::Reject, max_clients: 3, ..policy(1, SECOND) };
    policy.map_budget = MapBudget::Chars(40);
    let mut throttle = Throttle::new(policy, sim::START);
    throttle.handle_assigned(sim::START, 0, 0, &OffsetMap::default(), 2);
    let far = 10 + MAX_SPAN as i64;
    let senders = [
        (0, Sender::Client("first")),
        (1, Sender::Client("first")),
        (far, Sender::Client("tenant")),
        (far + 1, Sender::Client("tenant")),
        (far + 2, Sender::NotAllowed("stranger")),
    ];
    for (offset, sender) in senders {
        throttle.handle_record(sim::START, &Arrival { partition: 0, offset, bytes: 1, sender, written_ms: None });
    }
    // The client "tenant" is idle long enough for a new client to replace it.
    let later = sim::START + SECOND * 3;
    throttle.handle_assigned(later, 1, 0, &OffsetMap::default(), 0);
    for (offset, sender) in [(0, Sender::Client("other")), (1, Sender::Client("another"))] {
        throttle.handle_record(later, &Arrival { partition: 1, offset, bytes: 1, sender, written_ms: None });
    }
    assert!(throttle.client("tenant").is_none(), "the idle client was evicted");
    let (mut names, mut used) = (Vec::new(), Vec::new());
    for seconds in 3..20 {
        throttle.handle_timeout(sim::START + SECOND * seconds);
        while let Some(action) = throttle.poll_action(sim::START + SECOND * seconds) {
            if let Action::Reject { offset, name, .. } = action
                && offset >= far
            {
                names.push(name);
                used.push(throttle.take_grounds().quota.map(|quota| (quota.limit, quota.used)));
            }
        }
    }
    let names: Vec<&str> = names.iter().map(|name| name.as_deref().unwrap_or("")).collect();
    assert_eq!(names, ["tenant", "tenant", "stranger"]);
    assert_eq!(used, [Some((0, 0)), Some((0, 0)), None], "at the time of the rejection");
}

/// A pending rejection that waits for room in the map is in no client's backlog. After a change from reject to shape
/// mode, room is made by evicting records from backlogs, not pending rejections.
#[test]
fn a_pending_rejection_survives_a_change_to_shape_mode() {
    let reject = Policy { mode: Mode::Reject, ..policy(1, SECOND) };
    let mut sim = Sim::new(reject.clone(), 1);
    assert_eq!(sim.read("a", 0), AT_ONCE);
    sim.throttle.handle_fetch_gap(0, 2);
    assert_eq!(sim.read("a", 0), Fate::Held, "the record is catching up, and the window is full");
    let far = 10 + MAX_SPAN as i64;
    assert_eq!(sim.reread(Sender::Client("b"), 0, far, 1), Fate::Held, "rejected, but beyond the span of a map");
    sim.throttle.handle_policy(sim.now, Policy { mode: Mode::Shape, ..reject });
    assert_eq!(sim.reread(Sender::Anonymous, 0, far + 1, 1), Fate::Rejected(Reason::Anonymous));
    assert_eq!(sim.lives[&(0, 1)].fate, Fate::Rejected(Reason::QueueFull));
    assert_eq!(sim.lives[&(0, far)].fate, Fate::Rejected(Reason::OverAllocation));
    assert!(sim.throttle.commit_without(sim.now, 0, &[]).is_ok());
}

/// The bug: a member without a part of the group's capacity told its senders to come back after 528 years. The header
/// says 0 for a time that is unknown.
#[test]
fn an_instance_that_holds_nothing_knows_no_time_for_a_retry() {
    let mut policy = policy(40, SECOND);
    (policy.mode, policy.scope, policy.catch_up) = (Mode::Reject, Scope::Group, CatchUp::Reject);
    names(&mut policy, &["A"]);
    let now = sim::START;
    let mut throttle = Throttle::new(policy, now);
    throttle.handle_assigned(now, 0, 0, &OffsetMap::default(), 1);
    throttle
        .handle_part(now, GroupPart { until: now + SECOND * 10, admitted: u64::MAX, rejects: true, ..GroupPart::NONE });
    let arrival = Arrival { partition: 0, offset: 0, bytes: 1, sender: Sender::Client("A"), written_ms: None };
    // Within its share, a record waits for the window: for one cycle, and then it is rejected.
    assert!(matches!(throttle.handle_record(now, &arrival), Verdict::Delay(_)));
    let mut due = now;
    let action = loop {
        match throttle.poll_action(due) {
            Some(action) => break action,
            None => due = throttle.poll_timeout(due),
        }
        throttle.handle_timeout(due);
    };
    let Action::Reject { rejection, .. } = action else { panic!("{action:?}") };
    assert_eq!((rejection.reason, rejection.retry_after), (Reason::CapacityInUse, Duration::ZERO));
    assert!(due > now + SECOND && due < now + SECOND * 11 / 10, "{due:?}");
}

/// The bug: records within shares that waited for room in the window of reject mode still went first after a change to
/// shape mode, so up to a whole capacity went at once.
#[test]
fn records_that_waited_in_reject_mode_are_paced_in_shape_mode() {
    let mut reject = policy(400, SECOND);
    reject.mode = Mode::Reject;
    names(&mut reject, &["A", "B", "C", "D"]);
    let mut sim = Sim::new(reject.clone(), 1);
    for client in ["A", "B", "C"] {
        (0..100).for_each(|_| assert_eq!(sim.read(client, 0), AT_ONCE));
    }
    reject.capacity = 200;
    sim.throttle.handle_policy(sim.now, reject.clone());
    (0..50).for_each(|_| assert_eq!(sim.read("D", 0), Fate::Held, "within its share"));
    sim.throttle.handle_policy(sim.now, Policy { mode: Mode::Shape, ..reject });
    let admitted = |sim: &Sim| sim.count("D", |fate| matches!(fate, Fate::Admitted { .. }));
    sim.run_for(SECOND);
    // The bucket is as deep as two commit intervals, or 4 records, and leaks one in 5 ms.
    assert!(admitted(&sim) <= 5, "{} at once", admitted(&sim));
    sim.run_for(SECOND / 10);
    assert!((15..=25).contains(&admitted(&sim)), "{} in 100 ms", admitted(&sim));
    sim.run_for(SECOND / 4);
    assert_eq!(admitted(&sim), 50);
}

/// The bug: the window of the records that were sent in shadow mode lacked the margin by which the clocks of a group
/// may differ, and an instance that began to enforce forgot records that still count.
#[test]
fn a_group_counts_records_of_shadow_mode_for_the_margin_of_clocks_too() {
    let cycle = SECOND * 10;
    for before in [cycle, SECOND] {
        let shadow = |cycle| Policy { scope: Scope::Group, enforce: false, ..policy(40, cycle) };
        let mut sim = Sim::new(shadow(before), 1);
        sim.throttle.handle_policy(sim.now, shadow(cycle));
        assert_eq!(sim.read("a", 0), AT_ONCE);
        sim.run_for(cycle + Duration::from_millis(5));
        sim.throttle.handle_policy(sim.now, Policy { enforce: true, ..shadow(cycle) });
        assert_eq!(sim.throttle.window_count(sim.now), 1, "a cycle of {before:?} before");
        sim.run_for(Duration::from_millis(5));
        assert_eq!(sim.throttle.window_count(sim.now), 0, "a cycle of {before:?} before");
    }
}

/// An instance in shadow mode may take the hold of another one over, with the admissions that count against it.
#[test]
fn admissions_of_others_count_when_shadow_mode_ends() {
    let shadow = Policy { scope: Scope::Group, enforce: false, ..policy(40, SECOND * 10) };
    let mut sim = Sim::new(shadow.clone(), 1);
    sim.throttle.charge_earlier(sim.now, sim.now - SECOND * 2, 30);
    sim.throttle.handle_policy(sim.now, Policy { enforce: true, ..shadow });
    assert_eq!(sim.throttle.window_count(sim.now), 30);
    sim.run_for(SECOND * 8 + Duration::from_millis(100));
    assert_eq!(sim.throttle.window_count(sim.now), 0);
}

/// In reject mode records within shares hardly wait, also if the shares are used up. For that the window counts by exact
/// times. The bug: it counted whole slices for ever after shadow mode, and after the capacity had risen. So half a percent
/// of the records more waited in each cycle, until they were rejected.
#[test]
fn records_within_shares_do_not_wait_after_shadow_mode_or_with_more_capacity() {
    let cycle = SECOND * 10;
    let reject = |capacity, enforce| Policy { mode: Mode::Reject, enforce, ..policy(capacity, cycle) };
    let change = |sim: &mut Sim, to: Policy| match to.enforce == sim.throttle.policy().enforce {
        true => sim.throttle.handle_capacity(sim.now, to.capacity),
        false => sim.throttle.handle_policy(sim.now, to),
    };
    for before in [reject(1_000, true), reject(1_000, false), reject(100, true)] {
        let mut sim = Sim::new(before, 1);
        let send = |sim: &mut Sim, cycles: u64| {
            for number in 0..cycles * 998 {
                sim.read(if number % 2 == 0 { "a" } else { "b" }, 0);
                sim.run_for(cycle / 998);
            }
        };
        send(&mut sim, 1);
        change(&mut sim, reject(1_000, true));
        send(&mut sim, 4);
        let begin = sim.now;
        send(&mut sim, 5);
        for life in sim.lives.values().filter(|life| life.read >= begin) {
            assert!(matches!(life.fate, Fate::Admitted { waited } if waited <= cycle / 500), "{life:?}");
        }
    }
}

/// The bug: while the announced admissions of an instance were too old, it looked at its waiting records without a pause.
#[test]
fn records_that_wait_for_a_part_of_the_group_need_no_look() {
    let mut policy = policy(40, SECOND);
    policy.scope = Scope::Group;
    names(&mut policy, &["A"]);
    let now = sim::START;
    let mut throttle = Throttle::new(policy, now);
    throttle.handle_assigned(now, 0, 0, &OffsetMap::default(), 1);
    let part =
        GroupPart { limit: 40, until: now + SECOND, admitted: u64::MAX, pace: 40, growth: Growth::NONE, rejects: true };
    throttle.handle_part(now, part);
    throttle.handle_part(now, GroupPart { until: Time::ZERO, ..part });
    let arrival = Arrival { partition: 0, offset: 0, bytes: 1, sender: Sender::Client("A"), written_ms: None };
    assert!(matches!(throttle.handle_record(now, &arrival), Verdict::Delay(_)));
    let later = now + SECOND * 2;
    throttle.handle_timeout(later);
    assert!(throttle.poll_action(later).is_none());
    assert!(throttle.poll_timeout(later) > later, "{:?} after {later:?}", throttle.poll_timeout(later));
}

/// The wants of a client were not counted any more until the new topic was as long as the former one, so that nothing
/// was lent to it.
#[test]
fn arrivals_count_after_a_topic_was_made_anew() {
    let mut policy = policy(40, 10 * SECOND);
    policy.mode = Mode::Reject;
    names(&mut policy, &["A", "B"]);
    let mut throttle = Throttle::new(policy, sim::START);
    let mut now = sim::START;
    let mut send = |throttle: &mut Throttle, offset: i64| {
        throttle.handle_timeout(now);
        let sender = Sender::Client("A");
        let arrival = Arrival { partition: 0, offset, bytes: 100, sender, written_ms: None };
        let verdict = throttle.handle_record(now, &arrival);
        now = now + SECOND / 4;
        matches!(verdict, Verdict::Admit(_))
    };
    let admitted = [0, 1].map(|topic| {
        throttle.handle_assigned(sim::START, 0, 0, &OffsetMap::default(), 0);
        let admitted = (0..400).filter(|&offset| send(&mut throttle, offset) && offset >= 200).count();
        assert_eq!(throttle.client("A").unwrap().last_wants, 40, "topic {topic}");
        throttle.handle_revoked(0);
        admitted
    });
    assert_eq!(admitted[0], admitted[1]);
}

/// A topic that was deleted and made anew may have grown longer than the former one before it is read. Then its offsets
/// look like those of the former topic, and only its tag shows that its records are new.
#[test]
fn arrivals_count_in_a_topic_with_another_tag() {
    let mut throttle = Throttle::new(policy(40, 10 * SECOND), sim::START);
    let counted = ["first", "first", "second"].map(|topic| {
        let map = OffsetMap { tag: Some(TopicTag::of("cluster", topic)), ..OffsetMap::default() };
        throttle.handle_assigned(sim::START, 0, 0, &map, 100);
        for offset in 0..5 {
            let sender = Sender::Client("A");
            throttle.handle_record(sim::START, &Arrival { partition: 0, offset, bytes: 1, sender, written_ms: None });
        }
        throttle.handle_revoked(0);
        throttle.client("A").unwrap().arrivals
    });
    assert_eq!(counted, [5, 5, 10]);
}

/// The next owner learns of the admissions of the last cycle from commits, also of those before a reload.
#[test]
fn recent_admissions_stay_in_the_commits_over_a_reload_of_the_cycle() {
    for seconds in [5, 20] {
        let policy = Policy { mode: Mode::Reject, ..policy(40, 10 * SECOND) };
        let mut sim = Sim::new(policy.clone(), 1);
        assert!((0..40).all(|_| sim.read("A", 0) == AT_ONCE));
        let policy = Policy { cycle: SECOND * seconds, ..policy };
        sim.throttle.handle_policy(sim.now, policy.clone());
        sim.restart(policy);
        assert_eq!((0..40).filter(|_| sim.read("A", 0) == AT_ONCE).count(), 0, "a second capacity in {seconds} s");
    }
}

/// A client that has sent for a part of a cycle only counts with its default share: it neither lends nor borrows.
#[test]
fn a_newcomer_wants_its_default_share_until_its_first_full_cycle() {
    let mut policy = policy(40, 10 * SECOND);
    policy.mode = Mode::Reject;
    names(&mut policy, &["A"]);
    let mut sim = Sim::new(policy, 1);
    let mut granted = Vec::new();
    for cycle in 0..3 {
        (0..80).for_each(|_| _ = sim.read("A", 0));
        sim.run_for(5 * SECOND);
        sim.read("late", 0);
        sim.run_until(sim::START + 10 * SECOND * (cycle + 1));
        granted.push(sim.grants(&["A", "late"]));
    }
    assert_eq!(granted, [[20, 20], [38, 2], [38, 2]]);
}

/// Otherwise ids that are used once would always go first.
#[test]
fn a_new_client_starts_one_record_ahead() {
    let mut sim = Sim::new(policy(10, 10 * SECOND), 1);
    (0..16).for_each(|n| _ = sim.read(["A", "B"][n % 2], 0));
    sim.run_for(3 * SECOND);
    let before = sim.decisions();
    sim.read("new", 0);
    sim.run_for(10 * SECOND);
    let next = |name: &str| {
        let turns = sim.lives.values().filter(|life| life.client == name).map(|life| life.turn);
        turns.filter(|&turn| turn > before).min().unwrap()
    };
    assert!(next("A").max(next("B")) < next("new"), "{:?}", sim.lives);
}

/// A client that sends again after an idle cycle has its default share within the same cycle.
#[test]
fn a_lender_that_wants_more_counts_with_its_default_share_at_once() {
    let mut policy = policy(40, 10 * SECOND);
    names(&mut policy, &["A", "B"]);
    let mut sim = Sim::new(policy, 1);
    (0..200).for_each(|_| _ = sim.read("B", 0));
    (0..3).for_each(|_| _ = sim.read("A", 0));
    sim.run_until(sim::START + 10 * SECOND);
    assert_eq!(sim.grants(&["A", "B"]), [3, 37]);
    (0..4).for_each(|_| _ = sim.read("A", 0));
    sim.run_for(SECOND);
    assert_eq!(sim.grants(&["A", "B"]), [20, 20]);
}

/// The wants of a cycle in which the process stood still are those of that cycle, and a cycle of another length has as
/// many more or fewer.
#[test]
fn wants_of_the_last_cycle_are_of_its_length() {
    let policy = Policy { mode: Mode::Reject, ..policy(40, 10 * SECOND) };
    let wants = |sim: &Sim| sim.throttle.client("A").unwrap().last_wants;
    let mut sim = Sim::new(policy.clone(), 1);
    (0..3).for_each(|_| _ = sim.read("A", 0));
    sim.throttle.handle_policy(sim.now, Policy { cycle: 20 * SECOND, ..policy });
    assert_eq!(wants(&sim), 6);
    (0..3).for_each(|_| _ = sim.read("A", 0));
    sim.throttle.handle_timeout(sim.now + 50 * SECOND);
    assert_eq!(wants(&sim), 0);
}
