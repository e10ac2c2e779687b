//! A rule, as a file or a request writes it.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use watermaster_core::policy::{ClientPattern, Limit};
use watermaster_core::rules::{Effects, Field, Origin, Rule, RuleLimit, RuleTarget, Rules};

use super::{ConfigErrors, schema, service, values};
use crate::read_struct;
use crate::reader::{Reader, Section};

/// The most entries of a target.
const MAX_ENTRIES: usize = 1_000;
/// The most limits of a rule.
const MAX_LIMITS: usize = 4;
/// The most different longest waits in the rules of a service.
pub const MAX_DELAYS: usize = 16;
const MAX_NOTE_BYTES: usize = 256;

/// Reads the rules of a service, those of its tables included.
pub fn rules(section: &Section<'_>, most_capacity: Option<u64>) -> Option<Arc<Rules>> {
    let written = section.tables("rule");
    let mut names = HashSet::new();
    written.iter().for_each(|rule| refuse_known_name(rule, &mut names));
    let rules: Vec<_> = written.iter().map(|rule| read(rule, Origin::File, most_capacity)).collect();
    let mut rules: Vec<Rule> = rules.into_iter().collect::<Option<_>>()?;
    let delays: HashSet<Duration> = rules.iter().filter_map(|rule| rule.effects.max_delay).collect();
    if delays.len() > MAX_DELAYS {
        let problem = format!("have {} different values of max_delay", delays.len());
        section.refuse("rule", problem, format!("at most {MAX_DELAYS} different values"));
    }
    warn_of_doubtful(section, &written, &rules);
    rules.extend(tables(section, "client").chain(tables(section, "group")));
    Some(Arc::new(Rules::new(rules)))
}

/// Refuses a name that another rule has, and adds it to the `names`.
fn refuse_known_name(rule: &Section<'_>, names: &mut HashSet<String>) {
    if let Some(name) = rule.text("name", values::rule_name).filter(|name| !names.insert(name.clone())) {
        rule.refuse("name", format!("is {name:?}, which another rule of the service has"), "a name of its own");
    }
}

/// Returns the rules that the tables of clients, or of groups, stand for. A table with an error has none.
fn tables<'s>(section: &'s Section<'_>, kind: &'static str) -> impl Iterator<Item = Rule> + 's {
    section.named_tables(kind).into_iter().filter_map(move |(name, table)| {
        let patterns = vec![ClientPattern::of_id(name)];
        let limits = service::limit_of_table(&table)?.map(|limit| vec![RuleLimit { limit, scales: false }]);
        let weight = table.optional_value("weight")?;
        Some(Rule {
            name: format!("{kind}.{name}").into(),
            origin: Origin::File,
            target: match kind {
                "client" => RuleTarget::Clients { patterns, in_groups: None },
                _ => RuleTarget::Groups(patterns),
            },
            priority: 0,
            from_ms: None,
            until_ms: None,
            disabled: false,
            note: String::new(),
            effects: Effects { weight, limits, ..Effects::default() },
        })
    })
}

/// Reads a rule of run time from the body of a request, or from the topic of rules.
///
/// # Errors
/// Every wrong field.
pub fn of_json(name: &str, body: &Map<String, Value>, most_capacity: u64) -> Result<Rule, ConfigErrors> {
    let mut body = body.clone();
    body.insert("name".to_owned(), name.into());
    let reader = Reader::of_json(&schema::RULE_SCHEMA, &body, Path::new("request"));
    let rule = read(&reader.root(), Origin::RunTime, Some(most_capacity));
    Ok(reader.finish(rule)?.value)
}

/// Reads the rules of one service, with the variables of `environment`, in a file of which nothing else matters.
///
/// # Errors
/// The text is not TOML, or a rule is wrong.
pub fn of_text(
    (path, text): (&Path, &str), service: &str, environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Vec<Rule>, ConfigErrors> {
    let environment = environment.into_iter().collect();
    let readers = Reader::of_service(&schema::RULE_SCHEMA, (path, text), service, "rule", &environment)?;
    let mut names = HashSet::new();
    let rule = |reader: Reader| {
        refuse_known_name(&reader.root(), &mut names);
        let rule = read(&reader.root(), Origin::RunTime, None);
        reader.finish(rule).map(|reading| reading.value)
    };
    let (mut rules, mut errors) = (Vec::new(), Vec::new());
    for read in readers.into_iter().map(rule) {
        match read {
            Ok(rule) => rules.push(rule),
            Err(refused) => errors.extend(refused.iter().cloned()),
        }
    }
    if errors.is_empty() { Ok(rules) } else { Err(ConfigErrors::new(schema::RULE_SCHEMA.subject, errors)) }
}

/// Writes a rule as a request would.
pub fn to_json(rule: &Rule) -> Value {
    let moment = |ms: Option<i64>| {
        let time = ms.and_then(|ms| u64::try_from(ms).ok()).map(|ms| UNIX_EPOCH + Duration::from_millis(ms));
        time.map(|time| humantime::format_rfc3339(time).to_string())
    };
    let texts = |patterns: &[ClientPattern]| patterns.iter().map(ToString::to_string).collect::<Vec<_>>();
    let limit = |RuleLimit { limit, scales }: &RuleLimit| {
        let per = humantime::format_duration(limit.per).to_string();
        let limit = json!({ "rate": limit.rate, "per": per, "burst": limit.burst });
        if *scales { merged(limit, json!({ "scale": "weight" })) } else { limit }
    };
    let target = match &rule.target {
        RuleTarget::Clients { patterns, in_groups } => {
            json!({ "clients": texts(patterns), "in_groups": in_groups.as_deref().map(texts) })
        }
        RuleTarget::Groups(patterns) => json!({ "groups": texts(patterns) }),
        RuleTarget::Service => json!({ "service": true }),
    };
    let effects = &rule.effects;
    let rest = json!({
        "priority": Some(rule.priority).filter(|priority| *priority != 0),
        "from": moment(rule.from_ms),
        "until": moment(rule.until_ms),
        "disabled": Some(true).filter(|_| rule.disabled),
        "note": Some(&rule.note).filter(|note| !note.is_empty()),
        "weight": effects.weight.map(|weight| weight.thousandths() as f64 / 1_000.0),
        "limits": effects.limits.as_ref().map(|limits| limits.iter().map(limit).collect::<Vec<_>>()),
        "max_delay": effects.max_delay.map(|delay| humantime::format_duration(delay).to_string()),
        "hold": effects.hold,
        "expire_before": moment(effects.expire_before_ms),
        "group": effects.group,
        "capacity": effects.capacity,
        "enforce": effects.enforce,
        "pace": effects.pace_observes.map(|_| "observe"),
    });
    merged(target, rest)
}

/// Returns the fields of two objects that are set.
fn merged(mut one: Value, other: Value) -> Value {
    if let (Value::Object(one), Value::Object(other)) = (&mut one, other) {
        one.extend(other);
        one.retain(|_, value| !value.is_null());
    }
    one
}

/// Reads one rule.
fn read(section: &Section<'_>, origin: Origin, most_capacity: Option<u64>) -> Option<Rule> {
    let target = target(section);
    let effects = effects(section, most_capacity);
    if let (Some(target), Some(effects)) = (&target, &effects) {
        check_fields(section, target, effects);
    }
    let [from_ms, until_ms] = ["from", "until"].map(|key| section.optional(key, values::moment));
    if let (Some(Some(from)), Some(Some(until))) = (from_ms, until_ms)
        && from >= until
    {
        section.refuse("until", "is not after from", "a later time: the rule ends before it");
    }
    read_struct!(Rule {
        [section => priority, disabled]
        target, from_ms, until_ms, effects,
        name: section.text("name", values::rule_name).map(Arc::from),
        origin: Some(origin),
        note: section.optional("note", |text| values::within(text, MAX_NOTE_BYTES)).map(Option::unwrap_or_default),
    })
}

fn target(section: &Section<'_>) -> Option<RuleTarget> {
    let patterns = |key: &str| {
        let list = section.list(key, values::client)?;
        if list.as_ref().is_some_and(|list| list.len() > MAX_ENTRIES) {
            section.refuse(key, format!("has more than {MAX_ENTRIES} entries"), "fewer entries, or a pattern");
        }
        Some(list.map(|list| list.iter().map(|text| ClientPattern::new(text)).collect::<Vec<_>>()))
    };
    let [clients, groups, in_groups] = ["clients", "groups", "in_groups"].map(patterns);
    let service: Option<bool> = section.get("service");
    match (clients?, groups?, service?) {
        (Some(patterns), None, false) => Some(RuleTarget::Clients { patterns, in_groups: in_groups? }),
        (None, Some(_), false) if in_groups.as_ref()?.is_some() => {
            section.refuse("in_groups", "stands beside groups", "groups alone, or clients with in_groups");
            None
        }
        (None, Some(groups), false) => Some(RuleTarget::Groups(groups)),
        (None, None, true) => Some(RuleTarget::Service),
        (None, None, false) => {
            section
                .refuse("clients", "is missing, and the rule has no other target", "one of clients, groups, service");
            None
        }
        _ => {
            section.refuse("clients", "stands beside another target", "one of clients, groups, service");
            None
        }
    }
}

fn effects(section: &Section<'_>, most_capacity: Option<u64>) -> Option<Effects> {
    let capacity: Option<Option<u64>> = section.optional_value("capacity");
    if let (Some(Some(capacity)), Some(most)) = (capacity, most_capacity)
        && capacity > most
    {
        let problem = format!("is {capacity}, above rules_max_capacity ({most})");
        section.refuse("capacity", problem, format!("{most} or less"));
    }
    read_struct!(Effects {
        weight: section.optional_value("weight"),
        limits: limits(section),
        max_delay: section.optional_value("max_delay"),
        hold: section.optional_value("hold"),
        expire_before_ms: section.optional("expire_before", values::moment),
        // An empty text names the unlisted clients.
        group: section.optional("group", |text| if text.is_empty() { Ok(String::new()) } else { values::client(text) }),
        capacity: capacity,
        enforce: section.optional_value("enforce"),
        pace_observes: section.optional("pace", |text| text.parse().map(|_: values::RulePace| true)),
    })
}

/// Reads `limits`, or a single `limit`.
fn limits(section: &Section<'_>) -> Option<Option<Vec<RuleLimit>>> {
    let (one, is_empty) = (section.table("limit"), section.is_empty_list("limits"));
    let several = if section.is_set("limits") && !is_empty { section.tables("limits") } else { Vec::new() };
    match (one.is_written(), several.len()) {
        (false, 0) => Some(is_empty.then(Vec::new)),
        (true, 0) if !is_empty => one_limit(&one).map(|limit| Some(vec![limit])),
        (false, 1..=MAX_LIMITS) => several.iter().map(one_limit).collect::<Option<Vec<_>>>().map(Some),
        (false, _) => {
            section.refuse("limits", format!("has {} limits", several.len()), format!("at most {MAX_LIMITS}"));
            None
        }
        (true, _) => {
            section.refuse("limit", "stands beside limits", "one of the two");
            None
        }
    }
}

fn one_limit(section: &Section<'_>) -> Option<RuleLimit> {
    let scales = section.optional("scale", str::parse::<values::Scale>)?;
    let limit: Limit = service::one_limit(section)?;
    Some(RuleLimit { limit, scales: scales.is_some() })
}

/// Refuses fields that the target can't have, and a rule without any.
fn check_fields(section: &Section<'_>, target: &RuleTarget, effects: &Effects) {
    let (of_target, noun) = match target {
        RuleTarget::Clients { .. } => (Field::OF_CLIENT, "clients"),
        RuleTarget::Groups(_) => (Field::OF_GROUP, "groups"),
        RuleTarget::Service => (Field::OF_SERVICE, "the service"),
    };
    let names = || of_target.iter().map(|field| field.into_str()).collect::<Vec<_>>().join(", ");
    let mut sets_any = false;
    for &field in Field::ALL.iter().filter(|&&field| effects.set(field)) {
        sets_any = true;
        if !of_target.contains(&field) {
            let key = if field == Field::Limits && !section.is_set("limits") { "limit" } else { field.into_str() };
            section.refuse(key, format!("is no field of a rule for {noun}"), names());
        }
    }
    if matches!(target, RuleTarget::Clients { in_groups: Some(_), .. }) && effects.group.is_some() {
        section.refuse("group", "stands beside in_groups", "clients alone: the group decides whether a rule matches");
    }
    if !sets_any {
        section.refuse("name", "names a rule without any effect", format!("one or more of {}", names()));
    }
}

/// Reports rules of the file that can't have the effect that they were written for.
fn warn_of_doubtful(service: &Section<'_>, written: &[Section<'_>], rules: &[Rule]) {
    let groups: Vec<_> = service.named_tables("group").into_iter().map(|(name, _)| name.to_owned()).collect();
    let by_rules = rules.iter().filter_map(|rule| match &rule.target {
        RuleTarget::Groups(patterns) => Some(patterns.iter().filter_map(|pattern| pattern.id().map(str::to_owned))),
        _ => None,
    });
    let groups: HashSet<String> = by_rules.flatten().chain(groups).collect();
    for (section, rule) in written.iter().zip(rules) {
        if let Some(group) = rule.effects.group.as_ref().filter(|group| !group.is_empty() && !groups.contains(*group)) {
            let problem = format!("is {group:?}, which no table and no rule names: the clients stay unlisted");
            section.warn("group", problem, format!("a table [service.group.{group}]"));
        }
        if rule.effects.pace_observes.is_some() && !service.table("pace").is_written() {
            section.warn("pace", "has no effect without [service.pace]", "a rule without it");
        }
        // Two rules with one rank but for their names: the one that decides is chosen by the alphabet.
        let equal = |other: &&Rule| {
            let overlaps = rule.until_ms.is_none_or(|until| other.from_ms.is_none_or(|from| from < until))
                && other.until_ms.is_none_or(|until| rule.from_ms.is_none_or(|from| from < until));
            let field = Field::ALL.iter().any(|&field| rule.effects.set(field) && other.effects.set(field));
            rule.name < other.name
                && rule.priority == other.priority
                && rule.target == other.target
                && field
                && overlaps
        };
        if let Some(other) = rules.iter().find(equal) {
            let problem =
                format!("is also the priority of {:?}, which has the same target: the name decides", other.name);
            section.warn("priority", problem, "different priorities, or times that do not overlap");
        }
    }
}

#[cfg(test)]
mod tests;
