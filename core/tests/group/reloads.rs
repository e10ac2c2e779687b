//! Reloads of a group's cycle and mode.

use std::collections::VecDeque;
use std::time::Duration;

use watermaster_core::group::GroupParams;
use watermaster_core::policy::{Mode, Policy, Scope};
use watermaster_core::units::Time;

use crate::live::Group;

const STEP: Duration = Duration::from_millis(10);
const CAPACITY: u64 = 100;
/// The records that arrive at the reload.
const BURST: u64 = 2_000;

/// One member without traffic reloads a cycle of a minute and six times the capacity to another policy, and gets a
/// burst. Returns the fullest window since then, and all admissions in `time`.
fn reload(former: Mode, mode: Mode, cycle: Duration, time: Duration) -> (u64, u64) {
    let of = |mode, capacity, cycle| Policy {
        mode,
        scope: Scope::Group,
        max_delay: None,
        queue_capacity: 1 << 30,
        ..Policy::new(capacity, cycle)
    };
    let (old, new) = (of(former, 6 * CAPACITY, Duration::from_secs(60)), of(mode, CAPACITY, cycle));
    let mut group = Group::new(&old, 1, &["client"], Time::ZERO + Duration::from_secs(10_000), 7);
    let only = group.start("wm-0", Scope::Group);
    group.assign(0, Some(only));
    let reload_at = group.now() + Duration::from_secs(30);
    while group.now() < reload_at {
        group.step(STEP);
    }
    let params = GroupParams::new(&new, GroupParams::default_ahead_time(cycle), Duration::from_secs(6));
    let instance = group.instances[only].as_mut().expect("a live instance");
    instance.group.as_mut().expect("a member").0.change(params, &new);
    instance.throttle.handle_policy(reload_at, new);
    (0..BURST).for_each(|_| group.arrive(0, 0));
    let (mut window, mut sum, mut fullest) = (VecDeque::new(), 0, 0);
    while group.now() < reload_at + time {
        let now = group.now();
        group.step(STEP);
        let admitted = group.take_admitted().len() as u64;
        window.push_back((now, admitted));
        sum += admitted;
        while window.front().is_some_and(|(at, _)| *at + cycle <= now) {
            sum -= window.pop_front().expect("a front").1;
        }
        fullest = fullest.max(sum);
    }
    (fullest, group.counts.admitted)
}

/// A member went on with the hold of the former cycle, many times the capacity, until its first state of the new one:
/// two records too many were admitted.
#[test]
fn a_hold_of_another_cycle_or_mode_is_not_used() {
    let modes = [Mode::Shape, Mode::Reject];
    for (former, mode) in modes.iter().flat_map(|&former| modes.map(|mode| (former, mode))) {
        for seconds in [10, 60] {
            let (cycle, time) = (Duration::from_secs(seconds), Duration::from_secs(seconds * 3));
            let (fullest, admitted) = reload(former, mode, cycle, time);
            println!("{former:?} to {mode:?}, {cycle:?}: {fullest} in a window, {admitted} in all");
            assert!(fullest <= CAPACITY, "{former:?} to {mode:?}, {cycle:?}: {fullest} in a window of {CAPACITY}");
            assert!(admitted >= CAPACITY, "{former:?} to {mode:?}, {cycle:?}: {admitted} in all");
        }
    }
}
