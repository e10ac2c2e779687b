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
use watermaster_core::policy::{Policy, Scope};
use watermaster_core::throttle::{Action, Arrival, Sender, Throttle, Verdict};
use watermaster_core::units::Time;

use crate::shares::{Admitted, CLIENTS, Delays, Rates, WARM_UP, poisson};
use crate::support::random::Random;

/// The part of the capacity that is used at least under saturating demand.
pub const LEAST_USED: f64 = 0.97;
const STEP: Duration = Duration::from_millis(10);
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
