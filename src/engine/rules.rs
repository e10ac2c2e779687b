//! The policy in force: that of the configuration, changed by the rules that are valid now and by the capacity that was
//! found.

use std::collections::{BTreeSet, HashSet};
use std::{sync::Arc, time::Duration};

use watermaster_core::{policy::Policy, units::Time};

use crate::rules::{RulesToTake, with_run_time};

/// The interval between two looks at the wall clock.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The policy of the configuration, with all that changes it.
#[derive(Debug)]
pub(super) struct PolicyInForce {
    pub(super) configured: Policy,
    /// The rules of run time, and the policy of the configuration with them.
    pub(super) run_time: RulesToTake,
    with_rules: Policy,
    /// The groups that records named and patterns of rules make, and those that came since the last look.
    groups: BTreeSet<Arc<str>>,
    new_groups: BTreeSet<Arc<str>>,
    /// The limit of the search for the capacity, if the service follows it.
    found: Option<u64>,
    next_look: Time,
    /// The wall clock at the last look, and the time at which other rules are valid.
    looked_ms: i64,
    next_ms: i64,
}

impl PolicyInForce {
    /// Takes the policy of the configuration. A [look](PolicyInForce::look) follows.
    pub(super) fn new(configured: Policy) -> PolicyInForce {
        PolicyInForce {
            with_rules: configured.clone(),
            configured,
            run_time: RulesToTake::default(),
            groups: BTreeSet::new(),
            new_groups: BTreeSet::new(),
            found: None,
            next_look: Time::ZERO,
            looked_ms: 0,
            next_ms: 0,
        }
    }

    /// Takes another policy of the configuration, and the limit of the search for the capacity.
    pub(super) fn change(&mut self, configured: Policy, found: Option<u64>) {
        (self.configured, self.found) = (configured, found);
        self.with_rules = with_run_time(&self.configured, &self.run_time.rules);
    }

    /// Takes other rules of run time, which count from the next look on.
    pub(super) fn take_run_time(&mut self, rules: RulesToTake) {
        self.run_time = rules;
        self.with_rules = with_run_time(&self.configured, &self.run_time.rules);
    }

    /// Takes another limit of the search. Returns whether it is another one.
    pub(super) fn find(&mut self, capacity: u64) -> bool {
        self.found.replace(capacity) != Some(capacity)
    }

    /// Notes that a record names a group that a pattern of a rule makes. It is one from the next look on. There are no
    /// more such groups than clients may be known.
    #[cold]
    pub(super) fn meet_group(&mut self, name: &str) {
        if self.groups.len() + self.new_groups.len() < self.configured.max_clients && !self.new_groups.contains(name) {
            self.new_groups.insert(name.into());
        }
    }

    /// Takes the groups that records named since the last time, and forgets those that have no client any more.
    pub(super) fn take_groups(&mut self, with_clients: impl Iterator<Item = Arc<str>>) {
        if self.groups.is_empty() && self.new_groups.is_empty() {
            return;
        }
        let with_clients: HashSet<Arc<str>> = with_clients.collect();
        self.groups.retain(|name| with_clients.contains(name));
        self.groups.append(&mut self.new_groups);
    }

    /// Returns the policy in force at this time.
    pub(super) fn look(&mut self, wall_ms: i64) -> Policy {
        self.looked_ms = wall_ms;
        self.next_ms = self.with_rules.rules.next_change(wall_ms).unwrap_or(i64::MAX);
        self.with_rules.met_groups = self.groups.iter().cloned().collect();
        let mut policy = self.with_rules.at(wall_ms);
        policy.take_found(self.found);
        policy
    }

    /// Returns whether other rules may be valid now than at the last look, the wall clock went back, or records named
    /// groups that patterns make.
    pub(super) fn is_due(&mut self, now: Time, wall_ms: impl FnOnce() -> i64) -> bool {
        if self.with_rules.rules.are_tables_only() || now < self.next_look {
            return false;
        }
        self.next_look = now + LOOK_INTERVAL;
        let wall_ms = wall_ms();
        wall_ms >= self.next_ms || wall_ms < self.looked_ms || !self.new_groups.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use watermaster_core::policy::ClientPattern;
    use watermaster_core::rules::{Effects, Origin, Rule, RuleTarget, Rules};

    use super::*;

    fn rule(effects: Effects) -> Rule {
        Rule {
            name: "r".into(),
            origin: Origin::File,
            target: RuleTarget::Service,
            priority: 0,
            from_ms: Some(10),
            until_ms: Some(20),
            disabled: false,
            note: String::new(),
            effects,
        }
    }

    fn policy(effects: Effects) -> Policy {
        let rules = Arc::new(Rules::new(vec![rule(effects)]));
        Policy { rules, ..Policy::new(100, Duration::from_secs(1)) }
    }

    #[test]
    fn the_smaller_one_of_the_found_capacity_and_a_rule_counts_unless_the_search_observes() {
        let capacity = |capacity, found, pace_observes| {
            let effects = Effects { capacity: Some(capacity), pace_observes, ..Effects::default() };
            let mut in_force = PolicyInForce::new(policy(effects));
            in_force.change(in_force.configured.clone(), found);
            [9, 10, 20].map(|now| in_force.look(now).capacity)
        };
        assert_eq!(capacity(300, None, None), [100, 300, 100]);
        assert_eq!(capacity(300, Some(80), None), [80, 80, 80]);
        assert_eq!(capacity(50, Some(80), None), [80, 50, 80]);
        assert_eq!(capacity(300, Some(80), Some(true)), [80, 300, 80]);
    }

    #[test]
    fn groups_that_patterns_make_are_taken_at_the_next_look_and_forgotten_without_clients() {
        let target = RuleTarget::Groups(vec![ClientPattern::new("gold-*")]);
        let gold = Rule { target, from_ms: None, until_ms: None, ..rule(Effects::default()) };
        let rules = Arc::new(Rules::new(vec![gold]));
        let max_clients = 2;
        let policy = Policy { rules, names_groups: true, max_clients, ..Policy::new(100, Duration::from_secs(1)) };
        let mut in_force = PolicyInForce::new(policy);
        let mut groups = |with_clients: &[&str], met: &[&str], looks: u64| {
            met.iter().for_each(|name| in_force.meet_group(name));
            let due = in_force.is_due(Time::from_nanos(looks * 100_000_000), || 15);
            in_force.take_groups(with_clients.iter().map(|name| Arc::from(*name)));
            (due, in_force.look(15).groups.iter().map(|group| group.name.clone()).collect::<Vec<_>>().join(" "))
        };
        groups(&[], &[], 1);
        assert_eq!(groups(&[], &["gold-1"], 2), (true, "gold-1".to_owned()));
        assert_eq!(groups(&["gold-1"], &[], 3), (false, "gold-1".to_owned()));
        assert_eq!(groups(&["gold-1"], &["gold-2", "gold-3"], 4), (true, "gold-1 gold-2".to_owned()));
        assert_eq!(groups(&["gold-2"], &[], 5), (false, "gold-2".to_owned()));
    }

    #[test]
    fn the_clock_is_looked_at_now_and_then_also_after_a_step() {
        let effects = Effects { enforce: Some(false), ..Effects::default() };
        let mut in_force = PolicyInForce::new(policy(effects));
        in_force.look(5);
        let mut is_due = |looks: u64, wall: i64| {
            let due = in_force.is_due(Time::from_nanos(looks * 100_000_000), || wall);
            if due {
                in_force.look(wall);
            }
            due
        };
        assert!(!is_due(1, 9));
        assert!(is_due(2, 10));
        assert!(!is_due(2, 20), "100 ms have not passed");
        assert!(is_due(3, 25));
        assert!(is_due(4, 12), "the clock went back");
    }
}
