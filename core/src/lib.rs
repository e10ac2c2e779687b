//! The pure core of Watermaster: no clock, no I/O, no log. Time is an argument; ids and sizes go in, never payloads.
//!
//! One service is one [`Throttle`](throttle::Throttle), driven by its owner in this order:
//!
//! 1. `handle_*` tells it an event (a partition was assigned, a record was read, a round was committed);
//! 2. `poll_action` is called until it returns `None` (a delayed record may go, a partition should pause);
//! 3. `poll_timeout` tells when to come back if nothing happens before.

#![deny(clippy::print_stdout, clippy::print_stderr)]

/// The exact allocator: the grants of one cycle.
pub mod allocator;
/// A table that grows without moving its entries.
pub mod chunks;
/// Histograms of delays.
pub mod delays;
/// A round of outputs, and its delivery: at least once, or exactly once.
pub mod delivery;
/// One capacity for all instances of a group.
pub mod group;
/// Partitions: completed and held records, room in commits, pauses. Knows no clients.
pub mod ledger;
mod linked_list;
/// The text that travels in a commit's metadata.
pub mod offset_map;
/// Completed offsets as runs.
pub mod offset_runs;
/// The capacity, found from commits.
pub mod pace;
/// Patterns for the ids of clients and groups.
pub mod pattern;
/// The configuration of one service.
pub mod policy;
/// Reasons for rejections.
pub mod reason;
/// Rules: the settings of clients, groups and the service, and the times at which they are valid.
pub mod rules;
/// Clients, backlogs, fair queueing, gates and cycles: which record goes when. Knows no offsets.
pub mod scheduler;
/// The names of delayed records.
pub mod slot;
/// Start here: the state machine that joins scheduler and ledger.
pub mod throttle;
/// The completed offsets of one partition.
pub mod tracker;
/// Time, weights and ratios.
pub mod units;
/// A count of events over the last cycle.
pub mod window;
