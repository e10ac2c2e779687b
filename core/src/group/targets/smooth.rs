//! Targets that move only when the demand does.
//!
//! Demands are counts of random arrivals over a second, so that the targets of a split tremble by several percent. A hold
//! that follows them is never quite used. So targets are averaged while they only tremble, and follow at once when they
//! move by more than that. A rise of up to an eighth counts at once, too: to ask for a little too much costs nothing
//! while there is room.

use std::time::Duration;

use super::{FRACTION_BITS, round_to};
use crate::units::{Time, nanos};

/// The shortest time over which targets are averaged. It grows with the time since the last jump, to half a cycle.
const MIN_AVERAGED_OVER: Duration = Duration::from_secs(1);
/// A target jumps if it differs from its mean by more than this number of spreads, and by more than the capacity ÷
/// [`SMALL_JUMP`].
const JUMP_SPREADS: u128 = 4;
const SMALL_JUMP: u128 = 64;
/// The part of a smooth target by which a rise counts at once.
const RISE_PART: u64 = 8;

/// Averages of the targets of all members.
#[derive(Debug, Default)]
pub(in crate::group) struct SmoothTargets {
    members: Vec<Smooth>,
    capacity: u64,
    /// The time of the last jump.
    jumped: Time,
    at: Time,
}

/// The mean of a target, and the mean distance from it, in 2⁻¹⁶ records.
#[derive(Debug, Default, Clone, Copy)]
struct Smooth {
    mean: u128,
    spread: u128,
}

impl SmoothTargets {
    /// Moves towards the targets of a split. Returns the smooth targets, with their rise.
    pub fn towards(&mut self, now: Time, cycle: Duration, capacity: u64, split: &[u64]) -> Vec<u64> {
        let smooth = self.average(now, cycle, capacity, split).into_iter();
        smooth.zip(split).map(|(smooth, &target)| smooth.max(target.min(smooth + smooth / RISE_PART))).collect()
    }

    /// Averages targets that add up to the capacity. The averages do so, too.
    fn average(&mut self, now: Time, cycle: Duration, capacity: u64, split: &[u64]) -> Vec<u64> {
        let exact = |target: &u64| u128::from(*target) << FRACTION_BITS;
        // A member that took the place of another one begins with its average: it jumps if its target is quite another.
        let is_new = (self.members.len(), self.capacity) != (split.len(), capacity);
        let small = exact(&capacity) / SMALL_JUMP;
        let differs = |(smooth, target): (&Smooth, &u64)| {
            exact(target).abs_diff(smooth.mean) > small.max(smooth.spread * JUMP_SPREADS)
        };
        if is_new {
            self.members = vec![Smooth::default(); split.len()];
        }
        if is_new || self.members.iter().zip(split).any(differs) {
            self.members.iter_mut().zip(split).for_each(|(smooth, target)| smooth.mean = exact(target));
            (self.capacity, self.jumped) = (capacity, now);
        }
        let longest = MIN_AVERAGED_OVER.max(cycle / 2);
        let over = u128::from(nanos(now.since(self.jumped).clamp(MIN_AVERAGED_OVER, longest)));
        let passed = u128::from(now.nanos_since(self.at.max(self.jumped)));
        let moved = |from: u128, to: u128| (from * over + to * passed) / (over + passed);
        for (smooth, target) in self.members.iter_mut().zip(split) {
            smooth.spread = moved(smooth.spread, exact(target).abs_diff(smooth.mean));
            smooth.mean = moved(smooth.mean, exact(target));
        }
        self.at = now;
        let means: Vec<u128> = self.members.iter().map(|smooth| smooth.mean).collect();
        round_to(capacity, &means, 0)
    }
}
