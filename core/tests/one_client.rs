//! `overflow = "auto"`: a partition whose records belong to one client is paused at the bounds.

mod sim;

use std::time::Duration;

use sim::{Fate, Sim, client, policy};
use watermaster_core::offset_map::OffsetMap;
use watermaster_core::policy::Policy;
use watermaster_core::reason::Reason;
use watermaster_core::throttle::{Arrival, Sender, Throttle, Verdict};
use watermaster_core::units::Time;

const SECOND: Duration = Duration::from_secs(1);

/// A simulation in which partition 0 belongs to `flood` alone.
fn with_sole_flood(policy: Policy, partitions: u32) -> Sim {
    let mut sim = Sim::new(policy, partitions);
    sim.throttle.handle_sole_client(0, Some("flood"));
    sim
}

/// Reads records of `flood` until its partition is paused; returns their number.
fn flood_until_paused(sim: &mut Sim, bytes: u32) -> u64 {
    let mut records = 0;
    while !sim.paused[0] {
        sim.read_sized(Sender::Client("flood"), 0, bytes);
        records += 1;
        assert!(records < 10_000, "the partition is never paused");
    }
    records
}

#[test]
fn a_partition_of_one_client_is_paused_and_loses_nothing() {
    let mut policy = policy(100, SECOND);
    policy.queue_capacity = 10;
    let mut sim = with_sole_flood(policy, 2);
    flood_until_paused(&mut sim, 1);
    assert_eq!(sim.throttle.backlog().0, 10);
    // Records that were fetched before the pause are kept, too.
    (0..5).for_each(|_| assert_eq!(sim.read("flood", 0), Fate::Held));
    // A partition with records of several clients loses the oldest record of the client that has too many.
    for _ in 0..20 {
        sim.read("other", 1);
    }
    assert!(!sim.paused[1]);
    assert_eq!(sim.count("other", |fate| *fate == Fate::Rejected(Reason::QueueFull)), 10);
    while sim.paused[0] {
        sim.run_for(SECOND / 100);
    }
    assert_eq!(sim.throttle.client("flood").unwrap().backlog().0, 5);
    assert_eq!(sim.count("flood", |fate| matches!(fate, Fate::Rejected(_))), 0);
}

/// The oldest record of a client may come from the partition that is paused, so its records from elsewhere give way.
#[test]
fn a_client_with_a_partition_of_its_own_loses_only_records_from_elsewhere() {
    let mut policy = policy(10, SECOND);
    policy.queue_capacity = 10;
    let mut sim = with_sole_flood(policy, 2);
    flood_until_paused(&mut sim, 1);
    assert_eq!(sim.read("flood", 1), Fate::Rejected(Reason::QueueFull));
    sim.run_for(5 * SECOND);
    assert!(!sim.paused[0]);
    assert_eq!(sim.count("flood", |fate| matches!(fate, Fate::Rejected(_))), 1);
}

#[test]
fn kept_records_take_half_of_the_bytes_at_most_and_evict_none_of_other_clients() {
    let mut policy = policy(10, SECOND);
    policy.queue_bytes = 100_000;
    policy.clients = ["flood", "modest"].map(|name| client(name, 1.0, None)).into();
    let mut sim = with_sole_flood(policy, 2);
    let records = flood_until_paused(&mut sim, 1_000);
    assert!((25..=27).contains(&records), "a quarter of the bytes, and this client has more than its half of that");
    assert!((0..60).all(|_| sim.read_sized(Sender::Client("modest"), 1, 1_000) != Fate::Rejected(Reason::QueueFull)));
    for _ in 0..60 {
        sim.read_sized(Sender::Client("modest"), 1, 1_000);
    }
    assert!(sim.throttle.backlog().1 <= 100_000);
    assert!(sim.count("modest", |fate| *fate == Fate::Rejected(Reason::QueueFull)) > 30);
    assert_eq!(sim.count("flood", |fate| matches!(fate, Fate::Rejected(_))), 0);
}

#[test]
fn a_record_of_another_client_ends_the_pauses_of_a_partition_and_a_redriven_one_does_not() {
    let mut policy = policy(1, SECOND);
    policy.queue_capacity = 3;
    let mut sim = with_sole_flood(policy, 1);
    for sender in [Sender::Anonymous, Sender::NotAllowed("stranger"), Sender::Redriven("redrive")] {
        sim.read_sized(sender, 0, 1);
    }
    assert_eq!(sim.throttle.ledger().sole_client(0), Some("flood"));
    // Redriven records beyond the bound of their client would hold up the partition's client.
    for _ in 0..5 {
        sim.read_sized(Sender::Redriven("redrive"), 0, 1);
    }
    assert!(!sim.paused[0]);
    assert!(sim.count("redrive", |fate| *fate == Fate::Rejected(Reason::QueueFull)) >= 2);
    sim.read("other", 0);
    assert_eq!(sim.throttle.ledger().sole_client(0), None);
    for _ in 0..10 {
        sim.read("flood", 0);
    }
    assert!(!sim.paused[0]);
    assert!(sim.count("flood", |fate| *fate == Fate::Rejected(Reason::QueueFull)) > 3);
}

/// Records that waited in the topic while their partition was paused have waited since they were written.
#[test]
fn delays_count_the_time_in_a_paused_partition() {
    let mut policy = policy(1, SECOND);
    policy.queue_capacity = 4;
    let mut sim = with_sole_flood(policy, 1);
    let records = flood_until_paused(&mut sim, 1) as i64;
    let resume = |sim: &mut Sim| {
        while sim.paused[0] {
            sim.run_for(SECOND / 10);
        }
        sim.now.as_nanos() as i64 / 1_000_000
    };
    let waits = |sim: &mut Sim, offset, written_ms| {
        let sender = Sender::Client("flood");
        let arrival = Arrival { partition: 0, offset, bytes: 1, sender, written_ms: Some(written_ms) };
        let verdict = sim.throttle.handle_record(sim.now, &arrival);
        let Verdict::Delay(slot) = verdict else { panic!("{verdict:?}") };
        sim.throttle.waited(slot, sim.now)
    };
    let resumed_ms = resume(&mut sim);
    assert_eq!(waits(&mut sim, records, resumed_ms - 3_000), 3 * SECOND);
    assert!(sim.throttle.ledger().partition(0).unwrap().is_behind);
    // A record that was written after the partition was resumed shows that no older one is left in the topic.
    sim.run_for(2 * SECOND);
    let resumed_ms = resume(&mut sim);
    assert_eq!(waits(&mut sim, records + 1, resumed_ms + 1), Duration::ZERO);
    assert!(!sim.throttle.ledger().partition(0).unwrap().is_behind);
}

/// A record that was written while its partition had no owner has waited since then, in a partition that clients share,
/// too. A record that came after the takeover has not, however old its producer says that it is.
#[test]
fn delays_count_the_time_without_an_owner() {
    let mut now = Time::from_nanos(1_000_000_000_000);
    let mut throttle = Throttle::new(policy(100, SECOND), now);
    let [before, after] = [false, true].map(|taken_over| {
        throttle.handle_assigned(now, 0, 10, &OffsetMap::default(), 12);
        if taken_over {
            throttle.handle_takeover(now, 0);
        }
        let behind = throttle.ledger().partition(0).unwrap().is_behind;
        let delays = [10, 11, 12].map(|offset| {
            now = now + SECOND / 10;
            let written_ms = Some(now.as_nanos() as i64 / 1_000_000 - 8_000);
            let arrival = Arrival { partition: 0, offset, bytes: 1, sender: Sender::Client("a"), written_ms };
            assert_eq!(throttle.handle_record(now, &arrival), Verdict::Admit(Some(0)));
            throttle.client("a").unwrap().counts.delays.sum
        });
        assert!(!throttle.ledger().partition(0).unwrap().is_behind);
        throttle.handle_revoked(0);
        (behind, delays)
    });
    assert_eq!(before, (false, [0; 3]));
    assert_eq!(after, (true, [8_000_000, 16_000_000, 16_000_000]));
}

/// In force, the partition would pause at the bound, and its records would wait in their topic.
#[test]
fn shadow_mode_counts_no_record_that_would_wait_in_its_topic_as_rejected() {
    let policy = Policy { queue_capacity: 10, enforce: false, ..policy(10, SECOND) };
    let mut sim = with_sole_flood(policy, 2);
    for _ in 0..50 {
        sim.read("flood", 0);
        sim.read("other", 1);
    }
    let rejected = |name: &str| sim.throttle.client(name).unwrap().shadow.rejected.total();
    assert_eq!(rejected("flood"), 0);
    assert!(rejected("other") >= 30, "{}", rejected("other"));
}

#[test]
fn a_client_within_its_part_of_the_bytes_is_not_paused_for_what_another_one_keeps() {
    let mut policy = policy(10, SECOND);
    policy.queue_bytes = 100_000;
    policy.clients = ["flood", "modest"].map(|name| client(name, 1.0, None)).into();
    let mut sim = with_sole_flood(policy, 2);
    sim.throttle.handle_sole_client(1, Some("modest"));
    flood_until_paused(&mut sim, 1_000);
    for _ in 0..5 {
        sim.read_sized(Sender::Client("modest"), 1, 1_000);
    }
    assert!(sim.paused[0] && !sim.paused[1]);
}
