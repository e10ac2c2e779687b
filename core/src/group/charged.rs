//! Admissions that count against a hold, and were not made by this life of the instance.

use std::collections::BTreeMap;
use std::time::Duration;

use super::state::Slice;
use crate::group::GroupParams;
use crate::units::{NANOS_PER_MILLI, Time, nanos};

/// The parts of a cycle by which the ages in a state are rounded.
const SLICES: u64 = 64;

/// Numbers of admissions, each with the moment from which on it counts for a cycle, perhaps in the future.
#[derive(Debug, Clone, Default)]
pub(super) struct Charged {
    slices: BTreeMap<Time, u64>,
    sum: u64,
}

impl Charged {
    pub fn add(&mut self, at: Time, count: u64) {
        let count = count.min(u64::MAX - self.sum);
        if count > 0 {
            *self.slices.entry(at).or_default() += count;
            self.sum += count;
        }
    }

    /// Adds slices that a record carried which was read at `read`. Time has passed since they had these ages, so they
    /// count for longer than they have to.
    pub fn add_slices(&mut self, read: Time, slices: &[Slice]) {
        for slice in slices {
            let age = Duration::from_millis(slice.age_ms.unsigned_abs());
            self.add(if slice.age_ms < 0 { read + age } else { read - age }, slice.count);
        }
    }

    /// Takes the numbers whose moment has come, oldest first.
    pub fn take_until(&mut self, now: Time) -> BTreeMap<Time, u64> {
        let later = self.slices.split_off(&(now + Duration::from_nanos(1)));
        let taken = std::mem::replace(&mut self.slices, later);
        self.sum -= taken.values().sum::<u64>();
        taken
    }

    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The numbers, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (Time, u64)> {
        self.slices.iter().map(|(&at, &count)| (at, count))
    }
}

/// The slices of a state that is made now: the admissions that still count. Ages are rounded down, so that they count
/// for longer.
pub(super) fn slices(now: Time, params: &GroupParams, charged: &Charged) -> Vec<Slice> {
    let width = i64::try_from((nanos(params.cycle) / NANOS_PER_MILLI / SLICES).max(1)).unwrap_or(i64::MAX);
    let millis = |from: Time, to: Time| i64::try_from(to.nanos_since(from) / NANOS_PER_MILLI).unwrap_or(i64::MAX);
    let window = params.window();
    let mut by_age = BTreeMap::<i64, u64>::new();
    for (at, count) in charged.iter().filter(|(at, _)| *at + window > now) {
        // A part of a millisecond of the future is rounded up.
        let age_ms = if at > now { -millis(now, at) - 1 } else { millis(at, now) };
        *by_age.entry(age_ms.div_euclid(width) * width).or_default() += count;
    }
    by_age.into_iter().map(|(age_ms, count)| Slice { age_ms, count }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::Policy;

    /// Many lie near the end of the window.
    fn distances() -> impl Strategy<Value = i64> {
        prop_oneof![-1_500..1_500_i64, -1_001..-998_i64]
    }

    proptest! {
        /// Admissions that travel in a state count at its reader for at least as long as they do at its author: the
        /// reader's clock has another start, and time passes before it reads the state.
        #[test]
        fn admissions_count_at_a_reader_for_at_least_as_long(
            cycle_ms in prop_oneof![1..200_u64, 1..4_000_000_u64],
            // In thousandths of a cycle, before or after the making.
            admissions in prop::collection::vec((distances(), 1..100_u64), 0..50),
            read_at in 1 << 40..1_u64 << 50,
            late in prop_oneof![Just(0), 0..3_000_u64],
        ) {
            let cycle = Duration::from_millis(cycle_ms);
            let params = GroupParams::new(&Policy::new(100, cycle), cycle, cycle);
            let thousandths = |n: u64| Duration::from_nanos(nanos(cycle) / 1_000 * n);
            let made = Time::from_nanos(1 << 54);
            let mut own = Charged::default();
            for (distance, count) in admissions {
                let distance_from = thousandths(distance.unsigned_abs());
                own.add(if distance < 0 { made - distance_from } else { made + distance_from }, count);
            }
            let read = Time::from_nanos(read_at);
            let mut other = Charged::default();
            other.add_slices(read, &slices(made, &params, &own));
            let later = thousandths(late);
            let window = params.window();
            let count_at = |charged: &Charged, now: Time| -> u64 {
                charged.iter().filter(|(at, _)| *at + window > now).map(|(_, count)| count).sum()
            };
            let (counts, count) = (count_at(&other, read + later), count_at(&own, made + later));
            prop_assert!(counts >= count, "{counts} of {count} after {later:?}");
        }
    }
}
