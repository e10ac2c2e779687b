//! What a service's owner decided: everything the core needs to know of the configuration.
//!
//! Values here are meant, not written: the shell has validated them and filled in the defaults.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::offset_map::MapBudget;
use crate::units::{Ratio, Weight};

/// The policy of one service.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Records that the service can take in one cycle, 1 to [`MAX_CAPACITY`](crate::units::MAX_CAPACITY).
    pub capacity: u64,
    /// The length of a cycle.
    pub cycle: Duration,
    /// The part of its default share that a client never lends.
    pub reservation: Ratio,
    /// How lent capacity is shared out.
    pub lending: Lending,
    /// Delay or reject what comes too early.
    pub mode: Mode,
    /// False: everything is admitted, and what would have been decided is counted apart.
    pub enforce: bool,
    /// Reject mode: what a client's grant is counted over.
    pub window: Window,
    /// Reject mode: what happens to records that are read late through no fault of their client.
    pub catch_up: CatchUp,
    /// The most clients known at a time; configured ones always have a place.
    pub max_clients: usize,
    /// What all clients that are not configured weigh together at most, once any client is configured.
    pub unlisted_weight: Weight,
    /// After this long without a record a client that is not configured is forgotten.
    pub client_idle_timeout: Duration,
    /// The configured clients.
    pub clients: Vec<ClientPolicy>,
    /// Backlog bound of one client, in records.
    pub queue_capacity: u64,
    /// Backlog bound of the service, in bytes.
    pub queue_bytes: u64,
    /// The longest that a record may wait.
    pub max_delay: Duration,
    /// What happens when a backlog bound nears.
    pub overflow: Overflow,
    /// The part of the capacity that may go out at once.
    pub burst: Ratio,
    /// Time between two rounds.
    pub commit_interval: Duration,
    /// Room for one partition's map in the commit metadata.
    pub map_budget: MapBudget,
}

/// One configured client.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientPolicy {
    /// The client's id.
    pub name: String,
    /// Its weight.
    pub weight: Weight,
    /// Its own absolute limit.
    pub limit: Option<Limit>,
}

/// A client's own limit: a token bucket that refills `rate` tokens per `per` and holds `burst`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Records per `per`.
    pub rate: NonZeroU32,
    /// The time in which `rate` records may go.
    pub per: Duration,
    /// Records that may go at once.
    pub burst: NonZeroU32,
}

/// How lent capacity is shared among those who want more than their share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lending {
    /// In proportion to how much more each wants.
    #[default]
    Proportional,
    /// Everybody's loan rises together, in proportion to weight, until its want is met.
    MaxMin,
}

/// What happens to a record that can't go at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// It waits in its client's backlog.
    #[default]
    Shape,
    /// It goes to the dead-letter topic.
    Reject,
}

/// Reject mode: what a grant is counted over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Window {
    /// Any window of one cycle.
    #[default]
    Sliding,
    /// Each cycle by itself: up to twice the grant around an edge.
    Fixed,
}

/// Reject mode: what happens to records that were read late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CatchUp {
    /// They wait as in shape mode.
    #[default]
    Delay,
    /// They are treated as any other.
    Reject,
}

/// What happens when a backlog bound nears.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overflow {
    /// The oldest backlog of the client furthest above its share of the bound is rejected as `queue_full`.
    #[default]
    DeadLetter,
    /// Whole partitions are paused until there is room.
    Pause,
}
