//! The settings of a controller, and the offsets that it is told.

use std::time::Duration;

use strum::{EnumString, IntoStaticStr, VariantNames};

use super::MILLI;
use crate::units::nanos;

/// A service that takes this many records in more than `max_behind` is late by chance.
const CHANCE_RECORDS: u64 = 20;

/// The use that is made of the estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, EnumString, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Control {
    /// The estimate is only reported. Nothing probes: the service shows what it takes by its own traffic.
    #[default]
    Observe,
    /// The limit follows the estimate.
    Apply,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum ChangeCause {
    /// The service was late.
    Late,
    /// The service was on time.
    Probe,
    /// The offsets were unknown for too long.
    Signal,
    /// The configuration changed.
    Reload,
}

/// The settings of a [`Pace`].
#[derive(Debug, Clone, PartialEq)]
pub struct PaceParams {
    pub control: Control,
    /// The estimate at the start, in records per cycle. After `signal_timeout` without offsets the estimate is no
    /// higher.
    pub capacity: u64,
    /// The limit is never lower, in records per cycle.
    pub floor: u64,
    /// The limit is never higher, in records per cycle.
    pub ceiling: u64,
    pub cycle: Duration,
    /// The lateness that is tolerated.
    pub max_behind: Duration,
    /// The time between two changes of the estimate.
    pub interval: Duration,
    /// The longest time without offsets during which an estimate above `capacity` stays.
    pub signal_timeout: Duration,
}

impl PaceParams {
    /// A rate within the bounds.
    pub(super) fn clamped(&self, milli: u64) -> u64 {
        milli.max(self.floor * MILLI).min(self.ceiling.max(self.floor) * MILLI)
    }

    /// The lateness from which on the brake acts, with this estimate.
    pub(super) fn target(&self, estimate: u64) -> u64 {
        let by_chance =
            u128::from(CHANCE_RECORDS * MILLI) * u128::from(nanos(self.cycle)) / u128::from(estimate.max(1));
        nanos(self.max_behind).max(u64::try_from(by_chance).unwrap_or(u64::MAX / 4))
    }
}

/// The offsets of one partition of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offsets {
    pub partition: i32,
    /// The end of its stable records.
    pub end: i64,
    pub committed: i64,
}
