//! A clock that goes back, or that is read once for many calls: the guarantee still holds.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{Strategy, prop_oneof};
use watermaster_core::offset_map::{AdmissionSlice, MapBudget, OffsetMap};
use watermaster_core::policy::{Mode, Policy};
use watermaster_core::throttle::{Action, Arrival, Sender, Throttle, Verdict};
use watermaster_core::units::Time;

use crate::case::{Class, name, policies};
use crate::{check, sim::START};

/// A call, with its time in thousandths of a cycle after (or before) the last one.
#[derive(Debug, Clone, Copy)]
struct Call {
    thousandths: i32,
    kind: CallKind,
}

#[derive(Debug, Clone, Copy)]
enum CallKind {
    Records {
        client: usize,
        records: u32,
    },
    Act,
    /// A partition is assigned: the engine reads the clock again for it.
    Assign,
    Timeout,
    Commit,
}

fn cases(class: Class) -> impl Strategy<Value = (Policy, Vec<Call>)> {
    policies(class).prop_flat_map(|mut policy| {
        policy.map_budget = MapBudget::default();
        let clients = policy.clients.len().min(12);
        let kind = prop_oneof![
            6 => (0..clients, prop_oneof![1_u32..5, 1_u32..200])
                .prop_map(|(client, records)| CallKind::Records { client, records }),
            3 => proptest::strategy::Just(CallKind::Act),
            1 => proptest::strategy::Just(CallKind::Assign),
            1 => proptest::strategy::Just(CallKind::Timeout),
            1 => proptest::strategy::Just(CallKind::Commit),
        ];
        let back = prop_oneof![5 => 0..300_i32, 2 => -300..0_i32, 1 => -3_000..3_000_i32];
        let call = (back, kind).prop_map(|(thousandths, kind)| Call { thousandths, kind });
        vec(call, 1..60).prop_map(move |calls| (policy.clone(), calls))
    })
}

/// Checks calls with any times: admissions count at the latest time passed so far, and by these times no window of a
/// cycle holds more than the capacity.
fn clock_steps_keep_the_window((policy, calls): (Policy, Vec<Call>)) {
    let (capacity, cycle) = (policy.capacity, policy.cycle);
    let mut throttle = Throttle::new(policy, START);
    throttle.handle_assigned(START, 0, 0, &OffsetMap::default(), 0);
    let (mut now, mut latest, mut offset, mut partitions) = (START, START, 0, 1);
    let mut admitted: Vec<Time> = Vec::new();
    for Call { thousandths, kind } in calls {
        let by = cycle * thousandths.unsigned_abs() / 1_000;
        now = if thousandths < 0 { now - by } else { now + by };
        latest = latest.max(now);
        match kind {
            CallKind::Records { client, records } => {
                for _ in 0..records {
                    let sender = Sender::Client(&name(client));
                    let verdict = throttle
                        .handle_record(now, &Arrival { partition: 0, offset, bytes: 1, sender, written_ms: None });
                    admitted.extend(matches!(verdict, Verdict::Admit(_)).then_some(latest));
                    offset += 1;
                }
            }
            CallKind::Act => {
                while let Some(action) = throttle.poll_action(now) {
                    admitted.extend(matches!(action, Action::Admit { .. }).then_some(latest));
                }
            }
            CallKind::Assign => {
                throttle.handle_assigned(now, partitions, 0, &OffsetMap::default(), 0);
                partitions += 1;
            }
            CallKind::Timeout => throttle.handle_timeout(now),
            CallKind::Commit => {
                while let Some(action) = throttle.poll_action(now) {
                    admitted.extend(matches!(action, Action::Admit { .. }).then_some(latest));
                }
                throttle.commit_without(now, 0, &[]).expect("the map fits");
            }
        }
    }
    let mut first = 0;
    for (last, &at) in admitted.iter().enumerate() {
        while admitted[first] + cycle <= at {
            first += 1;
        }
        let window = (last + 1 - first) as u64;
        assert!(window <= capacity, "{window} of {capacity} in a window");
    }
}

#[test]
fn a_clock_that_goes_back_keeps_the_window() {
    check("clock", cases, clock_steps_keep_the_window);
}

/// The bug: of the former owner's slices that fell into one slice of the new owner, only the largest counted. So an
/// owner whose clock was 0.6 s behind, or whose cycle was six times as long, admitted nearly the whole capacity again.
#[test]
fn all_slices_of_a_former_owner_count_although_they_are_one_here() {
    const CAPACITY: u64 = 1_000;
    let second = Duration::from_secs(1);
    // 1 000 admissions in the last half second before the stop, in slices of 50 ms, by a clock that may be ahead.
    let slices =
        |stop: i64| (0..10).rev().map(move |slice| AdmissionSlice { end_ms: stop - 50 * slice, admitted: 100 });
    for (ahead_ms, cycle) in [(0, second * 10), (600, second * 10), (3_600_000, second * 10), (0, second * 60)] {
        let policy = Policy { mode: Mode::Reject, ..Policy::new(CAPACITY, cycle) };
        let mut throttle = Throttle::new(policy, START);
        let start_ms = i64::try_from(START.as_nanos() / 1_000_000).expect("a time of this age");
        let map = OffsetMap { admitted: slices(start_ms + ahead_ms).collect(), ..OffsetMap::default() };
        throttle.handle_assigned(START, 0, 0, &map, 0);
        let more = (0..2 * CAPACITY as i64).filter(|&offset| {
            let sender = Sender::Client(&name(0));
            let arrival = Arrival { partition: 0, offset, bytes: 1, sender, written_ms: None };
            matches!(throttle.handle_record(START, &arrival), Verdict::Admit(_))
        });
        assert_eq!(more.count(), 0, "{ahead_ms} ms ahead, cycle {cycle:?}");
    }
}
