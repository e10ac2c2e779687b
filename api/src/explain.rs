//! The rules that decide for a client, for a group of clients and for the service.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use watermaster_core::policy::Policy;
use watermaster_core::rules::{Advantage, Field, FieldDecision, Rank, Rule, RuleLimit};

use crate::{Word, rfc3339};

/// The values of a client, of its group and of the service at a time, with the rule that gave each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExplainView {
    /// The time for which the rules were asked, in UTC (RFC 3339).
    pub at: String,
    pub client: Option<String>,
    /// The group of the client, or the one that was asked for; null for a client in no configured group.
    pub group: Option<String>,
    /// The fields of the client.
    pub fields: Vec<FieldView>,
    /// The fields of the group.
    pub of_group: Vec<FieldView>,
    /// The fields of the service.
    pub of_service: Vec<FieldView>,
}

/// One field, and the rule that decides it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FieldView {
    pub field: Word,
    /// The value that holds, in words.
    pub value: String,
    /// The rule that sets it; null if none does.
    pub rule: Option<RuleRef>,
    /// The reason why this rule decides, and not the next one.
    pub why: String,
    /// The rules that set the field, too, in the order in which they would decide; ten at most.
    pub losers: Vec<RuleRef>,
}

/// A rule, by its name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RuleRef {
    pub name: String,
    pub origin: Word,
    pub priority: i16,
    /// The value that the rule sets.
    pub value: String,
}

/// The most rules that are listed for a field beside the one that decides.
const MAX_LOSERS: usize = 10;

impl ExplainView {
    /// Explains what holds by the policy in force at a time.
    pub fn of(policy: &Policy, client: Option<&str>, group: Option<&str>) -> ExplainView {
        let of_client = client.and_then(|client| policy.group_of(client));
        let group = of_client.map(|group| policy.groups[group].name.as_str()).or(group.filter(|_| client.is_none()));
        let views = |id: &str, decisions: Vec<FieldDecision<'_>>| -> Vec<FieldView> {
            decisions.iter().map(|decision| field(policy, decision, id)).collect()
        };
        ExplainView {
            at: rfc3339(u64::try_from(policy.rules_at_ms).unwrap_or_default()),
            client: client.map(str::to_owned),
            group: group.map(str::to_owned),
            fields: client.map(|client| views(client, policy.explain_client(client))).unwrap_or_default(),
            of_group: group.map(|group| views(group, policy.explain_group(group))).unwrap_or_default(),
            of_service: views("", policy.explain_service()),
        }
    }
}

fn field(policy: &Policy, decision: &FieldDecision<'_>, id: &str) -> FieldView {
    let FieldDecision { field, rules } = decision;
    let rule_ref = |rule: &Rule| RuleRef {
        name: rule.name.to_string(),
        origin: rule.origin.into_str().into(),
        priority: rule.priority,
        value: value_of(rule, *field),
    };
    let why = match &rules[..] {
        [] => by_default(policy, *field, id),
        [_] => "no other rule sets it".to_owned(),
        [first, second, ..] => match Rank::of(first, id).advantage_over(&Rank::of(second, id)) {
            Advantage::Priority(higher, lower) => format!("priority {higher} before {lower} ({})", second.name),
            Advantage::Reach => format!("it names its target more narrowly than {}", second.name),
            Advantage::RunTime => format!("a rule of run time before one of the file ({})", second.name),
            Advantage::Name => format!("its name is before {}", second.name),
        },
    };
    FieldView {
        field: field.into_str().into(),
        value: rules.first().map_or_else(|| default_value(policy, *field, id), |rule| value_of(rule, *field)),
        rule: rules.first().map(|rule| rule_ref(rule)),
        why,
        losers: rules.iter().skip(1).take(MAX_LOSERS).map(|rule| rule_ref(rule)).collect(),
    }
}

/// Returns the reason for a value that no rule sets.
fn by_default(policy: &Policy, field: Field, client: &str) -> String {
    let in_name = policy.names_groups && client.contains('/');
    match (field, policy.group_of(client)) {
        (Field::Group, Some(_)) if in_name => "the record names it".to_owned(),
        (Field::Group, Some(_)) => "its table lists the client".to_owned(),
        _ => "no rule sets it".to_owned(),
    }
}

fn default_value(policy: &Policy, field: Field, client: &str) -> String {
    match field {
        Field::Group => match policy.group_of(client) {
            Some(group) => policy.groups[group].name.clone(),
            None => "none".to_owned(),
        },
        Field::Weight => "1".to_owned(),
        Field::Limits | Field::ExpireBefore => "none".to_owned(),
        Field::MaxDelay => policy.max_delay.map_or("no limit".to_owned(), shown),
        Field::Hold => "false".to_owned(),
        Field::Capacity => policy.capacity.to_string(),
        Field::Enforce => policy.enforce.to_string(),
        Field::Pace => "as configured".to_owned(),
    }
}

/// Returns the value that a rule sets, in words.
fn value_of(rule: &Rule, field: Field) -> String {
    let effects = &rule.effects;
    let value = match field {
        Field::Group => effects.group.clone().map(|group| if group.is_empty() { "unlisted".to_owned() } else { group }),
        Field::Weight => effects.weight.map(|weight| (weight.thousandths() as f64 / 1_000.0).to_string()),
        Field::Limits => effects.limits.as_deref().map(|limits| match limits {
            [] => "none".to_owned(),
            limits => limits.iter().map(limit).collect::<Vec<_>>().join(", "),
        }),
        Field::MaxDelay => effects.max_delay.map(shown),
        Field::Hold => effects.hold.map(|hold| hold.to_string()),
        Field::ExpireBefore => effects.expire_before_ms.map(|at| rfc3339(u64::try_from(at).unwrap_or_default())),
        Field::Capacity => effects.capacity.map(|capacity| capacity.to_string()),
        Field::Enforce => effects.enforce.map(|enforce| enforce.to_string()),
        Field::Pace => effects.pace_observes.map(|_| "observe".to_owned()),
    };
    value.unwrap_or_default()
}

fn limit(RuleLimit { limit, scales }: &RuleLimit) -> String {
    let burst = if limit.burst == limit.rate { String::new() } else { format!(" ({} at once)", limit.burst) };
    let scale = if *scales { ", times the weight" } else { "" };
    format!("{} in {}{burst}{scale}", limit.rate, shown(limit.per))
}

fn shown(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}
