//! The state of a controller as the shell shows it.

use std::time::Duration;

use strum::{IntoStaticStr, VariantNames};

use super::signals::TargetPartition;
use super::{ChangeCause, Control, MILLI, Pace};
use crate::units::{Ratio, Time};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum PaceState {
    /// The capacity is not known yet.
    #[default]
    Learning,
    /// The service takes at least the estimate: it was never late.
    AtLeast,
    /// The service takes the estimate: it was late above it.
    Found,
    /// The service is late.
    Late,
    /// The service commits nothing although records are open.
    Stalled,
    /// Few records wait, so that nothing is learned.
    NoDemand,
    /// The offsets can't be read, or the group has committed none.
    NoSignal,
    /// Another instance admits records to the same service.
    NotAlone,
    /// The service is late, or commits nothing, although the limit is the floor.
    AtFloor,
    /// The estimate is the ceiling.
    AtCeiling,
}

/// A controller at one moment. Rates are in records per cycle.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PaceView {
    pub state: PaceState,
    pub control: Control,
    /// The estimate; `None` while it is unknown.
    pub found: Option<u64>,
    /// The service takes at least the estimate; perhaps it takes more.
    pub at_least: bool,
    /// The limit; the configured capacity if the estimate is only reported.
    pub limit: u64,
    pub floor: u64,
    pub ceiling: u64,
    /// The part of the estimate that is let through.
    pub brake: Ratio,
    /// The age of the oldest open record beyond the usual one, over most partitions.
    pub late: Duration,
    /// The age that a commit usually leaves open, and the usual time between two commits: the largest of any partition.
    pub usual: Duration,
    pub gap: Duration,
    /// Offsets that the group has not committed.
    pub open_offsets: u64,
    /// The rate that the service finished at the last check; `None` while it is unknown.
    pub rate: Option<u64>,
    /// The time since the offsets were read; `None` before the first time.
    pub signal_age: Option<Duration>,
    pub stuck_partitions: usize,
    /// Changes of the estimate, up and down, by cause.
    pub changes: [[u64; ChangeCause::VARIANTS.len()]; 2],
}

impl Pace {
    pub fn view(&self, now: Time) -> PaceView {
        let estimate = self.estimate.milli;
        let rounded = |milli: u64| (milli + MILLI / 2) / MILLI;
        let partitions = || self.signals.partitions.values();
        PaceView {
            state: self.state(),
            control: self.params.control,
            found: (estimate > 0).then(|| rounded(estimate)),
            at_least: !self.estimate.was_too_high(),
            limit: self.limit(),
            floor: self.params.floor,
            ceiling: self.params.ceiling,
            brake: Ratio::from_millionths(self.brake as u32).unwrap_or(Ratio::ONE),
            late: Duration::from_nanos(self.signals.late),
            usual: Duration::from_nanos(self.signals.longest(TargetPartition::usual)),
            gap: Duration::from_nanos(self.signals.longest(|partition| partition.gap)),
            open_offsets: partitions().map(TargetPartition::open_offsets).sum(),
            rate: self.rates.last.map(rounded),
            signal_age: self.contact.told_at.map(|at| now.since(at)),
            stuck_partitions: partitions().filter(|partition| partition.is_stuck(now)).count(),
            changes: self.estimate.changes,
        }
    }

    /// The estimate, 0 while it is unknown, and the limit in thousandths of a record per cycle.
    pub fn milli(&self) -> (u64, u64) {
        (self.estimate.milli, self.limit)
    }

    fn state(&self) -> PaceState {
        let (applies, estimate) = (self.params.control == Control::Apply, self.estimate.milli);
        let target = self.params.target(self.known_estimate());
        // The limit may be the floor while the service is on time: it was late, and nothing came since. No step up is
        // taken above half of the target.
        let keeps_up = !self.signals.stalled && self.signals.late < target / 2;
        if self.contact.follows {
            PaceState::NotAlone
        } else if self.contact.blind_since.is_some() || self.contact.told_at.is_none() {
            PaceState::NoSignal
        } else if applies && !keeps_up && self.limit <= self.params.floor * MILLI {
            PaceState::AtFloor
        } else if self.signals.stalled {
            PaceState::Stalled
        } else if self.signals.late > target {
            PaceState::Late
        } else if applies && estimate >= self.params.ceiling * MILLI {
            PaceState::AtCeiling
        } else if applies && !self.records_wait() {
            PaceState::NoDemand
        } else if self.estimate.was_too_high() {
            PaceState::Found
        } else if estimate > 0 && !applies {
            PaceState::AtLeast
        } else {
            PaceState::Learning
        }
    }
}
