//! `cargo bench --bench pauses [-- CLIENTS…]`: how long the engine's loop stands still for what concerns all clients.
//!
//! Each part is called as the loop calls it, so often that its rare longest call is among them. No broker is needed.

#[allow(dead_code, reason = "`watermaster-core` measures the rest")]
#[path = "../core/benches/workload/mod.rs"]
mod workload;

use std::env;
use std::time::{Duration, Instant};

use watermaster::snapshot::{Renewal, ServiceSnapshot, SnapshotCell};
use watermaster_core::offset_map::OffsetMap;
use watermaster_core::policy::{Lending, Mode, Overflow, Policy};
use watermaster_core::throttle::{Arrival, Sender, Throttle};
use watermaster_core::units::{Ratio, Time};
use workload::{CYCLE, policy};

const RECORD: u32 = 256;
/// More than ever comes in a cycle.
const PLENTY: u64 = 1_000_000_000;

fn main() {
    let wanted: Vec<usize> = env::args().skip(1).filter_map(|word| word.replace('_', "").parse().ok()).collect();
    let wanted = if wanted.is_empty() { vec![100, 10_000, 100_000] } else { wanted };
    println!("{:30} {:>9} {:>9} {:>10} {:>10} {:>10}", "pause, in µs", "clients", "calls", "median", "p99", "longest");
    for clients in wanted {
        newcomers(clients);
        for (name, lending) in [("edge, proportional", Lending::Proportional), ("edge, max_min", Lending::MaxMin)] {
            edges(name, lending, clients);
        }
        publications(clients);
        sheds("record with shed, passthrough", clients, false, |random, _| random);
        sheds("the same, all equal", clients, false, |_, number| number);
        sheds("record with shed, full map", clients, true, |random, _| random);
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
        let mut throttle = Throttle::new(policy, now);
        throttle.handle_assigned(now, 0, 0, &OffsetMap::default(), 0);
        let names = (0..clients).map(|client| format!("client-{client:08}")).collect();
        Service { throttle, names, now, offset: 0, random: 1 }
    }

    /// All clients are known, and a few cycles have passed.
    fn new(policy: Policy, clients: usize) -> Service {
        let mut service = Service::empty(policy, clients);
        (0..clients).for_each(|client| service.read(client));
        for _ in 0..3 {
            service.pass(CYCLE);
        }
        service
    }

    fn read(&mut self, client: usize) {
        let sender = Sender::Client(&self.names[client]);
        self.throttle.handle_record(self.now, &Arrival { partition: 0, offset: self.offset, bytes: RECORD, sender });
        self.offset += 1;
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.throttle.handle_timeout(self.now);
        self.act();
    }

    fn act(&mut self) {
        while self.throttle.poll_action(self.now).is_some() {}
    }

    /// Smaller numbers more often.
    fn some(&mut self) -> usize {
        let clients = self.names.len();
        let client = self.random() as usize % clients;
        client * (self.random() as usize % clients) / clients
    }

    /// Xorshift: the same clients in every run.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 20
    }
}

/// A record of somebody who is not known yet.
fn newcomers(clients: usize) {
    let mut service = Service::empty(policy(Mode::Shape, PLENTY, clients), clients);
    let took = (0..clients).map(|client| timed(|| service.read(client))).collect();
    tell("record of a newcomer", clients, took);
}

fn edges(name: &str, lending: Lending, clients: usize) {
    // Nothing goes because a bound is near: what that costs depends on the backlog, not on the clients.
    let (overflow, queue_capacity, queue_bytes) = (Overflow::Pause, u64::MAX, u64::MAX);
    let capacity = 2 * clients as u64 / 3 + 1;
    let burst = Ratio::ONE;
    let policy =
        Policy { lending, burst, overflow, queue_capacity, queue_bytes, ..policy(Mode::Shape, capacity, clients) };
    let mut service = Service::new(policy, clients);
    let edge = |_| {
        for _ in 0..clients {
            let client = service.some();
            service.read(client);
        }
        service.act();
        service.now = service.now + CYCLE;
        let took = timed(|| service.throttle.handle_timeout(service.now));
        service.act();
        took
    };
    tell(name, clients, (0..40).map(edge).collect());
}

/// Of everything that there is to show of the clients, and of flags alone.
fn publications(clients: usize) {
    let policy = Policy { burst: Ratio::ONE, ..policy(Mode::Shape, PLENTY, clients) };
    let mut service = Service::new(policy, clients);
    let (cell, mut renewal) = (SnapshotCell::default(), Renewal::default());
    cell.set(ServiceSnapshot { clients: renewal.renew(&service.throttle), ..ServiceSnapshot::default() });
    let (mut all, mut flags) = (Vec::new(), Vec::new());
    for _ in 0..500 {
        // What a round of records leaves in the processor's caches is not this.
        for _ in 0..2_000 {
            let client = service.some();
            service.read(client);
        }
        service.pass(Duration::from_millis(100));
        all.push(timed(|| {
            cell.set(ServiceSnapshot { clients: renewal.renew(&service.throttle), ..ServiceSnapshot::default() });
        }));
        flags.push(timed(|| cell.set((*cell.get()).clone())));
    }
    tell("snapshot", clients, all);
    tell("snapshot, new flags only", clients, flags);
}

/// A record beyond `queue_bytes`, right after an allocation now and then. Enforced, all of it lies in one partition, whose map
/// is full then; in passthrough no map is in play.
fn sheds(name: &str, clients: usize, enforce: bool, choose: impl Fn(usize, usize) -> usize) {
    const BOUND: u64 = 64 << 20;
    let policy = Policy {
        queue_bytes: BOUND,
        queue_capacity: u64::MAX,
        enforce,
        ..policy(Mode::Shape, clients as u64 / 10 + 1, clients)
    };
    let mut service = Service::new(policy, clients);
    let held = (BOUND / u64::from(RECORD)) as usize;
    let mut took = Vec::new();
    for number in 0..held + 100_000 {
        let client = choose(service.some(), number % clients);
        let one = timed(|| service.read(client));
        if number >= held {
            took.push(one);
        }
        if number % 5_000 == 0 {
            service.pass(CYCLE);
        }
    }
    tell(name, clients, took);
}

fn reloads(clients: usize) {
    let before = policy(Mode::Shape, clients as u64, clients);
    let mut service = Service::new(before.clone(), clients);
    let reload = |number: u64| {
        let after = Policy { capacity: before.capacity + number, ..before.clone() };
        timed(|| service.throttle.handle_policy(service.now, after))
    };
    tell("another policy", clients, (0..20).map(reload).collect());
}

fn timed(work: impl FnOnce()) -> Duration {
    let began = Instant::now();
    work();
    began.elapsed()
}

fn tell(name: &str, clients: usize, mut took: Vec<Duration>) {
    took.sort_unstable();
    let micros = |index: usize| took[index.min(took.len() - 1)].as_secs_f64() * 1e6;
    let (median, p99) = (micros(took.len() / 2), micros(took.len() * 99 / 100));
    println!("{name:30} {clients:>9} {:>9} {median:>10.1} {p99:>10.1} {:>10.1}", took.len(), micros(took.len() - 1));
}
