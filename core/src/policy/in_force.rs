//! The policy that rules make of the one of the configuration.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::{sync::Arc, time::Duration};

use super::{ClientPolicy, GroupPolicy, Limit, Policy};
use crate::rules::{Field, FieldDecision, Rule};
use crate::units::Weight;

/// The most clients that a service knows. Rules may name more, which are unlisted.
pub const MAX_CLIENTS: usize = 1_000_000;
/// The most groups. Rules may name more, whose clients are unlisted.
pub(super) const MAX_GROUPS: usize = 10_000;

/// The values that hold for a client.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientEffects {
    pub weight: Weight,
    pub limits: Vec<Limit>,
    pub hold: bool,
    /// `None` for that of the service.
    pub max_delay: Option<Duration>,
    pub expire_before_ms: Option<i64>,
}

impl Policy {
    /// Returns the policy that is in force at a time, in milliseconds since the Unix epoch. To be called on the policy
    /// of the configuration: what rules listed before is no part of it.
    #[must_use]
    pub fn at(&self, now_ms: i64) -> Policy {
        let mut policy = Policy { rules_at_ms: now_ms, ..self.clone() };
        if self.rules.are_tables_only() {
            return policy;
        }
        policy.all_alone = !self.lists_any();
        policy.list_groups();
        policy.list_clients();
        let of_service = self.rules.for_service(now_ms);
        policy.capacity = of_service.decide(|rule| rule.effects.capacity).unwrap_or(self.capacity);
        policy.enforce = of_service.decide(|rule| rule.effects.enforce).unwrap_or(self.enforce);
        policy
    }

    /// Lists the groups that rules make, and decides the values of all groups.
    fn list_groups(&mut self) {
        let rules = Arc::clone(&self.rules);
        let met = self.met_groups.iter().filter(|name| rules.makes_group(name, self.rules_at_ms)).cloned();
        let configured: HashSet<&str> = self.groups.iter().map(|group| group.name.as_str()).collect();
        let listed = rules.listed_groups(self.rules_at_ms).into_iter().chain(met);
        let (mut made, room) = (BTreeSet::new(), MAX_GROUPS.saturating_sub(configured.len()));
        for name in listed.filter(|name| !configured.contains(&**name)) {
            if made.len() < room {
                made.insert(name);
            }
        }
        self.made_groups = made.len();
        self.groups.extend(made.iter().map(|name| GroupPolicy { name: name.to_string(), ..GroupPolicy::default() }));
        for group in &mut self.groups {
            let rules = rules.for_group(&group.name, self.rules_at_ms);
            group.weight = rules.decide(|rule| rule.effects.weight).unwrap_or(Weight::ONE);
            let limits = rules.decide(|rule| rule.effects.limits.as_deref()).unwrap_or_default();
            group.limits = limits.iter().map(|limit| limit.of_weight(group.weight)).collect();
            group.hold = rules.decide(|rule| rule.effects.hold).unwrap_or(false);
        }
    }

    /// Lists the clients that rules name in order to set their weight, unless no client is listed. They take no place
    /// from clients that come while the service runs.
    fn list_clients(&mut self) {
        if !self.all_alone {
            let known: HashSet<String> = self.clients.iter().map(|client| client.name.clone()).collect();
            for id in self.rules.listed_clients(self.rules_at_ms) {
                if self.clients.len() < MAX_CLIENTS && !known.contains(&*id) && self.group_of(&id).is_none() {
                    let name = id.to_string();
                    self.clients.push(ClientPolicy { name, weight: Weight::ONE, limits: Vec::new() });
                }
            }
            self.max_clients = (self.max_clients + self.clients.len() - known.len()).min(MAX_CLIENTS);
        }
        for place in 0..self.clients.len() {
            let name = self.clients[place].name.clone();
            if let Some(ClientEffects { weight, limits, .. }) = self.effects_on(&name) {
                (self.clients[place].weight, self.clients[place].limits) = (weight, limits);
            }
        }
    }

    /// The values that rules decide for a client; `None` if only tables decide.
    pub fn effects_on(&self, client: &str) -> Option<ClientEffects> {
        if self.rules.are_tables_only() {
            return None;
        }
        let (group, now_ms) = (self.group_of(client), self.rules_at_ms);
        let rules = self.rules.for_client_in(client, group.map(|group| &*self.groups[group].name), now_ms);
        let weight = rules.decide(|rule| rule.effects.weight).unwrap_or(Weight::ONE);
        let limits = rules.decide(|rule| rule.effects.limits.as_deref()).unwrap_or_default();
        let of_group = group.and_then(|group| {
            let rules = self.rules.for_group(&self.groups[group].name, now_ms);
            rules.decide(|rule| rule.effects.expire_before_ms)
        });
        Some(ClientEffects {
            weight,
            limits: limits.iter().map(|limit| limit.of_weight(weight)).collect(),
            hold: rules.decide(|rule| rule.effects.hold).unwrap_or(false),
            max_delay: rules.decide(|rule| rule.effects.max_delay),
            // A time to come counts once it has come.
            expire_before_ms: [rules.decide(|rule| rule.effects.expire_before_ms), of_group]
                .into_iter()
                .flatten()
                .filter(|&before| before <= now_ms)
                .max(),
        })
    }

    /// Tells of a client the most records that its own limits and those of its group allow in a cycle in the long run;
    /// `None` without limits. Each client is found in constant time.
    pub fn limits_in_cycle(&self) -> impl Fn(&str) -> Option<f64> {
        let tables: HashMap<&str, &ClientPolicy> =
            self.clients.iter().map(|client| (client.name.as_str(), client)).collect();
        move |client| {
            let (mut limits, mut is_held) = match self.effects_on(client) {
                Some(effects) => (effects.limits, effects.hold),
                None => (tables.get(client).map(|table| table.limits.clone()).unwrap_or_default(), false),
            };
            if let Some(group) = self.group_of(client).map(|group| &self.groups[group]) {
                limits.extend(&group.limits);
                is_held |= group.hold;
            }
            let paces = limits.iter().map(|limit| limit.pace_in(self.cycle));
            if is_held { Some(0.0) } else { paces.reduce(f64::min) }
        }
    }

    /// Takes the capacity that the search found. The smaller one of it and a rule's counts, unless a rule has the
    /// search observe only.
    pub fn take_found(&mut self, found: Option<u64>) {
        if let Some(found) = found.filter(|_| !self.pace_observes()) {
            let by_rule = self.rules.for_service(self.rules_at_ms).decide(|rule| rule.effects.capacity);
            self.capacity = by_rule.map_or(found, |capacity| found.min(capacity));
        }
    }

    /// Returns whether a rule has the search for the capacity observe only.
    pub fn pace_observes(&self) -> bool {
        self.rules.for_service(self.rules_at_ms).decide(|rule| rule.effects.pace_observes).unwrap_or(false)
    }

    /// The rule that sets a field of a client.
    pub(crate) fn rule_of_client<'p>(&'p self, client: &'p str, field: Field) -> Option<&'p Rule> {
        let group = self.group_of(client).map(|group| &*self.groups[group].name);
        self.rules.for_client_in(client, group, self.rules_at_ms).first(field)
    }

    /// The rule that sets a field of the group of a client.
    pub(crate) fn rule_of_group_of(&self, client: &str, field: Field) -> Option<&Rule> {
        let group = &self.groups[self.group_of(client)?];
        self.rules.for_group(&group.name, self.rules_at_ms).first(field)
    }

    /// The rules that decide each field of a client, known or not.
    pub fn explain_client<'p>(&'p self, client: &'p str) -> Vec<FieldDecision<'p>> {
        let group = self.group_of(client).map(|group| &*self.groups[group].name);
        self.rules.for_client_in(client, group, self.rules_at_ms).decisions(Field::OF_CLIENT)
    }

    /// The rules that decide each field of a group.
    pub fn explain_group<'p>(&'p self, group: &'p str) -> Vec<FieldDecision<'p>> {
        self.rules.for_group(group, self.rules_at_ms).decisions(Field::OF_GROUP)
    }

    /// The rules that decide each field of the service.
    pub fn explain_service(&self) -> Vec<FieldDecision<'_>> {
        self.rules.for_service(self.rules_at_ms).decisions(Field::OF_SERVICE)
    }
}
