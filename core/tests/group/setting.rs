//! The choices of a seed, by the size of the group.

use std::{fmt, time::Duration};

use watermaster_core::group::targets::Shares;
use watermaster_core::group::{GroupParams, MARGIN};
use watermaster_core::policy::{Mode, Policy};
use watermaster_core::units::Ratio;

use crate::support::random::Random;

/// The size of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// Two to eight instances with three clients, that act each 10 to 60 ms, for a minute of hard trouble.
    Small,
    /// 20 instances and more with 50 clients, that act each 50 ms to 5 s, for an hour.
    Medium,
    /// 1 000 instances with 1 000 clients, 20 of them at each, that act each 1 to 8 s, for ten minutes.
    Large,
}

/// The choices of a seed.
#[derive(Debug, Clone)]
pub struct Setting {
    pub params: GroupParams,
    pub length: Duration,
    pub nodes: u64,
    pub max_nodes: u64,
    pub clients: usize,
    pub clients_of_node: usize,
    /// The shortest and the longest time between two actions of a node, in milliseconds.
    pub beats: (u64, u64),
    /// The mean time between two faults, and the least one between two outages of the log.
    pub trouble: Duration,
    pub calm: Duration,
    /// Of 10 000 actions of a node, this many change the demand there.
    pub demand_changes: u32,
    pub slow: Duration,
    /// Of 10 000 appends and readings, these take up to several leases.
    pub late: u32,
    /// Members take former processes of their instance for fenced.
    pub fences: bool,
    pub reloads: bool,
    /// Every other instance has another mode or cycle than the first one.
    pub rivals: bool,
    /// The percentage of the capacity that was admitted in the cycle before the group began.
    pub memory: u64,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GroupParams { mode, capacity, cycle, lease, margin, .. } = &self.params;
        write!(
            f,
            "{mode:?}, capacity {capacity}, cycle {cycle:?}, lease {lease:?}, margin {margin:?}, {} nodes, fences {}, \
             reloads {}, rivals {}, slow {:?}, late {}, memory {} %",
            self.nodes, self.fences, self.reloads, self.rivals, self.slow, self.late, self.memory
        )
    }
}

impl Setting {
    pub fn random(size: Size, random: &mut Random) -> Setting {
        let seconds = Duration::from_secs_f64;
        let (capacities, cycles, leases): ([u64; 3], [f64; 3], [f64; 4]) = match size {
            Size::Small => ([7, 50, 300], [0.5, 1.0, 3.0], [0.5, 1.0, 2.0, 5.0]),
            Size::Medium => ([100, 1_000, 20_000], [10.0, 10.0, 60.0], [8.0, 10.0, 10.0, 20.0]),
            Size::Large => ([20_000, 100_000, 1_000_000], [10.0, 10.0, 60.0], [10.0, 10.0, 20.0, 30.0]),
        };
        let capacity = random.one_of(&capacities);
        let (cycle, lease) = (seconds(random.one_of(&cycles)), seconds(random.one_of(&leases)));
        let mode = if random.once_in(2) { Mode::Shape } else { Mode::Reject };
        let wide = Ratio::from_millionths(50_000).unwrap();
        let (beats, trouble, calm, demand_changes, late) = match size {
            Size::Small => ((10, 60), 2.0, 0.0, 500, 100),
            Size::Medium => ((50, 5_000), 15.0, 300.0, 500, 50),
            Size::Large => ((1_000, 8_000), 2.0, 100.0, 50, 20),
        };
        // Buckets let through what comes between two actions, so that members use their holds.
        let commit_interval = Duration::from_millis(beats.1 / 2 + 20);
        let policy = Policy { mode, commit_interval, ..Policy::new(capacity, cycle) };
        let defaults = GroupParams::new(&policy, lease);
        let (look, heartbeat) = match size {
            Size::Small => (Duration::from_millis(50), lease / 4),
            Size::Medium | Size::Large => (defaults.look, lease / 3),
        };
        let params = GroupParams {
            look,
            heartbeat,
            standby: Ratio::from_millionths(random.one_of(&[0, 50_000])).unwrap(),
            margin: if size == Size::Small { wide } else { random.one_of(&[MARGIN, wide]) },
            ..defaults
        };
        let nodes = match size {
            Size::Small => random.one_of(&[2, 3, 5]),
            Size::Medium => 20,
            Size::Large => 1_000,
        };
        let (length, max_nodes, clients, clients_of_node) = match size {
            Size::Small => (60, 8, 3, 3),
            Size::Medium => (3_600, 24, 50, 12),
            Size::Large => (600, 1_010, 1_000, 20),
        };
        Setting {
            params,
            length: Duration::from_secs(length),
            nodes,
            max_nodes,
            clients,
            clients_of_node,
            beats,
            trouble: seconds(trouble),
            calm: seconds(calm),
            demand_changes,
            slow: Duration::from_millis(random.one_of(&[2, 20, 200])),
            late: if random.once_in(2) { late } else { 0 },
            fences: random.once_in(2),
            reloads: random.once_in(3),
            memory: random.one_of(&[0, 50, 100]),
            rivals: random.once_in(4),
        }
    }

    /// The parameters of an instance. A rival's cycle is longer, so that `params.cycle` is the shortest one.
    pub fn params_of(&self, id: u64, capacity: u64) -> GroupParams {
        let params = GroupParams { capacity, ..self.params.clone() };
        match (self.rivals, id % 4, params.mode) {
            (true, 1, Mode::Shape) => GroupParams { mode: Mode::Reject, ..params },
            (true, 1, Mode::Reject) => GroupParams { mode: Mode::Shape, ..params },
            (true, 3, _) => GroupParams { cycle: params.cycle * 2, ..params },
            _ => params,
        }
    }

    /// The parameters and rules of an instance after a reload of the capacity.
    pub fn reloaded(&self, id: u64, capacity: u64) -> (GroupParams, Shares) {
        let params = self.params_of(id, capacity);
        let policy = Policy { mode: params.mode, ..Policy::new(capacity, params.cycle) };
        (params, Shares::new(&policy))
    }
}
