//! The rules of run time of one service, as the thread that follows their topic knows them: its API and the engine read
//! them, and changes go the other way.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use tokio::sync::oneshot;
use watermaster_api::RuleChangeView;
use watermaster_core::policy::Policy;
use watermaster_core::rules::log::record::{RuleChange, RuleVersion, VERSION};
use watermaster_core::rules::log::{WriteOutcome, WriteRefusal, WriteRequest};
use watermaster_core::rules::{Rule, Rules};
use watermaster_settings::config::rule_of_json;

use crate::shared::Shared;

/// JSON's numbers and those of Prometheus hold every whole number below this bound.
const SUM_MODULUS: u64 = 1 << 53;
/// The most orders that wait for the thread.
const MAX_ORDERS: usize = 256;
/// The number of changes that are kept.
const KEPT_CHANGES: usize = 1_000;

/// The states of rules. Only rules of the file can be replaced, and only rules of run time not understood.
pub const RULE_STATES: [&str; 6] = ["in_force", "not_yet", "expired", "disabled", "replaced", "not_understood"];

/// The verbs and results that changes are counted by.
pub const CHANGE_VERBS: [&str; 2] = ["put", "delete"];
pub const CHANGE_RESULTS: [&str; 4] = ["in_force", "refused", "not_sent", "unknown"];
/// The verb and the result of a record that can't be read.
pub const UNREADABLE: (&str, &str) = ("read", "unreadable");

/// One rule of run time.
#[derive(Debug, Clone)]
pub struct KnownRule {
    pub version: RuleVersion,
    pub by: Box<str>,
    /// The time of the change, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The rule as it was written, in JSON.
    pub body: Box<str>,
    /// The rule, or why this program does not understand it. Then it has no effect here.
    pub rule: Result<Rule, NotUnderstood>,
    /// The capacity that the rule sets, if it is above `rules_max_capacity`. Then this field alone has no effect here.
    pub forbidden_capacity: Option<u64>,
}

/// The reason why this program does not understand a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotUnderstood {
    #[error("the rule has the form {0}, which a later version of the program writes")]
    LaterForm(u32),
    #[error("{0}")]
    Refused(String),
}

impl KnownRule {
    /// Reads the change in force under a name; returns `None` if it deleted the rule.
    pub fn read(name: &str, version: RuleVersion, change: &RuleChange, max_capacity: u64) -> Option<KnownRule> {
        let body = change.rule.clone()?;
        let object = serde_json::from_str::<serde_json::Map<_, _>>(&body);
        let mut rule = match (object, change.v) {
            (Err(error), _) => Err(NotUnderstood::Refused(error.to_string())),
            (Ok(object), VERSION) => {
                rule_of_json(name, &object, u64::MAX).map_err(|errors| NotUnderstood::Refused(errors.to_string()))
            }
            (Ok(_), other) => Err(NotUnderstood::LaterForm(other)),
        };
        let capacity =
            rule.as_mut().ok().and_then(|rule| rule.effects.capacity.take_if(|capacity| *capacity > max_capacity));
        Some(KnownRule { version, by: change.by.clone(), at_ms: change.at, body, rule, forbidden_capacity: capacity })
    }

    /// Returns the word for the state of the rule at this time.
    pub fn state(&self, now_ms: i64) -> &'static str {
        match self.rule.as_ref().map_or("not_understood", |rule| state_of(rule, now_ms)) {
            "in_force" if self.forbidden_capacity.is_some() => "not_understood",
            state => state,
        }
    }

    /// Says why the rule, or a field of it, has no effect here.
    pub fn doubt(&self) -> Option<String> {
        let capacity = |capacity| format!("capacity is {capacity}, above rules_max_capacity: it has no effect here");
        self.rule.as_ref().err().map(ToString::to_string).or(self.forbidden_capacity.map(capacity))
    }
}

fn state_of(rule: &Rule, now_ms: i64) -> &'static str {
    match rule {
        _ if rule.disabled => "disabled",
        Rule { from_ms: Some(from), .. } if now_ms < *from => "not_yet",
        Rule { until_ms: Some(until), .. } if now_ms >= *until => "expired",
        _ => "in_force",
    }
}

/// The topic of the rules, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogState {
    /// There is no topic, or nothing of it was read.
    #[default]
    Unknown,
    Known,
    /// Records of the topic are gone. The rules stay in force, and can't be changed.
    Lost,
}

/// The rules that are known.
#[derive(Debug, Default)]
pub struct KnownRules {
    pub state: LogState,
    /// All records below this offset were read, the last time then.
    pub read_offset: u64,
    pub read_at: Option<Instant>,
    /// The sum over names and versions: equal for instances that have read equally far.
    pub sum: u64,
    pub rules: BTreeMap<Arc<str>, KnownRule>,
    /// The last changes, the newest first.
    pub changes: VecDeque<RuleChangeView>,
    /// The number of changes by verb and result.
    pub counts: BTreeMap<(&'static str, &'static str), u64>,
    /// The largest capacity that a rule may set, which a reload changes.
    pub max_capacity: u64,
    /// The engine starts with the rules of the file, before those of run time are known.
    starts_without: bool,
}

impl KnownRules {
    /// The sum over the rules, as other instances and people are told it.
    pub fn checksum(&self) -> u64 {
        self.sum % SUM_MODULUS
    }

    /// Returns the word for the state of a rule of the file at this time.
    pub fn state_in_file(&self, rule: &Rule, now_ms: i64) -> &'static str {
        // A rule of run time that is not understood replaces none.
        let is_replaced = self.rules.get(&rule.name).is_some_and(|known| known.rule.is_ok());
        if is_replaced { "replaced" } else { state_of(rule, now_ms) }
    }

    fn rules(&self) -> Vec<Rule> {
        self.rules.values().filter_map(|known| known.rule.as_ref().ok().cloned()).collect()
    }

    /// The time since which nothing of the topic was read.
    pub fn age(&self) -> Option<Duration> {
        self.read_at.map(|at| at.elapsed())
    }

    pub(crate) fn note_change(&mut self, change: RuleChangeView) {
        self.changes.push_front(change);
        self.changes.truncate(KEPT_CHANGES);
    }
}

/// The answer to a change.
pub type WriteAnswer = Result<WriteOutcome, WriteRefusal>;

/// Something that the API asks of the thread.
pub enum RulesOrder {
    Write { write: WriteRequest, answer: oneshot::Sender<WriteAnswer> },
    AcceptLoss,
}

/// The place where the thread, the API and the engine of a service meet.
#[derive(Debug)]
pub struct RulesCell {
    known: Shared<KnownRules>,
    orders: Shared<SyncSender<RulesOrder>>,
    /// The other end, until a thread takes it.
    taken: Shared<Option<Receiver<RulesOrder>>>,
    began: Instant,
}

impl Default for RulesCell {
    fn default() -> RulesCell {
        let (orders, taken) = mpsc::sync_channel(MAX_ORDERS);
        RulesCell {
            known: Shared::default(),
            orders: Shared::new(orders),
            taken: Shared::new(Some(taken)),
            began: Instant::now(),
        }
    }
}

impl RulesCell {
    pub fn known(&self) -> MutexGuard<'_, KnownRules> {
        self.known.lock()
    }

    /// Sends an order to the thread. Returns false if too many wait.
    pub fn order(&self, order: RulesOrder) -> bool {
        self.orders.lock().try_send(order).is_ok()
    }

    /// The time since the topic was last read, or since the cell was made if it never was.
    pub fn silence(&self) -> Duration {
        self.known().age().unwrap_or_else(|| self.began.elapsed())
    }

    /// Lets the engine start before the rules of run time are known.
    pub fn start_without(&self) {
        self.known().starts_without = true;
    }

    /// Returns whether the engine has to wait with its start.
    pub fn are_awaited(&self) -> bool {
        let known = self.known();
        !known.starts_without && known.state == LogState::Unknown
    }

    /// Takes the end at which orders arrive. The former thread's is replaced.
    pub fn receiver(&self) -> Receiver<RulesOrder> {
        let waiting = self.taken.lock().take();
        waiting.unwrap_or_else(|| {
            let (orders, taken) = mpsc::sync_channel(MAX_ORDERS);
            self.orders.set(orders);
            taken
        })
    }

    /// The rules of run time that this program understands.
    pub fn rules(&self) -> Vec<Rule> {
        self.known().rules()
    }

    /// The rules of run time, and the sum over them, as the engine takes them over.
    pub fn to_take(&self) -> RulesToTake {
        let known = self.known();
        RulesToTake { rules: known.rules(), checksum: known.checksum() }
    }
}

/// The rules of run time as the engine takes them over.
#[derive(Debug, Default)]
pub struct RulesToTake {
    pub rules: Vec<Rule>,
    pub checksum: u64,
}

/// Returns a policy of the configuration with the rules of run time beside its own.
pub fn with_run_time(configured: &Policy, rules: &[Rule]) -> Policy {
    if rules.is_empty() {
        return configured.clone();
    }
    let all = configured.rules.iter().chain(rules).cloned().collect();
    Policy { rules: Arc::new(Rules::new(all)), ..configured.clone() }
}

#[cfg(test)]
mod tests {
    use watermaster_core::rules::log::record::ChangeId;

    use super::*;

    /// The fault: a rule lost all its fields where the configuration had come to forbid its capacity.
    #[test]
    fn a_capacity_that_is_forbidden_costs_a_rule_that_field_alone() {
        let body = r#"{"service":true,"capacity":2500,"enforce":false}"#;
        let (by, rule) = ("one".into(), Some(body.into()));
        let change = RuleChange { v: VERSION, n: 1, until: 9, deleted: false, by, at: 1, rule };
        let read = |max| KnownRule::read("summer", RuleVersion { n: 1, id: ChangeId(1) }, &change, max).unwrap();
        for (max, capacity, state) in [(2_500, Some(2_500), "in_force"), (2_499, None, "not_understood")] {
            let known = read(max);
            let effects = known.rule.as_ref().unwrap().effects.clone();
            assert_eq!((effects.capacity, effects.enforce, known.state(0)), (capacity, Some(false), state));
            assert_eq!((known.doubt().is_some(), &*known.body), (capacity.is_none(), body));
        }
    }
}
