//! Laws that hold for any offsets of the brokers.

use std::time::Duration;

use proptest::prelude::*;
use watermaster_core::pace::{Control, Offsets, Pace, PaceParams, PaceState};
use watermaster_core::units::{Ratio, Time};

const MAX_BEHIND: Duration = Duration::from_secs(2);

/// The offsets of one partition at a poll.
#[derive(Debug, Clone)]
struct Progress {
    written: i64,
    /// The part of the open offsets that is committed, in percent.
    committed: i64,
    /// The committed offset is set back by this.
    reset: i64,
}

#[derive(Debug, Clone)]
struct Poll {
    after: Duration,
    /// No offsets are known without one.
    progress: Option<Vec<Progress>>,
    admitted: u64,
    waited: u32,
}

fn progress() -> impl Strategy<Value = Progress> {
    let written = prop_oneof![Just(0), 0..200_i64, 0..1_000_000_000_i64];
    let committed = prop_oneof![4 => Just(0), 3 => 0..=100_i64, 3 => Just(100)];
    let reset = prop_oneof![40 => Just(0), 1 => 1..1_000_i64];
    (written, committed, reset).prop_map(|(written, committed, reset)| Progress { written, committed, reset })
}

fn polls() -> impl Strategy<Value = Vec<Poll>> {
    let after = prop_oneof![8 => 400..700_u64, 1 => 100..100_000_u64].prop_map(Duration::from_millis);
    let progress = prop_oneof![20 => prop::collection::vec(progress(), 1..5).prop_map(Some), 1 => Just(None)];
    let waited = prop_oneof![Just(0), Just(1_000_000), 0..=1_000_000_u32];
    let poll = (after, progress, 0..2_000_u64, waited);
    let poll = poll.prop_map(|(after, progress, admitted, waited)| Poll { after, progress, admitted, waited });
    prop::collection::vec(poll, 1..300)
}

fn params() -> impl Strategy<Value = PaceParams> {
    let bounds = (1..1_000_u64, 0..100_000_u64, 0..100_000_u64);
    (bounds, prop_oneof![Just(Control::Apply), Just(Control::Observe)]).prop_map(|((floor, more, most), control)| {
        PaceParams {
            control,
            capacity: floor + more,
            floor,
            ceiling: floor + more + most,
            cycle: Duration::from_secs(1),
            max_behind: MAX_BEHIND,
            interval: Duration::from_secs(5),
            signal_timeout: Duration::from_secs(300),
        }
    })
}

/// Plays polls, and calls `check` before and after each with the poll between.
fn play(params: &PaceParams, polls: &[Poll], mut check: impl FnMut(&Pace, Option<(&Poll, u64)>, Time)) {
    let mut now = Time::ZERO + Duration::from_secs(1_000);
    let mut pace = Pace::new(params.clone(), now);
    let mut offsets: Vec<Offsets> = Vec::new();
    let mut admitted = 0;
    check(&pace, None, now);
    for poll in polls {
        now = now + poll.after;
        admitted += poll.admitted;
        let before = pace.milli().0;
        match &poll.progress {
            None => pace.handle_no_signal(now),
            Some(progress) => {
                while offsets.len() < progress.len() {
                    offsets.push(Offsets { partition: offsets.len() as i32, end: 7, committed: 3 });
                }
                for (one, Progress { written, committed, reset }) in offsets.iter_mut().zip(progress) {
                    one.end += written;
                    one.committed += (one.end - one.committed) * committed / 100;
                    one.committed = (one.committed - reset).max(0);
                }
                let waited = Ratio::from_millionths(poll.waited).unwrap();
                pace.handle_offsets(now, &offsets[..progress.len()], admitted, waited);
                for tail in pace.doubtful_tails(now).collect::<Vec<_>>() {
                    pace.handle_empty_tail(tail);
                }
            }
        }
        check(&pace, Some((poll, before)), now);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn the_limit_stays_between_floor_and_ceiling(params in params(), polls in polls()) {
        play(&params, &polls, |pace, _, now| {
            let limit = pace.limit();
            assert!((params.floor..=params.ceiling).contains(&limit), "{limit}");
            let view = pace.view(now);
            if params.control == Control::Observe {
                assert_eq!(limit, params.capacity, "an observed capacity changes no limit");
            } else {
                assert!((params.floor..=params.ceiling).contains(&view.found.unwrap()), "{view:?}");
            }
        });
    }

    #[test]
    fn the_estimate_rises_only_for_records_that_wait_or_by_a_measured_rate(params in params(), polls in polls()) {
        let polls: Vec<Poll> = polls.into_iter().map(|poll| Poll { waited: 0, ..poll }).collect();
        let params = PaceParams { control: Control::Apply, ..params };
        play(&params, &polls, |pace, poll, now| {
            let Some((_, before)) = poll else { return };
            let late = pace.view(now).late;
            assert!(pace.milli().0 <= before || late > MAX_BEHIND, "{before} to {:?}, {late:?} late", pace.milli());
        });
    }

    #[test]
    fn a_change_of_the_estimate_is_at_most_a_step_up_or_a_half_down(params in params(), polls in polls()) {
        let params = PaceParams { control: Control::Apply, signal_timeout: Duration::MAX, ..params };
        play(&params, &polls, |pace, poll, _| {
            let Some((_, before)) = poll else { return };
            let after = pace.milli().0;
            assert!(after <= before + before / 10 && after >= before / 2, "{before} to {after}");
        });
    }
}

fn steady_params(control: Control) -> PaceParams {
    PaceParams {
        control,
        capacity: 100,
        floor: 10,
        ceiling: 1_000,
        cycle: Duration::from_secs(1),
        max_behind: MAX_BEHIND,
        interval: Duration::from_secs(5),
        signal_timeout: Duration::from_secs(60),
    }
}

fn steady(control: Control) -> (Pace, Time) {
    let start = Time::ZERO + Duration::from_secs(1_000);
    (Pace::new(steady_params(control), start), start)
}

/// One partition that takes 50 records a poll, each a second, and commits them all one poll later.
fn poll_steadily(pace: &mut Pace, now: &mut Time, polls: i64, end: &mut i64) {
    for _ in 0..polls {
        *now = *now + Duration::from_secs(1);
        *end += 50;
        let offsets = [Offsets { partition: 0, end: *end, committed: *end - 50 }];
        pace.handle_offsets(*now, &offsets, *end as u64, Ratio::ONE);
    }
}

#[test]
fn after_the_timeout_without_a_signal_an_estimate_above_the_capacity_ends() {
    let (mut pace, mut now) = steady(Control::Apply);
    let mut end = 0;
    assert_eq!(pace.view(now).state, PaceState::NoSignal);
    poll_steadily(&mut pace, &mut now, 60, &mut end);
    let found = pace.limit();
    assert!(found > 150, "{found}");
    assert_eq!(pace.view(now).state, PaceState::Learning);
    pace.handle_no_signal(now);
    assert_eq!((pace.limit(), pace.view(now).state), (found, PaceState::NoSignal));
    pace.handle_no_signal(now + Duration::from_secs(59));
    assert_eq!(pace.limit(), found);
    pace.handle_no_signal(now + Duration::from_secs(60));
    assert_eq!(pace.limit(), 100);
}

/// The service may take no more than was found.
#[test]
fn after_the_timeout_without_a_signal_an_estimate_below_the_capacity_stays() {
    let (mut pace, mut now) = steady(Control::Apply);
    poll_steadily(&mut pace, &mut now, 60, &mut 0);
    let found = pace.limit();
    pace.change(PaceParams { capacity: 900, ..steady_params(Control::Apply) }, now);
    for seconds in [0, 60, 600] {
        pace.handle_no_signal(now + Duration::from_secs(seconds));
        assert_eq!(pace.limit(), found, "after {seconds} s");
    }
}

#[test]
fn a_tail_of_markers_does_not_look_late_once_it_is_known_to_be_empty() {
    let (mut pace, mut now) = steady(Control::Apply);
    let mut end = 0;
    poll_steadily(&mut pace, &mut now, 20, &mut end);
    let tail = [Offsets { partition: 0, end, committed: end - 1 }];
    let mut asked = 0;
    for _ in 0..60 {
        now = now + Duration::from_secs(1);
        pace.handle_offsets(now, &tail, end as u64, Ratio::ZERO);
        for tail in pace.doubtful_tails(now).collect::<Vec<_>>() {
            asked += 1;
            pace.handle_empty_tail(tail);
        }
    }
    assert_eq!(asked, 1, "the tail is asked about once");
    let view = pace.view(now);
    assert_eq!((view.late, view.open_offsets, view.stuck_partitions), (Duration::ZERO, 0, 0));
    assert_eq!(view.state, PaceState::NoDemand);
    // A record behind the tail is open again.
    for _ in 0..20 {
        now = now + Duration::from_secs(1);
        pace.handle_offsets(now, &[Offsets { end: end + 1, ..tail[0] }], end as u64 + 1, Ratio::ZERO);
    }
    assert!(pace.view(now).late > MAX_BEHIND, "{:?}", pace.view(now));
}

#[test]
fn an_instance_that_searches_on_knows_where_the_limit_was_too_high() {
    let (mut pace, mut now) = steady(Control::Apply);
    for limit in [100, 110, 110, 80, 50, 50] {
        pace.handle_other(Some(limit));
        assert_eq!((pace.limit(), pace.view(now).state), (limit, PaceState::NotAlone));
    }
    let mut end = 0;
    let mut limits = Vec::new();
    for _ in 0..18 {
        poll_steadily(&mut pace, &mut now, 5, &mut end);
        limits.push(pace.limit());
    }
    // By a tenth up to 85 % of 110, then by 2 %, and only while the service finishes as much.
    assert_eq!(limits[..8], [55, 60, 66, 73, 80, 88, 97, 97], "{limits:?}");
    assert!(limits[8..].iter().all(|limit| *limit <= 99), "{limits:?}");
    assert_eq!(pace.view(now).state, PaceState::Found);
}

#[test]
fn another_control_begins_anew_and_other_bounds_do_not() {
    let (mut pace, mut now) = steady(Control::Apply);
    let mut end = 0;
    poll_steadily(&mut pace, &mut now, 60, &mut end);
    let (params, found) = (steady(Control::Apply).0, pace.limit());
    drop(params);
    let bounds = |control, ceiling| PaceParams {
        control,
        capacity: 100,
        floor: 10,
        ceiling,
        cycle: Duration::from_secs(1),
        max_behind: MAX_BEHIND,
        interval: Duration::from_secs(5),
        signal_timeout: Duration::from_secs(60),
    };
    pace.change(bounds(Control::Apply, 900), now);
    assert_eq!(pace.limit(), found);
    pace.change(bounds(Control::Apply, 120), now);
    assert_eq!(pace.limit(), 120);
    pace.change(bounds(Control::Observe, 120), now);
    assert_eq!((pace.limit(), pace.view(now).found), (100, None));
    poll_steadily(&mut pace, &mut now, 90, &mut end);
    let view = pace.view(now);
    assert_eq!((view.found, view.at_least, view.state), (Some(50), true, PaceState::AtLeast));
}

/// A service that is much faster than its traffic has nothing open at most polls.
#[test]
fn a_service_with_nothing_open_shows_what_it_takes_at_least() {
    let (mut pace, mut now) = steady(Control::Observe);
    for second in 1..=70 {
        now = now + Duration::from_secs(1);
        let end = second * 40;
        let committed = if second % 2 == 0 { end } else { end - 40 };
        pace.handle_offsets(now, &[Offsets { partition: 0, end, committed }], end as u64, Ratio::ZERO);
    }
    let view = pace.view(now);
    assert_eq!((view.found, view.at_least, view.state), (Some(40), true, PaceState::AtLeast));
}

/// Half of the records went to a partition in which the group has not committed, and counted as finished.
#[test]
fn records_in_partitions_without_a_commit_are_not_finished() {
    let (mut pace, mut now) = steady(Control::Observe);
    for second in 1..=70 {
        now = now + Duration::from_secs(1);
        let end = second * 50;
        let offsets = [Offsets { partition: 0, end, committed: end - 50 }];
        pace.note_other_ends(end);
        pace.handle_offsets(now, &offsets, 2 * end as u64, Ratio::ZERO);
    }
    assert_eq!(pace.view(now).found, Some(50));
}

/// A service of 400 records a second, in whose target a marker follows each tenth of a second, gets 100 records a second
/// for a minute and then 1 200. Returns what is found.
fn found_in_a_campaign(told_of_markers: bool) -> u64 {
    let (mut pace, start) = steady(Control::Observe);
    if told_of_markers {
        pace.expect_markers(10);
    }
    let (mut ends, mut written, mut passed) = (vec![0], 0, 0.0_f64);
    for poll in 1..=160 {
        let in_campaign = poll > 120;
        for _ in 0..5 {
            written += if in_campaign { 120 } else { 10 };
            ends.push(ends[ends.len() - 1] + 1 + if in_campaign { 120 } else { 10 });
        }
        // The service passes markers without work.
        let mut work: f64 = 200.0;
        while work > 0.0 && (passed as i64) < ends[ends.len() - 1] {
            let next = ends[ends.partition_point(|&end| end as f64 <= passed)] - 1;
            let step = work.min((next as f64 - passed).max(0.0));
            (work, passed) = (work - step, passed + step);
            passed += if passed >= next as f64 { 1.0 } else { 0.0 };
        }
        let now = start + Duration::from_millis(500) * poll;
        let offsets = [Offsets { partition: 0, end: ends[ends.len() - 1], committed: passed as i64 }];
        pace.handle_offsets(now, &offsets, written, Ratio::ZERO);
    }
    let view = pace.view(start + Duration::from_secs(80));
    assert!(!view.at_least, "{view:?}");
    view.found.unwrap()
}

/// Three times as many markers are written as the service passes.
#[test]
fn markers_of_records_that_wait_are_no_work() {
    assert_eq!((found_in_a_campaign(true), found_in_a_campaign(false)), (400, 393));
}

/// The group commits in a partition for the first time, far from the start of its offsets: the service has not finished
/// as many records.
#[test]
fn a_partition_that_is_added_is_no_evidence_of_finished_records() {
    let (mut pace, mut now) = steady(Control::Apply);
    let partition = |partition, end| Offsets { partition, end, committed: end };
    for _ in 0..20 {
        now = now + Duration::from_secs(1);
        pace.handle_offsets(now, &[partition(0, 500)], 0, Ratio::ONE);
    }
    for poll in 0..20 {
        now = now + Duration::from_secs(1);
        // Every second poll lacks the added partition.
        let added = [partition(0, 500), partition(1, 1_000_000)];
        pace.handle_offsets(now, if poll % 2 == 0 { &added } else { &added[..1] }, 0, Ratio::ONE);
    }
    assert_eq!(pace.limit(), 100, "nothing was committed");
}

/// The fault: the first check after a reload came when the former interval was over, five minutes later.
#[test]
fn a_shorter_interval_holds_from_the_reload_on() {
    let (_, mut now) = steady(Control::Apply);
    let of_interval = |seconds| PaceParams {
        control: Control::Apply,
        capacity: 100,
        floor: 10,
        ceiling: 1_000,
        cycle: Duration::from_secs(1),
        max_behind: MAX_BEHIND,
        interval: Duration::from_secs(seconds),
        signal_timeout: Duration::from_secs(60),
    };
    let mut pace = Pace::new(of_interval(300), now);
    let mut end = 0;
    poll_steadily(&mut pace, &mut now, 20, &mut end);
    assert_eq!(pace.limit(), 100);
    pace.change(of_interval(5), now);
    poll_steadily(&mut pace, &mut now, 6, &mut end);
    assert_eq!(pace.limit(), 110, "a step was due");
}

/// The fault: a limit at the floor alarmed, because the service is down then, also while it was on time: where the
/// floor is the capacity, and after a slow time without records since.
#[test]
fn a_limit_at_the_floor_is_reported_while_the_service_is_late() {
    let (_, mut now) = steady(Control::Apply);
    let params = PaceParams {
        control: Control::Apply,
        capacity: 100,
        floor: 100,
        ceiling: 1_000,
        cycle: Duration::from_secs(1),
        max_behind: MAX_BEHIND,
        interval: Duration::from_secs(5),
        signal_timeout: Duration::from_secs(60),
    };
    let mut pace = Pace::new(params, now);
    let mut poll = |end: i64, committed: i64| {
        now = now + Duration::from_secs(1);
        pace.handle_offsets(now, &[Offsets { partition: 0, end, committed }], end as u64, Ratio::ZERO);
        pace.view(now).state
    };
    for second in 0..30 {
        assert_eq!(poll(second * 50, second * 50 - 50), PaceState::NoDemand);
    }
    // The service commits a tenth of the arrivals each second, and later none.
    let states: Vec<PaceState> = (0..60).map(|second| poll(1_500 + second * 100, 1_500 + second * 10)).collect();
    assert!(states[20..].iter().all(|state| *state == PaceState::AtFloor), "{states:?}");
    let states: Vec<PaceState> = (60..120).map(|second| poll(1_500 + second * 100, 2_100)).collect();
    assert!(states.iter().all(|state| *state == PaceState::AtFloor), "{states:?}");
}

/// An instance had no offsets at its start, then another one searched for an hour. The fault: the first poll without
/// offsets after that ended the estimate that it had taken over, as if there had been none in all that time.
#[test]
fn the_time_without_a_signal_begins_with_the_search() {
    let (mut pace, mut now) = steady(Control::Apply);
    pace.handle_no_signal(now);
    for _ in 0..3_600 {
        now = now + Duration::from_secs(1);
        pace.handle_other(Some(800));
    }
    for second in 0..60 {
        pace.handle_no_signal(now + Duration::from_secs(second));
        assert_eq!(pace.limit(), 800, "{second} s without offsets");
    }
    pace.handle_no_signal(now + Duration::from_secs(60));
    assert_eq!(pace.limit(), 100);
}
