//! Properties of private parts of the scheduler.

use std::{num::NonZeroU32, time::Duration};

use proptest::prelude::*;

use super::backlog::{Backlog, QueuedRecord};
use super::bucket::LeakyBucket;
use super::fair::ClientQueue;
use super::gates::{Gates, GroupPart, Growth};
use super::names::Names;
use super::{Scheduler, least_limit};
use crate::policy::{Limit, Policy, Scope};
use crate::slot::Slot;
use crate::units::{NANOS_PER_MILLI, Ratio, Time, nanos};
use crate::window::slice_width;

fn at(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

fn bucket(burst: Ratio) -> LeakyBucket {
    let commit_interval = Duration::from_millis(1);
    LeakyBucket::of_service(&Policy { burst, commit_interval, ..Policy::new(10, Duration::from_secs(1)) }, 10)
}

/// Adds one record if it fits, as a limit does; the error is the time at which it will.
fn take(bucket: &mut LeakyBucket, now: Time) -> Result<(), Time> {
    if !bucket.has_room(now) {
        return Err(bucket.next_room(now));
    }
    bucket.charge(now);
    Ok(())
}

#[test]
fn a_bucket_paces_at_capacity_per_cycle() {
    let mut bucket = bucket(Ratio::ZERO);
    let mut now = at(1_000);
    for n in 0..20 {
        assert_eq!(now, at(1_000 + n * 100));
        assert!(bucket.has_room(now));
        bucket.charge(now);
        assert!(!bucket.has_room(now));
        now = bucket.next_room(now);
    }
}

/// A reload changes the rate of a client's own limit: a record that was sent still counts.
#[test]
fn a_bucket_with_another_rate_keeps_its_debt() {
    let limit = |rate: u32| {
        let rate = NonZeroU32::new(rate).unwrap();
        LeakyBucket::of_limit(&Limit { rate, per: Duration::from_secs(10), burst: NonZeroU32::MIN })
    };
    let mut bucket = limit(1);
    assert_eq!(take(&mut bucket, at(1_000)), Ok(()));
    bucket.change(at(6_000), limit(2));
    // Half of the record leaked at one rate; the other half takes half of the other rate's time.
    assert_eq!(take(&mut bucket, at(6_000)), Err(at(8_500)));
    assert_eq!(take(&mut bucket, at(8_500)), Ok(()));
}

#[test]
fn a_burst_is_admitted_at_once_and_leaks_away() {
    let mut bucket = bucket(Ratio::from_millionths(300_000).unwrap());
    let taken = std::iter::repeat_with(|| take(&mut bucket, at(500))).take_while(Result::is_ok).count();
    assert_eq!(taken, 3);
    assert_eq!(bucket.next_room(at(500)), at(600));
}

proptest! {
    /// A client that takes every token at once gets `most_in` tokens in a window, or one less: the window is open at
    /// its start.
    #[test]
    fn a_greedy_client_gets_the_maximum_in_a_window(
        rate in 1..200_u32,
        per_ms in 1..2_000_u64,
        burst in 1..50_u32,
        window_ms in 1..3_000_u64,
    ) {
        let (rate, burst) = (NonZeroU32::new(rate).unwrap(), NonZeroU32::new(burst).unwrap());
        let start = Time::ZERO + Duration::from_secs(1_000);
        let mut limit = LeakyBucket::of_limit(&Limit { rate, per: Duration::from_millis(per_ms), burst });
        let window = Duration::from_millis(window_ms);
        let (mut now, mut taken) = (start, 0_u64);
        while now < start + window && taken < 5_000 {
            match take(&mut limit, now) {
                Ok(()) => taken += 1,
                Err(until) => now = until,
            }
        }
        if taken < 5_000 {
            let most = limit.most_in(window);
            prop_assert!(taken <= most && taken + 1 >= most, "{taken} of {most}");
        }
    }
}

proptest! {
    /// A client that takes all that the bucket gives never meets a full window: the bucket closes first, whatever went
    /// before, at an instance and at a member of a group. (The limit does not change, and the owner is never late.)
    #[test]
    fn the_bucket_closes_before_the_window_is_full(
        capacity in prop_oneof![1..40_u64, 40..3_000_u64],
        cycle_ms in prop_oneof![50..2_000_u64, 2_000..100_000_u64],
        burst in prop_oneof![Just(0), Just(10_000), 0..1_000_000_u32],
        before in prop::collection::vec((0..1_500_u64, 1..4_000_u64), 0..12),
        member in prop::option::of(1..=100_u64),
    ) {
        let cycle = Duration::from_millis(cycle_ms);
        let burst = Ratio::from_millionths(burst).unwrap();
        let scope = if member.is_some() { Scope::Group } else { Scope::Instance };
        let policy = Policy { burst, commit_interval: cycle / 100, scope, ..Policy::new(capacity, cycle) };
        let mut gates = Gates::new(&policy);
        let mut now = at(1_000_000);
        if let Some(percent) = member {
            // The hold is above the target: the pace is only a part of it.
            gates.set_part(now, &policy, part(capacity, (capacity * percent / 100).max(1)));
        }
        let charge = |gates: &mut Gates, now: Time| {
            gates.bucket.charge(now);
            gates.window.add(now, 1);
        };
        for (wait, records) in before {
            now = now + cycle * wait as u32 / 1_000;
            for _ in 0..records {
                if gates.are_open(now) {
                    charge(&mut gates, now);
                }
            }
        }
        for _ in 0..2 * capacity + 400 {
            while gates.are_open(now) {
                charge(&mut gates, now);
            }
            prop_assert!(!gates.bucket.has_room(now), "the window is full at {now:?}");
            now = gates.open_at(now);
        }
    }
}

/// A part that bounds the window and the pace only.
fn part(limit: u64, pace: u64) -> GroupPart {
    GroupPart { limit, until: Time::NEVER, admitted: u64::MAX, pace, growth: Growth::NONE, rejects: true }
}

fn least_limit_of(gates: &mut Gates, now: Time, policy: &Policy, pace: u64) -> u64 {
    least_limit(now, gates.window.departures(now), policy.cycle, pace)
}

/// The gates of a member of a group with this limit and pace.
fn member(policy: &Policy, limit: u64, pace: u64) -> Gates {
    let mut gates = Gates::new(policy);
    gates.set_part(at(1_000_000), policy, part(limit, pace));
    gates
}

fn member_policy(cycle: Duration) -> Policy {
    Policy { scope: Scope::Group, commit_interval: cycle / 100, ..Policy::new(1_000_000, cycle) }
}

/// Admits all that may go now.
fn admit(gates: &mut Gates, now: Time) -> u64 {
    let mut records = 0;
    while gates.are_open(now) {
        gates.bucket.charge(now);
        gates.window.add(now, 1);
        records += 1;
    }
    records
}

proptest! {
    /// The least limit and the pace answer two sides of one question: under that limit the pace is found, and under one
    /// that is lower by two a lower one is. (The window of a group is longer than a cycle by a thousandth.)
    #[test]
    fn the_pace_is_found_under_its_least_limit(
        pace in 1..3_000_u64,
        cycle_ms in 50..60_000_u64,
        before in prop::collection::vec((0..300_u64, 0..600_u64), 0..20),
    ) {
        let policy = member_policy(Duration::from_millis(cycle_ms));
        let mut gates = member(&policy, 1, pace);
        let mut now = at(1_000_000);
        for (wait, records) in before {
            now = now + policy.cycle * wait as u32 / 1_000;
            gates.window.add(now, records);
        }
        while gates.bucket.has_room(now) {
            gates.bucket.charge(now);
        }
        let (count, least) = (gates.window.count(now), least_limit_of(&mut gates, now, &policy, pace));
        // The time for many more records than fit, at the pace that is found and at the full one.
        let mut times = |limit: u64| {
            gates.set_part(now, &policy, part(limit, pace));
            gates.find_pace(now);
            let mut bucket = gates.bucket.clone();
            (0..1_000).for_each(|_| bucket.charge(now));
            (bucket.next_room(now).nanos_since(now), bucket.first_room(now).nanos_since(now))
        };
        let (found, full) = times(least.max(pace));
        prop_assert!(found <= full + full / 1_000 + 1_000, "{found} ns for a thousand records, {full} at the pace");
        if least > count + 2 && least - 2 >= pace {
            let (found, full) = times(least - 2);
            prop_assert!(found > full, "the pace is found under {} of {least}, too", least - 2);
        }
    }
}

proptest! {
    /// A member above its target once gave back all free room, and then stood still until its next slice left.
    #[test]
    fn a_member_that_gives_back_goes_on(
        hold in 20..3_000_u64,
        percent in 5..100_u64,
        cycle_ms in 1_000..60_000_u64,
        pauses in prop::collection::vec(0..100_u64, 100),
    ) {
        let policy = member_policy(Duration::from_millis(cycle_ms));
        let pace = (hold * percent / 100).max(1);
        let mut gates = member(&policy, hold, hold);
        let mut now = at(1_000_000);
        // Demand comes and goes, so that the window fills unevenly.
        for pause in pauses {
            admit(&mut gates, now);
            now = now + policy.cycle * pause as u32 / 2_000;
        }
        let most = policy.cycle * 2 / pace as u32 + slice_width(policy.window_length());
        let (mut limit, mut last, mut look, end) = (hold, now, now, now + policy.window_length());
        while now < end {
            if now >= look {
                limit = least_limit_of(&mut gates, now, &policy, pace).max(pace).min(limit);
                gates.set_part(now, &policy, part(limit, pace));
                look = now + Duration::from_millis(50);
            }
            if admit(&mut gates, now) > 0 {
                last = now;
            }
            now = gates.open_at(now).min(look);
            prop_assert!(now.since(last) <= most, "{:?} without an admission, at most {most:?}", now.since(last));
        }
    }
}

proptest! {
    /// A limit that ought to have grown to the pace, and has not, was once taken for one that grows at once. The window
    /// filled at the pace, and then nothing went for up to a quarter of a cycle, in each cycle.
    #[test]
    fn a_limit_that_grows_no_more_is_used_evenly(pace in 100..3_000_u64, percent in 50..100_u64) {
        let policy = member_policy(Duration::from_secs(10));
        let limit = pace * percent / 100;
        let mut gates = member(&policy, limit, pace);
        let mut now = at(1_000_000);
        let growth = Growth { to: pace, until: now };
        gates.set_part(now, &policy, GroupPart { growth, ..part(limit, pace) });
        let most = policy.cycle * 2 / limit as u32 + slice_width(policy.window_length());
        let (mut last, end) = (now, now + policy.cycle * 3);
        while now < end {
            if admit(&mut gates, now) > 0 {
                last = now;
            }
            now = gates.open_at(now).min(now + Duration::from_millis(50));
            prop_assert!(now.since(last) <= most, "{:?} without an admission, at most {most:?}", now.since(last));
        }
    }
}

/// An owner that is away for more than half of each tenth of a second, and once for two cycles, uses the capacity: the
/// pace makes up for the gaps.
#[test]
fn an_owner_that_is_late_uses_the_capacity() {
    for (capacity, pause_ms) in [(1_000, 0), (3_000, 0), (1_000, 2_000)] {
        let commit_interval = Duration::from_millis(100);
        let policy = Policy { commit_interval, ..Policy::new(capacity, Duration::from_secs(1)) };
        let (mut gates, mut now) = (Gates::new(&policy), at(1_000_000));
        admit(&mut gates, now);
        now = gates.open_at(now) + Duration::from_millis(pause_ms);
        let (start, mut admitted) = (now + policy.cycle * 2, 0);
        while now < start + policy.cycle * 4 {
            gates.spacing.note_look(now);
            let records = admit(&mut gates, now);
            admitted += if now >= start { records } else { 0 };
            let due = gates.open_at(now);
            let phase = due.as_nanos() % (100 * NANOS_PER_MILLI);
            now = due + Duration::from_nanos((60 * NANOS_PER_MILLI).saturating_sub(phase));
        }
        let wanted = capacity * 4;
        assert!(admitted * 1_000 >= wanted * 975, "{admitted} of {wanted} after {pause_ms} ms");
    }
}

proptest! {
    /// A burst slows the next cycle down by a tenth, or by `burst` if that is larger: a flood never waits for longer
    /// than one record takes at that pace.
    #[test]
    fn a_burst_slows_the_next_cycle_down_by_little(
        capacity in 20..500_u64,
        cycle_ms in 100..5_000_u64,
        commit_ms in 0..500_u64,
        burst in 0..500_000_u32,
        before in prop::collection::vec((0..500_u32, 1..50_u64), 0..20),
    ) {
        let (cycle, commit_interval) = (Duration::from_millis(cycle_ms), Duration::from_millis(commit_ms));
        let kept = 1_000_000 - burst.max(100_000);
        let burst = Ratio::from_millionths(burst).unwrap();
        let policy = Policy { commit_interval, burst, ..Policy::new(capacity, cycle) };
        let (mut gates, mut now) = (Gates::new(&policy), at(1_000_000));
        for (pause, records) in before {
            for _ in 0..records {
                if gates.are_open(now) {
                    gates.bucket.charge(now);
                    gates.window.add(now, 1);
                }
            }
            now = now + cycle * pause / 1_000;
        }
        // The rate is that of whole records: the time for one of them, and 2 % more.
        let rate = u64::from(kept) * capacity - 1_000_000;
        let most = Duration::from_nanos((u128::from(nanos(cycle)) * 1_020_000 / u128::from(rate)) as u64);
        let (mut last, end) = (now, now + cycle * 2);
        while now < end {
            if admit(&mut gates, now) > 0 {
                last = now;
            }
            now = gates.open_at(now);
            prop_assert!(now.since(last) <= most, "{:?} without an admission, at most {most:?}", now.since(last));
        }
    }
}

/// Returns short and long names, some with the same prefix.
fn name(number: u32) -> String {
    if number.is_multiple_of(2) {
        format!("{number}")
    } else {
        format!("a-name-too-long-to-stand-in-an-entry-{number}")
    }
}

#[test]
fn names_of_any_length_are_found_in_a_growing_table() {
    let mut names = Names::default();
    let find = |names: &Names, number: u32| names.find(&name(number), |index| index == number);
    for number in 0..5_000 {
        assert_eq!(find(&names, number), None);
        names.insert(&name(number), number);
    }
    for number in (0..5_000).step_by(3) {
        names.remove(&name(number), number);
    }
    for number in 0..5_000 {
        assert_eq!(find(&names, number), (number % 3 != 0).then_some(number));
    }
    assert_eq!(names.len(), 5_000 - 1_667);
}

/// A client may send one record a day, and its others expire one by one. The bug: each left an entry for a day.
#[test]
fn a_blocked_client_whose_records_expire_keeps_one_entry() {
    let (mut backlog, mut queue) = (Backlog::default(), ClientQueue::default());
    for at in 0..1_000 {
        backlog.push(Slot(0), QueuedRecord::new(0, 1, Time::from_nanos(at)), &mut queue);
        backlog.block(0, &mut queue, Time::from_nanos(1_000_000));
        backlog.remove(Slot(0), &mut queue);
    }
    assert_eq!(backlog.blocked.len(), 1);
    // The block ends all the same.
    backlog.push(Slot(0), QueuedRecord::new(0, 1, Time::from_nanos(1_000)), &mut queue);
    assert_eq!(queue.eligible_tag(), None);
    assert_eq!(backlog.next_blocked(Time::from_nanos(1_000_000)), Some(0));
    backlog.unblock(Time::from_nanos(1_000_000), 0, &mut queue);
    assert!(queue.eligible_tag().is_some());
}

/// Ids that are used once, each of which may send one record a day. The bug: each left an entry for a day.
#[test]
fn forgotten_clients_leave_few_entries() {
    let policy = Policy::new(10, Duration::from_secs(1));
    let (mut scheduler, until) = (Scheduler::new(policy, at(0)), at(100_000));
    let known = scheduler.client_of(at(1), "known").unwrap();
    scheduler.backlog.block(known, &mut scheduler.clients.get_mut(known).queue, until);
    for client in 1..10_000 {
        scheduler.backlog.block(known + client, &mut ClientQueue::default(), until);
    }
    scheduler.advance_cycle(at(1_001));
    assert_eq!(scheduler.backlog.blocked.len(), 1);
    assert_eq!(scheduler.backlog.next_blocked(until), Some(known));
}

/// A client whose records come and go one by one, while those of another one wait, keeps one entry.
#[test]
fn each_client_with_first_records_keeps_about_one_entry() {
    let (mut backlog, mut queues) = (Backlog::default(), [ClientQueue::default(), ClientQueue::default()]);
    let record = |client, at| QueuedRecord { first: true, ..QueuedRecord::new(client, 1, Time::from_nanos(at)) };
    backlog.push(Slot(0), record(0, u64::MAX), &mut queues[0]);
    for at in 1..1_000 {
        backlog.push(Slot(1), record(1, at), &mut queues[1]);
        let next = backlog.next_first(|backlog, client| {
            let slot = queues[client as usize].records.head()?;
            Some((backlog.get(slot).since, slot))
        });
        assert_eq!(next, Some((1, Slot(1))));
        backlog.serve(Slot(1), &mut queues[1]);
        assert!(backlog.first_clients.len() <= 2, "{}", backlog.first_clients.len());
    }
    backlog.remove(Slot(0), &mut queues[0]);
    assert!(backlog.first_clients.is_empty());
}
