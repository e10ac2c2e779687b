//! The kinds of faults. Each function injects a fault, and checks that it took effect.

mod brokers;
mod control;
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
    /// Needs instances that share one capacity.
    pub of_a_group: bool,
    pub inject: fn(&World, &mut Random, &'static str) -> Outcome,
}

const fn kind(name: &'static str, lane: Lane, inject: fn(&World, &mut Random, &'static str) -> Outcome) -> Kind {
    Kind { name, lane, alone: false, of_a_group: false, inject }
}

const fn kind_of_a_group(
    name: &'static str, lane: Lane, inject: fn(&World, &mut Random, &'static str) -> Outcome,
) -> Kind {
    Kind { of_a_group: true, ..kind(name, lane, inject) }
}

const fn alone(kind: Kind) -> Kind {
    Kind { alone: true, ..kind }
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
    kind("pause_before_offsets", Lane::Instances, instances::pause),
    kind("pause_transaction", Lane::Instances, instances::pause),
    kind_of_a_group("pause_before_state", Lane::Instances, instances::pause),
    kind_of_a_group("pause_ahead", Lane::Instances, instances::pause),
    kind("join", Lane::Instances, instances::join),
    kind("leave", Lane::Instances, instances::leave),
    kind_of_a_group("same_id_twice", Lane::Instances, instances::same_id_twice),
    // A request of the hijacker that is sent again, because its coordinator ended, takes the id twice; and an instance
    // that loses its id twice within a minute stops, as documented.
    alone(kind("hijack", Lane::Instances, kafka::hijack)),
    kind("poison_too_large", Lane::Either, kafka::poison),
    kind("poison_future", Lane::Either, kafka::poison),
    kind("poison_null_key", Lane::Either, kafka::poison),
    kind("add_partitions", Lane::Either, kafka::add_partitions),
    alone(kind("foreign_commit_stop", Lane::Instances, foreign::stop)),
    alone(kind("foreign_commit_replay", Lane::Either, replay::replay)),
    kind("broker_kill", Lane::Cluster, brokers::kill),
    kind("broker_pause", Lane::Cluster, brokers::pause),
    kind("group_coordinator_kill", Lane::Cluster, brokers::kill_coordinator),
    kind("txn_coordinator_kill", Lane::Cluster, brokers::kill_coordinator),
    kind_of_a_group("control_leader_kill", Lane::Cluster, brokers::kill_control_leader),
    kind_of_a_group("control_few_replicas", Lane::Cluster, control::few_replicas),
    alone(kind_of_a_group("control_deleted", Lane::Cluster, control::delete)),
    kind("rolling_restart", Lane::Cluster, brokers::rolling_restart),
    alone(kind("all_brokers_down", Lane::Cluster, brokers::all_down)),
    kind("cut", Lane::Cluster, network::cut),
    kind("reset", Lane::Cluster, network::reset),
    kind("slow", Lane::Cluster, network::slow),
    kind("blackhole", Lane::Cluster, network::blackhole),
    kind_of_a_group("control_away_5s", Lane::Cluster, network::control_away),
    kind_of_a_group("control_away_30s", Lane::Cluster, network::control_away),
    kind("hold_end_txn", Lane::Cluster, network::hold_end_txn),
];

impl Kind {
    /// Tells whether this kind of fault is possible with such a target.
    pub fn is_possible(&self, append_time: bool, grouped: bool) -> bool {
        // A target with append time is not compacted: it accepts future timestamps and null keys.
        !(append_time && ["poison_future", "poison_null_key"].contains(&self.name)) && (grouped || !self.of_a_group)
    }
}

pub fn find(name: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.name == name)
}

/// Returns a random duration between `from` and `to` ms.
fn between(random: &mut Random, from: u64, to: u64) -> std::time::Duration {
    std::time::Duration::from_millis(from + random.below(to - from + 1))
}
