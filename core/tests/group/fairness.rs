//! Real throttles in a group, beside a single one with the same arrivals: the capacity holds over the group, hardly any
//! of it is wasted, and each client gets the share that it would get from one instance.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use watermaster_core::group::demand::DemandMeter;
use watermaster_core::group::member::Member;
use watermaster_core::group::record::{Key, Record};
use watermaster_core::group::targets::Shares;
use watermaster_core::group::{Clocks, GroupParams};
use watermaster_core::offset_map::OffsetMap;
use watermaster_core::policy::{Mode, Policy, Scope};
use watermaster_core::throttle::{Action, Arrival, Sender, Throttle, Verdict};
use watermaster_core::units::Time;

use crate::support::random::Random;

const STEP: Duration = Duration::from_millis(10);
const CLIENTS: [&str; 4] = ["car", "card", "home", "personal"];
/// Time for the group to find its targets, in cycles.
const WARM_UP: u32 = 4;

/// The rates of arrivals, in records per cycle, by instance and client.
type Rates = Vec<[f64; CLIENTS.len()]>;

/// A throttle that reads a partition of its own for each instance of the group.
struct Engine {
    throttle: Throttle,
    next_offset: BTreeMap<u32, i64>,
}

impl Engine {
    fn new(policy: Policy, partitions: impl Iterator<Item = u32>, now: Time) -> Engine {
        let mut throttle = Throttle::new(policy, now);
        let mut next_offset = BTreeMap::new();
        for partition in partitions {
            throttle.handle_assigned(now, partition, 0, &OffsetMap::default(), 0);
            next_offset.insert(partition, 0);
        }
        Engine { throttle, next_offset }
    }

    /// Reads a record. Returns whether it was admitted at once.
    fn read(&mut self, now: Time, partition: u32, client: usize) -> bool {
        let offset = self.next_offset.get_mut(&partition).expect("an assigned partition");
        let arrival = Arrival { partition, offset: *offset, bytes: 100, sender: Sender::Client(CLIENTS[client]) };
        *offset += 1;
        matches!(self.throttle.handle_record(now, &arrival), Verdict::Admit(_))
    }

    /// Sends what may go. Calls `admitted` with each client.
    fn send(&mut self, now: Time, mut admitted: impl FnMut(usize)) {
        self.throttle.handle_timeout(now);
        while let Some(action) = self.throttle.poll_action(now) {
            if let Action::Admit { client, .. } = action {
                let name = self.throttle.clients().name_of(client).expect("a known client");
                admitted(CLIENTS.iter().position(|other| **other == *name).expect("one of the clients"));
            }
        }
    }
}

/// The instances of a group and their log.
struct Group {
    params: GroupParams,
    engines: Vec<(Engine, Member, DemandMeter)>,
    log: Vec<Record>,
    /// Records on their way to the log, and from it to each instance.
    arriving: VecDeque<(Time, Record)>,
    reading: Vec<VecDeque<(Time, u64)>>,
}

impl Group {
    fn new(policy: &Policy, instances: u32, now: Time) -> Group {
        let params = GroupParams::new(policy, Duration::from_secs(10));
        let policy = Policy { scope: Scope::Group, ..policy.clone() };
        let member = |instance: u32| {
            let key = Key { instance: format!("wm-{instance}").into(), incarnation: 1 };
            Member::new(params.clone(), Shares::new(&policy), key, 0, Clocks::same(now))
        };
        let engine = |instance: u32| {
            let engine = Engine::new(policy.clone(), instance..instance + 1, now);
            (engine, member(instance), DemandMeter::default())
        };
        let engines = (0..instances).map(engine).collect();
        let reading = (0..instances).map(|_| VecDeque::new()).collect();
        Group { params, engines, log: Vec::new(), arriving: VecDeque::new(), reading }
    }

    /// The log takes `latency` to append and as long to deliver.
    fn exchange(&mut self, now: Time, latency: Duration) {
        while self.arriving.front().is_some_and(|(at, _)| *at <= now) {
            let (_, record) = self.arriving.pop_front().expect("a front");
            self.log.push(record);
            let offset = self.log.len() as u64 - 1;
            self.reading.iter_mut().for_each(|reading| reading.push_back((now + latency, offset)));
        }
        for ((engine, member, meter), reading) in self.engines.iter_mut().zip(&mut self.reading) {
            let clocks = Clocks::same(now);
            while let Some(&(_, offset)) = reading.front().filter(|(at, _)| *at <= now) {
                reading.pop_front();
                member.handle_record(clocks, offset, &self.log[offset as usize]);
            }
            if now >= member.next_look() {
                let loads = meter.measure(now, &self.params, &engine.throttle, |name| member.part(name));
                let count = engine.throttle.window_count(now);
                let records = member.look(clocks, count, loads);
                self.arriving.extend(records.into_iter().map(|record| (now + latency, record)));
                engine.throttle.handle_parts(now, |name| member.part(name));
            }
            let count = engine.throttle.window_count(now);
            let pace = member.pace(clocks, count);
            engine.throttle.handle_limit(now, member.limit(clocks), member.lease_end(), pace);
        }
    }
}

/// The records that each client got after the warm-up, from the group and from the single instance.
#[derive(Debug)]
struct Admitted {
    group: [u64; CLIENTS.len()],
    single: [u64; CLIENTS.len()],
    fullest: u64,
}

fn run(policy: &Policy, rates: &Rates, cycles: u32, seed: u64) -> Admitted {
    let mut now = Time::ZERO + Duration::from_secs(1_000);
    let warm = now + policy.cycle * WARM_UP;
    let end = warm + policy.cycle * cycles;
    let instances = rates.len() as u32;
    let mut group = Group::new(policy, instances, now);
    let mut single = Engine::new(policy.clone(), 0..instances, now);
    let mut random = Random::stream(seed, 21);
    let mut shares = Admitted { group: [0; 4], single: [0; 4], fullest: 0 };
    let (mut window, mut sum) = (VecDeque::new(), 0_u64);
    let steps = policy.cycle.as_secs_f64() / STEP.as_secs_f64();
    while now < end {
        let counts = now >= warm;
        let mut sent = 0_u64;
        group.exchange(now, Duration::from_millis(6));
        for (instance, rates) in rates.iter().enumerate() {
            for (client, rate) in rates.iter().enumerate() {
                for _ in 0..poisson(&mut random, rate / steps) {
                    let admitted = u64::from(group.engines[instance].0.read(now, instance as u32, client));
                    sent += admitted;
                    shares.group[client] += if counts { admitted } else { 0 };
                    let admitted = u64::from(single.read(now, instance as u32, client));
                    shares.single[client] += if counts { admitted } else { 0 };
                }
            }
        }
        for (engine, ..) in &mut group.engines {
            engine.send(now, |client| {
                sent += 1;
                shares.group[client] += u64::from(counts);
            });
        }
        single.send(now, |client| shares.single[client] += u64::from(counts));
        window.push_back((now, sent));
        sum += sent;
        while window.front().is_some_and(|&(then, _)| then + policy.cycle <= now) {
            sum -= window.pop_front().expect("a front").1;
        }
        shares.fullest = shares.fullest.max(sum);
        now = now + STEP;
    }
    shares
}

fn poisson(random: &mut Random, mean: f64) -> u64 {
    let (mut count, mut product, limit) = (0, random.unit(), (-mean).exp());
    while product > limit {
        count += 1;
        product *= random.unit();
    }
    count
}

fn check(policy: &Policy, rates: &Rates, most_off: f64) {
    for seed in 0..3 {
        let cycles = 10;
        let shares = run(policy, rates, cycles, seed);
        let capacity = policy.capacity * u64::from(cycles);
        let used = shares.group.iter().sum::<u64>() as f64 / capacity as f64;
        println!(
            "{:?} {} of {:?}, seed {seed}: used {used:.3}, {shares:?}",
            policy.mode, policy.capacity, policy.cycle
        );
        assert!(shares.fullest <= policy.capacity, "{} of {}", shares.fullest, policy.capacity);
        assert!(used > 0.97, "used {used}");
        for (client, (group, single)) in shares.group.into_iter().zip(shares.single).enumerate() {
            let slack = (rates.len() as u32 * cycles) as f64;
            let off = (group.abs_diff(single) as f64 - slack).max(0.0) / single.max(1) as f64;
            assert!(off <= most_off, "{}: {group} in the group, {single} alone", CLIENTS[client]);
        }
    }
}

/// All demand saturates, and one client sends to one instance only.
fn skewed(capacity: f64) -> Rates {
    let of = |parts: [f64; 4]| parts.map(|part| part * capacity);
    vec![of([0.9, 0.2, 0.0, 0.05]), of([0.0, 0.3, 0.1, 0.05]), of([0.0, 0.0, 0.3, 0.05])]
}

#[test]
fn in_shape_mode_clients_get_the_shares_of_a_single_instance() {
    check(&Policy::new(400, Duration::from_secs(10)), &skewed(400.0), 0.05);
    check(&Policy::new(2_400, Duration::from_secs(60)), &skewed(2_400.0), 0.05);
}

#[test]
fn in_reject_mode_clients_get_the_shares_of_a_single_instance() {
    let policy = Policy { mode: Mode::Reject, ..Policy::new(2_000, Duration::from_secs(10)) };
    check(&policy, &skewed(2_000.0), 0.05);
}
