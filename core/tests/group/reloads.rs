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

fn policy(mode: Mode, capacity: u64, cycle: Duration) -> Policy {
    let queue_capacity = 1 << 30;
    Policy { mode, scope: Scope::Group, max_delay: None, queue_capacity, ..Policy::new(capacity, cycle) }
}

fn params(policy: &Policy) -> GroupParams {
    GroupParams::new(policy, GroupParams::default_ahead_time(policy.cycle), Duration::from_secs(6))
}

/// A group of one member, and its admissions of the last cycle.
struct Only {
    group: Group,
    cycle: Duration,
    window: VecDeque<Time>,
    fullest: usize,
}

impl Only {
    fn new(policy: &Policy, cycle: Duration) -> Only {
        let group = Group::new(policy, 1, &["client"], Time::ZERO + Duration::from_secs(10_000), 7);
        let mut only = Only { group, cycle, window: VecDeque::new(), fullest: 0 };
        only.start(policy);
        only
    }

    fn start(&mut self, policy: &Policy) {
        self.group.params = params(policy);
        let instance = self.group.start_with("wm-0", policy.clone(), None);
        self.group.assign(0, Some(instance));
    }

    fn arrive(&mut self, records: u64) {
        (0..records).for_each(|_| self.group.arrive(0, 0));
    }

    fn run(&mut self, time: Duration) {
        let end = self.group.now() + time;
        while self.group.now() < end {
            let now = self.group.now();
            self.group.step(STEP);
            self.window.extend(self.group.take_admitted().iter().map(|_| now));
            while self.window.front().is_some_and(|at| *at + self.cycle <= now) {
                self.window.pop_front();
            }
            self.fullest = self.fullest.max(self.window.len());
        }
    }
}

/// One member without traffic reloads a cycle of a minute and six times the capacity to another policy, and gets a
/// burst. Returns the fullest window since then, and all admissions in `time`.
fn reload(former: Mode, mode: Mode, cycle: Duration, time: Duration) -> (usize, u64) {
    let (old, new) = (policy(former, 6 * CAPACITY, Duration::from_secs(60)), policy(mode, CAPACITY, cycle));
    let mut only = Only::new(&old, cycle);
    only.run(Duration::from_secs(30));
    let (now, index) = (only.group.now(), only.group.find("wm-0"));
    let instance = only.group.instances[index].as_mut().expect("a live instance");
    instance.group.as_mut().expect("a member").0.change(params(&new), &new);
    instance.throttle.handle_policy(now, new);
    only.arrive(BURST);
    only.run(time);
    (only.fullest, only.group.counts.admitted)
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
            assert!(
                fullest <= CAPACITY as usize,
                "{former:?} to {mode:?}, {cycle:?}: {fullest} in a window of {CAPACITY}"
            );
            assert!(admitted >= CAPACITY, "{former:?} to {mode:?}, {cycle:?}: {admitted} in all");
        }
    }
}

/// The window of a former cycle of 10 s has forgotten records that the one of a minute must still hold.
#[test]
fn a_restart_with_a_longer_cycle_charges_the_whole_hold() {
    let (short, long) = (Duration::from_secs(10), Duration::from_secs(60));
    for mode in [Mode::Shape, Mode::Reject] {
        let [old, new] = [short, long].map(|cycle| policy(mode, CAPACITY, cycle));
        let mut only = Only::new(&old, long);
        only.run(short);
        only.arrive(CAPACITY);
        only.run(short * 3);
        assert_eq!(only.group.counts.admitted, CAPACITY);
        only.group.kill(only.group.find("wm-0"));
        only.start(&new);
        only.arrive(CAPACITY);
        only.run(long * 3);
        assert!(only.fullest <= CAPACITY as usize, "{mode:?}: {} in a window of {CAPACITY}", only.fullest);
        assert!(only.group.counts.admitted > CAPACITY, "{mode:?}: none was admitted after the restart");
    }
}
