//! The pure core of Watermaster: no clock, no I/O, no log. Time is an argument.
//!
//! One service is one [`Throttle`](throttle::Throttle), driven by its owner in this order:
//!
//! 1. `handle_*` tells it what happened (a partition came, a record was read, a round was committed);
//! 2. `poll_action` is called until it has nothing more to say (a delayed record may go, a partition should pause);
//! 3. `poll_timeout` says when to come back if nothing happens before.
//!
//! Ids and sizes go in, never payloads.

pub mod allocator;
pub mod backlog;
pub mod bucket;
pub mod chunks;
pub mod delays;
pub mod delivery;
pub mod limit;
pub mod map;
pub mod policy;
pub mod reason;
pub mod registry;
pub mod throttle;
pub mod tracker;
pub mod units;
pub mod window;
