//! The kinds of faults: what each does, on what, and what shows that it took effect.

mod brokers;
mod foreign;
mod instances;
mod kafka;
mod network;
mod replay;

use crate::plan::now_ms;
use crate::support::generator::Random;
use crate::world::World;

/// Faults of different lanes may overlap, those of one follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    Instances,
    Cluster,
}

/// A kind of fault.
pub struct Kind {
    pub name: &'static str,
    pub lane: Lane,
    /// No other fault may happen meanwhile.
    pub alone: bool,
    pub inflict: fn(&World, &mut Random, &'static str) -> Inflicted,
}

/// A fault that happened.
pub struct Inflicted {
    pub target: String,
    /// What shows that it took effect, or why it did not.
    pub effect: Result<String, String>,
    /// When it began (ms since 1970); where nothing can flow while it lasts, when it ended.
    pub since: u64,
}

impl Inflicted {
    fn new(target: impl Into<String>, since: u64, effect: Result<String, String>) -> Inflicted {
        Inflicted { target: target.into(), effect, since }
    }

    /// There was nothing to do it to.
    fn none(why: &str) -> Inflicted {
        Inflicted::new("-", now_ms(), Err(why.to_owned()))
    }
}

const fn kind(name: &'static str, lane: Lane, inflict: fn(&World, &mut Random, &'static str) -> Inflicted) -> Kind {
    Kind { name, lane, alone: false, inflict }
}

/// All of them.
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
    kind("poison_too_large", Lane::Instances, kafka::poison),
    kind("poison_future", Lane::Instances, kafka::poison),
    kind("poison_null_key", Lane::Instances, kafka::poison),
    kind("add_partitions", Lane::Instances, kafka::add_partitions),
    Kind { name: "foreign_commit_stop", lane: Lane::Instances, alone: true, inflict: foreign::stop },
    Kind { name: "foreign_commit_replay", lane: Lane::Instances, alone: true, inflict: replay::replay },
    kind("broker_kill", Lane::Cluster, brokers::kill),
    kind("broker_pause", Lane::Cluster, brokers::pause),
    kind("group_coordinator_kill", Lane::Cluster, brokers::kill_coordinator),
    kind("txn_coordinator_kill", Lane::Cluster, brokers::kill_coordinator),
    kind("rolling_restart", Lane::Cluster, brokers::rolling_restart),
    Kind { name: "all_brokers_down", lane: Lane::Cluster, alone: true, inflict: brokers::all_down },
    kind("cut", Lane::Cluster, network::cut),
    kind("reset", Lane::Cluster, network::reset),
    kind("slow", Lane::Cluster, network::slow),
    kind("blackhole", Lane::Cluster, network::blackhole),
    kind("hold_end_txn", Lane::Cluster, network::hold_end_txn),
];

pub fn find(name: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.name == name)
}

/// A time between these, in ms.
fn between(random: &mut Random, from: u64, to: u64) -> std::time::Duration {
    std::time::Duration::from_millis(from + random.below(to - from + 1))
}
