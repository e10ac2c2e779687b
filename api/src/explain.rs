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
    // If a client's name or a table states its group, no rule decides it.
    let (group, by_rule) = match field {
        Field::Group => policy.group_and_rule_of(id),
        _ => (None, rules.first().copied()),
    };
    let (decides, losers) = rules.split_at(usize::from(by_rule.is_some()));
    let names_no_group =
        |rule: &Rule| group.is_none() && rule.effects.group.as_ref().is_some_and(|group| !group.is_empty());
    let has_no_group = *field == Field::Group && by_rule.is_some_and(names_no_group);
    let rule_ref = |rule: &Rule| RuleRef {
        name: rule.name.to_string(),
        origin: rule.origin.into_str().into(),
        priority: rule.priority,
        value: value_of(rule, *field),
    };
    let why = match (decides, losers) {
        ([], _) => by_default(policy, *field, id),
        ([rule], _) if has_no_group => {
            format!("there is no group {:?}, which {} sets", value_of(rule, *field), rule.name)
        }
        (_, []) => "no other rule sets it".to_owned(),
        ([first, ..], [second, ..]) => match Rank::of(first, id).advantage_over(&Rank::of(second, id)) {
            Advantage::Priority(higher, lower) => format!("priority {higher} before {lower} ({})", second.name),
            Advantage::Reach => format!("it names its target more narrowly than {}", second.name),
            Advantage::RunTime => format!("a rule of run time before one of the file ({})", second.name),
            Advantage::Name => format!("its name is before {}", second.name),
        },
    };
    FieldView {
        field: field.into_str().into(),
        value: match by_rule {
            Some(_) if has_no_group => "unlisted".to_owned(),
            Some(rule) => value_of(rule, *field),
            None => default_value(policy, *field, id),
        },
        rule: by_rule.map(rule_ref),
        why,
        losers: losers.iter().take(MAX_LOSERS).map(|rule| rule_ref(rule)).collect(),
    }
}

/// Returns the reason for a value that no rule sets.
fn by_default(policy: &Policy, field: Field, client: &str) -> String {
    let in_name = policy.names_groups && client.contains('/');
    match (field, policy.group_of(client)) {
        (Field::Group, Some(_)) if in_name => "the record names it".to_owned(),
        (Field::Group, None) if in_name => "the record names a group that does not exist".to_owned(),
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use watermaster_core::pattern::ClientPattern;
    use watermaster_core::policy::GroupPolicy;
    use watermaster_core::rules::{Effects, Origin, RuleTarget, Rules};
    use watermaster_core::units::Weight;

    use super::*;

    /// The fault: the rule that ranks first was shown as the one that decides the group, also where the client's name
    /// or a table decides it, and where no group has the name.
    #[test]
    fn the_group_that_is_explained_is_the_one_that_counts() {
        let group = |name: &str, clients: &[&str]| GroupPolicy {
            name: name.to_owned(),
            weight: Weight::ONE,
            limits: Vec::new(),
            hold: false,
            clients: clients.iter().map(|text| ClientPattern::new(text)).collect(),
        };
        let into = |group: &str| {
            let target = RuleTarget::Clients { patterns: vec![ClientPattern::new("*")], in_groups: None };
            let effects = Effects { group: Some(group.to_owned()), ..Effects::default() };
            let (from_ms, until_ms) = (None, None);
            let (name, origin) = (Arc::from("into"), Origin::RunTime);
            Rule { name, origin, priority: 0, target, effects, from_ms, until_ms, disabled: false, note: String::new() }
        };
        let shown = |groups: Vec<GroupPolicy>, rule: Rule, client: &str| {
            let rules = Arc::new(Rules::new(vec![rule]));
            let policy = Policy { groups, rules, names_groups: true, ..Policy::new(100, Duration::from_secs(1)) };
            let view = ExplainView::of(&policy.at(1), Some(client), None);
            let FieldView { value, rule, why, .. } = view.fields[0].clone();
            (view.group, value, rule.is_some(), why)
        };
        let case = |group: Option<&str>, value: &str, by_rule, why: &str| {
            (group.map(str::to_owned), value.to_owned(), by_rule, why.to_owned())
        };
        let groups = || vec![group("gold", &["web"]), group("home", &[])];
        assert_eq!(shown(groups(), into("gold"), "home/web"), case(Some("home"), "home", false, "the record names it"));
        assert_eq!(
            shown(groups(), into("home"), "web"),
            case(Some("gold"), "gold", false, "its table lists the client")
        );
        assert_eq!(shown(groups(), into("home"), "app"), case(Some("home"), "home", true, "no other rule sets it"));
        for groups in [groups(), Vec::new()] {
            let why = "there is no group \"none\", which into sets";
            assert_eq!(shown(groups, into("none"), "app"), case(None, "unlisted", true, why));
        }
    }
}
