//! Single situations on a log that is fast and never fails: each step, all nodes read all records.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use watermaster_core::group::member::{MemberState, Restart};
use watermaster_core::group::record::Record;
use watermaster_core::group::targets::Shares;
use watermaster_core::group::{Clocks, GroupParams};
use watermaster_core::policy::{Mode, Policy};
use watermaster_core::units::Time;

use crate::log::Log;
use crate::node::Node;
use crate::support::random::Random;

pub const CYCLE: Duration = Duration::from_secs(10);
pub const STEP: Duration = Duration::from_millis(50);

/// The same demand of three clients.
fn everywhere(demand: u64) -> [(Arc<str>, u64); 3] {
    ["home", "car", "card"].map(|client| (client.into(), demand))
}

/// Nodes that admit all that they may.
pub struct Calm {
    pub params: GroupParams,
    pub log: Log,
    pub now: Time,
    pub nodes: BTreeMap<u64, Node>,
    read: BTreeMap<u64, u64>,
    random: Random,
    /// Records admitted in each step.
    admitted: Vec<u64>,
}

impl Calm {
    pub fn new(capacity: u64, mode: Mode, nodes: u64) -> Calm {
        let policy = Policy { mode, ..Policy::new(capacity, CYCLE) };
        let params = GroupParams::new(&policy, Duration::from_secs(10));
        let mut calm = Calm {
            params,
            log: Log::default(),
            now: Time::ZERO,
            nodes: BTreeMap::new(),
            read: BTreeMap::new(),
            random: Random(1),
            admitted: Vec::new(),
        };
        (0..nodes).for_each(|node| calm.start(node));
        calm
    }

    pub fn start(&mut self, id: u64) {
        let params = self.params.clone();
        self.start_with(id, &params);
    }

    pub fn start_with(&mut self, id: u64, params: &GroupParams) {
        let mut node = Node::new(params, id, 0, self.log.end(), self.now, None, &mut self.random);
        node.set_demand(everywhere(self.params.capacity));
        self.nodes.insert(id, node);
        self.read.insert(id, 0);
    }

    pub fn leave(&mut self, id: u64) {
        let mut node = self.nodes.remove(&id).expect("the node runs");
        let clocks = node.clocks(self.now);
        node.expire(clocks);
        for record in node.member.leave(clocks, node.count) {
            self.log.append(self.now, record);
        }
    }

    /// Each of these nodes looks, in this order, before it reads what the others post.
    pub fn post_unread<const N: usize>(&mut self, ids: [u64; N]) {
        for id in ids {
            let node = self.nodes.get_mut(&id).expect("the node runs");
            let clocks = node.clocks(self.now);
            for record in node.member.look(clocks, node.count, &node.loads) {
                self.log.append(self.now, record);
            }
        }
    }

    pub fn run(&mut self, time: Duration) {
        for _ in 0..time.as_millis() / STEP.as_millis() {
            self.now = self.now + STEP;
            let mut admitted = 0;
            for (id, node) in &mut self.nodes {
                let clocks = node.clocks(self.now);
                let next = self.read.get_mut(id).expect("a reader");
                while let Some((_, record)) = self.log.get(*next) {
                    node.member.handle_record(clocks, *next, record);
                    *next += 1;
                }
                node.member.handle_caught_up(clocks);
                if node.member.restart(clocks) == Some(Restart::Conflict) {
                    node.member.rejoin(clocks, self.random.word());
                }
                node.expire(clocks);
                for record in node.member.look(clocks, node.count, &node.loads) {
                    self.log.append(self.now, record);
                }
                admitted += node.admit(self.now);
            }
            self.admitted.push(admitted);
        }
    }

    pub fn limits(&self) -> Vec<u64> {
        self.nodes.values().map(|node| node.member.limit(node.clocks(self.now))).collect()
    }

    /// The records admitted in the last cycle, as a part of the capacity.
    pub fn used(&self) -> f64 {
        let steps = (CYCLE.as_millis() / STEP.as_millis()) as usize;
        self.admitted.iter().rev().take(steps).sum::<u64>() as f64 / self.params.capacity as f64
    }

    pub fn clocks(&self, id: u64) -> Clocks {
        self.nodes[&id].clocks(self.now)
    }
}

#[test]
fn a_group_of_one_holds_the_capacity_after_two_exchanges() {
    for mode in [Mode::Shape, Mode::Reject] {
        let mut calm = Calm::new(400, mode, 1);
        calm.run(STEP * 4);
        assert_eq!(calm.limits(), [400], "{mode:?}");
        calm.run(CYCLE * 3);
        assert!(calm.used() >= 0.97, "{mode:?}: used {}", calm.used());
    }
}

#[test]
fn a_member_with_all_the_demand_holds_all_but_the_standby() {
    let mut calm = Calm::new(400, Mode::Shape, 3);
    for id in [1, 2] {
        calm.nodes.get_mut(&id).unwrap().set_demand([]);
    }
    calm.run(CYCLE);
    assert_eq!(calm.limits(), [398, 1, 1]);
    // The others come back: they hold their parts at once, and their full shares within a cycle.
    for id in [1, 2] {
        calm.nodes.get_mut(&id).unwrap().set_demand(everywhere(400));
    }
    calm.run(CYCLE * 2);
    let limits = calm.limits();
    assert!(limits.iter().all(|limit| (132..=134).contains(limit)), "{limits:?}");
    assert_eq!(limits.iter().sum::<u64>(), 400);
}

#[test]
fn after_a_reload_the_smallest_capacity_is_in_force() {
    let mut calm = Calm::new(400, Mode::Shape, 2);
    calm.run(CYCLE);
    let change = |calm: &mut Calm, id: u64, capacity: u64| {
        let policy = Policy::new(capacity, CYCLE);
        let params = GroupParams { capacity, ..calm.params.clone() };
        calm.nodes.get_mut(&id).unwrap().member.change(params, Shares::new(&policy));
    };
    // One member knows the new capacity: both keep to it as its window empties.
    change(&mut calm, 0, 100);
    calm.run(CYCLE * 2);
    assert_eq!(calm.limits(), [50, 50]);
    change(&mut calm, 1, 200);
    calm.run(CYCLE * 2);
    assert_eq!(calm.limits(), [50, 50]);
    change(&mut calm, 0, 200);
    calm.run(CYCLE * 2);
    assert_eq!(calm.limits(), [100, 100]);
}

#[test]
fn a_member_with_another_cycle_or_mode_does_not_join() {
    let mut calm = Calm::new(400, Mode::Shape, 2);
    calm.run(CYCLE);
    let others = [
        GroupParams { cycle: CYCLE * 2, ..calm.params.clone() },
        GroupParams { mode: Mode::Reject, ..calm.params.clone() },
    ];
    for (id, params) in (2..).zip(others) {
        calm.start_with(id, &params);
        calm.run(CYCLE);
        let member = &calm.nodes[&id].member;
        assert_eq!(member.state(calm.clocks(id)), MemberState::Joining);
        assert!(member.conflict(calm.clocks(id)).is_some());
        assert_eq!(calm.limits()[id as usize], 0);
    }
    assert_eq!(calm.limits()[..2], [200, 200]);
}

/// After a power cut no active member is left to write bounds on the former ones.
#[test]
fn members_that_died_do_not_keep_others_with_another_cycle_out_for_ever() {
    let mut calm = Calm::new(400, Mode::Shape, 2);
    calm.run(CYCLE);
    calm.nodes.clear();
    let params = GroupParams { cycle: CYCLE * 2, ..calm.params.clone() };
    calm.start_with(2, &params);
    calm.run(calm.params.lease);
    assert_eq!(calm.nodes[&2].member.state(calm.clocks(2)), MemberState::Joining);
    calm.run(CYCLE * 6 + calm.params.lease);
    assert_eq!(calm.limits(), [400]);
}

/// Four posts that the producer gave up once silenced a member for ever: only four may be unanswered at a time.
#[test]
fn posts_that_were_given_up_do_not_silence_a_member() {
    let mut calm = Calm::new(400, Mode::Shape, 1);
    calm.run(CYCLE);
    let lost_from = calm.log.end();
    // An outage: nothing that is posted arrives, and the producer reports it.
    for step in 1..=600 {
        let now = calm.now + STEP * step;
        let node = calm.nodes.get_mut(&0).unwrap();
        let clocks = node.clocks(now);
        for record in node.member.look(clocks, 0, &node.loads) {
            if let Record::Post(post) = record {
                node.member.handle_failed(post.seq);
            }
        }
    }
    calm.now = calm.now + STEP * 600;
    assert_eq!(calm.log.end(), lost_from);
    assert_eq!(calm.limits(), [0], "the lease is over");
    calm.run(CYCLE);
    assert_eq!(calm.limits(), [400]);
}

/// Each reader once counted the time since a member left from its own start, so that the holds of short-lived members
/// were never freed.
#[test]
fn members_that_live_shorter_than_a_cycle_lose_no_capacity() {
    for mode in [Mode::Shape, Mode::Reject] {
        let mut calm = Calm::new(400, mode, 3);
        calm.run(CYCLE);
        let mut used = Vec::new();
        for turn in 0..24 {
            calm.leave(turn % 3);
            calm.run(Duration::from_secs(1));
            calm.start(turn % 3);
            calm.run(Duration::from_secs(1));
            used.push(calm.used());
        }
        let late = used[12..].iter().sum::<f64>() / 12.0;
        assert!(late > 0.5, "{mode:?}: {late:.2} of the capacity is used: {used:.2?}");
    }
}

/// The records of a member that is gone once stayed in the log for ever.
#[test]
fn a_key_that_is_gone_for_a_day_gets_tombstones_once() {
    let mut calm = Calm::new(400, Mode::Shape, 3);
    calm.run(CYCLE);
    let gone = calm.nodes[&2].member.key().clone();
    calm.leave(2);
    calm.run(CYCLE * 3);
    let tombstones =
        |calm: &Calm| calm.log.entries().filter(|(_, record)| matches!(record, Record::Tombstone(_))).count();
    assert_eq!(tombstones(&calm), 0);
    calm.now = calm.now + Duration::from_secs(86_400);
    calm.run(CYCLE * 3);
    let found: Vec<Record> = calm.log.entries().map(|(_, record)| record).collect();
    let is_of = |record: &&Record| matches!(record, Record::Tombstone(_)) && *record.subject() == gone;
    let found: Vec<bool> = found.iter().filter(is_of).map(Record::is_of_post).collect();
    assert!(found.contains(&true) && found.contains(&false), "{found:?}");
    let count = tombstones(&calm);
    assert!(count <= 4, "each member asks once: {count}");
    calm.run(Duration::from_secs(1_800));
    assert_eq!(tombstones(&calm), count);
    // A newcomer does not know the key, and takes its part.
    calm.start(3);
    calm.run(CYCLE * 3);
    assert!(calm.nodes[&3].member.seats().get(&gone).is_none());
    let limits = calm.limits();
    assert!(limits.iter().all(|limit| (132..=134).contains(limit)), "{limits:?}");
}

/// With fewer records than members the same members once got nothing for ever.
#[test]
fn members_take_turns_where_records_are_few() {
    for mode in [Mode::Shape, Mode::Reject] {
        let mut calm = Calm::new(5, mode, 8);
        let mut served = vec![false; 8];
        for _ in 0..150 {
            calm.run(CYCLE);
            let limits = calm.limits();
            assert!(limits.iter().sum::<u64>() <= 5, "{limits:?}");
            served.iter_mut().zip(limits).for_each(|(served, limit)| *served |= limit > 0);
        }
        assert!(served.iter().all(|served| *served), "{mode:?}: {served:?}");
    }
}

/// The first members of a group hold capacity for the records that were admitted before the group began, also when one
/// of them leaves meanwhile. Members that come later know nothing of those records.
#[test]
fn the_first_members_keep_room_for_the_records_of_before() {
    for (mode, first) in [(Mode::Shape, 1), (Mode::Reject, 1), (Mode::Shape, 2), (Mode::Reject, 2)] {
        let mut calm = Calm::new(400, mode, first);
        for node in calm.nodes.values_mut() {
            assert!(node.member.is_first());
            node.member.charge_memory(node.clocks(calm.now), 300);
        }
        calm.run(STEP * 4);
        calm.start(2);
        calm.run(STEP * 20);
        assert!(!calm.nodes[&2].member.is_first());
        calm.leave(0);
        // All of the records of before may be in the service's window for one cycle.
        for _ in 0..170 {
            let limits = calm.limits();
            assert!(limits.iter().sum::<u64>() <= 100, "{mode:?}, {first} at {:?}: {limits:?}", calm.now);
            calm.run(STEP);
        }
        calm.run(CYCLE * 3);
        assert_eq!(calm.limits().iter().sum::<u64>(), 400, "{mode:?}, {first}");
    }
}

/// The first raise covers the records of before, however small the target is: later members may take all the rest.
#[test]
fn a_first_member_without_demand_holds_the_records_of_before() {
    let mut calm = Calm::new(400, Mode::Shape, 2);
    for node in calm.nodes.values_mut() {
        node.member.charge_memory(node.clocks(calm.now), 300);
    }
    calm.nodes.get_mut(&0).unwrap().set_demand([]);
    calm.run(STEP);
    // The other first member, with all the demand, dies before it has raised anything.
    calm.nodes.remove(&1);
    calm.run(STEP * 4);
    assert_eq!(calm.nodes[&0].member.hold(), 300);
    calm.start(2);
    calm.run(STEP * 20);
    let limits = calm.limits();
    assert!(limits.iter().sum::<u64>() <= 100 && limits[1] > 90, "{limits:?}");
}

/// Two members in different modes that posted before they read each other's post both joined for good.
#[test]
fn of_members_in_different_modes_that_start_together_the_later_one_by_the_log_leaves() {
    let mut calm = Calm::new(400, Mode::Shape, 1);
    let reject = GroupParams { mode: Mode::Reject, ..calm.params.clone() };
    calm.start_with(1, &reject);
    calm.post_unread([1, 0]);
    calm.run(CYCLE);
    assert_eq!(calm.limits(), [0, 400]);
    assert!(calm.nodes[&0].member.conflict(calm.clocks(0)).is_some());
    assert_eq!(calm.nodes[&1].member.seats().iter().count(), 1, "no seat is kept for the other");
    // It joins when the first one has left.
    calm.leave(1);
    calm.run(CYCLE * 3);
    assert_eq!(calm.limits(), [400]);
}

/// A bound once took the window of a member in reject mode, which may have been filled at once, for one that was filled
/// evenly.
#[test]
fn the_window_of_a_member_in_reject_mode_is_not_taken_for_a_paced_one() {
    let mut calm = Calm::new(400, Mode::Shape, 1);
    let reject = GroupParams { mode: Mode::Reject, ..calm.params.clone() };
    calm.nodes.clear();
    calm.start_with(1, &reject);
    calm.run(CYCLE);
    assert_eq!(calm.used(), 1.0);
    calm.leave(1);
    calm.start(2);
    for _ in 0..CYCLE.as_millis() / STEP.as_millis() * 2 {
        calm.run(STEP);
        assert!(calm.used() <= 1.0, "{} capacities in a cycle at {:?}", calm.used(), calm.now);
    }
}
