//! The rule that decides a field, of those that set it for a target.
//!
//! 1. The highest priority.
//! 2. A rule that names the id, before one with a pattern, before one for all clients of some groups, before one for
//!    all clients.
//! 3. A rule of run time before one of the file.
//! 4. The name that sorts first by bytes.

use std::cmp::Reverse;

use super::Rules;
use super::rule::{Field, Origin, Rule, reach_by_pattern};
use crate::pattern::ClientPattern;

/// The way in which a rule names its target, the narrowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    Id,
    Pattern,
    InGroups,
    All,
}

/// The place of a rule among those that match a target: the smallest decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank<'r> {
    priority: Reverse<i16>,
    reach: Reach,
    origin: Origin,
    name: &'r str,
}

/// The reason for which one rule ranks before another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advantage {
    Priority(i16, i16),
    /// Names its target more narrowly.
    Reach,
    RunTime,
    Name,
}

fn by_id(patterns: &[ClientPattern], id: &str) -> Option<Reach> {
    patterns.iter().any(|pattern| pattern.id() == Some(id)).then_some(Reach::Id)
}

impl<'r> Rank<'r> {
    /// The rank of a rule for a target that it matches.
    pub fn of(rule: &'r Rule, id: &str) -> Rank<'r> {
        let reach = by_id(rule.target.patterns(), id).or_else(|| rule.target.reach_by_pattern(id));
        Rank::with(reach.unwrap_or(Reach::All), rule)
    }

    fn with(reach: Reach, rule: &'r Rule) -> Rank<'r> {
        Rank { priority: Reverse(rule.priority), reach, origin: rule.origin, name: &rule.name }
    }

    /// The rank of a table of a group that lists a client, by its id or by a pattern.
    pub(crate) fn of_group_table(name: &'r str, listed: &[ClientPattern], client: &str) -> Rank<'r> {
        let reach = by_id(listed, client).or_else(|| reach_by_pattern(listed, client, Reach::All));
        Rank { priority: Reverse(0), reach: reach.unwrap_or(Reach::All), origin: Origin::File, name }
    }

    /// The reason for which this rank is before another one.
    pub fn advantage_over(&self, other: &Rank<'_>) -> Advantage {
        match () {
            () if self.priority != other.priority => Advantage::Priority(self.priority.0, other.priority.0),
            () if self.reach != other.reach => Advantage::Reach,
            () if self.origin != other.origin => Advantage::RunTime,
            () => Advantage::Name,
        }
    }
}

/// The rules that set one field of a target, in the order of their ranks: the first one decides.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldDecision<'r> {
    pub field: Field,
    pub rules: Vec<&'r Rule>,
}

/// The rules that match a target, in the order of their ranks.
#[derive(Debug)]
pub(crate) struct RankedRules<'r>(Vec<&'r Rule>);

impl<'r> RankedRules<'r> {
    fn new(rules: impl Iterator<Item = (Reach, &'r Rule)>) -> RankedRules<'r> {
        let mut rules: Vec<_> = rules.map(|(reach, rule)| (Rank::with(reach, rule), rule)).collect();
        rules.sort_unstable_by_key(|(rank, _)| *rank);
        RankedRules(rules.into_iter().map(|(_, rule)| rule).collect())
    }

    /// The value of a field that the rules decide; `None` if none sets it.
    pub(crate) fn decide<T>(&self, value: impl Fn(&'r Rule) -> Option<T>) -> Option<T> {
        self.0.iter().find_map(|rule| value(rule))
    }

    /// The first rule that sets a field.
    pub(crate) fn first(&self, field: Field) -> Option<&'r Rule> {
        self.0.iter().find(|rule| rule.effects.set(field)).copied()
    }

    /// The rules that set each of these fields.
    pub(crate) fn decisions(&self, fields: &[Field]) -> Vec<FieldDecision<'r>> {
        let setting = |&field| self.0.iter().filter(move |rule| rule.effects.set(field)).copied().collect();
        fields.iter().map(|field| FieldDecision { field: *field, rules: setting(field) }).collect()
    }
}

impl Rules {
    /// The rules for a client, whichever group it belongs to.
    pub(crate) fn for_client<'r>(&'r self, client: &'r str, now_ms: i64) -> RankedRules<'r> {
        RankedRules::new(self.matching(&self.of_clients, client, now_ms))
    }

    /// The rules for a client in a group.
    pub(crate) fn for_client_in<'r>(&'r self, client: &'r str, group: Option<&str>, now_ms: i64) -> RankedRules<'r> {
        let rules = self.matching(&self.of_clients, client, now_ms).filter(|(_, rule)| rule.target.takes_group(group));
        RankedRules::new(rules)
    }

    /// The rules for a group.
    pub(crate) fn for_group<'r>(&'r self, group: &'r str, now_ms: i64) -> RankedRules<'r> {
        RankedRules::new(self.matching(&self.of_groups, group, now_ms))
    }

    /// The rules for the service.
    pub(crate) fn for_service(&self, now_ms: i64) -> RankedRules<'_> {
        RankedRules::new(self.valid(self.of_service.iter(), now_ms).map(|rule| (Reach::All, rule)))
    }
}
