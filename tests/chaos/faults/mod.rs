//! The kinds of faults. Each function injects a fault, and checks that it took effect.

mod brokers;
mod foreign;
mod instances;
mod kafka;
mod network;
mod replay;

use crate::{outcome::Outcome, support::generator::Random, world::World};

/// A sequence of faults. Faults of different lanes may overlap; those of one lane follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    Instances,
    Cluster,
    /// The first lane that is free.
    Either,
}

/// A kind of fault.
pub struct Kind {
    pub name: &'static str,
    pub lane: Lane,
    /// Excludes other faults while this one lasts.
    pub alone: bool,
    pub inject: fn(&World, &mut Random, &'static str) -> Outcome,
}

const fn kind(name: &'static str, lane: Lane, inject: fn(&World, &mut Random, &'static str) -> Outcome) -> Kind {
    Kind { name, lane, alone: false, inject }
}

/// All kinds of faults.
pub const KINDS: &[Kind] = &[
    kind("kill_same_id", Lane::Instances, instances::kill),
    kind("kill_new_id", Lane::Instances, instances::kill),
    kind("failpoint_before_begin", Lane::Instances, instances::failpoint),
    kind("failpoint_after_begin", Lane::Instances, instances::failpoint),
    kind("failpoint_after_send", Lane::Instances, instances::failpoint),
    kind("failpoint_before_offsets", Lane::Instances, instances::failpoint),
    kind("failpoint_after_offsets", Lane::Instances, instances::failpoint),
    kind("failpoint_before_commit", Lane::Instances, instances::failpoint),
    kind("failpoint_after_commit", Lane::Instances, instances::failpoint),
    kind("pause_short", Lane::Instances, instances::pause),
    kind("pause_session", Lane::Instances, instances::pause),
    kind("pause_transaction", Lane::Instances, instances::pause),
    kind("join", Lane::Instances, instances::join),
    kind("leave", Lane::Instances, instances::leave),
    kind("hijack", Lane::Instances, kafka::hijack),
    kind("poison_too_large", Lane::Either, kafka::poison),
    kind("poison_future", Lane::Either, kafka::poison),
    kind("poison_null_key", Lane::Either, kafka::poison),
    kind("add_partitions", Lane::Either, kafka::add_partitions),
    Kind { name: "foreign_commit_stop", lane: Lane::Instances, alone: true, inject: foreign::stop },
    Kind { name: "foreign_commit_replay", lane: Lane::Either, alone: true, inject: replay::replay },
    kind("broker_kill", Lane::Cluster, brokers::kill),
    kind("broker_pause", Lane::Cluster, brokers::pause),
    kind("group_coordinator_kill", Lane::Cluster, brokers::kill_coordinator),
    kind("txn_coordinator_kill", Lane::Cluster, brokers::kill_coordinator),
    kind("control_leader_kill", Lane::Cluster, brokers::kill_control_leader),
    kind("rolling_restart", Lane::Cluster, brokers::rolling_restart),
    Kind { name: "all_brokers_down", lane: Lane::Cluster, alone: true, inject: brokers::all_down },
    kind("cut", Lane::Cluster, network::cut),
    kind("reset", Lane::Cluster, network::reset),
    kind("slow", Lane::Cluster, network::slow),
    kind("blackhole", Lane::Cluster, network::blackhole),
    kind("control_away_5s", Lane::Cluster, network::control_away),
    kind("control_away_30s", Lane::Cluster, network::control_away),
    kind("hold_end_txn", Lane::Cluster, network::hold_end_txn),
];

impl Kind {
    /// Tells whether this kind of fault is possible with such a target.
    pub fn is_possible(&self, append_time: bool, grouped: bool) -> bool {
        // A target with append time is not compacted: it accepts future timestamps and null keys.
        !(append_time && ["poison_future", "poison_null_key"].contains(&self.name))
            && (grouped || !self.name.starts_with("control_"))
    }
}

pub fn find(name: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.name == name)
}

/// Returns a random duration between `from` and `to` ms.
fn between(random: &mut Random, from: u64, to: u64) -> std::time::Duration {
    std::time::Duration::from_millis(from + random.below(to - from + 1))
}
