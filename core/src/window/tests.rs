use proptest::prelude::*;

use super::*;

const CYCLE: Duration = Duration::from_secs(1);

fn at(ms: u64) -> Time {
    Time::from_nanos(ms * NANOS_PER_MILLI)
}

/// Adds one slice of a former owner. Returns what the window tells about it.
fn inherit(window: &mut SlidingCount, now: Time, end: Time, n: u64) -> Option<(Time, u64)> {
    let mut told = None;
    window.inherit(now, [(end, n)], |when, n| told = Some((when, n)));
    told
}

#[test]
fn records_count_for_a_cycle_and_at_most_a_slice_more() {
    let mut window = SlidingCount::exact_up_to(0, CYCLE);
    window.add(at(5_003), 7);
    assert_eq!(window.count(at(6_003)), 7);
    assert_eq!(window.below_at(at(5_500), 7), at(6_005));
    assert_eq!(window.count(at(6_005)), 0);
}

#[test]
fn the_count_is_below_the_limit_from_the_predicted_time() {
    let mut window = SlidingCount::exact_up_to(0, CYCLE);
    // Records around the end of the ring, with empty slices between them.
    for (ms, n) in [(5_003, 2), (5_004, 1), (5_500, 4), (5_998, 3)] {
        window.add(at(ms), n);
    }
    for (limit, from) in [(11, 5_998), (10, 6_005), (8, 6_005), (7, 6_505), (4, 6_505), (3, 7_000), (1, 7_000)] {
        assert_eq!(window.below_at(at(5_998), limit), at(from), "below {limit}");
        let mut later = window.clone();
        assert!(later.count(at(from)) < limit, "below {limit}");
    }
    assert_eq!(window.below_at(at(5_998), 0), Time::NEVER);
}

#[test]
fn inheriting_twice_charges_once_and_future_slices_count_now() {
    let mut window = SlidingCount::exact_up_to(EXACT_RECORDS, CYCLE);
    window.add(at(5_001), 2);
    assert_eq!(inherit(&mut window, at(5_100), at(5_005), 5), Some((at(5_000), 3)));
    assert_eq!(inherit(&mut window, at(5_100), at(5_005), 5), None);
    assert_eq!(inherit(&mut window, at(5_100), at(9_000), 4), Some((at(5_100), 4)));
    assert_eq!(window.count(at(5_100)), 9);
    assert_eq!(inherit(&mut window, at(7_000), at(5_005), 5), None);
}

#[test]
fn time_that_runs_backwards_loses_no_record() {
    let mut window = SlidingCount::exact_up_to(EXACT_RECORDS, CYCLE);
    window.add(at(9_000), 1);
    window.add(at(100), 1);
    assert_eq!(window.count(at(9_000)), 2);
}

/// The bug: at two records a cycle, the last record of a client that sends exactly once a cycle still counted.
#[test]
fn few_records_leave_exactly_after_a_cycle() {
    let mut window = SlidingCount::exact_up_to(EXACT_RECORDS, CYCLE);
    window.add(at(5_003), 2);
    assert_eq!(window.below_at(at(5_500), 1), at(6_003));
    assert_eq!(window.count(Time::from_nanos(6_003 * NANOS_PER_MILLI - 1)), 2);
    assert_eq!(window.count(at(6_003)), 0);
}

/// The bug: the slices may hold a full window that has just left beside the full one, and the last record of the second
/// one made the window forget the times. In reject mode, with shares that are all sent each cycle, every record waited
/// for the rest of a slice more in each cycle.
#[test]
fn a_full_window_follows_another_one_exactly() {
    let mut window = SlidingCount::exact_up_to(20, CYCLE);
    for burst in 5..10 {
        assert_eq!(window.count(at(burst * 1_000 + 3)), 0);
        for record in 1..=20 {
            assert_eq!(window.add(at(burst * 1_000 + 3), 1), record);
        }
        assert_eq!(window.below_at(at(burst * 1_000 + 3), 20), at(burst * 1_000 + 1_003));
    }
}

/// Records added some milliseconds after the last ones, an inherited slice, or a new cycle length.
#[derive(Debug, Clone)]
enum Step {
    Add(u64, u64),
    Inherit(u64, u64),
    Over(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let wait = || prop_oneof![4 => 0..30_u64, 2 => 0..400_u64, 1 => 0..2_500_u64];
    let step = prop_oneof![
        20 => (wait(), prop_oneof![6 => Just(1_u64), 1 => 1..40_u64]).prop_map(|(wait, n)| Step::Add(wait, n)),
        1 => (0..1_500_u64, 1..10_u64).prop_map(|(age, n)| Step::Inherit(age, n)),
        1 => prop_oneof![Just(1_000_u64), Just(500), 1_000..3_000_u64].prop_map(Step::Over),
    ];
    proptest::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// The count is never below the true number, the certain count never above it, and both are exact while the
    /// window holds few records of its own.
    #[test]
    fn counts_enclose_the_truth_and_few_records_are_counted_exactly(steps in steps(), limit in 0..3_usize) {
        let limit = [0, EXACT_RECORDS, 64][limit];
        let mut cycle = 1_000;
        let mut window = SlidingCount::exact_up_to(limit, Duration::from_millis(cycle));
        let (mut now, mut own, mut inexact_until, mut changed) = (10_000, Vec::new(), 0, false);
        let mut inherited: Vec<u64> = Vec::new();
        for step in steps {
            match step {
                Step::Add(wait, n) => {
                    now += wait;
                    own.extend((0..n).map(|_| now));
                    window.add(at(now), n);
                }
                Step::Inherit(age, n) => {
                    let width = slice_width(Duration::from_millis(cycle)).as_millis() as u64;
                    let end = (now - age).div_ceil(width) * width;
                    if let Some((_, missing)) = inherit(&mut window, at(now), at(end), n) {
                        inherited.extend((0..missing).map(|_| end.min(now)));
                        inexact_until = inexact_until.max(now + 2 * cycle);
                    }
                }
                Step::Over(length) => {
                    // A longer window keeps no more records than the shorter one held.
                    own.retain(|added| added + cycle > now);
                    inherited.retain(|added| added + cycle > now);
                    window = window.over(at(now), Duration::from_millis(length));
                    inexact_until = inexact_until.max(if inexact_until > now { now + 2 * length } else { 0 });
                    (cycle, changed) = (length, true);
                }
            }
            let within = |times: &[u64]| times.iter().filter(|added| **added + cycle > now).count() as u64;
            let truth = within(&own);
            let count = window.count(at(now));
            prop_assert!(count >= truth);
            if inherited.is_empty() && !changed {
                prop_assert!(window.count_at_least(at(now)) <= truth);
            }
            if truth > limit as u64 {
                inexact_until = inexact_until.max(now + 2 * cycle);
            }
            if limit > 0 && now >= inexact_until {
                prop_assert_eq!(count, truth);
                if truth > 0 {
                    let mut times: Vec<u64> = own.iter().copied().filter(|added| added + cycle > now).collect();
                    times.sort_unstable();
                    let below = window.below_at(at(now), truth);
                    prop_assert_eq!(below, at(times[0] + cycle));
                }
            }
        }
    }
}
