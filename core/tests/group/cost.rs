//! The cost of a look, by the size of the group:
//! `cargo test -p watermaster-core --test group cost -- --ignored --nocapture`.

use std::time::{Duration, Instant};

use watermaster_core::group::demand::DemandMeter;
use watermaster_core::group::member::Member;
use watermaster_core::group::record::{Key, Load, Loads, Record};
use watermaster_core::group::targets::Shares;
use watermaster_core::group::{Clocks, GroupParams};
use watermaster_core::offset_map::OffsetMap;
use watermaster_core::policy::{Mode, Policy};
use watermaster_core::throttle::{Arrival, Sender, Throttle};
use watermaster_core::units::Time;

const CAPACITY: u64 = 1_000_000;
const CYCLE: Duration = Duration::from_secs(10);

/// One member and its log, with `members` − 1 others that only post.
struct Bench {
    clients: u64,
    params: GroupParams,
    own: Member,
    now: Time,
    offset: u64,
    looks: u64,
    took: Duration,
}

impl Bench {
    fn new(clients: u64, mode: Mode) -> Bench {
        let policy = Policy { mode, ..Policy::new(CAPACITY, CYCLE) };
        let params = GroupParams::new(&policy, Duration::from_secs(3_000));
        let now = Time::ZERO + Duration::from_secs(1);
        let own = Member::new(params.clone(), Shares::new(&policy), Bench::key(0), 0, Clocks::same(now));
        Bench { clients, params, own, now, offset: 0, looks: 0, took: Duration::ZERO }
    }

    fn key(member: u64) -> Key {
        Key { instance: format!("instance-{member}").into(), incarnation: 1 }
    }

    fn loads(&self, more: u64) -> Loads {
        let load = |client: u64| (format!("client-{client}").into(), Load { demand: 500 + client + more, wants: 400 });
        (0..self.clients).map(load).collect()
    }

    fn read(&mut self, record: &Record) {
        self.own.handle_record(Clocks::same(self.now), self.offset, record);
        self.offset += 1;
    }

    /// Looks, and reads back what the member posts.
    fn look(&mut self, loads: &Loads) {
        self.now = self.now + Duration::from_millis(200);
        let began = Instant::now();
        let records = self.own.look(Clocks::same(self.now), 0, loads);
        self.took += began.elapsed();
        self.looks += 1;
        for record in records {
            self.read(&record);
        }
    }

    /// The mean time of a look in microseconds, with `change` before each.
    fn mean(&mut self, loads: &[Loads], mut change: impl FnMut(&mut Bench, u64)) -> f64 {
        (self.looks, self.took) = (0, Duration::ZERO);
        for turn in 0..200 {
            change(self, turn);
            self.look(&loads[turn as usize % loads.len()]);
        }
        self.took.as_secs_f64() * 1e6 / self.looks as f64
    }
}

#[test]
#[ignore = "measures time"]
fn looks_take_so_long() {
    for (members, clients, mode) in [3, 20, 100]
        .into_iter()
        .zip([10, 50, 1_000])
        .flat_map(|(members, clients)| [Mode::Shape, Mode::Reject].map(|mode| (members, clients, mode)))
    {
        let mut bench = Bench::new(clients, mode);
        let same = bench.loads(0);
        bench.look(&same);
        let mut posts = Vec::new();
        for member in 1..members {
            let policy = Policy { mode, ..Policy::new(CAPACITY, CYCLE) };
            let clocks = Clocks::same(bench.now);
            let mut other = Member::new(bench.params.clone(), Shares::new(&policy), Bench::key(member), 0, clocks);
            let Some(Record::Post(mut post)) = other.look(clocks, 0, &same).pop() else { panic!("a first post") };
            bench.read(&Record::Post(post.clone()));
            (post.seq, post.complete, post.seen) = (2, true, 1);
            post.loads = bench.loads(member);
            posts.push(post);
        }
        for post in &posts {
            bench.read(&Record::Post(post.clone()));
        }
        let quiet = bench.mean(std::slice::from_ref(&same), |_, _| ());
        let peer = bench.mean(std::slice::from_ref(&same), |bench, turn| {
            let index = turn as usize % posts.len();
            let post = &mut posts[index];
            (post.seq, post.complete) = (post.seq + 1, false);
            let moved = Load { demand: 5_000 + turn, wants: 400 };
            post.loads = [("client-1".into(), moved)].into_iter().collect();
            let record = Record::Post(post.clone());
            bench.read(&record);
        });
        let others = [bench.loads(500), bench.loads(0)];
        let own = bench.mean(&others, |_, _| ());
        let measured = measure(clients, mode);
        println!(
            "{members} x {clients}, {mode:?}: quiet {quiet:.1} us, a peer {peer:.1} us, own loads {own:.1} us; \
             a measurement {measured:.1} us"
        );
    }
}

/// The mean time of a measurement of the loads, in microseconds.
fn measure(clients: u64, mode: Mode) -> f64 {
    let policy = Policy { mode, max_clients: 100_000, ..Policy::new(CAPACITY, CYCLE) };
    let params = GroupParams::new(&policy, Duration::from_secs(10));
    let mut now = Time::ZERO + Duration::from_secs(1);
    let mut throttle = Throttle::new(policy, now);
    throttle.handle_assigned(now, 0, 0, &OffsetMap::default(), 0);
    for offset in 0..clients {
        let name = format!("client-{offset}");
        let arrival =
            Arrival { partition: 0, offset: offset as i64, bytes: 10, sender: Sender::Client(&name), written_ms: None };
        throttle.handle_record(now, &arrival);
    }
    let (mut meter, mut took) = (DemandMeter::default(), Duration::ZERO);
    for _ in 0..200 {
        now = now + Duration::from_millis(50);
        let began = Instant::now();
        meter.measure(now, &params, &throttle, |_| None);
        took += began.elapsed();
    }
    took.as_secs_f64() * 1e6 / 200.0
}
