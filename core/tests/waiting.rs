//! Records that wait within their client's share, expire, or go first: each test tells a bug that an adversarial reading
//! of the core found.

mod sim;
mod support;

use std::{sync::Arc, time::Duration};

use sim::{Fate, START, START_MS, Sim, client, policy};
use support::rule::{clients, rule};
use watermaster_core::offset_map::{self, MapBudget, OffsetMap};
use watermaster_core::policy::{Mode, Overflow, Policy, Window};
use watermaster_core::reason::Reason;
use watermaster_core::rules::{Effects, Rule, Rules};
use watermaster_core::throttle::{Action, Arrival, OpenRoom, Sender, Throttle, Verdict};
use watermaster_core::units::{Ratio, Time};

const SECOND: Duration = Duration::from_secs(1);
const CYCLE: Duration = Duration::from_secs(10);
const HOUR: Duration = Duration::from_secs(3_600);

fn with_rules(policy: Policy, rules: Vec<Rule>) -> Policy {
    Policy { rules: Arc::new(Rules::new(rules)), ..policy }.at(START_MS)
}

/// Returns a rule that lets the records of a client wait this long.
fn waits(client: &str, max_delay: Duration) -> Rule {
    rule("wait", clients(&[client]), Effects { max_delay: Some(max_delay), ..Effects::default() })
}

/// Returns a policy in mode `reject` with two clients of equal shares.
fn reject(capacity: u64, cycle: Duration) -> Policy {
    let clients = ["a", "b"].map(|name| client(name, 1.0, None)).into();
    Policy { mode: Mode::Reject, reservation: Ratio::ZERO, clients, ..policy(capacity, cycle) }
}

fn numbered(partition: u32, offset: i64, sender: Sender<'_>) -> Arrival<'_> {
    Arrival { partition, offset, bytes: 1, sender, written_ms: None }
}

impl Sim {
    fn read_all(&mut self, client: &str, partition: u32, records: usize) {
        (0..records).for_each(|_| _ = self.read(client, partition));
    }

    /// Lets client `b` borrow in some cycles, and fill the window at last.
    fn fill_window(&mut self, cycle: Duration) {
        for _ in 0..4 {
            self.read_all("b", 1, 200);
            self.run_for(cycle);
        }
        self.read_all("b", 1, 200);
    }

    fn rejected(&self, client: &str) -> usize {
        self.count(client, |fate| matches!(fate, Fate::Rejected(_)))
    }
}

/// Counts the records that a client may still send from the end of a partition on.
fn accepted(throttle: &mut Throttle, now: Time, partition: u32, offsets: std::ops::Range<i64>) -> usize {
    let mut verdict = |offset| throttle.handle_record(now, &numbered(partition, offset, Sender::Client("a")));
    offsets.filter(|&offset| !matches!(verdict(offset), Verdict::Reject(_))).count()
}

// ## max_delay

/// The bug: a record within its client's share waits for the window for up to a cycle, but expired after `max_delay`,
/// which is 60 s in mode `reject` by default.
#[test]
fn no_record_within_a_share_expires_before_the_window_has_room() {
    let cycle = 300 * SECOND;
    let mut sim = Sim::new(Policy { max_delay: Some(60 * SECOND), ..reject(20, cycle) }, 2);
    sim.fill_window(cycle);
    sim.read_all("a", 0, 10);
    sim.run_for(cycle * 2);
    assert_eq!(sim.rejected("a"), 0);
}

/// The bug: a record that goes first expired after the service's `max_delay`, although a rule gives its client another.
#[test]
fn a_record_that_goes_first_waits_as_long_as_its_rule_says() {
    let short = Policy { max_delay: Some(5 * SECOND), ..reject(20, CYCLE) };
    let mut sim = Sim::new(with_rules(short, vec![waits("a", HOUR)]), 2);
    sim.fill_window(CYCLE);
    sim.read_all("a", 0, 10);
    sim.run_for(CYCLE * 2);
    assert_eq!(sim.rejected("a"), 0);
    // Mode shape, after a takeover.
    for (service, own, may_expire) in [(2 * SECOND, HOUR, false), (HOUR, 2 * SECOND, true)] {
        let clients = ["a", "b"].map(|name| client(name, 1.0, None)).into();
        let policy = Policy { max_delay: Some(service), clients, ..policy(20, CYCLE) };
        let mut sim = Sim::new(with_rules(policy, vec![waits("a", own)]), 2);
        for _ in 0..60 {
            sim.read("b", 1);
            sim.run_for(SECOND / 2);
        }
        sim.without_owner(&[(0, "a")], |sim| {
            let write = |_| {
                let time = sim.now;
                sim.read_all("b", 1, 2);
                sim.run_for(SECOND);
                time
            };
            vec![(0..9).map(write).collect()]
        });
        sim.run_for(40 * SECOND);
        let of_a = sim.lives.values().filter(|life| life.client == "a");
        let longest = of_a.map(|life| life.decided.since(life.read)).max().expect("nine records");
        assert!(may_expire || sim.rejected("a") == 0, "{service:?}, {own:?}");
        assert!(longest <= own + SECOND / 10, "{service:?}, {own:?}: {longest:?}");
    }
}

/// The bug: the `max_delay` that a rule gives a configured client held only from the next change of the policy on.
#[test]
fn the_longest_wait_by_a_rule_holds_from_the_start() {
    let policy = Policy { clients: vec![client("a", 1.0, None)], ..policy(10, SECOND) };
    let mut sim = Sim::new(with_rules(policy, vec![waits("a", 2 * SECOND)]), 1);
    sim.read_all("a", 0, 100);
    sim.run_for(20 * SECOND);
    let longest = sim.lives.values().map(|life| life.decided.since(life.read)).max().expect("records");
    assert!(longest <= 2 * SECOND, "{longest:?}");
    assert!(sim.count("a", |fate| *fate == Fate::Rejected(Reason::Expired)) > 0);
}

/// The bug: an expired record whose completion does not fit in the offset map kept all other records from expiring.
#[test]
fn records_expire_beside_a_partition_with_a_full_map() {
    let budget = MapBudget::Chars(24);
    let overflow = Overflow::DeadLetter;
    let small = Policy { map_budget: budget, max_delay: Some(2 * SECOND), overflow, ..policy(10, SECOND) };
    let held = |name: &'static str, max_delay| {
        rule(name, clients(&[name]), Effects { hold: Some(true), max_delay, ..Effects::default() })
    };
    let mut sim = Sim::new(with_rules(small, vec![held("patient", Some(HOUR)), held("late", None)]), 2);
    for number in 0..400 {
        sim.read(if number % 3 == 0 { "patient" } else { "late" }, 0);
    }
    sim.run_for(SECOND / 10);
    sim.read_all("other", 1, 100);
    sim.run_for(60 * SECOND);
    let of_other = sim.lives.values().filter(|life| life.client == "other");
    let longest = of_other.map(|life| life.decided.since(life.read)).max().expect("records");
    assert!(longest <= 2 * SECOND + SECOND / 100, "{longest:?}");
    assert_eq!(sim.count("other", |fate| *fate == Fate::Held), 0);
}

// ## Room in the window

/// The bug: records that waited while the service had no room for open records were rejected once it had.
#[test]
fn no_wait_for_open_records_is_the_reason_of_a_rejection() {
    for cycles in [1, 3] {
        let mut sim = Sim::new(reject(20, SECOND), 2);
        sim.throttle.handle_open_room(Some(OpenRoom { admitted: 0, records: 0 }));
        for _ in 0..cycles {
            sim.read_all("a", 0, 10);
            sim.read_all("b", 1, 10);
            sim.run_for(SECOND);
        }
        let admitted = sim.throttle.admitted();
        sim.throttle.handle_open_room(Some(OpenRoom { admitted, records: 10_000 }));
        sim.run_for(10 * SECOND);
        assert_eq!([sim.rejected("a"), sim.rejected("b")], [0, 0], "{cycles} cycles");
    }
}

/// The bug: a capacity that is lowered while records within their share wait had them rejected, outside a group.
#[test]
fn a_lower_capacity_rejects_no_record_that_waits() {
    let mut sim = Sim::new(reject(100, SECOND), 2);
    sim.fill_window(SECOND);
    sim.read_all("a", 0, 50);
    sim.throttle.handle_capacity(sim.now, 10);
    sim.run_for(20 * SECOND);
    assert_eq!(sim.rejected("a"), 0);
}

// ## Use

/// The bug: records of the last fixed window that were revoked gave their client room in the next one.
#[test]
fn a_fixed_window_takes_back_only_its_own_records() {
    let mut sim = Sim::new(Policy { window: Window::Fixed, ..reject(20, CYCLE) }, 3);
    sim.fill_window(CYCLE);
    sim.run_for(CYCLE + 8 * SECOND);
    sim.read_all("b", 1, 200);
    sim.run_for(SECOND);
    sim.read_all("a", 0, 10);
    sim.run_for(SECOND * 3 / 2);
    sim.read_all("a", 2, 10);
    assert_eq!(sim.throttle.handle_revoked(0).len(), 10, "records of the last cycle wait");
    assert_eq!(accepted(&mut sim.throttle, sim.now, 2, 10..40), 0);
}

/// The bug: after a change of the cycle, records that were revoked still counted as use.
#[test]
fn revoked_records_do_not_count_after_another_cycle() {
    for after in [10_000, 7_000].map(Duration::from_millis) {
        let mut sim = Sim::new(reject(20, CYCLE), 2);
        sim.fill_window(CYCLE);
        sim.run_for(SECOND * 3 + SECOND / 1_000);
        sim.read_all("a", 0, 10);
        sim.run_for(SECOND * 6 / 100);
        sim.throttle.handle_policy(sim.now, reject(20, after));
        assert_eq!(sim.throttle.handle_revoked(0).len(), 10, "records wait");
        sim.throttle.handle_assigned(sim.now, 0, 10, &OffsetMap::default(), 0);
        assert_eq!(accepted(&mut sim.throttle, sim.now, 0, 10..20), 10, "{after:?}");
    }
}

/// The bug: a client's use was counted in slices for good once the capacity had been large.
#[test]
fn use_is_exact_again_after_a_large_capacity() {
    let cycle = Duration::from_millis(201);
    for before in [20, 500_000] {
        let mut sim = Sim::new(reject(before, cycle), 2);
        sim.read("a", 0);
        sim.run_for(cycle * 3);
        sim.throttle.handle_policy(sim.now, reject(20, cycle));
        sim.run_for(cycle * 3);
        // The end of a slice of 2 ms: a slice says too little of what is in it when its begin has left the window.
        let slice = sim.now.as_nanos().div_ceil(2_000_000) * 2_000_000;
        sim.run_until(Time::from_nanos(slice + 1_900_000));
        sim.read_all("a", 0, 10);
        sim.run_for(cycle - Duration::from_micros(1_800));
        let end = 11;
        assert_eq!(accepted(&mut sim.throttle, sim.now, 0, end..end + 10), 0, "after {before}");
    }
}

/// The bug: rejections that wait for room in the offset map were counted again after a revocation.
#[test]
fn a_rejection_that_was_not_sent_is_counted_once() {
    let small = Policy { map_budget: MapBudget::Chars(24), ..reject(20, SECOND) };
    let mut throttle = Throttle::new(small, START);
    throttle.handle_assigned(START, 0, 0, &OffsetMap::default(), 400);
    let sender = |offset| if offset % 3 == 0 { Sender::Client("a") } else { Sender::Anonymous };
    (0..400).for_each(|offset| _ = throttle.handle_record(START, &numbered(0, offset, sender(offset))));
    let (base, text) = throttle.commit_without(START, 0, &[]).expect("the map fits");
    throttle.handle_revoked(0);
    let map = offset_map::decode(base, text.as_bytes()).expect("an own map");
    throttle.handle_assigned(START, 0, base, &map, 400);
    (base..400).for_each(|offset| _ = throttle.handle_record(START, &numbered(0, offset, sender(offset))));
    let mut now = START;
    for _ in 0..3_000 {
        throttle.handle_timeout(now);
        while throttle.poll_action(now).is_some() {}
        now = now + SECOND / 100;
    }
    let anonymous = (0..400).filter(|offset| offset % 3 != 0).count() as u64;
    assert_eq!(throttle.totals().unregistered.rejected.total(), anonymous);
}

/// The bug: records that were read at one moment left for shadow mode out of order if they stood in two lists, and the
/// offset map outgrew its budget.
#[test]
fn delayed_records_leave_for_shadow_mode_in_order() {
    let small = Policy { map_budget: MapBudget::Chars(40), ..policy(10, SECOND) };
    let policy = with_rules(small, vec![waits("a", HOUR)]);
    let mut throttle = Throttle::new(policy.clone(), START);
    throttle.handle_assigned(START, 0, 0, &OffsetMap::default(), 0);
    let mut random = support::random::Random::stream(1, 0);
    for offset in 0..3_000 {
        let name = if random.word() >> 63 == 0 { "a" } else { "b" };
        throttle.handle_record(START, &numbered(0, offset, Sender::Client(name)));
    }
    while throttle.poll_action(START).is_some() {}
    throttle.handle_policy(START, Policy { enforce: false, ..policy });
    let mut last = -1;
    for _ in 0..1_400 {
        let Some(Action::Admit { offset, .. }) = throttle.poll_action(START) else { panic!("a record is left") };
        assert!(offset > last, "{offset} after {last}");
        last = offset;
        throttle.commit_without(START, 0, &[]).expect("the map fits");
    }
}

// ## Clients that are not configured

/// The bug: each new id had a share of its own until the next allocation, when those before it had used theirs. So many
/// new ids took most of the capacity as records within shares, and those of a configured client were rejected.
#[test]
fn new_ids_have_one_share_together() {
    for pause in [Duration::ZERO, Duration::from_millis(101)] {
        let clients = vec![client("a", 1.0, None)];
        let mut sim = Sim::new(Policy { clients, max_clients: 1_000, ..reject(2_000, CYCLE) }, 2);
        sim.run_for(CYCLE * 3);
        for id in 0..if pause.is_zero() { 900 } else { 95 } {
            while !matches!(sim.read(&format!("fresh-{id}"), 1), Fate::Rejected(_)) {}
            sim.run_for(pause);
        }
        for _ in 0..3_000 {
            sim.read("a", 0);
            sim.run_for(CYCLE / 1_000);
        }
        sim.run_for(CYCLE * 2);
        assert_eq!(sim.rejected("a"), 0, "{pause:?}");
    }
}

/// The bug: each new id was owed records of its own after a takeover, before those of a configured client.
#[test]
fn new_ids_are_owed_one_share_together_after_a_takeover() {
    for mode in [Mode::Shape, Mode::Reject] {
        let clients = vec![client("a", 1.0, None)];
        let mut throttle = Throttle::new(Policy { mode, clients, ..policy(100, CYCLE) }, START);
        for (partition, end) in [(0, 20), (1, 500)] {
            throttle.handle_assigned(START, partition, 0, &OffsetMap::default(), end);
            throttle.handle_takeover(START, partition);
        }
        // Both partitions had no owner for 4 s. Client a writes a record each 200 ms, its share.
        let written_ms = |now: Time, before: i64| Some((now.as_nanos() / 1_000_000) as i64 - before);
        for offset in 0..500 {
            let name = format!("stranger-{offset}");
            let arrival = numbered(1, offset, Sender::Client(&name));
            throttle.handle_record(START, &Arrival { written_ms: written_ms(START, 4_000), ..arrival });
        }
        let read = |throttle: &mut Throttle, now, offset, before| {
            let arrival = Arrival { written_ms: written_ms(now, before), ..numbered(0, offset, Sender::Client("a")) };
            let verdict = throttle.handle_record(now, &arrival);
            assert!(!matches!(verdict, Verdict::Reject(_)), "{mode:?}, offset {offset}: {verdict:?}");
        };
        (0..20).for_each(|offset| read(&mut throttle, START, offset, 4_000 - 200 * offset));
        let mut now = START;
        for step in 0..2_000 {
            throttle.handle_timeout(now);
            while let Some(action) = throttle.poll_action(now) {
                match action {
                    Action::Admit { partition: 0, waited, .. } => {
                        assert!(waited <= CYCLE * 11 / 10, "{mode:?}: {waited:?}");
                    }
                    Action::Reject { partition: 0, .. } => panic!("{mode:?}: rejected after {:?}", now.since(START)),
                    _ => {}
                }
            }
            now = now + SECOND / 20;
            if step % 4 == 3 {
                read(&mut throttle, now, 20 + step / 4, 0);
            }
        }
    }
}

// ## Order, and shares that are counted roughly or together

/// The engine reads a batch, and polls for actions after it. The window may open meanwhile.
#[test]
fn a_record_that_comes_as_the_window_opens_waits_behind_those_that_go_first() {
    let mut sim = Sim::new(reject(20, CYCLE), 2);
    sim.fill_window(CYCLE);
    assert_eq!(sim.read("a", 0), Fate::Held);
    let later = sim.now + CYCLE * 3 / 2;
    let verdict = sim.throttle.handle_record(later, &numbered(0, 1, Sender::Client("a")));
    assert!(matches!(verdict, Verdict::Delay(_)), "{verdict:?}");
    let verdict = sim.throttle.handle_record(later, &numbered(1, 10_000, Sender::Client("b")));
    assert!(!matches!(verdict, Verdict::Admit(_)), "{verdict:?}");
}

/// Above a capacity of 409 600, uses are counted in slices, so a record counts for up to half a percent longer than a
/// cycle.
#[test]
fn a_client_that_sends_nearly_all_of_a_large_share_is_not_over_it() {
    let clients = vec![client("a", 1.0, None), client("b", 99.0, None)];
    let mut sim = Sim::new(Policy { clients, ..reject(500_000, SECOND) }, 1);
    // 4 990 of 5 000 in a cycle.
    for step in 0..3_000 {
        sim.read_all("a", 0, if step % 100 == 0 { 4 } else { 5 });
        sim.run_for(SECOND / 1_000);
    }
    assert_eq!(sim.rejected("a"), 0);
}

/// A new id may send its default share until the next allocation, but all of them together have no more than one share.
/// Further records would be borrowed, and here nothing is lent, so they are rejected. A retry is admitted once the
/// share is free again.
#[test]
fn new_ids_at_one_moment_have_one_share_together() {
    let clients = vec![client("a", 1.0, None)];
    let mut sim = Sim::new(Policy { clients, reservation: Ratio::ONE, ..reject(40, CYCLE) }, 1);
    sim.run_for(CYCLE);
    (0..20).for_each(|_| assert!(matches!(sim.read("one", 0), Fate::Admitted { .. })));
    let verdict = sim.throttle.handle_record(sim.now, &numbered(0, 20, Sender::Client("other")));
    let Verdict::Reject(rejection) = verdict else { panic!("{verdict:?}") };
    assert_eq!((rejection.reason, rejection.retry_after), (Reason::CapacityInUse, CYCLE));
}
