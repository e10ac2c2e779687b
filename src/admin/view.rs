//! The JSON of the answers of `/v1`. Names and order are fixed, because scripts rely on them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use watermaster_core::pace::PaceView as Pace;

use crate::snapshot::{ClientSnapshot, Counts, GroupSnapshot, Levels, MemberSnapshot, ServiceSnapshot};

/// The configuration in force.
#[derive(Serialize, JsonSchema)]
pub(super) struct ConfigView {
    /// Sixteen hexadecimal digits that are equal for equal configurations. `instance_id`, `admin.listen` and hidden
    /// values don't count.
    pub(super) hash: String,
    /// Every key with its value, nested as in the file.
    pub(super) config: Value,
}

/// The result of a reload.
#[derive(Serialize, JsonSchema)]
pub(super) struct ReloadView {
    pub(super) hash: String,
    /// The keys that changed.
    pub(super) changed: Vec<String>,
}

/// All services, by name.
#[derive(Serialize, JsonSchema)]
pub(super) struct ServicesView {
    pub(super) services: Vec<ServiceView>,
}

/// One service. Counts are since start.
#[derive(Serialize, JsonSchema)]
pub(super) struct ServiceView {
    pub(super) name: String,
    mode: &'static str,
    enforce: bool,
    capacity: u64,
    cycle_seconds: f64,
    cycle: u64,
    /// Records admitted in the last window of one cycle; `window_admitted_max`: the most in any window since start.
    window_admitted: u64,
    window_admitted_max: u64,
    ready: bool,
    /// The reason why the service is not ready, or stopped.
    trouble: Option<String>,
    /// The search for the capacity; missing if the service has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pace: Option<PaceView>,
    clients: Vec<ClientView>,
}

/// The search for the capacity of a service. Rates are in records per cycle.
#[derive(Serialize, JsonSchema)]
struct PaceView {
    /// learning, at_least, found, late, stalled, no_demand, no_signal, not_alone, at_floor or at_ceiling.
    state: &'static str,
    /// observe: the found capacity is only reported. apply: the limit follows it.
    control: &'static str,
    /// The found capacity; null while it is unknown.
    found: Option<u64>,
    /// The service takes at least the found capacity, perhaps more: it was never late.
    at_least: bool,
    /// The limit in force.
    limit: u64,
    floor: u64,
    ceiling: u64,
    /// The age of the oldest record that the service has not committed, beyond the usual one.
    late_seconds: f64,
    usual_seconds: f64,
    /// The usual time between two commits.
    commit_gap_seconds: f64,
    open_offsets: u64,
    /// The rate that the service finished lately; null while it is unknown.
    finished: Option<u64>,
    /// The part of the found capacity that is let through.
    brake: f64,
    /// The time since the offsets were read; null before the first time.
    signal_age_seconds: Option<f64>,
    stuck_partitions: usize,
}

impl PaceView {
    fn new(pace: &Pace) -> PaceView {
        PaceView {
            state: pace.state.into_str(),
            control: pace.control.into_str(),
            found: pace.found,
            at_least: pace.at_least,
            limit: pace.limit,
            floor: pace.floor,
            ceiling: pace.ceiling,
            late_seconds: pace.late.as_secs_f64(),
            usual_seconds: pace.usual.as_secs_f64(),
            commit_gap_seconds: pace.gap.as_secs_f64(),
            open_offsets: pace.open_offsets,
            finished: pace.rate,
            brake: f64::from(pace.brake.millionths()) / 1e6,
            signal_age_seconds: pace.signal_age.map(|age| age.as_secs_f64()),
            stuck_partitions: pace.stuck_partitions,
        }
    }
}

/// The group that shares the capacity of a service, as this instance sees it.
#[derive(Serialize, JsonSchema)]
pub(super) struct GroupView {
    name: String,
    scope: &'static str,
    /// The state of this instance in the group; null with scope instance.
    state: Option<&'static str>,
    capacity: u64,
    hold: u64,
    target: u64,
    ahead: u64,
    circulating: u64,
    /// The number of different configurations among the live members and this instance.
    configurations: usize,
    members: Vec<MemberSnapshot>,
}

impl GroupView {
    pub(super) fn new(name: &str, group: &GroupSnapshot) -> GroupView {
        GroupView {
            name: name.to_owned(),
            scope: if group.state.is_some() { "group" } else { "instance" },
            state: group.state,
            capacity: group.capacity,
            hold: group.hold,
            target: group.target,
            ahead: group.ahead,
            circulating: group.circulating,
            configurations: group.configurations,
            members: group.members.clone(),
        }
    }
}

/// One client of a service.
#[derive(Serialize, JsonSchema)]
pub(super) struct ClientView {
    name: String,
    wants: u64,
    default_share: f64,
    granted: u64,
    #[serde(flatten)]
    done: DecisionsView,
    lent: f64,
    borrowed: f64,
    /// The time that the oldest delayed record has waited for; 0 without one and in shadow mode.
    oldest_seconds: f64,
    /// The decisions of shadow mode; all 0 while decisions are enforced.
    shadow: DecisionsView,
}

/// The decisions on a client's records. Every reason has a count, 0 included, so that scripts find each reason.
#[derive(Serialize, JsonSchema)]
struct DecisionsView {
    admitted: u64,
    delayed: u64,
    rejected: BTreeMap<&'static str, u64>,
    backlog: u64,
}

impl ServiceView {
    /// Makes the view of a snapshot; the name is passed apart, since the first snapshot has none.
    pub(super) fn new(name: &str, snapshot: &ServiceSnapshot, pace: Option<&Pace>) -> ServiceView {
        ServiceView {
            name: name.to_owned(),
            mode: snapshot.mode.into_str(),
            enforce: snapshot.enforce,
            capacity: snapshot.capacity,
            cycle_seconds: snapshot.cycle_seconds,
            cycle: snapshot.cycle,
            window_admitted: snapshot.window_admitted,
            window_admitted_max: snapshot.window_admitted_max,
            ready: snapshot.ready,
            trouble: snapshot.trouble.clone(),
            pace: pace.map(PaceView::new),
            clients: snapshot.clients.iter().map(ClientView::new).collect(),
        }
    }
}

impl ClientView {
    pub(super) fn new(client: &ClientSnapshot) -> ClientView {
        let Levels { wants, default_share, granted, backlog, shadow_backlog, oldest_seconds, .. } = client.levels;
        ClientView {
            name: client.name.to_string(),
            wants,
            default_share,
            granted,
            done: DecisionsView::new(&client.counts, backlog),
            lent: (default_share - granted as f64).max(0.0),
            borrowed: (granted as f64 - default_share).max(0.0),
            oldest_seconds,
            shadow: DecisionsView::new(&client.shadow, shadow_backlog),
        }
    }
}

impl DecisionsView {
    fn new(counts: &Counts, backlog: u64) -> DecisionsView {
        let rejected = counts.rejected.iter().map(|(reason, count)| (reason.into_str(), count)).collect();
        DecisionsView { admitted: counts.admitted, delayed: counts.delayed, rejected, backlog }
    }
}
