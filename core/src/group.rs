//! One capacity for all instances of a group (`docs/scaling.md` is its prose).
//!
//! There is no leader. Each instance is a *member* and *holds* a part of the capacity; holds move by records in one
//! Kafka partition, the control log. Every reader of the log derives the same holds, and their sum never exceeds the
//! capacity. This rests on the order of the log only: not on clocks of different machines that agree, and not on which
//! instance computes what. The computation of the targets, the holds that the members ought to have, can only cost
//! fairness.
//!
//! - [`record`]: the records of the control log: posts, bounds, and the tombstones that remove them
//! - [`seats`]: the replay of the log; what a reader knows of each member's hold
//! - [`member`]: the life of one member: when it posts, what it may admit, when its lease ends
//! - [`bounds`]: how much a member that stopped can still have in its window
//! - [`demand`]: the load of each client at one member
//! - `loads`: the loads of all members' clients, by number
//! - [`targets`]: the hold that each member ought to have
//! - [`wire`]: the records as Kafka keys and values

pub mod bounds;
pub mod demand;
pub(crate) mod loads;
pub mod member;
pub mod record;
pub mod seats;
pub mod targets;
pub mod wire;

use std::{collections::BTreeMap, time::Duration};

use crate::policy::{ClientPolicy, Limit, Mode, Policy, Window};
use crate::scheduler::LeakyBucket;
use crate::units::{NANOS_PER_MILLI, Ratio, Time, nanos};

/// The most by which the clocks of a group's machines differ in rate: a thousandth.
pub const MARGIN: Ratio = Ratio::from_millionths(1_000).expect("a thousandth is a ratio");

/// The default of the time for which a state's announced admissions may be made.
const AHEAD_TIME: Duration = Duration::from_secs(30);
/// Groups beyond this many members look and post less often.
const MANY_MEMBERS: usize = 50;
/// Such a group's time between two looks of a member, for each member: it reads a record for each.
const LOOK_FOR_EACH: Duration = Duration::from_millis(1);
/// The longest time between two posts of a member, for each member of a large group.
const HEARTBEAT_FOR_EACH: Duration = Duration::from_millis(3);
/// The shortest lease for each member: ten heartbeats.
const LEASE_FOR_EACH: Duration = Duration::from_millis(30);
/// The time between two looks for each client: a look takes 2 µs for each at most, and must not take more than a tenth
/// of the time.
const LOOK_FOR_EACH_CLIENT: Duration = Duration::from_micros(20);

/// A time that is no shorter than `duration` on any clock that differs by at most `margin`.
pub fn lengthened(duration: Duration, margin: Ratio) -> Duration {
    let nanos = u128::from(nanos(duration));
    let more = (nanos * u128::from(margin.millionths())).div_ceil(u128::from(Ratio::ONE.millionths()));
    Duration::from_nanos(u64::try_from(nanos + more).unwrap_or(u64::MAX))
}

/// The rules of a group. All members must have the same, but for the capacity.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupParams {
    /// The capacity that this instance is configured with. The smallest one among the live members is in force.
    pub capacity: u64,
    /// The length of a cycle.
    pub cycle: Duration,
    /// Shape or reject mode.
    pub mode: Mode,
    /// The time for which a member may admit after it handed over the last post that it read back; longer in a very
    /// large group, as the next two times are: see [`times`](GroupParams::times).
    pub lease: Duration,
    /// The time for which a state's announced admissions may be made.
    pub ahead_time: Duration,
    /// The time between two looks, the checks of whether to post.
    pub look: Duration,
    /// The longest time between two posts.
    pub heartbeat: Duration,
    /// The part of the capacity that stays with members without demand, for their first records.
    pub standby: Ratio,
    /// The most by which clocks differ in rate. Times that must not be too short are lengthened by it.
    pub margin: Ratio,
    /// The part of its pace that a member may send at once.
    pub burst: Ratio,
    /// The time between two rounds.
    pub commit_interval: Duration,
    /// A digest of the other settings in which the instances must agree.
    pub digest: u32,
}

impl GroupParams {
    /// The rules that follow from a service's policy and the length of the lease.
    pub fn new(policy: &Policy, lease: Duration) -> GroupParams {
        let cycle = policy.cycle;
        let look = if cycle < Duration::from_secs(5) { Duration::from_millis(30) } else { Duration::from_millis(50) };
        let heartbeat = Duration::from_secs(2).min(cycle / 10).min(lease / 5).max(Duration::from_millis(200));
        GroupParams {
            capacity: policy.capacity,
            cycle,
            mode: policy.mode,
            lease,
            ahead_time: AHEAD_TIME,
            look,
            heartbeat,
            standby: Ratio::from_millionths(10_000).expect("a hundredth is a ratio"),
            margin: MARGIN,
            burst: policy.burst,
            commit_interval: policy.commit_interval,
            digest: digest(policy, lease),
        }
    }

    /// A time that is no shorter than `duration` on any clock of the group.
    pub fn lengthened(&self, duration: Duration) -> Duration {
        lengthened(duration, self.margin)
    }

    /// The length of a member's window: a cycle on any clock of the group.
    pub fn window(&self) -> Duration {
        self.lengthened(self.cycle)
    }

    /// The highest pace, in records per cycle, of a member whose last post asks for a hold of `want`: a fifth and one
    /// record more, so that its target may rise before the next post. Other members count with it.
    pub fn fast_pace(want: u64) -> u64 {
        if want == 0 { 0 } else { want.saturating_add(want / 5 + 1) }
    }

    /// The bucket that a member with this pace fills in shape mode.
    pub fn bucket(&self, pace: u64) -> LeakyBucket {
        LeakyBucket::new(self.cycle, self.burst, self.commit_interval, pace)
    }

    /// The times of a member of a group of this size. Posts carry the lease, so members need not agree on the size.
    pub fn times(&self, members: usize, clients: usize) -> GroupTimes {
        let of = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let many = if members > MANY_MEMBERS { of(members) } else { 0 };
        GroupTimes {
            look: self.look.max(LOOK_FOR_EACH * many).max(LOOK_FOR_EACH_CLIENT * of(clients)),
            heartbeat: self.heartbeat.max(HEARTBEAT_FOR_EACH * many),
            lease: self.lease.max(LEASE_FOR_EACH * of(members)),
        }
    }

    /// The configuration that all posts of a member carry.
    pub fn terms(&self) -> record::Terms {
        let cycle_ms = nanos(self.cycle) / NANOS_PER_MILLI;
        record::Terms { capacity: self.capacity, cycle_ms, mode: self.mode, digest: u64::from(self.digest) }
    }
}

/// The CRC-32 of the settings, beside capacity, cycle and mode, that decide how much an instance admits: lending,
/// weights, limits, enforcement and the lease. Machines and versions of the program compute the same, and the order of
/// the clients in the file does not matter.
fn digest(policy: &Policy, lease: Duration) -> u32 {
    let limit = |limit: &Limit| (limit.rate, limit.per, limit.burst);
    let rules = |client: &ClientPolicy| (client.weight.thousandths(), client.limit.as_ref().map(limit));
    let clients: BTreeMap<&str, _> =
        policy.clients.iter().map(|client| (client.name.as_str(), rules(client))).collect();
    let lending: &str = policy.lending.into();
    let (reservation, unlisted) = (policy.reservation.millionths(), policy.unlisted_weight.thousandths());
    let is_fixed = policy.window == Window::Fixed;
    let settings = (lending, reservation, unlisted, policy.enforce, is_fixed, lease, clients);
    crc32fast::hash(&postcard::to_extend(&settings, Vec::new()).expect("a vector takes any value"))
}

/// The times of a member that depend on the size of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupTimes {
    /// The time between two looks.
    pub look: Duration,
    /// The longest time between two posts.
    pub heartbeat: Duration,
    /// The time for which the member may admit after a post.
    pub lease: Duration,
}

/// One reading of two clocks of a machine that both never stand still, of which one may have been slewed. Which one is
/// ahead may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clocks {
    /// The clock on which less time passed. It measures windows, and the silence of other members.
    pub slow: Time,
    /// The clock on which more time passed. It measures the lease.
    pub fast: Time,
}

impl Clocks {
    /// Both clocks at the same moment.
    pub fn same(now: Time) -> Clocks {
        Clocks { slow: now, fast: now }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::policy::Lending;
    use crate::units::Weight;

    const LEASE: Duration = Duration::from_secs(10);

    fn client(name: &str, weight: u64) -> ClientPolicy {
        ClientPolicy { name: name.to_owned(), weight: Weight::from_thousandths(weight).unwrap(), limit: None }
    }

    fn policy() -> Policy {
        let clients = vec![client("car-loan", 1_000), client("home-loan", 2_000)];
        Policy { clients, ..Policy::new(100, Duration::from_secs(1)) }
    }

    #[test]
    fn the_digest_does_not_change_from_one_version_to_the_next() {
        assert_eq!(GroupParams::new(&policy(), LEASE).terms().digest, 1_241_917_653);
    }

    #[test]
    fn the_digest_tells_each_setting_that_must_agree() {
        let limit = Limit { rate: NonZeroU32::MIN, per: LEASE, burst: NonZeroU32::MIN };
        let weight = Weight::from_thousandths(2_000).unwrap();
        let with = |change: fn(&mut Policy)| {
            let mut policy = policy();
            change(&mut policy);
            policy
        };
        let mut limited = policy();
        limited.clients[0].limit = Some(limit);
        let others = [
            limited,
            Policy { unlisted_weight: weight, ..policy() },
            Policy { reservation: Ratio::ONE, lending: Lending::MaxMin, ..policy() },
            Policy { reservation: Ratio::ONE, ..policy() },
            Policy { lending: Lending::MaxMin, ..policy() },
            Policy { enforce: false, ..policy() },
            Policy { window: Window::Fixed, ..policy() },
            with(|policy| policy.clients[1].name.push('s')),
            with(|policy| policy.clients[1].weight = Weight::ONE),
            with(|policy| drop(policy.clients.pop())),
        ];
        let mut digests: Vec<u32> = others.iter().map(|other| digest(other, LEASE)).collect();
        digests.extend([digest(&policy(), LEASE), digest(&policy(), LEASE * 2)]);
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), others.len() + 2);
    }

    #[test]
    fn the_digest_leaves_out_what_may_differ() {
        let reordered = Policy { clients: policy().clients.into_iter().rev().collect(), ..policy() };
        let local = Policy { queue_bytes: 1, max_clients: 2, capacity: 3, ..policy() };
        let same = [reordered, local].map(|other| digest(&other, LEASE));
        assert_eq!(same, [digest(&policy(), LEASE); 2]);
    }
}
