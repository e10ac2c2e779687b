//! A rule: its target, its effects and its time.

use std::{sync::Arc, time::Duration};

use serde::Serialize;
use strum::{IntoStaticStr, VariantArray};

use super::precedence::Reach;
use crate::pattern::ClientPattern;
use crate::units::{Limit, Weight};

/// One rule.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rule {
    /// 1 to 64 characters. Those of tables are `client.NAME` and `group.NAME`.
    pub name: Arc<str>,
    pub origin: Origin,
    pub target: RuleTarget,
    /// −1000 to 1000; the highest decides.
    pub priority: i16,
    /// The time from which on the rule is valid, and that at which it ends, in milliseconds since the Unix epoch.
    pub from_ms: Option<i64>,
    pub until_ms: Option<i64>,
    /// The rule is switched off.
    pub disabled: bool,
    #[serde(skip)]
    pub note: String,
    pub effects: Effects,
}

/// The place that a rule was written in. The order is that of precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Origin {
    /// The topic of rules.
    RunTime,
    /// The configuration.
    File,
}

/// The targets of a rule.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum RuleTarget {
    /// The clients that match, but only those in groups with these ids; `None` for all.
    Clients { patterns: Vec<ClientPattern>, in_groups: Option<Vec<ClientPattern>> },
    /// The groups that match.
    Groups(Vec<ClientPattern>),
    /// All records of the service.
    Service,
}

/// Returns how those of the patterns that stand for several ids name this one, if any does. `of_all` is the reach of
/// `"*"`.
pub(super) fn reach_by_pattern(patterns: &[ClientPattern], id: &str, of_all: Reach) -> Option<Reach> {
    let matching = patterns.iter().filter(|pattern| pattern.id().is_none() && pattern.matches(id));
    matching.map(|pattern| if pattern.literal_characters() == 0 { of_all } else { Reach::Pattern }).min()
}

impl RuleTarget {
    /// Returns whether a pattern of the target matches this client, whichever group it belongs to.
    pub fn names_client(&self, client: &str) -> bool {
        matches!(self, RuleTarget::Clients { patterns, .. } if patterns.iter().any(|pattern| pattern.matches(client)))
    }

    pub(super) fn patterns(&self) -> &[ClientPattern] {
        match self {
            RuleTarget::Clients { patterns, .. } | RuleTarget::Groups(patterns) => patterns,
            RuleTarget::Service => &[],
        }
    }

    /// Returns how the patterns of the target that stand for several ids name this one, if any does.
    pub(super) fn reach_by_pattern(&self, id: &str) -> Option<Reach> {
        let in_groups = matches!(self, RuleTarget::Clients { in_groups: Some(_), .. });
        reach_by_pattern(self.patterns(), id, if in_groups { Reach::InGroups } else { Reach::All })
    }

    /// Returns whether a pattern of the target matches this group.
    pub(super) fn names_group(&self, group: &str) -> bool {
        matches!(self, RuleTarget::Groups(patterns) if patterns.iter().any(|pattern| pattern.matches(group)))
    }

    /// Returns whether the target's clients may be in this group.
    pub(super) fn takes_group(&self, group: Option<&str>) -> bool {
        match self {
            RuleTarget::Clients { in_groups: Some(groups), .. } => {
                group.is_some_and(|group| groups.iter().any(|pattern| pattern.matches(group)))
            }
            RuleTarget::Clients { in_groups: None, .. } | RuleTarget::Groups(_) | RuleTarget::Service => true,
        }
    }
}

/// One thing that a rule sets. Fields are decided one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, VariantArray, IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Field {
    Group,
    Weight,
    Limits,
    MaxDelay,
    Hold,
    ExpireBefore,
    Capacity,
    Enforce,
    Pace,
}

impl Field {
    /// Every field.
    pub const ALL: &[Field] = <Field as VariantArray>::VARIANTS;
    /// The fields of a client, of a group, and of the service.
    pub const OF_CLIENT: &[Field] =
        &[Field::Group, Field::Weight, Field::Limits, Field::MaxDelay, Field::Hold, Field::ExpireBefore];
    pub const OF_GROUP: &[Field] = &[Field::Weight, Field::Limits, Field::Hold, Field::ExpireBefore];
    pub const OF_SERVICE: &[Field] = &[Field::Capacity, Field::Enforce, Field::Pace];
}

/// The effects of a rule: what it sets.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Effects {
    /// Of a client: inside its group.
    pub weight: Option<Weight>,
    /// Limits that must all have room. An empty list is no limit.
    pub limits: Option<Vec<RuleLimit>>,
    pub max_delay: Option<Duration>,
    /// Nothing is admitted.
    pub hold: Option<bool>,
    /// Waiting records that were read before this time, in milliseconds since the Unix epoch, expire.
    pub expire_before_ms: Option<i64>,
    /// The group of clients, if their records name none; empty for the unlisted clients.
    pub group: Option<String>,
    pub capacity: Option<u64>,
    pub enforce: Option<bool>,
    /// The search for the capacity only observes.
    pub pace_observes: Option<bool>,
}

impl Effects {
    /// Returns whether the effects set a field.
    pub fn set(&self, field: Field) -> bool {
        match field {
            Field::Group => self.group.is_some(),
            Field::Weight => self.weight.is_some(),
            Field::Limits => self.limits.is_some(),
            Field::MaxDelay => self.max_delay.is_some(),
            Field::Hold => self.hold.is_some(),
            Field::ExpireBefore => self.expire_before_ms.is_some(),
            Field::Capacity => self.capacity.is_some(),
            Field::Enforce => self.enforce.is_some(),
            Field::Pace => self.pace_observes.is_some(),
        }
    }
}

/// A limit that may grow with the weight of its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RuleLimit {
    pub limit: Limit,
    /// The weight of the target multiplies rate and burst.
    pub scales: bool,
}

impl RuleLimit {
    /// The limit of a target with this weight. A larger weight shortens the time for as many records, so that weights
    /// with decimals are exact to a nanosecond.
    pub fn of_weight(&self, weight: Weight) -> Limit {
        let (weight, one) = (weight.thousandths(), Weight::ONE.thousandths());
        if self.scales { self.limit.times(weight, one) } else { self.limit }
    }
}

impl Rule {
    /// Returns whether the rule has an effect at this time: from `from_ms` on, until before `until_ms`.
    pub fn is_valid_at(&self, now_ms: i64) -> bool {
        let begun = self.from_ms.is_none_or(|from| from <= now_ms);
        !self.disabled && begun && self.until_ms.is_none_or(|until| now_ms < until)
    }

    /// Returns whether the rule stands for a table of the configuration.
    pub fn is_table(&self) -> bool {
        self.name.starts_with("client.") || self.name.starts_with("group.")
    }
}
