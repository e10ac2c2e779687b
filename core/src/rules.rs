//! Rules: what holds for clients, for groups of clients and for the service, and when.
//!
//! A [`Rule`] has a target, effects and a priority, and perhaps a time. Tables of clients and of groups are rules with
//! priority 0. For each field of each target, one rule decides: of the rules that are valid, match the target and set
//! the field, the one that ranks first (see `precedence`). A field that no rule sets has its default.
//!
//! The owner of a throttle knows the wall clock. It asks the policy of the configuration for
//! [the one that is in force](crate::policy::Policy::at) at a time, and asks again at the
//! [next change](Rules::next_change).

/// The log of the changes of rules, from which all instances know the same versions.
pub mod log;
mod precedence;
mod rule;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use precedence::Reach;
pub use precedence::{Advantage, FieldDecision, Rank};
pub use rule::{Effects, Field, Origin, Rule, RuleLimit, RuleTarget};

/// The rules of a service, by the targets that they name.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rules {
    list: Vec<Rule>,
    of_clients: RuleIndex,
    of_groups: RuleIndex,
    of_service: Vec<u32>,
    /// There are rules beside those of tables.
    beside_tables: bool,
    /// There are rules that set the group of clients.
    pub(crate) set_groups: bool,
}

/// The rules for clients, or for groups.
#[derive(Debug, Clone, PartialEq, Default)]
struct RuleIndex {
    /// The rules that name one, by its id.
    by_id: BTreeMap<Arc<str>, Vec<u32>>,
    with_patterns: Vec<u32>,
}

impl Rules {
    /// Returns the rules of a list, in which names are unique for each origin. A rule of run time replaces a rule of
    /// the file with its name.
    pub fn new(list: Vec<Rule>) -> Rules {
        let mut rules = Rules { beside_tables: list.iter().any(|rule| !rule.is_table()), ..Rules::default() };
        let of_run_time = list.iter().filter(|rule| rule.origin == Origin::RunTime);
        let replaced: HashSet<Arc<str>> = of_run_time.map(|rule| Arc::clone(&rule.name)).collect();
        for rule in list {
            if rule.origin == Origin::File && replaced.contains(&rule.name) {
                continue;
            }
            rules.set_groups |= rule.effects.group.is_some();
            rules.index(&rule);
            rules.list.push(rule);
        }
        rules
    }

    fn index(&mut self, rule: &Rule) {
        let place = u32::try_from(self.list.len()).expect("fewer than 2³² rules");
        let (patterns, index) = match &rule.target {
            RuleTarget::Clients { patterns, .. } => (patterns, &mut self.of_clients),
            RuleTarget::Groups(patterns) => (patterns, &mut self.of_groups),
            RuleTarget::Service => return self.of_service.push(place),
        };
        let mut ids: Vec<&str> = patterns.iter().filter_map(|pattern| pattern.id()).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.into_iter().for_each(|id| index.by_id.entry(id.into()).or_default().push(place));
        if patterns.iter().any(|pattern| pattern.id().is_none()) {
            index.with_patterns.push(place);
        }
    }

    /// Returns whether no rule stands beside those of the tables, so that the tables alone decide.
    pub fn are_tables_only(&self) -> bool {
        !self.beside_tables
    }

    /// All rules, those without effect included. Rules of the file that others replace are left out.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.list.iter()
    }

    /// The rules that match a client or a group and are valid at this time, with the way in which they name it. Looks
    /// at no id of the rules that name the target by it: they may have a thousand each, and the question comes for each
    /// client.
    fn matching<'r>(
        &'r self, index: &'r RuleIndex, id: &'r str, now_ms: i64,
    ) -> impl Iterator<Item = (Reach, &'r Rule)> {
        let named = index.by_id.get(id).map_or(&[][..], Vec::as_slice);
        let others = index.with_patterns.iter().filter(|place| named.binary_search(place).is_err());
        let by_pattern = move |rule: &'r Rule| Some((rule.target.reach_by_pattern(id)?, rule));
        let named = self.valid(named.iter(), now_ms).map(|rule| (Reach::Id, rule));
        named.chain(self.valid(others, now_ms).filter_map(by_pattern))
    }

    fn valid<'r>(&'r self, places: impl Iterator<Item = &'r u32>, now_ms: i64) -> impl Iterator<Item = &'r Rule> {
        places.map(|&place| &self.list[place as usize]).filter(move |rule| rule.is_valid_at(now_ms))
    }

    /// Returns whether a rule, valid or not, has a pattern for groups.
    pub fn has_patterns_of_groups(&self) -> bool {
        !self.of_groups.with_patterns.is_empty()
    }

    /// Returns whether any rule has a pattern that matches a group. The rule need not be valid now.
    pub fn may_make_group(&self, group: &str) -> bool {
        self.of_groups.with_patterns.iter().any(|&place| self.list[place as usize].target.names_group(group))
    }

    /// Returns whether a rule that is valid at this time matches a group.
    pub(crate) fn makes_group(&self, group: &str, now_ms: i64) -> bool {
        self.matching(&self.of_groups, group, now_ms).next().is_some()
    }

    /// The ids of the clients that valid rules name in order to set their weight, each once, in the order of the ids.
    /// Rules for clients of some groups are left out: they set no weight of a client that is in none.
    pub(crate) fn listed_clients(&self, now_ms: i64) -> Vec<Arc<str>> {
        self.named(&self.of_clients, now_ms, |rule| rule.effects.weight.is_some() && rule.target.takes_group(None))
    }

    /// The ids of the groups that valid rules name, each once, in the order of the ids.
    pub(crate) fn listed_groups(&self, now_ms: i64) -> Vec<Arc<str>> {
        self.named(&self.of_groups, now_ms, |_| true)
    }

    fn named(&self, index: &RuleIndex, now_ms: i64, wanted: impl Fn(&Rule) -> bool) -> Vec<Arc<str>> {
        let is_listed = |places: &[u32]| self.valid(places.iter(), now_ms).any(&wanted);
        index.by_id.iter().filter(|(_, places)| is_listed(places)).map(|(id, _)| Arc::clone(id)).collect()
    }

    /// The next time at which another set of rules is valid, or a rule expires records; in milliseconds since the Unix
    /// epoch. `None` if no time changes anything.
    pub fn next_change(&self, now_ms: i64) -> Option<i64> {
        let rules = self.list.iter().filter(|rule| !rule.disabled);
        let times = rules.flat_map(|rule| [rule.from_ms, rule.until_ms, rule.effects.expire_before_ms]).flatten();
        times.filter(|&time| time > now_ms).min()
    }
}
