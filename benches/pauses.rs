//! Measures the calls in which the engine's loop handles all clients at once.
//!
//! Run it with `cargo bench --bench pauses [-- CLIENTS…]`; no broker is needed. Each call is made as the loop makes it,
//! and often enough to include the rare longest one.

#[allow(dead_code, reason = "the benchmarks of `watermaster-core` use the rest")]
#[path = "../core/benches/workload/mod.rs"]
mod workload;

use std::env;
use std::time::{Duration, Instant};

use watermaster::snapshot::{ServiceSnapshot, SnapshotBuilder, SnapshotCell, Unread};
use watermaster_core::offset_map::OffsetMap;
use watermaster_core::policy::{GroupPolicy, Lending, Mode, Overflow, Policy};
use watermaster_core::throttle::{Arrival, Sender, Throttle};
use watermaster_core::units::{Ratio, Time, Weight};
use workload::{CYCLE, policy};

const RECORD_BYTES: u32 = 256;
/// A capacity that no cycle uses up.
const UNLIMITED: u64 = 1_000_000_000;

fn main() {
    let wanted: Vec<usize> = env::args().skip(1).filter_map(|word| word.replace('_', "").parse().ok()).collect();
    let wanted = if wanted.is_empty() { vec![100, 10_000, 100_000] } else { wanted };
    println!("{:32} {:>9} {:>9} {:>10} {:>10} {:>10}", "pause, in µs", "clients", "calls", "median", "p99", "longest");
    for clients in wanted {
        new_clients(clients);
        for (name, lending) in
            [("end of cycle, proportional", Lending::Proportional), ("end of cycle, max_min", Lending::MaxMin)]
        {
            cycle_ends(name, clients, Policy { lending, ..policy(Mode::Shape, UNLIMITED, clients) });
        }
        for (name, groups) in [("… in 1 000 groups", 1_000), ("… in 10 000 groups", 10_000), ("… all unlisted", 1)]
        {
            cycle_ends(name, clients, grouped(policy(Mode::Shape, UNLIMITED, clients), groups));
        }
        snapshots(clients);
        evictions("eviction, shadow mode", clients, false, |random, _| random);
        evictions("eviction, shadow mode, all equal", clients, false, |_, number| number);
        evictions("eviction, full offset map", clients, true, |random, _| random);
        reloads(clients);
    }
}

/// A service and the names of its clients.
struct Service {
    throttle: Throttle,
    names: Vec<String>,
    now: Time,
    offset: i64,
    random: u64,
}

impl Service {
    fn empty(policy: Policy, clients: usize) -> Service {
        let now = Time::from_nanos(1_700_000_000_000_000_000);
        let groups = if policy.names_groups { policy.groups.len() } else { 0 };
        let mut throttle = Throttle::new(policy, now);
        throttle.handle_assigned(now, 0, 0, &OffsetMap::default(), 0);
        let name = |client| match groups {
            0 => format!("client-{client:08}"),
            groups => format!("{}/client-{client:08}", group_name(client % groups)),
        };
        let names = (0..clients).map(name).collect();
        Service { throttle, names, now, offset: 0, random: 1 }
    }

    /// Creates a service that knows all clients and has run for a few cycles.
    fn new(policy: Policy, clients: usize) -> Service {
        let mut service = Service::empty(policy, clients);
        (0..clients).for_each(|client| service.read(client));
        for _ in 0..3 {
            service.advance(CYCLE);
        }
        service
    }

    fn read(&mut self, client: usize) {
        let sender = Sender::Client(&self.names[client]);
        self.throttle.handle_record(
            self.now,
            &Arrival { partition: 0, offset: self.offset, bytes: RECORD_BYTES, sender, written_ms: None },
        );
        self.offset += 1;
    }

    fn advance(&mut self, time: Duration) {
        self.now = self.now + time;
        self.throttle.handle_timeout(self.now);
        self.act();
    }

    fn act(&mut self) {
        while self.throttle.poll_action(self.now).is_some() {}
    }

    /// Picks a client at random; small numbers are more likely.
    fn random_client(&mut self) -> usize {
        let clients = self.names.len();
        let client = self.random() as usize % clients;
        client * (self.random() as usize % clients) / clients
    }

    /// Returns the next pseudo-random number (xorshift), so that every run picks the same clients.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 20
    }
}

/// Measures the first record of a client.
fn new_clients(clients: usize) {
    let mut service = Service::empty(policy(Mode::Shape, UNLIMITED, clients), clients);
    let took = (0..clients).map(|client| timed(|| service.read(client))).collect();
    print("first record of a client", clients, took);
}

/// Adds groups that records name. With one group the names of clients have none, so that all clients are unlisted.
fn grouped(policy: Policy, groups: usize) -> Policy {
    let named = |number| GroupPolicy {
        name: group_name(number),
        weight: Weight::ONE,
        limits: Vec::new(),
        hold: false,
        clients: Vec::new(),
    };
    Policy { groups: (0..groups).map(named).collect(), names_groups: groups > 1, ..policy }
}

fn group_name(number: usize) -> String {
    format!("group-{number:05}")
}

/// Measures the end of a cycle, with the allocation.
fn cycle_ends(name: &str, clients: usize, policy: Policy) {
    // Without bounds no record is evicted: that would cost time by the size of the backlog, not by the number of
    // clients.
    let (overflow, queue_capacity, queue_bytes) = (Overflow::Pause, u64::MAX, u64::MAX);
    let capacity = 2 * clients as u64 / 3 + 1;
    let burst = Ratio::ONE;
    let policy = Policy { capacity, burst, overflow, queue_capacity, queue_bytes, ..policy };
    let mut service = Service::new(policy, clients);
    let cycle_end = |_| {
        for _ in 0..clients {
            let client = service.random_client();
            service.read(client);
        }
        service.act();
        service.now = service.now + CYCLE;
        let took = timed(|| service.throttle.handle_timeout(service.now));
        service.act();
        took
    };
    print(name, clients, (0..40).map(cycle_end).collect());
}

/// Measures the publication of a snapshot, with all clients and with changed flags only.
fn snapshots(clients: usize) {
    let policy = Policy { burst: Ratio::ONE, ..policy(Mode::Shape, UNLIMITED, clients) };
    let mut service = Service::new(policy, clients);
    let (cell, mut builder) = (SnapshotCell::default(), SnapshotBuilder::default());
    cell.set(ServiceSnapshot {
        clients: builder.build(&service.throttle, service.now, &Unread::new()),
        ..ServiceSnapshot::default()
    });
    let (mut all, mut flags) = (Vec::new(), Vec::new());
    for _ in 0..500 {
        // Records between two snapshots push the previous one out of the processor's caches, as a round does.
        for _ in 0..2_000 {
            let client = service.random_client();
            service.read(client);
        }
        service.advance(Duration::from_millis(100));
        all.push(timed(|| {
            cell.set(ServiceSnapshot {
                clients: builder.build(&service.throttle, service.now, &Unread::new()),
                ..ServiceSnapshot::default()
            });
        }));
        flags.push(timed(|| cell.set((*cell.get()).clone())));
    }
    print("snapshot", clients, all);
    print("snapshot, new flags only", clients, flags);
}

/// Measures a record beyond `queue_bytes`, which evicts another one; some of the calls directly follow an allocation.
/// With `enforce` all records are in one partition with a full offset map; shadow mode does not use the map.
fn evictions(name: &str, clients: usize, enforce: bool, choose: impl Fn(usize, usize) -> usize) {
    const BOUND: u64 = 64 << 20;
    let policy = Policy {
        queue_bytes: BOUND,
        queue_capacity: u64::MAX,
        enforce,
        ..policy(Mode::Shape, clients as u64 / 10 + 1, clients)
    };
    let mut service = Service::new(policy, clients);
    let held = (BOUND / u64::from(RECORD_BYTES)) as usize;
    let mut took = Vec::new();
    for number in 0..held + 100_000 {
        let client = choose(service.random_client(), number % clients);
        let one = timed(|| service.read(client));
        if number >= held {
            took.push(one);
        }
        if number % 5_000 == 0 {
            service.advance(CYCLE);
        }
    }
    print(name, clients, took);
}

/// Measures a change of the policy.
fn reloads(clients: usize) {
    let before = policy(Mode::Shape, clients as u64, clients);
    let mut service = Service::new(before.clone(), clients);
    let reload = |number: u64| {
        let after = Policy { capacity: before.capacity + number, ..before.clone() };
        timed(|| service.throttle.handle_policy(service.now, after))
    };
    print("policy change", clients, (0..20).map(reload).collect());
}

fn timed(work: impl FnOnce()) -> Duration {
    let began = Instant::now();
    work();
    began.elapsed()
}

fn print(name: &str, clients: usize, mut took: Vec<Duration>) {
    took.sort_unstable();
    let micros = |index: usize| took[index.min(took.len() - 1)].as_secs_f64() * 1e6;
    let (median, p99) = (micros(took.len() / 2), micros(took.len() * 99 / 100));
    println!("{name:32} {clients:>9} {:>9} {median:>10.1} {p99:>10.1} {:>10.1}", took.len(), micros(took.len() - 1));
}
