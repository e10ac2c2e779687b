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
pub const CLIENTS: [&str; 4] = ["car", "card", "home", "personal"];
/// Time for the group to find its targets, in cycles.
pub const WARM_UP: u32 = 4;

/// The rates of arrivals, in records per cycle, by instance and client.
pub type Rates = Vec<[f64; CLIENTS.len()]>;

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
        let arrival = Arrival {
            partition,
            offset: *offset,
            bytes: 100,
            sender: Sender::Client(CLIENTS[client]),
            written_ms: None,
        };
        *offset += 1;
        matches!(self.throttle.handle_record(now, &arrival), Verdict::Admit(_))
    }

    /// Sends what may go. Calls `admitted` with each client and the delay of its record.
    fn send(&mut self, now: Time, mut admitted: impl FnMut(usize, Duration)) {
        self.throttle.handle_timeout(now);
        while let Some(action) = self.throttle.poll_action(now) {
            if let Action::Admit { client, waited, .. } = action {
                let name = self.throttle.clients().name_of(client).expect("a known client");
                admitted(CLIENTS.iter().position(|other| **other == *name).expect("one of the clients"), waited);
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
                let need = engine.throttle.window_need(now, member.target());
                let records = member.look(clocks, need, loads);
                self.arriving.extend(records.into_iter().map(|record| (now + latency, record)));
                engine.throttle.handle_parts(now, |name| member.part(name));
            }
            let pace = member.pace(clocks);
            engine.throttle.handle_limit(now, member.limit(clocks), member.lease_end(), pace);
        }
    }
}

/// The delays of the records that each client got after the warm-up.
pub type Delays = [Vec<Duration>; CLIENTS.len()];

/// The admitted records of the group and of the single instance.
pub struct Admitted {
    pub group: Delays,
    pub single: Delays,
    pub fullest: u64,
}

impl Admitted {
    pub fn counts(delays: &Delays) -> [u64; CLIENTS.len()] {
        [0, 1, 2, 3].map(|client: usize| delays[client].len() as u64)
    }
}

/// `rates_at` gives the rates at a time in cycles.
pub fn run(policy: &Policy, rates_at: impl Fn(f64) -> Rates, cycles: u32, seed: u64) -> Admitted {
    let start = Time::ZERO + Duration::from_secs(1_000);
    let warm = start + policy.cycle * WARM_UP;
    let end = warm + policy.cycle * cycles;
    let instances = rates_at(0.0).len() as u32;
    let mut group = Group::new(policy, instances, start);
    let mut single = Engine::new(policy.clone(), 0..instances, start);
    let mut random = Random::stream(seed, 21);
    let mut admitted = Admitted { group: Delays::default(), single: Delays::default(), fullest: 0 };
    let (mut window, mut sum) = (VecDeque::new(), 0_u64);
    let steps = policy.cycle.as_secs_f64() / STEP.as_secs_f64();
    let mut now = start;
    while now < end {
        let count = |delays: &mut Delays, client: usize, waited| {
            if now >= warm {
                delays[client].push(waited);
            }
        };
        let mut sent = 0_u64;
        group.exchange(now, Duration::from_millis(6));
        let rates = rates_at(now.since(start).as_secs_f64() / policy.cycle.as_secs_f64());
        for (instance, rates) in rates.iter().enumerate() {
            for (client, rate) in rates.iter().enumerate() {
                for _ in 0..poisson(&mut random, rate / steps) {
                    if group.engines[instance].0.read(now, instance as u32, client) {
                        sent += 1;
                        count(&mut admitted.group, client, Duration::ZERO);
                    }
                    if single.read(now, instance as u32, client) {
                        count(&mut admitted.single, client, Duration::ZERO);
                    }
                }
            }
        }
        for (engine, ..) in &mut group.engines {
            engine.send(now, |client, waited| {
                sent += 1;
                count(&mut admitted.group, client, waited);
            });
        }
        single.send(now, |client, waited| count(&mut admitted.single, client, waited));
        window.push_back((now, sent));
        sum += sent;
        while window.front().is_some_and(|&(then, _)| then + policy.cycle <= now) {
            sum -= window.pop_front().expect("a front").1;
        }
        admitted.fullest = admitted.fullest.max(sum);
        now = now + STEP;
    }
    admitted
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
        let admitted = run(policy, |_| rates.clone(), cycles, seed);
        let (group, single) = (Admitted::counts(&admitted.group), Admitted::counts(&admitted.single));
        let (mode, fullest) = (policy.mode, admitted.fullest);
        let used = group.iter().sum::<u64>() as f64 / (policy.capacity * u64::from(cycles)) as f64;
        println!(
            "{mode:?} {} of {:?}, seed {seed}: used {used:.3}, group {group:?}, single {single:?}, fullest {fullest}",
            policy.capacity, policy.cycle
        );
        assert!(fullest <= policy.capacity, "{fullest} of {}", policy.capacity);
        assert!(used > 0.97, "used {used}");
        for (client, (group, single)) in group.into_iter().zip(single).enumerate() {
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
    let policy = |capacity, cycle| Policy {
        max_delay: Some(Duration::from_secs(60)),
        ..Policy::new(capacity, Duration::from_secs(cycle))
    };
    check(&policy(400, 10), &skewed(400.0), 0.05);
    check(&policy(2_400, 60), &skewed(2_400.0), 0.05);
}

#[test]
fn in_reject_mode_clients_get_the_shares_of_a_single_instance() {
    let policy = Policy { mode: Mode::Reject, ..Policy::new(2_000, Duration::from_secs(10)) };
    check(&policy, &skewed(2_000.0), 0.05);
}

/// Client `card` sends three times the capacity from the end of the warm-up on. The others stay near their shares.
fn campaign(capacity: f64, instances: u32, cycles: f64) -> Rates {
    let card = if cycles < f64::from(WARM_UP) { 0.3 } else { 3.0 };
    let of = |part: f64| part * capacity / f64::from(instances);
    vec![[0.1, card, 0.245, 0.22].map(of); instances as usize]
}

pub fn quantile(delays: &mut [Duration], quantile: f64) -> f64 {
    delays.sort();
    delays[((delays.len() - 1) as f64 * quantile) as usize].as_secs_f64()
}

/// The delays of a client of the group must not exceed those at a single instance by more than a factor and `slack`
/// seconds.
fn check_delays(capacity: u64, cycle: u64, instances: u32, factor: f64, slack: f64) {
    let policy = Policy::new(capacity, Duration::from_secs(cycle));
    for seed in 0..3 {
        let rates = |cycles| campaign(capacity as f64, instances, cycles);
        let mut admitted = run(&policy, rates, 8, seed);
        for client in [0, 2, 3] {
            for part in [0.5, 0.9, 0.99] {
                let group = quantile(&mut admitted.group[client], part);
                let single = quantile(&mut admitted.single[client], part);
                let name = CLIENTS[client];
                println!(
                    "{capacity} of {cycle} s, {instances} instances, seed {seed}, {name}, quantile {part}: \
                     {group:.2} s in the group, {single:.2} s alone"
                );
                let most = single * factor + slack;
                assert!(group <= most, "{group} s, at most {most} s");
            }
        }
    }
}

/// Members once filled each small hole in their windows at 1.2 times their pace. A burst left its lumps in the window,
/// the same lumps left it in each later cycle and were filled as fast again. This doubled and tripled the delays.
#[test]
fn clients_within_their_shares_hardly_wait_longer_in_a_group() {
    for (capacity, cycle) in [(2_000, 10), (20_000, 10), (20_000, 60), (800, 2)] {
        check_delays(capacity, cycle, 1, 1.1, 0.15);
    }
    // A single instance, and a group of one, spaces its admissions so that they do not meet its window. Members of a
    // larger group do not yet.
    for (capacity, cycle) in [(2_000, 10), (20_000, 10), (800, 2)] {
        check_delays(capacity, cycle, 3, 1.5, 0.45);
    }
}
