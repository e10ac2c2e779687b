//! Targets that move only when the demand does.
//!
//! Demands are counts of random arrivals over a second, so that the targets of a split tremble by several percent. A
//! hold that follows them is never quite used. So targets are averaged while they only tremble, and follow at once
//! when they move by more than that. A rise of up to an eighth counts at once, too: to ask for a little too much
//! costs nothing while there is room.

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
pub(crate) struct SmoothTargets {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CYCLE: Duration = Duration::from_secs(10);
    const LOOK: Duration = Duration::from_millis(50);

    /// A split of the capacity in proportion to these weights.
    fn split(capacity: u64, weights: &[u64]) -> Vec<u64> {
        let all: u64 = weights.iter().sum();
        let exact = |weight: &u64| (u128::from(capacity * weight) << FRACTION_BITS) / u128::from(all);
        round_to(capacity, &weights.iter().map(exact).collect::<Vec<_>>(), 0)
    }

    proptest! {
        /// The averages of any splits add up to the capacity, also when it changes. A target rises above its average by
        /// an eighth at most, and by no less if the split says so.
        #[test]
        fn smooth_targets_add_up_to_the_capacity(
            capacity in prop_oneof![1..50_u64, 50..1_000_000_u64],
            splits in prop_oneof![
                prop::collection::vec((Just(0), prop::collection::vec(1..1_000_u64, 4)), 1..50),
                // Splits that only tremble.
                prop::collection::vec((0..20_u64, prop::collection::vec(950..1_050_u64, 4)), 1..50),
            ],
        ) {
            let (mut smooth, mut risen) = (SmoothTargets::default(), SmoothTargets::default());
            let mut now = Time::ZERO;
            for (change, weights) in splits {
                now = now + LOOK;
                // A change of the capacity is rare.
                let capacity = if change == 0 { capacity + capacity.div_ceil(100) } else { capacity };
                let split = split(capacity, &weights);
                let average = smooth.average(now, CYCLE, capacity, &split);
                prop_assert_eq!(average.iter().sum::<u64>(), capacity);
                let targets = risen.towards(now, CYCLE, capacity, &split);
                for ((target, average), exact) in targets.into_iter().zip(average).zip(split) {
                    let risen = average + average / RISE_PART;
                    prop_assert!((average..=risen).contains(&target));
                    prop_assert!(target >= exact.min(risen), "{target} of {exact}, {average} on average");
                }
            }
        }

        /// A step of all targets by more than four spreads and a 64th of the capacity is followed with one look.
        #[test]
        fn a_step_is_followed_at_once(
            noise in prop::collection::vec(0..40_u64, 200),
            step in 300..2_000_u64,
        ) {
            let mut smooth = SmoothTargets::default();
            let mut now = Time::ZERO;
            for noise in noise {
                now = now + LOOK;
                let target = smooth.towards(now, CYCLE, 10_000, &[3_000 + noise, 7_000 - noise])[0];
                // The first split sets the target, and noise moves it only by a part of the noise.
                prop_assert!((3_000..=3_040).contains(&target), "{target}");
            }
            let split = [3_000 + step, 7_000 - step];
            prop_assert_eq!(smooth.towards(now + LOOK, CYCLE, 10_000, &split), split);
        }
    }

    /// Targets once trembled with the arrivals of a second, and the part of a hold that came and went was not used.
    #[test]
    fn targets_that_tremble_are_averaged() {
        let mut smooth = SmoothTargets::default();
        let mut now = Time::ZERO;
        let mut falls = 0_u64;
        let mut last = 0_u64;
        for look in 0..400_u64 {
            now = now + LOOK;
            // ± 10 % of a member's target, within a fifth of a second.
            let off = [0, 60, 100, 60, 0, 0][look as usize % 6] * if look / 6 % 2 == 0 { 1 } else { 0 };
            let averages = smooth.average(now, CYCLE, 10_000, &[1_000 + off, 9_000 - off]);
            falls += if look > 200 { last.abs_diff(averages[0]) } else { 0 };
            last = averages[0];
        }
        // The splits move by 3 200 records meanwhile.
        assert!(falls < 320, "{falls} records");
        assert!((1_010..1_030).contains(&last), "{last}");
    }
}
