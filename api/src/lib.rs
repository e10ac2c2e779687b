//! The JSON of the answers of `/v1`. An instance writes these types, and programs that ask it read them. The names and
//! the order of fields are fixed, because scripts rely on them. Renamed types keep the names of their schemas.

mod explain;
mod rules;

use std::time::{Duration, UNIX_EPOCH};
use std::{borrow::Cow, collections::BTreeMap};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use watermaster_core::units::LAST_MS;

pub use explain::{ExplainView, FieldView, RuleRef};
pub use rules::{ClientEffect, RuleChangeView, RuleChangesView, RuleDryRun, RuleView, RulesView, TakenOver};

/// A word from a list that an instance knows; for another program, one that it may not know.
pub type Word = Cow<'static, str>;

/// Writes a time, in milliseconds since the Unix epoch, as RFC 3339: the last one that can be written if it is later.
pub fn rfc3339(ms: u64) -> String {
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms.min(LAST_MS as u64))).to_string()
}

/// The configuration in force.
#[derive(Serialize, JsonSchema)]
pub struct ConfigView {
    /// Sixteen hexadecimal digits that are equal for equal configurations. `instance_id`, `admin.listen`, the
    /// properties `client.id` and `client.rack`, and hidden values don't count.
    pub hash: String,
    /// Every key with its value, nested as in the file. With origins, each value is an object with `value` and
    /// `origin`: the file and line, the variable, or "default".
    pub config: Value,
}

/// The result of a reload, or of its dry run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReloadView {
    pub hash: String,
    /// True if nothing was taken over: the request asked for the changes only.
    pub dry_run: bool,
    /// The keys that changed.
    pub changed: Vec<String>,
    pub changes: Vec<ChangeView>,
    /// The effect on each service with another policy.
    pub next_cycle: Vec<NextCycle>,
    /// The warnings of the configuration, in words.
    #[serde(default)]
    pub warnings: Vec<String>,
}

impl ReloadView {
    pub fn new(
        hash: String, dry_run: bool, changes: Vec<ChangeView>, next_cycle: Vec<NextCycle>, warnings: Vec<String>,
    ) -> ReloadView {
        let changed = changes.iter().map(|change| change.key.clone()).collect();
        ReloadView { hash, dry_run, changed, changes, next_cycle, warnings }
    }
}

/// One key with another value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ChangeView {
    pub key: String,
    /// The service that the key belongs to; null for a key of all services.
    pub service: Option<String>,
    /// The values before and after; null if the key was or is not set. A service or a source that came or went has its
    /// name here.
    pub from: Value,
    pub to: Value,
    /// The file and line, or the variable, of the value in force; without one, "default".
    pub origin: String,
    /// The new value ÷ the former one, if it is above 2 or below ½; else null.
    pub doubtful_factor: Option<f64>,
}

/// The records that a service admits in a cycle before and after a change, if as many are wanted as now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NextCycle {
    pub service: String,
    /// The records that the clients of this instance want, or that wait at it.
    pub wanted: u64,
    pub admits: u64,
    /// The most that could be admitted however many were wanted; null without a limit, as in shadow mode.
    pub admits_at_most: Option<u64>,
    pub cycle_seconds: f64,
    pub would_admit: u64,
    pub would_admit_at_most: Option<u64>,
    pub would_last: f64,
}

/// The last changes of the configuration since the instance started, the newest first; ten at most.
#[derive(Serialize, JsonSchema)]
pub struct ChangesView {
    pub changes: Vec<PastChange>,
}

/// A change that was taken over.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct PastChange {
    /// The time in UTC (RFC 3339).
    pub at: String,
    /// The cause: "SIGHUP", "--watch", or the token of a request by its name.
    pub by: String,
    #[serde(flatten)]
    pub change: ChangeView,
}

/// All services, by name.
#[derive(Serialize, JsonSchema)]
pub struct ServicesView {
    pub services: Vec<ServiceView>,
}

/// One service. Counts are since start.
#[derive(Serialize, JsonSchema)]
pub struct ServiceView {
    #[serde(flatten)]
    pub figures: ServiceFigures,
    /// The search for the capacity; missing if the service has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pace: Option<PaceFigures>,
    /// The groups of clients; missing if neither a client nor a group is configured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<ClientGroupView>,
    pub clients: Vec<ClientView>,
}

/// A group of clients, which have one share together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct ClientGroupView {
    /// The group's name; empty for the clients that are not configured.
    pub name: String,
    /// The number of its known clients.
    pub clients: u64,
    pub default_share: f64,
    pub granted: u64,
}

/// The figures of a service as a whole.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ServiceFigures {
    pub name: String,
    pub mode: Word,
    pub enforce: bool,
    pub capacity: u64,
    pub cycle_seconds: f64,
    pub cycle: u64,
    /// Records admitted in the last window of one cycle; `window_admitted_max`: the most in any window since start.
    pub window_admitted: u64,
    pub window_admitted_max: u64,
    pub ready: bool,
    /// The reason why the service is not ready, or stopped.
    pub trouble: Option<String>,
}

/// The search for the capacity of a service. Rates are in records per cycle.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PaceView")]
pub struct PaceFigures {
    /// learning, at_least, found, late, stalled, no_demand, no_signal, not_alone, at_floor or at_ceiling.
    pub state: Word,
    /// observe: the found capacity is only reported. apply: the limit follows it.
    pub control: Word,
    /// The found capacity; null while it is unknown.
    pub found: Option<u64>,
    /// The service takes at least the found capacity, perhaps more: it was never late.
    pub at_least: bool,
    /// The limit in force.
    pub limit: u64,
    pub floor: u64,
    pub ceiling: u64,
    /// The age of the oldest record that the service has not committed, beyond the usual one.
    pub late_seconds: f64,
    pub usual_seconds: f64,
    /// The usual time between two commits.
    pub commit_gap_seconds: f64,
    pub open_offsets: u64,
    /// The rate that the service finished lately; null while it is unknown.
    pub finished: Option<u64>,
    /// The part of the found capacity that is let through.
    pub brake: f64,
    /// The time since the offsets were read; null before the first time.
    pub signal_age_seconds: Option<f64>,
    pub stuck_partitions: usize,
}

/// The group that shares the capacity of a service, as this instance sees it.
#[derive(Serialize, JsonSchema)]
pub struct GroupView {
    pub name: String,
    pub scope: Word,
    #[serde(flatten)]
    pub figures: GroupFigures,
}

/// The figures of a group; those of scope instance are all empty.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct GroupFigures {
    /// The state of this instance in the group; null with scope instance.
    pub state: Option<Word>,
    // The smallest capacity among those of the live members.
    pub capacity: u64,
    // The part of the capacity that this instance holds, and the part that it ought to hold.
    pub hold: u64,
    pub target: u64,
    // The number of records that this instance may admit before its next state is committed.
    pub ahead: u64,
    // All members' holds, and those that are on their way.
    pub circulating: u64,
    /// The number of different configurations among the live members and this instance.
    pub configurations: usize,
    pub members: Vec<MemberView>,
}

/// One member of a group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "MemberSnapshot")]
pub struct MemberView {
    pub instance: String,
    /// Tells the lives of an instance apart: 16 hexadecimal digits, of the process that wrote the last state.
    pub life: String,
    pub state: Word,
    /// The most records that the member may have admitted in one cycle, and those that it had when it wrote the state.
    pub hold: u64,
    pub used: u64,
    /// The hold that it ought to have.
    pub target: u64,
    /// The number of records that it may admit before its next state.
    pub ahead: u64,
    /// The capacity that the member is configured with, and a digest of its other settings in 8 hexadecimal digits.
    pub capacity: u64,
    pub configuration: String,
    /// The sum over the rules of run time that the member has in force: equal for members with the same rules.
    #[serde(default)]
    pub rules_checksum: u64,
    /// Seconds since the member's last state was read.
    pub state_age_seconds: f64,
}

/// One client of a service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClientView {
    pub name: String,
    /// The group that the client is in; missing if it is in none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    pub wants: u64,
    pub default_share: f64,
    pub granted: u64,
    /// A rule holds the client or its group: nothing is admitted. Missing if it is false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub held: bool,
    #[serde(flatten)]
    pub done: DecisionsView,
    pub lent: f64,
    pub borrowed: f64,
    /// The time that the oldest delayed record has waited for; 0 without one and in shadow mode.
    pub oldest_seconds: f64,
    /// The decisions of shadow mode; all 0 while decisions are enforced.
    pub shadow: DecisionsView,
}

/// The decisions on a client's records. Every reason has a count, 0 included, so that scripts find each reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DecisionsView {
    pub admitted: u64,
    pub delayed: u64,
    pub rejected: BTreeMap<Word, u64>,
    pub backlog: u64,
}

impl DecisionsView {
    /// Returns the sum over all reasons.
    pub fn rejected_total(&self) -> u64 {
        self.rejected.values().sum()
    }
}

/// Some clients of a service, those with the highest wants first unless the request sorts them otherwise.
#[derive(Serialize, JsonSchema)]
pub struct ClientsView {
    pub service: String,
    /// The number of known clients, and of those with an id that has the text of the request.
    pub known: usize,
    pub matching: usize,
    pub clients: Vec<ClientDetail>,
}

/// The last second of each service, by name.
#[derive(Serialize, JsonSchema)]
pub struct NowView {
    /// Each with its last sample, and with every field of `now`.
    pub services: Vec<ServiceEvent>,
}

/// News of a service. The first event has every field of `now`; a later one has those that changed.
#[derive(Serialize, JsonSchema)]
pub struct ServiceEvent {
    /// The oldest first. A new reader gets those of the last 15 minutes in several events, then one each second.
    pub samples: Vec<SampleView>,
    pub now: ServiceNow,
}

/// A second of a service.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SampleView {
    /// The time in milliseconds since 1970.
    pub at_ms: u64,
    /// Records per cycle.
    pub capacity: u64,
    /// Records admitted since the sample before. The other decisions are those of shadow mode if nothing is enforced.
    pub admitted: u64,
    pub delayed: u64,
    pub rejected: u64,
    pub wants: u64,
    pub granted: u64,
    pub backlog: u64,
    /// The clients that were admitted most lately, eight at most: the records of each that were admitted since the
    /// sample before, its grant and its backlog.
    pub clients: BTreeMap<String, [u64; 3]>,
}

/// The present state of a service at this instance.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(extend("required" = []))]
pub struct ServiceNow {
    #[serde(flatten)]
    pub figures: ServiceFigures,
    pub pace: Option<PaceFigures>,
    pub group: GroupFigures,
    pub groups: Vec<ClientGroupView>,
    pub known_clients: usize,
    /// The decisions on the records of all clients since start, and those of shadow mode.
    pub done: DecisionsView,
    pub shadow: DecisionsView,
    /// The records of this cycle that clients lend, and that are lent, with the eight largest of either.
    pub lent: f64,
    pub borrowed: f64,
    pub lenders: Vec<LoanView>,
    pub borrowers: Vec<LoanView>,
    /// The clients that want most beyond their default share, eight at most.
    pub demands: Vec<DemandView>,
    /// Clients that a rule holds, those with most delayed records first, eight at most; and the number of all of them.
    pub held: Vec<String>,
    pub held_clients: u64,
    /// The number of other clients that want no more than the default share, and the longest wait among the oldest
    /// delayed records of each.
    pub within_share: u64,
    pub waits_within_share: Option<WaitView>,
    pub longest_wait: Option<WaitView>,
    /// The records of the target that the service has not finished; null while unknown.
    pub target_lag: Option<u64>,
    /// The dead letters that no redrive has passed; null while unknown.
    pub dead_letters: Option<DeadLettersView>,
}

/// A client's part of the lent records.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct LoanView {
    pub client: String,
    pub records: f64,
}

/// A client that wants more than its default share.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct DemandView {
    pub client: String,
    pub wants: u64,
    pub default_share: f64,
}

/// A client's oldest delayed record.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct WaitView {
    pub client: String,
    pub seconds: f64,
}

/// The open dead letters of a service.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct DeadLettersView {
    /// Offsets, those of the marks of transactions among them.
    pub offsets: u64,
    /// The time of the oldest in milliseconds since 1970; null without one.
    pub oldest_ms: Option<i64>,
}

/// The newest dead letters of a service.
#[derive(Debug, Serialize, JsonSchema)]
pub struct NewestLettersView {
    pub service: String,
    /// The time at which they were read, in milliseconds since 1970; null while they are unknown. Each request has them
    /// read again within some seconds.
    pub read_ms: Option<u64>,
    /// False if the brokers did not tell all of them in time.
    pub complete: bool,
    /// The last five of each reason among the last offsets of the topics; the newest first.
    pub letters: Vec<LetterView>,
}

/// A dead letter without its key and value.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LetterView {
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    /// The time of the rejection as RFC 3339, as its header says; null without one.
    pub rejected_at: Option<String>,
    /// The time of the record in milliseconds since 1970; null without one.
    pub at_ms: Option<i64>,
    /// The reason; null without one that Watermaster gives.
    pub reason: Option<Word>,
    /// open, redriven, parked or closed.
    pub state: Word,
    /// The last 64 headers, in order.
    pub headers: Vec<HeaderView>,
}

/// A header of a dead letter.
#[derive(Debug, Serialize, JsonSchema)]
pub struct HeaderView {
    pub name: String,
    /// The first 500 bytes of its value, where it is text; null without a value. Without a token with the role operate,
    /// only headers of Watermaster show theirs.
    pub value: Option<String>,
}

/// One client of a service, with its figures at this instance.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct ClientDetail {
    #[serde(flatten)]
    pub client: ClientView,
    pub configured: bool,
    /// Admissions in the running cycle so far, and in the last full one.
    pub admitted_in_cycle: u64,
    pub admitted_in_last_cycle: u64,
    /// The part of the capacity that the admissions in the last full cycle took.
    pub used_ratio: f64,
    /// The most records that the client's own limit allows in one cycle; null without a limit.
    pub limit: Option<u64>,
    /// The memory that the delayed records cost.
    pub backlog_bytes: u64,
    /// An estimate: the seconds after which a record that is sent now would be admitted. It is the backlog divided by
    /// the client's rate, which is the larger of its admissions in the last full cycle and of its grant, but at most
    /// its own limit. 0 without a backlog and in shadow mode; null in mode reject and while the service is not ready.
    pub next_admission_seconds: Option<f64>,
    /// Delays of one commit interval or more, since start.
    pub delays: DelaysView,
    /// The delays that enforcing would have given, in shadow mode.
    pub shadow_delays: DelaysView,
    /// The rules that decide now, where one client was asked for; missing in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explain: Option<ExplainView>,
}

/// Delays of admitted records. Quantiles are estimates from buckets; null without delays.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct DelaysView {
    pub records: u64,
    pub p50_seconds: Option<f64>,
    pub p99_seconds: Option<f64>,
    pub longest_seconds: f64,
}

#[cfg(test)]
mod tests;
