//! The kinds of faults: what each does, on what, and what shows that it took effect.

mod brokers;
mod foreign;
mod instances;
mod kafka;
mod network;
mod replay;

use crate::flow::Place;
use crate::plan::now_ms;
use crate::support::generator::Random;
use crate::world::World;

/// Faults of different lanes may overlap, those of one follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    Instances,
    Cluster,
    /// Whichever has time.
    Either,
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
    /// When it began and when it was over, in ms since 1970: what was down had been started, what was held was let go.
    pub began: u64,
    pub ended: u64,
    /// The partitions that somebody else has to take over.
    pub partitions: Vec<Place>,
}

impl Inflicted {
    /// `span`: when it began and when it was over.
    fn new(target: impl Into<String>, span: (u64, u64), effect: Result<String, String>) -> Inflicted {
        Inflicted { target: target.into(), effect, began: span.0, ended: span.1, partitions: Vec::new() }
    }

    /// With partitions that somebody else has to take over.
    fn of(self, partitions: Vec<Place>) -> Inflicted {
        Inflicted { partitions, ..self }
    }

    /// There was nothing to do it to.
    fn none(why: &str) -> Inflicted {
        Inflicted::new("-", (now_ms(), now_ms()), Err(why.to_owned()))
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
    kind("poison_too_large", Lane::Either, kafka::poison),
    kind("poison_future", Lane::Either, kafka::poison),
    kind("poison_null_key", Lane::Either, kafka::poison),
    kind("add_partitions", Lane::Either, kafka::add_partitions),
    Kind { name: "foreign_commit_stop", lane: Lane::Instances, alone: true, inflict: foreign::stop },
    Kind { name: "foreign_commit_replay", lane: Lane::Either, alone: true, inflict: replay::replay },
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

impl Kind {
    /// Whether there is anything that it could be done to, with such a target.
    pub fn is_possible(&self, append_time: bool) -> bool {
        // A target that sets times itself, and is not compacted, takes these.
        !(append_time && ["poison_future", "poison_null_key"].contains(&self.name))
    }
}

pub fn find(name: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.name == name)
}

/// A time between these, in ms.
fn between(random: &mut Random, from: u64, to: u64) -> std::time::Duration {
    std::time::Duration::from_millis(from + random.below(to - from + 1))
}
