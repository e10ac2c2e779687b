//! The policy of a service: all that the core needs to know of the configuration, validated and with defaults filled
//! in.

mod in_force;

use std::{borrow::Cow, collections::BTreeSet, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantNames};

pub use in_force::{ClientEffects, MAX_CLIENTS};

use crate::offset_map::MapBudget;
pub use crate::pattern::ClientPattern;
use crate::rules::{Field, Rank, Rule, Rules};
pub use crate::units::Limit;
use crate::units::{Ratio, Weight, lengthened};

/// The policy of one service.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Records that the service can take in one cycle, 1 to [`MAX_CAPACITY`](crate::units::MAX_CAPACITY).
    pub capacity: u64,
    pub cycle: Duration,
    /// The part of its default share that a client never lends.
    pub reservation: Ratio,
    pub lending: Lending,
    /// The capacity is that of this instance, or of all instances of the group together.
    pub scope: Scope,
    /// Delays or rejects records that come too early.
    pub mode: Mode,
    /// False is shadow mode: all records are admitted, and the decisions are only counted, apart.
    pub enforce: bool,
    /// Reject mode: the window that a client's grant is counted over.
    pub window: Window,
    /// Reject mode: the treatment of records that are read late through no fault of their client.
    pub catch_up: CatchUp,
    /// The most clients known at a time; configured ones always have a place.
    pub max_clients: usize,
    /// The most that all clients that are not configured weigh together, once any client is configured.
    pub unlisted_weight: Weight,
    /// After this long without a record a client that is not configured is forgotten.
    pub client_idle_timeout: Duration,
    /// The configured clients.
    pub clients: Vec<ClientPolicy>,
    /// The groups of clients: the configured ones, then those that rules make.
    pub groups: Vec<GroupPolicy>,
    /// The number of groups that rules make: the last ones, in the order of their names.
    pub made_groups: usize,
    /// The groups that records named and [patterns of rules make](Policy::would_make_group). They are groups while such
    /// a rule is valid.
    pub met_groups: Vec<Arc<str>>,
    /// Names of clients are GROUP/CLIENT where the record names its group.
    pub names_groups: bool,
    /// The rules, with those of the tables of clients and groups.
    pub rules: Arc<Rules>,
    /// The time by which the rules are valid, in milliseconds since the Unix epoch.
    pub rules_at_ms: i64,
    /// The configuration lists neither clients nor groups. Then a rule that lists some leaves all others alone: the
    /// first rule for one client must not throw all others into one group of unlisted clients.
    pub all_alone: bool,
    /// Backlog bound of one client, in records.
    pub queue_capacity: u64,
    /// Backlog bound of the service, in bytes.
    pub queue_bytes: u64,
    /// The longest that a record may wait; `None` for as long as it takes.
    pub max_delay: Option<Duration>,
    pub overflow: Overflow,
    /// The part of the capacity that may go out at once.
    pub burst: Ratio,
    /// Time between two rounds.
    pub commit_interval: Duration,
    /// Room for one partition's map in the commit metadata.
    pub map_budget: MapBudget,
}

impl Policy {
    /// The policy of a service with nothing configured but its capacity and its cycle.
    pub fn new(capacity: u64, cycle: Duration) -> Policy {
        Policy {
            capacity,
            cycle,
            reservation: Ratio::from_millionths(100_000).expect("a tenth is a ratio"),
            lending: Lending::default(),
            scope: Scope::default(),
            mode: Mode::default(),
            enforce: true,
            window: Window::default(),
            catch_up: CatchUp::default(),
            max_clients: 1_000,
            unlisted_weight: Weight::ONE,
            client_idle_timeout: Duration::from_secs(600).max(cycle * 2),
            clients: Vec::new(),
            groups: Vec::new(),
            made_groups: 0,
            met_groups: Vec::new(),
            names_groups: false,
            rules: Arc::default(),
            rules_at_ms: 0,
            all_alone: false,
            queue_capacity: 10_000,
            queue_bytes: 256 << 20,
            max_delay: None,
            overflow: Overflow::default(),
            burst: Ratio::from_millionths(10_000).expect("a hundredth is a ratio"),
            commit_interval: Duration::from_millis(100),
            map_budget: MapBudget::default(),
        }
    }

    /// The time for which an admission counts. Clocks of a group's instances may differ by a thousandth, so that a
    /// group counts for that much longer.
    pub fn window_length(&self) -> Duration {
        match self.scope {
            Scope::Instance => self.cycle,
            Scope::Group => lengthened(self.cycle),
        }
    }

    /// The treatment of records when a backlog bound is reached. The backlogs of reject mode, of records that are
    /// catching up, are bounded by reading less in any case.
    pub fn overflow(&self) -> Overflow {
        if self.mode == Mode::Reject { Overflow::Pause } else { self.overflow }
    }

    /// The index of a client's group in [`groups`](Policy::groups): the one that its name says, or else the one that a
    /// rule sets, or the one with a pattern for it.
    pub fn group_of(&self, client: &str) -> Option<usize> {
        if self.groups.is_empty() { None } else { self.group_and_rule_of(client).0 }
    }

    /// The index of a client's group, and the rule that decides it. The client's name and tables need no rule.
    pub fn group_and_rule_of<'p>(&'p self, client: &'p str) -> (Option<usize>, Option<&'p Rule>) {
        if self.names_groups
            && let Some((group, _)) = client.split_once('/')
        {
            return (self.group_named(group), None);
        }
        let table = self.table_of(client);
        if !self.rules.set_groups {
            return (table, None);
        }
        let rules = self.rules.for_client(client, self.rules_at_ms);
        let Some((rule, group)) = rules.first(Field::Group).and_then(|rule| Some((rule, rule.effects.group.as_ref()?)))
        else {
            return (table, None);
        };
        let by_table = table.filter(|&table| {
            let GroupPolicy { name, clients, .. } = &self.groups[table];
            Rank::of_group_table(&format!("group.{name}"), clients, client) < Rank::of(rule, client)
        });
        if by_table.is_some() { (by_table, None) } else { (self.group_named(group), Some(rule)) }
    }

    /// The full name of a client if its record names its group: GROUP/CLIENT. A group that does not exist counts as one
    /// client with its name.
    pub fn full_name<'g>(&self, group: &'g str, client: &str) -> Cow<'g, str> {
        if self.group_named(group).is_some() { Cow::Owned(format!("{group}/{client}")) } else { Cow::Borrowed(group) }
    }

    pub fn group_named(&self, name: &str) -> Option<usize> {
        let (configured, made) = self.groups.split_at(self.groups.len() - self.made_groups);
        let made = || made.binary_search_by(|known| known.name.as_str().cmp(name)).ok();
        let index = configured.iter().position(|known| known.name == name);
        index.or_else(|| Some(configured.len() + made()?))
    }

    /// Takes the groups in the names of these clients as [met](Policy::met_groups).
    pub fn meet_groups_of<'n>(&mut self, clients: impl Iterator<Item = &'n str>) {
        if self.names_groups && self.rules.has_patterns_of_groups() {
            let groups = clients.filter_map(|client| client.split_once('/')).map(|(group, _)| group);
            self.met_groups = groups.collect::<BTreeSet<_>>().into_iter().map(Arc::from).collect();
        }
    }

    /// Returns whether a record that names this group would make it: it is none yet, and a valid rule has a pattern for
    /// it.
    pub fn would_make_group(&self, name: &str) -> bool {
        // Most records name a known group: no pattern is matched for them.
        self.rules.has_patterns_of_groups()
            && self.groups.len() < in_force::MAX_GROUPS
            && self.group_named(name).is_none()
            && self.rules.makes_group(name, self.rules_at_ms)
    }

    /// The index of the group with a table that lists a client: by its id, or by the pattern with the most literal
    /// characters, then the first group by name.
    fn table_of(&self, client: &str) -> Option<usize> {
        let literal = |group: &GroupPolicy| {
            let patterns = group.clients.iter().filter(|pattern| pattern.matches(client));
            patterns.map(|pattern| (pattern.id().is_some(), pattern.literal_characters())).max()
        };
        let matching =
            self.groups.iter().enumerate().filter_map(|(index, group)| Some((literal(group)?, group, index)));
        let best = matching.max_by(|one, other| one.0.cmp(&other.0).then_with(|| other.1.name.cmp(&one.1.name)));
        best.map(|(_, _, index)| index)
    }

    /// Returns whether any client or group is configured: all other clients are in the group of unlisted clients then.
    pub fn lists_any(&self) -> bool {
        !self.clients.is_empty() || !self.groups.is_empty()
    }

    /// The names of all groups, none if nothing is configured: first the empty one of the unlisted clients, then those
    /// of [`groups`](Policy::groups) with `/` behind them, which no client's has.
    pub(crate) fn group_names(&self) -> impl Iterator<Item = Arc<str>> + '_ {
        let unlisted = self.lists_any().then(|| Arc::from(""));
        unlisted.into_iter().chain(self.groups.iter().map(|group| format!("{}/", group.name).into()))
    }

    /// The index among [all groups](Policy::group_names) of a client with this configured group; `None` if it stands
    /// alone.
    pub(crate) fn place(&self, group: Option<usize>, is_configured: bool) -> Option<usize> {
        match group {
            Some(group) => Some(group + 1),
            None => (self.lists_any() && !self.all_alone && !is_configured).then_some(0),
        }
    }

    /// The weight of the group at this [place](Policy::place), with so many clients. Unlisted clients count as one
    /// each: a weight that a rule gives one counts only among themselves. Configured groups take part also without a
    /// client.
    pub(crate) fn weight_of_group(&self, place: usize, clients: u64) -> u64 {
        let Some(index) = place.checked_sub(1) else {
            return (Weight::ONE.thousandths() * clients).min(self.unlisted_weight.thousandths());
        };
        let is_made = index >= self.groups.len() - self.made_groups;
        if is_made && clients == 0 { 0 } else { self.groups[index].weight.thousandths() }
    }

    /// Returns whether records of clients with partitions of their own are never evicted: those are paused instead.
    pub fn keeps(&self) -> bool {
        self.enforce && self.overflow() == Overflow::Auto
    }

    /// Returns whether excess records of shared partitions are evicted. Shadow mode can pause nothing: its backlogs, of
    /// records that it only would delay, are bounded by evictions in any case.
    pub fn evicts(&self) -> bool {
        !self.enforce || self.overflow() != Overflow::Pause
    }
}

/// A group of clients: they have one share of the capacity together, and share it among themselves.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GroupPolicy {
    /// The group's name, without `/`.
    pub name: String,
    /// The weight among the groups and the clients that stand alone.
    pub weight: Weight,
    /// The absolute limits of all its clients together: a record needs room under each.
    pub limits: Vec<Limit>,
    /// Nothing of its clients is admitted.
    pub hold: bool,
    /// The clients that are in the group if their records name none.
    pub clients: Vec<ClientPattern>,
}

impl GroupPolicy {
    /// The most records of its clients that go in this time.
    pub(crate) fn most_in(&self, time: Duration) -> u64 {
        if self.hold { 0 } else { Limit::most_in(&self.limits, time) }
    }
}

/// One configured client.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientPolicy {
    /// The client's name: its id, behind that of its group and `/` if its records name one.
    pub name: String,
    /// The weight inside the client's group, or among the groups and all clients that stand alone.
    pub weight: Weight,
    /// The absolute limits of this client alone: a record needs room under each.
    pub limits: Vec<Limit>,
}

/// The rule by which lent capacity is shared among the clients that want more than their share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, EnumString, VariantNames, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Lending {
    /// In proportion to the wants beyond the share.
    #[default]
    Proportional,
    /// All loans rise together, in proportion to weight, each until its want is met.
    MaxMin,
}

/// The instances that share the capacity. A throttle by itself is alone; a configuration file has another default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, EnumString, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum Scope {
    /// Each instance has the capacity for itself.
    #[default]
    Instance,
    /// All instances of the group share one capacity: an instance admits nothing until it is given a part of it.
    Group,
}

/// The treatment of a record that can't go at once.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Default, EnumString, VariantNames, IntoStaticStr, Serialize, Deserialize,
)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Mode {
    /// The record waits in its client's backlog.
    #[default]
    Shape,
    /// The record goes to the dead-letter topic.
    Reject,
}

/// Reject mode: the window that a grant is counted over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, EnumString, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum Window {
    /// Any window of one cycle.
    #[default]
    Sliding,
    /// Each cycle by itself: up to twice the grant around an edge.
    Fixed,
}

/// Reject mode: the treatment of records that were read late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, EnumString, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum CatchUp {
    /// Late records wait as in shape mode.
    #[default]
    Delay,
    /// Late records are treated as any other.
    Reject,
}

/// The treatment of records when a backlog bound is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, EnumString, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum Overflow {
    /// A partition whose records all belong to one client is paused until there is room: its records wait in Kafka.
    /// Records of other partitions are rejected as with `dead_letter`.
    #[default]
    Auto,
    /// The oldest backlog of the client furthest above its share of the bound is rejected as `queue_full`.
    DeadLetter,
    /// Whole partitions are paused until there is room.
    Pause,
}
