//! `overflow = "dead_letter"` and a full offset map: the records that are evicted to make room, and their number.

mod sim;

use std::time::Duration;

use proptest::prelude::*;
use sim::{Fate, Sim, policy};
use watermaster_core::offset_map::{MapBudget, OffsetMap};
use watermaster_core::offset_runs::OffsetRuns;
use watermaster_core::policy::{Mode, Policy, Scope};
use watermaster_core::reason::Reason;
use watermaster_core::throttle::{GroupPart, Sender, Throttle};

const SECOND: Duration = Duration::from_secs(1);
const BYTES: u64 = 100;

/// Returns the number of rejected records.
fn rejected(throttle: &Throttle) -> u64 {
    throttle.clients().iter().map(|(_, client)| client.counts.rejected.total()).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// A record that completes in the middle of the delayed ones makes the offset map larger. The bug: 248 000 of 262
    /// 000 delayed records of a partition were evicted within a minute to make room for one record, because the clients
    /// furthest above their shares had their records in the middle, too.
    #[test]
    fn one_record_evicts_only_a_part_of_the_backlog(
        clients in 1..80_usize,
        skew in 1..4_u32,
        characters in 40..300_usize,
        waiting in 500..3_000_u64,
        seed: u64,
    ) {
        let policy = Policy {
            queue_bytes: waiting * BYTES,
            map_budget: MapBudget::Chars(characters),
            ..policy(10, SECOND)
        };
        let mut sim = Sim::new(policy, 1);
        let names: Vec<String> = (0..clients).map(|client| format!("client-{client:03}")).collect();
        let mut random = seed | 1;
        for _ in 0..3 * waiting {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let uniform = (random >> 11) as f64 / (1_u64 << 53) as f64;
            let before = rejected(&sim.throttle);
            sim.read(&names[(uniform.powi(skew as i32) * clients as f64) as usize], 0);
            let gone = rejected(&sim.throttle) - before;
            prop_assert!(gone <= waiting / 20 + 40, "{gone} of {waiting} evicted for one record");
            sim.run_for(SECOND / 200);
            sim.assert_the_map_fits(0);
        }
    }
}

#[test]
fn a_flood_makes_room_in_the_map_for_records_ahead_of_it() {
    let mut policy = policy(1_000, SECOND);
    policy.map_budget = MapBudget::Chars(100);
    let mut sim = Sim::new(policy, 1);
    for number in 0..60_000 {
        sim.read(if number % 40 == 0 { "light" } else { "flood" }, 0);
        if number % 40 == 0 {
            sim.run_for(SECOND / 100);
            sim.assert_the_map_fits(0);
        }
    }
    let gone = |name| sim.count(name, |fate| *fate == Fate::Rejected(Reason::QueueFull));
    assert_eq!(gone("light"), 0);
    // A full map has room for one more gap when its first gap is closed.
    assert!((1..1_500 * 45).contains(&gone("flood")), "{}", gone("flood"));
    // A record that blocks the map gets no extra turn: it waits for the pace at most.
    let soon = |fate: &Fate| matches!(fate, Fate::Admitted { waited } if *waited <= SECOND / 50);
    assert_eq!(sim.count("light", soon), 1_500);
}

/// A partition with a nearly full map of its former owner paused at the first record that it delayed, and read the next
/// ones only after that record's turn in its client's queue, at the tail: a few records for each pass through a backlog
/// of minutes.
#[test]
fn a_former_owners_map_is_read_again_in_one_pass_beside_a_backlog() {
    let policy = Policy { mode: Mode::Reject, map_budget: MapBudget::Chars(40), ..policy(100, SECOND) };
    let mut sim = Sim::new(policy, 2);
    // Partition 1 has 20 s of a backlog that came before this instance.
    sim.throttle.handle_fetch_gap(1, 2_000);
    (0..2_000).for_each(|_| _ = sim.read("heavy", 1));
    // Every other offset of partition 0 is completed, which takes more than three quarters of the room.
    let mut completed = OffsetRuns::new();
    (1..200).step_by(2).for_each(|offset| completed.push(offset..offset + 1));
    sim.throttle.handle_revoked(0);
    sim.throttle.handle_assigned(sim.now, 0, 0, &OffsetMap { completed, ..OffsetMap::default() }, 1_000);
    for offset in (0..200).step_by(2) {
        sim.reread(Sender::Client("heavy"), 0, offset, 100);
        assert!(!sim.paused[0], "paused at {offset}");
    }
    for _ in 0..300 {
        sim.run_for(SECOND / 10);
        sim.assert_the_map_fits(0);
    }
    assert_eq!(sim.count("heavy", |fate| matches!(fate, Fate::Admitted { .. })), 2_100);
}

/// A member of a group whose part has gone rejects records that wait for longer than shares can explain. Between them
/// stand records of a client that is catching up. The bug: those rejections did not ask whether the map has room.
#[test]
fn overdue_records_wait_for_room_in_the_map() {
    let budget = MapBudget::Chars(60);
    let mut sim =
        Sim::new(Policy { mode: Mode::Reject, scope: Scope::Group, map_budget: budget, ..policy(100_000, SECOND) }, 2);
    // The first record was there before this instance.
    sim.throttle.handle_revoked(0);
    sim.throttle.handle_assigned(sim.now, 0, 0, &OffsetMap::default(), 1);
    let until = sim.now + SECOND * 1_000;
    let part = |limit| GroupPart { limit, pace: limit, until, admitted: u64::MAX, rejects: true, ..GroupPart::NONE };
    sim.throttle.handle_part(sim.now, part(0));
    for _ in 0..300 {
        sim.read("late", 0);
        sim.read("prompt", 0);
    }
    (0..50).for_each(|_| _ = sim.read("elsewhere", 1));
    for _ in 0..300 {
        sim.run_for(SECOND / 100);
        sim.assert_the_map_fits(0);
    }
    let rejected = |sim: &Sim| sim.count("prompt", |fate| *fate == Fate::Rejected(Reason::CapacityInUse));
    assert!((1..300).contains(&rejected(&sim)), "{} rejected", rejected(&sim));
    let overdue = |fate: &Fate| *fate == Fate::Rejected(Reason::CapacityInUse);
    assert_eq!(sim.count("elsewhere", overdue), 50, "another partition has room");
    // With a part again, all that still waits goes.
    sim.throttle.handle_part(sim.now, part(100_000));
    sim.run_for(SECOND);
    assert_eq!(sim.lives.values().filter(|life| life.fate == Fate::Held).count(), 0);
}
