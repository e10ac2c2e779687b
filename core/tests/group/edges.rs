//! Groups with hardly more records in a cycle than members, or with fewer.

use std::time::Duration;

use watermaster_core::group::state::{SeatRecord, StateKind};
use watermaster_core::policy::{Mode, Policy, Scope};
use watermaster_core::units::Time;

use crate::live::Group;

const STEP: Duration = Duration::from_millis(20);
const CYCLE: Duration = Duration::from_secs(60);
const MEMBERS: usize = 20;

/// A group and a single instance with the same arrivals.
struct Pair {
    group: Group,
    single: Group,
    capacity: u64,
}

impl Pair {
    /// Lets time pass, in which all partitions together get four times the capacity of each.
    fn run(&mut self, time: Duration) {
        let (end, mut next) = (self.group.now() + time, self.group.now());
        while self.group.now() < end {
            if self.group.now() >= next {
                next = next + CYCLE / (4 * self.capacity as u32);
                for partition in 0..MEMBERS {
                    self.group.arrive(partition, partition);
                    self.single.arrive(partition, partition);
                }
            }
            self.group.step(STEP);
            self.single.step(STEP);
        }
    }
}

/// One member holds the capacity, others join, and all have more than enough records. Returns the admissions of the
/// next two cycles, and those of a single instance.
fn join(mode: Mode, capacity: u64) -> (u64, u64) {
    let policy = Policy { mode, max_delay: None, queue_capacity: 1 << 30, ..Policy::new(capacity, CYCLE) };
    let names: Vec<String> = (0..MEMBERS).map(|member| format!("client-{member}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let begin = Time::ZERO + Duration::from_secs(10_000);
    let [group, single] = [(); 2].map(|()| Group::new(&policy, MEMBERS, &names, begin, 3));
    let mut pair = Pair { group, single, capacity };
    let (first, alone) = (pair.group.start("wm-0", Scope::Group), pair.single.start("single", Scope::Instance));
    for partition in 0..MEMBERS {
        pair.group.assign(partition, Some(first));
        pair.single.assign(partition, Some(alone));
    }
    pair.run(CYCLE * 2);
    for member in 1..MEMBERS {
        let new = pair.group.start(&format!("wm-{member}"), Scope::Group);
        pair.run(Duration::from_millis(500));
        pair.group.assign(member, Some(new));
    }
    let before = (pair.group.counts.admitted, pair.single.counts.admitted);
    pair.run(CYCLE * 2);
    assert!(pair.group.fullest <= capacity, "{} records in a window of {capacity}", pair.group.fullest);
    (pair.group.counts.admitted - before.0, pair.single.counts.admitted - before.1)
}

/// A member once gave nothing as long as it had fewer free records than others lacked altogether: of 20 records in a
/// cycle, 20 members admitted one.
#[test]
fn few_records_reach_many_members() {
    for (mode, capacity, least) in [
        (Mode::Shape, 20, 0.9),
        (Mode::Shape, 40, 0.9),
        (Mode::Shape, 100, 0.9),
        (Mode::Reject, 40, 0.75),
        (Mode::Reject, 100, 0.75),
    ] {
        let (group, single) = join(mode, capacity);
        println!("{mode:?}, {capacity} records for {MEMBERS} members: {group} of {single}");
        assert!(group as f64 >= least * single as f64, "{mode:?}, {capacity}: {group} of {single} records");
    }
}

/// Members told the turn of a record that can't be split by their own clocks. Those drift apart by seconds in a few
/// days, and then each thought that it was the other one's turn: half of the capacity was used.
#[test]
fn one_record_is_used_by_two_members_whose_clocks_differ() {
    let cycle = Duration::from_secs(10);
    let policy = Policy { scope: Scope::Group, queue_capacity: 1 << 30, ..Policy::new(1, cycle) };
    for seconds in [0, 5, 10, 15] {
        let mut group = Group::new(&policy, 2, &["one", "other"], Time::ZERO + Duration::from_secs(10_000), 3);
        for member in 0..2 {
            let index = group.start(&format!("wm-{member}"), Scope::Group);
            let instance = group.instances[index].as_mut().expect("it was just started");
            instance.clock_ahead = Duration::from_secs(seconds) * member as u32;
            group.assign(member, Some(index));
            (0..100).for_each(|_| group.arrive(member, member));
        }
        let end = group.now() + cycle * 42;
        while group.now() < end {
            group.step(STEP);
        }
        let mut admitted = [0; 2];
        group.take_admitted().iter().for_each(|&(client, _)| admitted[client] += 1);
        println!("{seconds} s apart: {admitted:?} of 40");
        assert!(group.fullest <= 1, "{} records in a window", group.fullest);
        assert!(admitted.iter().sum::<u64>() >= 36, "{seconds} s apart: {admitted:?} of 40");
        assert!(admitted.iter().all(|&one| one >= 10), "{seconds} s apart: {admitted:?} of 40");
    }
}

/// A state with a capacity of 0, which no member writes, stopped all members of the group by a panic.
#[test]
fn a_damaged_capacity_stops_no_member() {
    let policy = Policy { scope: Scope::Group, ..Policy::new(100, Duration::from_secs(10)) };
    let mut group = Group::new(&policy, 1, &["client"], Time::ZERO + Duration::from_secs(10_000), 3);
    let only = group.start("wm-0", Scope::Group);
    group.assign(0, Some(only));
    for _ in 0..200 {
        group.step(STEP);
    }
    let last = group.take_committed().into_iter().rev().find_map(|record| match record {
        SeatRecord::State(state) if state.kind == StateKind::Own => Some(state),
        _ => None,
    });
    let mut state = last.expect("a state of the member");
    (state.seat, state.author, state.hold, state.terms.capacity) = ("wm-1".into(), 1, 0, 0);
    group.forge(SeatRecord::State(state));
    group.arrive(0, 0);
    for _ in 0..1_000 {
        group.step(STEP);
    }
    assert_eq!(group.counts.admitted, 1);
}
