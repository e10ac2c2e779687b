//! The load of each client at one member, which its records tell the others.

use std::{borrow::Cow, cmp::Reverse, collections::VecDeque, sync::Arc, time::Duration};

use super::loads::name_of;
use super::state::{Load, Loads};
use super::{GroupParams, wire::load_bytes};
use crate::allocator::Part;
use crate::policy::Mode;
use crate::scheduler::Client;
use crate::throttle::Throttle;
use crate::units::{Time, nanos};

/// A backlog counts once it has been there for this long: small ones come and go.
const LASTING: Duration = Duration::from_millis(150);
/// The time over which arrivals are averaged.
pub(super) const AVERAGED_OVER: Duration = Duration::from_secs(1);
/// A backlog is to be sent within this time …
const SENT_WITHIN: Duration = Duration::from_secs(1);
/// … and as far as the client's default share goes within this one.
const SHARE_SENT_WITHIN: Duration = Duration::from_millis(200);
/// Fractions of a record in a rate.
const FRACTION_BITS: u32 = 16;

/// Unlisted clients are named only with a load of at least the capacity ÷ this …
pub(super) const SMALL_LOADS: u64 = 10_000;
/// … or the own limit ÷ this. The limit of a client that no member names is whole at each of them.
const NEAR_LIMIT: f64 = 8.0;

/// The most bytes of the named loads: a quarter of the least that a control topic takes.
const MAX_LOAD_BYTES: usize = 256 << 10;

/// Measures loads.
#[derive(Debug)]
pub struct DemandMeter {
    /// By the clients' numbers in the throttle.
    meters: Vec<ClientMeter>,
    last: Option<Time>,
    loads: Loads,
    max_bytes: usize,
}

impl Default for DemandMeter {
    fn default() -> DemandMeter {
        DemandMeter { meters: Vec::new(), last: None, loads: Loads::new(), max_bytes: MAX_LOAD_BYTES }
    }
}

#[derive(Debug)]
struct ClientMeter {
    name: Arc<str>,
    /// Arrivals of the running cycle when they were looked at last.
    arrivals: u64,
    /// Arrivals per cycle, averaged, in 2⁻¹⁶ records.
    rate: u128,
    /// The time of the first arrivals after a while without any.
    since: Time,
    /// The backlog at former looks, oldest first.
    backlogs: VecDeque<(Time, u64)>,
}

impl DemandMeter {
    /// Measures the loads of a throttle's clients now. `part_of` returns a client's part of the last split.
    pub fn measure(
        &mut self, now: Time, params: &GroupParams, throttle: &Throttle, part_of: impl Fn(&str) -> Option<Part>,
    ) -> &Loads {
        let passed = now.since(self.last.unwrap_or(now));
        self.last = Some(now);
        let least_named = params.capacity / SMALL_LOADS;
        let groups = throttle.clients().groups();
        let mut unnamed = vec![Load::default(); groups.len().max(1)];
        self.loads.clear();
        for (number, client) in throttle.clients().iter() {
            let load = self.meter_of(number as usize, client).load(now, params, passed, client, &part_of);
            if client.held || load == Load::default() {
                continue;
            }
            if !client.configured && load.size() < least_named && !is_near_limit(client, load, params.cycle) {
                unnamed[client.group().unwrap_or(0)].add(load);
                continue;
            }
            let name = match name_of(throttle.policy(), &client.name) {
                Cow::Borrowed(_) => Arc::clone(&client.name),
                Cow::Owned(name) => name.into(),
            };
            self.loads.push((name, load));
        }
        self.keep_largest(throttle, params.cycle, &mut unnamed);
        for (group, mut load) in unnamed.into_iter().enumerate().filter(|(_, load)| *load != Load::default()) {
            load.demand = load.demand.min(params.capacity);
            self.loads.push((groups.get(group).map_or_else(|| Arc::from(""), |group| Arc::clone(&group.name)), load));
        }
        &self.loads
    }

    /// Names the loads that fit in a record, and adds all others to those of the unnamed clients of their groups.
    /// Clients near their own limits come first, then the largest loads.
    fn keep_largest(&mut self, throttle: &Throttle, cycle: Duration, unnamed: &mut [Load]) {
        if self.bytes() <= self.max_bytes {
            return;
        }
        let mut order: Vec<usize> = (0..self.loads.len()).collect();
        order.sort_by_cached_key(|&index| {
            let (name, load) = &self.loads[index];
            let is_near = throttle.client(name).is_some_and(|client| is_near_limit(client, *load, cycle));
            Reverse((is_near, load.size()))
        });
        let mut bytes = 0;
        let fits = |&&index: &&usize| {
            bytes += load_bytes(&self.loads[index].0, self.loads[index].1);
            bytes <= self.max_bytes
        };
        let others = order.split_off(order.iter().take_while(fits).count());
        for &index in &others {
            let (name, load) = &self.loads[index];
            let group = throttle.client(name).and_then(Client::group).unwrap_or(0);
            unnamed[group].add(*load);
        }
        // Loads keep their order: as long as they do not change, they are told as they were before.
        order.sort_unstable();
        order.iter().enumerate().for_each(|(place, &index)| self.loads.swap(place, index));
        self.loads.truncate(order.len());
    }

    fn bytes(&self) -> usize {
        self.loads.iter().map(|(name, load)| load_bytes(name, *load)).sum()
    }

    /// Names at most half as much from now on: the control topic refused a record with the last loads for its size.
    pub fn shrink(&mut self) {
        self.max_bytes = self.max_bytes.min(self.bytes()) / 2;
    }

    fn meter_of(&mut self, number: usize, client: &Client) -> &mut ClientMeter {
        let new = || ClientMeter {
            name: Arc::clone(&client.name),
            arrivals: 0,
            rate: 0,
            since: Time::ZERO,
            backlogs: VecDeque::new(),
        };
        if self.meters.len() <= number {
            self.meters.resize_with(number + 1, new);
        }
        let meter = &mut self.meters[number];
        if !Arc::ptr_eq(&meter.name, &client.name) {
            *meter = new();
        }
        meter
    }
}

impl Load {
    fn size(self) -> u64 {
        self.demand.max(self.wants)
    }

    pub(super) fn add(&mut self, other: Load) {
        self.demand = self.demand.saturating_add(other.demand);
        self.wants = self.wants.saturating_add(other.wants);
    }
}

/// Returns whether the limit of a client may be exceeded if as much comes to several members as here.
fn is_near_limit(client: &Client, load: Load, cycle: Duration) -> bool {
    client.limits.as_deref().is_some_and(|limits| load.size() as f64 * NEAR_LIMIT >= limits.pace_in(cycle))
}

/// The time over which arrivals are averaged in reject mode.
fn averaged_over(cycle: Duration) -> Duration {
    (cycle / 4).clamp(AVERAGED_OVER, AVERAGED_OVER * 5)
}

/// Returns whether two demands, of which one was averaged over a time, differ by more than random arrivals do: by two
/// deviations of an average of Poisson arrivals, √(n · T / 2τ).
pub(super) fn differ(one: u64, other: u64, cycle: Duration, over: Duration) -> bool {
    let variance = u128::from(one.max(other)) * u128::from(nanos(cycle)) / (2 * u128::from(nanos(over)));
    let difference = u128::from(one.abs_diff(other));
    difference * difference > 4 * variance
}

/// A backlog as a demand: sent within `time`, in records per cycle.
fn per_cycle(backlog: u64, cycle: Duration, time: Duration) -> u64 {
    let records = u128::from(backlog) * u128::from(nanos(cycle)) / u128::from(nanos(time));
    u64::try_from(records).unwrap_or(u64::MAX)
}

impl ClientMeter {
    fn load(
        &mut self, now: Time, params: &GroupParams, passed: Duration, client: &Client,
        part_of: impl Fn(&str) -> Option<Part>,
    ) -> Load {
        self.note_arrivals(now, client.arrivals, passed, params);
        let lasting = self.lasting_backlog(now, client.backlog().0);
        let arrivals = self.arrivals_per_cycle();
        let demand = match params.mode {
            Mode::Shape if lasting == 0 => arrivals,
            Mode::Shape => {
                let share = part_of(&client.name).map_or(params.capacity, |part| part.whole_share.floor() + 1);
                let soon = per_cycle(lasting, params.cycle, SENT_WITHIN);
                let at_once = per_cycle(lasting, params.cycle, SHARE_SENT_WITHIN).min(share);
                arrivals.saturating_add(soon.max(at_once))
            }
            Mode::Reject if client.last_wants == 0 => arrivals.max(client.arrivals),
            Mode::Reject => {
                let of_cycles = client.last_wants.max(client.arrivals);
                match differ(arrivals, of_cycles, params.cycle, averaged_over(params.cycle)) {
                    // Partitions came or went: a cycle is too long to wait for.
                    true => arrivals,
                    // The last cycle may have begun before the client's records came here.
                    false if now < self.since + params.cycle * 2 => of_cycles.max(arrivals),
                    false => of_cycles,
                }
            }
        };
        // Records that the client's own limit, or a hold, keeps back use no capacity. In reject mode they do not wait.
        let limited = match (params.mode, client.limits.as_deref()) {
            (Mode::Shape, Some(limits)) => limits.most_in(params.cycle),
            _ => u64::MAX,
        };
        Load { demand: demand.min(params.capacity).min(limited), wants: client.last_wants }
    }

    fn note_arrivals(&mut self, now: Time, arrivals: u64, passed: Duration, params: &GroupParams) {
        // Another cycle began: its arrivals are counted from 0.
        let new = arrivals.checked_sub(self.arrivals).unwrap_or(arrivals);
        self.arrivals = arrivals;
        let passed = u128::from(nanos(passed));
        if passed == 0 || (new == 0 && self.rate == 0) {
            return;
        }
        if self.arrivals_per_cycle() == 0 {
            (self.rate, self.since) = (0, now);
        }
        let sample = (u128::from(new) << FRACTION_BITS) * u128::from(nanos(params.cycle)) / passed;
        let over = match params.mode {
            Mode::Shape => AVERAGED_OVER,
            Mode::Reject => averaged_over(params.cycle),
        };
        let part = |value: u128| value * passed / (u128::from(nanos(over)) + passed);
        self.rate = self.rate - part(self.rate) + part(sample);
    }

    fn arrivals_per_cycle(&self) -> u64 {
        u64::try_from((self.rate + (1 << (FRACTION_BITS - 1))) >> FRACTION_BITS).unwrap_or(u64::MAX)
    }

    /// The part of the backlog that has been there for [`LASTING`].
    fn lasting_backlog(&mut self, now: Time, backlog: u64) -> u64 {
        if backlog == 0 {
            self.backlogs.clear();
            return 0;
        }
        self.backlogs.push_back((now, backlog));
        while self.backlogs.get(1).is_some_and(|&(at, _)| at + LASTING <= now) {
            self.backlogs.pop_front();
        }
        let lasts = self.backlogs.front().is_some_and(|&(at, _)| at + LASTING <= now);
        if lasts { self.backlogs.iter().map(|&(_, backlog)| backlog).min().unwrap_or(0) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::offset_map::OffsetMap;
    use crate::policy::{ClientPolicy, Limit, Policy};
    use crate::throttle::{Arrival, Sender};
    use crate::units::Weight;

    /// The bug: where not all loads have room, a client that was near its own limit went unnamed, and its limit was
    /// whole at each instance.
    #[test]
    fn clients_near_their_limits_are_named_before_larger_ones() {
        let one = NonZeroU32::MIN;
        let limit = Limit { rate: one, per: Duration::from_secs(1), burst: one };
        let client = |name: &str, limits| ClientPolicy { name: name.to_owned(), weight: Weight::ONE, limits };
        let clients = vec![client("large", Vec::new()), client("limited", vec![limit])];
        let policy = Policy { clients, mode: Mode::Reject, ..Policy::new(1_000, Duration::from_secs(1)) };
        let params = GroupParams::new(&policy, Duration::from_millis(500), Duration::from_secs(3));
        let (now, mut throttle) = (Time::ZERO, Throttle::new(policy, Time::ZERO));
        throttle.handle_assigned(now, 0, 0, &OffsetMap::default(), 0);
        for offset in 0..100 {
            let sender = Sender::Client(if offset == 0 { "limited" } else { "large" });
            throttle.handle_record(now, &Arrival { partition: 0, offset, bytes: 1, sender, written_ms: None });
        }
        for (max_bytes, named) in [(MAX_LOAD_BYTES, ["large", "limited"]), (15, ["limited", ""])] {
            let mut meter = DemandMeter { max_bytes, ..DemandMeter::default() };
            let loads = meter.measure(now, &params, &throttle, |_| None);
            assert_eq!(loads.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), named);
        }
    }
}
