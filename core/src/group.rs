//! One capacity for all instances of a group, in seats (`docs/scaling.md` is its prose).
//!
//! A *seat* is a transactional id, and its last committed state is the truth about it. Capacity moves between seats by
//! such states. The process that initialises a seat's transactional id last owns the seat: the brokers refuse every
//! earlier owner. So the capacity of a member that stopped, and the knowledge of its admissions, go to others as soon
//! as its stop is noticed. There is no leader, and no clock of another machine matters.
//!
//! A state is written *ahead* of admissions: it says how many records its author may admit before its next state.
//!
//! - [`state`]: the records of the control log
//! - [`wire`]: the records as Kafka keys and values
//! - [`ledger`]: the last state of each seat, as one reader knows it
//! - [`member`]: the rules by which a member opens its seat, writes states, gives, takes and claims
//! - [`driver`]: a member with its throttle and its log
//! - [`control`]: the trait through which a member talks to the log
//! - [`demand`]: the load of each client at one member
//! - `loads`: the loads of all members' clients, by number
//! - [`targets`]: the hold that each member ought to have
//! - [`former`]: the members of version 0.2, which shared the capacity by another protocol

mod charged;
pub mod control;
pub mod demand;
pub mod driver;
pub mod former;
pub mod ledger;
pub(crate) mod loads;
pub mod member;
pub mod state;
pub mod targets;
pub mod wire;

use std::{collections::BTreeMap, time::Duration};

use crate::policy::{ClientPolicy, GroupPolicy, Limit, Mode, Policy, Window};
use crate::rules::Origin;
use crate::units::{NANOS_PER_MILLI, Time, lengthened, nanos};
use state::Terms;

/// The bounds of the default time for which a state's announced admissions may be made: three cycles.
const AHEAD_TIMES: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(30));
/// The heartbeats in the silence after which a member counts as stopped.
const HEARTBEATS_OF_SILENCE: u32 = 3;
/// The time after which a seat that holds nothing is removed from the log: instances may have another name after each
/// start.
const FORGET_AFTER: Duration = Duration::from_secs(3_600);
/// Members of groups with more members than this look less often …
const MANY_MEMBERS: usize = 50;
/// … by this time for each member: they read a record of each.
const LOOK_FOR_EACH: Duration = Duration::from_millis(1);
/// Members of groups with more members than this write less often …
const VERY_MANY_MEMBERS: usize = 200;
/// … by this time for each member.
const HEARTBEAT_FOR_EACH: Duration = Duration::from_millis(10);
/// The time between two looks for each client: a look takes 2 µs for each at most, and must not take more than a tenth
/// of the time.
const LOOK_FOR_EACH_CLIENT: Duration = Duration::from_micros(20);

/// The rules of a group. All members must have the same, but for the capacity.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupParams {
    /// The capacity that this instance is configured with. The smallest one among the live members is in force.
    pub capacity: u64,
    pub cycle: Duration,
    pub mode: Mode,
    /// The longest time for which the announced admissions of this member's states may be made.
    pub ahead_time: Duration,
    /// The silence after which a member counts as stopped; longer in a very large group, as the next time is: see
    /// [`times`](GroupParams::times).
    pub silence: Duration,
    /// The time after which the seat of a member that stopped is removed from the log.
    pub forget_after: Duration,
    /// The time between two looks, the checks of whether to write a state.
    pub look: Duration,
    /// A digest of the other settings in which the instances must agree.
    pub digest: u32,
    /// The sum over the rules of run time in force, which the other members are told.
    pub rules: u64,
}

impl GroupParams {
    /// The rules that follow from a service's policy, and the two times of a group.
    pub fn new(policy: &Policy, ahead_time: Duration, silence: Duration) -> GroupParams {
        let cycle = policy.cycle;
        let look = if cycle < Duration::from_secs(5) { Duration::from_millis(30) } else { Duration::from_millis(50) };
        GroupParams {
            capacity: policy.capacity,
            cycle,
            mode: policy.mode,
            ahead_time,
            silence,
            forget_after: FORGET_AFTER,
            look,
            digest: digest(policy),
            rules: 0,
        }
    }

    /// The default of the longest time for which announced admissions may be made.
    pub fn default_ahead_time(cycle: Duration) -> Duration {
        (cycle * 3).clamp(AHEAD_TIMES.0, AHEAD_TIMES.1)
    }

    /// The length of a member's window: a cycle on any clock of the group.
    pub fn window(&self) -> Duration {
        lengthened(self.cycle)
    }

    /// The times of a member of a group of this size.
    pub fn times(&self, members: usize, clients: usize) -> GroupTimes {
        let of = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let beyond = |least| if members > least { of(members) } else { 0 };
        let heartbeat = (self.silence / HEARTBEATS_OF_SILENCE).min(self.ahead_time / HEARTBEATS_OF_SILENCE);
        let heartbeat = heartbeat.max(HEARTBEAT_FOR_EACH * beyond(VERY_MANY_MEMBERS)).min(self.ahead_time / 2);
        GroupTimes {
            look: self.look.max(LOOK_FOR_EACH * beyond(MANY_MEMBERS)).max(LOOK_FOR_EACH_CLIENT * of(clients)),
            heartbeat,
            silence: self.silence.max(heartbeat * HEARTBEATS_OF_SILENCE),
        }
    }

    /// The configuration that all states of a member carry.
    pub fn terms(&self) -> Terms {
        let cycle_ms = nanos(self.cycle) / NANOS_PER_MILLI;
        Terms { capacity: self.capacity, cycle_ms, mode: self.mode, digest: u64::from(self.digest) }
    }
}

/// The CRC-32 of the settings, beside capacity, cycle and mode, that decide how much an instance admits: lending,
/// weights, limits and enforcement. Machines and versions of the program compute the same, and the order of the clients
/// in the file does not matter.
fn digest(policy: &Policy) -> u32 {
    let limits = |limits: &[Limit]| limits.iter().map(|limit| (limit.rate, limit.per, limit.burst)).collect::<Vec<_>>();
    let rules = |client: &ClientPolicy| (client.weight.thousandths(), limits(&client.limits));
    let clients: BTreeMap<&str, _> =
        policy.clients.iter().map(|client| (client.name.as_str(), rules(client))).collect();
    let lending: &str = policy.lending.into();
    let (reservation, unlisted) = (policy.reservation.millionths(), policy.unlisted_weight.thousandths());
    let is_fixed = policy.window == Window::Fixed;
    let settings = (lending, reservation, unlisted, policy.enforce, is_fixed, clients);
    let mut bytes = postcard::to_extend(&settings, Vec::new()).expect("a vector takes any value");
    // Nothing is added without groups, which former versions do not know.
    if policy.names_groups || !policy.groups.is_empty() {
        let rules = |group: &GroupPolicy| (group.weight.thousandths(), limits(&group.limits), group.clients.clone());
        let groups: BTreeMap<&str, _> = policy.groups.iter().map(|group| (group.name.as_str(), rules(group))).collect();
        bytes = postcard::to_extend(&(policy.names_groups, groups), bytes).expect("a vector takes any value");
    }
    // Nor without rules.
    let mut rules: Vec<_> =
        policy.rules.iter().filter(|rule| rule.origin == Origin::File && !rule.is_table()).collect();
    if !rules.is_empty() {
        rules.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        bytes = postcard::to_extend(&rules, bytes).expect("a vector takes any value");
    }
    crc32fast::hash(&bytes)
}

/// The times of a member that depend on the size of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupTimes {
    pub look: Duration,
    /// The longest time between two states.
    pub heartbeat: Duration,
    /// The silence after which a member counts as stopped.
    pub silence: Duration,
}

/// One reading of two clocks of a machine that both never stand still, of which one may have been slewed. Which one is
/// ahead may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clocks {
    /// The clock on which less time passed. It measures windows, and the silence of other members.
    pub slow: Time,
    /// The clock on which more time passed. It measures the age of announced admissions.
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
    use crate::policy::{ClientPattern, Lending};
    use crate::units::{Ratio, Weight};

    const SECOND: Duration = Duration::from_secs(1);

    fn client(name: &str, weight: u64) -> ClientPolicy {
        ClientPolicy { name: name.to_owned(), weight: Weight::from_thousandths(weight).unwrap(), limits: Vec::new() }
    }

    fn group(name: &str, thousandths: u64) -> GroupPolicy {
        let weight = Weight::from_thousandths(thousandths).unwrap();
        GroupPolicy {
            name: name.to_owned(),
            weight,
            limits: Vec::new(),
            hold: false,
            clients: vec![ClientPattern::new("card-*")],
        }
    }

    fn policy() -> Policy {
        let clients = vec![client("car-loan", 1_000), client("home-loan", 2_000)];
        Policy { clients, ..Policy::new(100, SECOND) }
    }

    #[test]
    fn large_groups_look_and_write_less_often() {
        let params = GroupParams::new(&Policy::new(100, SECOND * 20), SECOND * 30, SECOND * 6);
        let times = |members, clients| {
            let times = params.times(members, clients);
            [times.look, times.heartbeat, times.silence].map(|time| time.as_millis())
        };
        assert_eq!(times(3, 10), [50, 2_000, 6_000]);
        assert_eq!(times(100, 1_000), [100, 2_000, 6_000]);
        assert_eq!(times(1_000, 1_000), [1_000, 10_000, 30_000]);
        assert_eq!(times(3, 100_000), [2_000, 2_000, 6_000]);
    }

    #[test]
    fn the_digest_does_not_change_from_one_version_to_the_next() {
        assert_eq!(GroupParams::new(&policy(), SECOND, SECOND).terms().digest, 1_569_492_634);
    }

    #[test]
    fn the_digest_tells_each_setting_that_must_agree() {
        let limit = Limit { rate: NonZeroU32::MIN, per: SECOND, burst: NonZeroU32::MIN };
        let weight = Weight::from_thousandths(2_000).unwrap();
        let with = |change: fn(&mut Policy)| {
            let mut policy = policy();
            change(&mut policy);
            policy
        };
        let mut limited = policy();
        limited.clients[0].limits = vec![limit];
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
            with(|policy| policy.names_groups = true),
            with(|policy| policy.groups.push(group("cards", 1_000))),
            with(|policy| policy.groups.push(group("cards", 2_000))),
            with(|policy| policy.groups.push(GroupPolicy { clients: Vec::new(), ..group("cards", 1_000) })),
            with(|policy| drop(policy.clients.pop())),
        ];
        let mut digests: Vec<u32> = others.iter().map(digest).collect();
        digests.push(digest(&policy()));
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), others.len() + 1);
    }

    #[test]
    fn the_digest_leaves_out_what_may_differ() {
        let reordered = Policy { clients: policy().clients.into_iter().rev().collect(), ..policy() };
        let local = Policy { queue_bytes: 1, max_clients: 2, capacity: 3, ..policy() };
        let same = [reordered, local].map(|other| digest(&other));
        assert_eq!(same, [digest(&policy()); 2]);
    }
}
