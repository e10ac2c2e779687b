//! A capacity that changes often: each window holds at most the mean of the capacities that were in force over it.

use std::time::Duration;

use proptest::prelude::*;
use watermaster_core::offset_map::OffsetMap;
use watermaster_core::policy::{Mode, Policy};
use watermaster_core::throttle::{Action, Arrival, Sender, Throttle, Verdict};
use watermaster_core::units::{Ratio, Time, nanos};

const CYCLE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
enum Event {
    Wait(Duration),
    Capacity(u64),
    Records(u8),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let wait = prop_oneof![1..300_u64, 300..3_000_u64].prop_map(|ms| Event::Wait(Duration::from_millis(ms)));
    let event = prop_oneof![
        4 => wait,
        2 => prop_oneof![1..40_u64, 1..2_000_u64].prop_map(Event::Capacity),
        3 => any::<u8>().prop_map(Event::Records),
    ];
    prop::collection::vec(event, 1..200)
}

/// A throttle, and the record of what was in force and what it admitted.
struct World {
    throttle: Throttle,
    now: Time,
    next_offset: i64,
    /// The capacities with the times from which on they were in force; the first one stands for the time before, too.
    capacities: Vec<(Time, u64)>,
    admitted: Vec<Time>,
}

impl World {
    fn new(mode: Mode, capacity: u64) -> World {
        let now = Time::ZERO + Duration::from_secs(1_000);
        let (burst, commit_interval) = (Ratio::ZERO, Duration::from_millis(10));
        let policy = Policy { mode, queue_capacity: 1_000_000, burst, commit_interval, ..Policy::new(capacity, CYCLE) };
        let mut throttle = Throttle::new(policy, now);
        throttle.handle_assigned(now, 0, 0, &OffsetMap::default(), 0);
        World { throttle, now, next_offset: 0, capacities: vec![(Time::ZERO, capacity)], admitted: Vec::new() }
    }

    fn handle(&mut self, event: &Event) {
        match *event {
            Event::Wait(time) => self.run_until(self.now + time),
            Event::Capacity(capacity) => {
                self.throttle.handle_capacity(self.now, capacity);
                self.capacities.push((self.now, capacity));
            }
            Event::Records(records) => (0..records).for_each(|_| self.arrive()),
        }
        self.act();
    }

    fn arrive(&mut self) {
        let sender = Sender::Client(if self.next_offset % 3 == 0 { "car" } else { "home" });
        let arrival = Arrival { partition: 0, offset: self.next_offset, bytes: 1, sender, written_ms: None };
        self.next_offset += 1;
        if let Verdict::Admit(_) = self.throttle.handle_record(self.now, &arrival) {
            self.note_admission();
        }
    }

    /// Lets time pass from one timeout of the throttle to the next.
    fn run_until(&mut self, until: Time) {
        loop {
            self.throttle.handle_timeout(self.now);
            self.act();
            let next = self.throttle.poll_timeout(self.now).max(self.now + Duration::from_micros(10));
            if next >= until {
                self.now = until;
                return;
            }
            self.now = next;
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.throttle.poll_action(self.now) {
            if let Action::Admit { .. } = action {
                self.note_admission();
            }
        }
    }

    fn note_admission(&mut self) {
        let start = self.now - CYCLE;
        self.admitted.push(self.now);
        let in_window = self.admitted.iter().rev().take_while(|&&at| at > start).count();
        let sum = self.sum_of_limits();
        let held = in_window as u128 * u128::from(nanos(CYCLE));
        assert!(held <= sum, "{in_window} in a window, the mean is {}", sum / u128::from(nanos(CYCLE)));
    }

    /// The sum of capacity · time over the window that ends now.
    fn sum_of_limits(&self) -> u128 {
        let start = self.now - CYCLE;
        let ends = self.capacities.iter().skip(1).map(|&(from, _)| from).chain([self.now]);
        let segments = self.capacities.iter().zip(ends);
        segments.map(|(&(from, limit), end)| u128::from(limit) * u128::from(end.nanos_since(from.max(start)))).sum()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_window_holds_at_most_the_mean_of_the_capacities_over_it(
        shape in any::<bool>(), capacity in 1..1_000_u64, events in events(),
    ) {
        let mut world = World::new(if shape { Mode::Shape } else { Mode::Reject }, capacity);
        events.iter().for_each(|event| world.handle(event));
    }
}

/// The admissions in each second from now on, with a backlog that never ends.
fn admitted_each_second(world: &mut World, seconds: usize) -> Vec<usize> {
    let mut counts = Vec::new();
    for _ in 0..seconds {
        let before = world.admitted.len();
        (0..400).for_each(|_| world.arrive());
        world.run_until(world.now + Duration::from_secs(1));
        counts.push(world.admitted.len() - before);
    }
    counts
}

#[test]
fn a_lower_capacity_does_not_stop_the_service_and_a_higher_one_lets_no_burst_through() {
    let mut world = World::new(Mode::Shape, 1_000);
    let full = admitted_each_second(&mut world, 30);
    assert!(full[1..].iter().all(|count| (90..=103).contains(count)), "{full:?}");
    world.handle(&Event::Capacity(500));
    let half = admitted_each_second(&mut world, 30);
    assert!(half[1..].iter().all(|count| (45..=53).contains(count)), "{half:?}");
    world.handle(&Event::Capacity(1_000));
    let again = admitted_each_second(&mut world, 30);
    assert!(again[1..].iter().all(|count| (90..=103).contains(count)), "{again:?}");
}

#[test]
fn a_capacity_that_changes_each_second_is_used() {
    let mut world = World::new(Mode::Shape, 1_000);
    admitted_each_second(&mut world, 20);
    let (before, mut sum) = (world.admitted.len(), 0);
    for second in 0..120_u64 {
        let capacity = 600 + 400 * u64::from(second % 7 < 3) - second % 5;
        sum += capacity;
        world.handle(&Event::Capacity(capacity));
        admitted_each_second(&mut world, 1);
    }
    let (admitted, allowed) = (world.admitted.len() - before, sum / 10);
    assert!(admitted as u64 >= allowed * 96 / 100, "{admitted} of {allowed}");
}

#[test]
fn a_short_low_limit_weighs_no_more_than_its_time() {
    let mut world = World::new(Mode::Shape, 1_000);
    admitted_each_second(&mut world, 20);
    world.handle(&Event::Capacity(10));
    world.handle(&Event::Wait(Duration::from_millis(1)));
    world.handle(&Event::Capacity(1_000));
    admitted_each_second(&mut world, 9);
    world.handle(&Event::Capacity(990));
    let after = admitted_each_second(&mut world, 10);
    assert!(after[1..].iter().all(|count| *count >= 90), "{after:?}");
}
