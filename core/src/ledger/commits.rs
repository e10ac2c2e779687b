//! Commits: the committable offset, and recent admissions by the wall clock.

use super::Ledger;
use crate::offset_map::{self, AdmissionSlice, TooLarge};
use crate::units::{NANOS_PER_MILLI, Time};

/// Wall clocks that differ by no more than this are taken for equal.
const CLOCK_JITTER_MS: u64 = 2;

impl Ledger {
    /// Takes the wall clock, in milliseconds since the Unix epoch.
    pub fn set_wall_clock(&mut self, now: Time, wall_ms: i64) {
        let ahead = wall_ms.saturating_sub((now.as_nanos() / NANOS_PER_MILLI) as i64);
        // Two clocks that are read one after the other differ by a rounding. Slices that moved by it would be charged
        // twice when a partition comes back.
        if ahead.abs_diff(self.wall_ahead_ms) > CLOCK_JITTER_MS {
            self.wall_ahead_ms = ahead;
        }
    }

    /// Partitions in which a record completed since their last commit.
    pub fn touched(&self) -> impl Iterator<Item = u32> + '_ {
        let touched = (0u32..).zip(&self.partitions).filter(|(_, partition)| partition.assigned && partition.touched);
        touched.map(|(number, _)| number)
    }

    /// Sets whether a partition has anything to commit.
    pub fn set_touched(&mut self, number: u32, touched: bool) {
        self.partitions[number as usize].touched = touched;
    }

    /// The committable offset and its offset map, as if the offsets of `without` were not completed.
    ///
    /// # Errors
    /// The map does not fit in its budget.
    pub fn commit(&mut self, now: Time, number: u32, without: &[i64]) -> Result<(i64, String), TooLarge> {
        let partition = &mut self.partitions[number as usize];
        let ahead = self.wall_ahead_ms;
        let admitted: Vec<AdmissionSlice> =
            partition.recent_admissions.slices(now).map(|slice| admission_slice(slice, ahead)).collect();
        let earlier = (!without.is_empty()).then(|| partition.tracker.without(without));
        let tracker = earlier.as_ref().unwrap_or(&partition.tracker);
        let text = offset_map::encode(self.map_room.budget, tracker, self.map_room.slice_ms, &admitted)?;
        let base = tracker.base();
        partition.map_characters = u32::try_from(text.chars().count()).unwrap_or(u32::MAX);
        Ok((base, text))
    }
}

fn admission_slice((end, admitted): (Time, u64), wall_ahead_ms: i64) -> AdmissionSlice {
    let end_ms = ((end.as_nanos() / NANOS_PER_MILLI) as i64).saturating_add(wall_ahead_ms).max(0);
    AdmissionSlice { end_ms, admitted }
}
