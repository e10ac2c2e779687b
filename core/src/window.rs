//! A count of events over the last cycle, such as admissions.
//!
//! The count is kept in slices of half a percent of a cycle (at least 1 ms), so that it takes the same memory for any
//! number of records. It is conservative: a slice counts until all of it has left the window, so the count is never too
//! low and at most one slice too high.
//!
//! A slice is too coarse for a few records: at two records a cycle, a client that sends exactly once a cycle would find
//! its last record still counted. So the times of the newest records are kept, too, and while they are all that the
//! window holds, the count is exact.

use std::time::Duration;

use crate::units::{NANOS_PER_MILLI, Time, nanos};

/// The slices of one cycle.
pub const SLICES: u64 = 200;

/// While a window holds at most this many records, it counts them by their exact times.
pub const EXACT_RECORDS: usize = 16;

/// No window holds more: far beyond any capacity, and with room above it.
const MAX_HELD: u64 = 1 << 62;

/// Whole milliseconds, so that a slice keeps its place when its end travels in a commit as milliseconds.
pub fn slice_width(cycle: Duration) -> Duration {
    Duration::from_millis(nanos(cycle).div_ceil(SLICES).div_ceil(NANOS_PER_MILLI).max(1))
}

/// A count over the window (now − cycle, now].
#[derive(Debug, Clone)]
pub struct SlidingCount {
    cycle: u64,
    width: u64,
    /// Slice number `s` stands at `s % len`.
    /// Empty until something is added: many clients never are admitted anything.
    ring: Box<[u64]>,
    len: u64,
    /// The oldest slice that may still hold something.
    oldest: u64,
    sum: u64,
    /// The time at which the oldest slice leaves the window. With [`Latest`] it spares nearly every call the divisions.
    leaves: u64,
    latest: Latest,
    times: Times,
}

/// The exact times of the records that were added last.
#[derive(Debug, Clone)]
struct Times {
    /// A ring of a power of two, empty until a record is added; record number `n` stands at `n` modulo its length.
    ring: Box<[u64]>,
    /// The largest length of the ring.
    limit: u64,
    /// The numbers of the records that are kept: `oldest..next`.
    oldest: u64,
    next: u64,
    /// Before this moment the window may hold records without kept times.
    unknown_until: u64,
}

impl Times {
    fn new(limit: u64) -> Times {
        let unknown_until = if limit == 0 { u64::MAX } else { 0 };
        Times { ring: Box::default(), limit, oldest: 0, next: 0, unknown_until }
    }

    /// Keeps the time of `n` records that are added now.
    fn push(&mut self, now: u64, n: u64, cycle: u64) {
        for _ in 0..n {
            if self.next - self.oldest >= self.ring.len() as u64 {
                self.make_room(now, cycle);
            }
            let place = self.place(self.next);
            self.ring[place] = now;
            self.next += 1;
        }
    }

    /// Makes room for one more; the ring is long enough for all records that the slices hold.
    #[cold]
    fn make_room(&mut self, now: u64, cycle: u64) {
        self.expire(now, cycle);
        if self.next - self.oldest >= self.ring.len() as u64 {
            self.grow();
        }
    }

    fn grow(&mut self) {
        let length = (self.ring.len() * 2).max(EXACT_RECORDS);
        let mut grown = vec![0; length].into_boxed_slice();
        for number in self.oldest..self.next {
            grown[number as usize & (length - 1)] = self.ring[self.place(number)];
        }
        self.ring = grown;
    }

    /// The length is a power of two, so that truncating the number first changes nothing.
    #[inline]
    fn place(&self, number: u64) -> usize {
        number as usize & (self.ring.len() - 1)
    }

    /// Forgets the times that have left the window.
    fn expire(&mut self, now: u64, cycle: u64) {
        while self.oldest < self.next && self.ring[self.place(self.oldest)].saturating_add(cycle) <= now {
            self.oldest += 1;
        }
    }

    /// The number of records in the window that ends now, if the times of all of them are kept.
    #[inline]
    fn count(&mut self, now: u64, cycle: u64) -> Option<u64> {
        if now < self.unknown_until {
            return None;
        }
        self.expire(now, cycle);
        Some(self.next - self.oldest)
    }
}

/// The slice that was added to last.
#[derive(Debug, Clone, Copy, Default)]
struct Latest {
    number: u64,
    /// The first nanosecond of the slice.
    start: u64,
    /// The index in the ring.
    place: usize,
}

impl SlidingCount {
    /// An empty window as long as a cycle, which counts up to [`EXACT_RECORDS`] records by their exact times.
    pub fn new(cycle: Duration) -> SlidingCount {
        SlidingCount::exact_up_to(EXACT_RECORDS, cycle)
    }

    /// An empty window that counts up to `records` records, zero or a power of two from [`EXACT_RECORDS`], by their
    /// exact times. Times take up to 16 bytes for each of these records: the slices may hold as many records again that
    /// have just left the window.
    pub fn exact_up_to(records: usize, cycle: Duration) -> SlidingCount {
        let (cycle, width) = (nanos(cycle), nanos(slice_width(cycle)));
        // A window touches one slice more than it is long, at either end.
        let (len, leaves, latest) = (cycle / width + 2, width.saturating_add(cycle), Latest::default());
        let (times, ring) = (Times::new(2 * records as u64), Box::default());
        SlidingCount { cycle, width, ring, len, oldest: 0, sum: 0, leaves, latest, times }
    }

    /// The number of records in the window that ends now: exact while all their times are known, else never too low.
    #[inline]
    pub fn count(&mut self, now: Time) -> u64 {
        self.expire(now);
        if now.as_nanos() < self.times.unknown_until { self.sum } else { self.count_by_times(now) }
    }

    #[cold]
    fn count_by_times(&mut self, now: Time) -> u64 {
        self.times.count(now.as_nanos(), self.cycle).unwrap_or(self.sum)
    }

    /// The number of records that are in the window that ends now without any doubt: never more than there are, but for
    /// records of a former owner or from before the cycle had another length, which were moved to later slices.
    pub fn count_at_least(&mut self, now: Time) -> u64 {
        self.expire(now);
        match self.times.count(now.as_nanos(), self.cycle) {
            Some(count) => count,
            None if self.ring.is_empty() => 0,
            // The window begins within its oldest slice.
            None => self.sum - *self.at(self.oldest),
        }
    }

    /// Adds `n` now. Returns the count of the window that ends now.
    #[inline]
    pub fn add(&mut self, now: Time, n: u64) -> u64 {
        self.expire(now);
        self.add_counted(now, n)
    }

    /// Adds right after a [`count`](SlidingCount::count) at this moment.
    #[inline]
    pub fn add_counted(&mut self, now: Time, n: u64) -> u64 {
        if self.sum < self.times.limit {
            return self.add_with_times(now, n);
        }
        self.add_expired(now, n);
        self.sum
    }

    /// Adds `n` now to a window that keeps no times.
    #[inline]
    pub fn add_to_slice(&mut self, now: Time, n: u64) {
        self.expire(now);
        self.add_expired(now, n);
    }

    #[inline]
    fn add_expired(&mut self, now: Time, n: u64) {
        let within = now.as_nanos().wrapping_sub(self.latest.start) < self.width && self.latest.number >= self.oldest;
        if !within || self.ring.is_empty() {
            self.look_up(now);
        }
        self.ring[self.latest.place] += n;
        self.sum += n;
    }

    /// Adds to a window of few records. Once the slices hold more than times are kept of, they alone count until these
    /// records have left.
    #[cold]
    fn add_with_times(&mut self, now: Time, n: u64) -> u64 {
        self.add_expired(now, n);
        if self.sum >= self.times.limit {
            self.give_up_times();
            return self.sum;
        }
        self.times.push(now.as_nanos(), n, self.cycle);
        self.count_by_times(now)
    }

    /// Makes the slice of this moment the latest one.
    #[cold]
    fn look_up(&mut self, now: Time) {
        let number = self.slice_of(now).max(self.oldest);
        // So that there is a ring.
        self.at(number);
        let place = usize::try_from(number % self.len).expect("a few hundred slices");
        self.latest = Latest { number, start: number * self.width, place };
        if self.sum >= self.times.limit {
            self.give_up_times();
        }
    }

    /// The time at which the window will hold less, if nothing is added; `None` if it is empty.
    pub fn next_release(&mut self, now: Time) -> Option<Time> {
        let held = self.count(now);
        (held > 0).then(|| self.below_at(now, held))
    }

    /// The time at which the window will hold less than `limit`, if nothing is added; never for a limit of 0.
    pub fn below_at(&mut self, now: Time, limit: u64) -> Time {
        let mut left = self.count(now);
        if left < limit {
            return now;
        }
        if limit == 0 || self.ring.is_empty() {
            return Time::NEVER;
        }
        if now.as_nanos() >= self.times.unknown_until {
            let last = self.times.ring[self.times.place(self.times.oldest + left - limit)];
            return Time::from_nanos(last.saturating_add(self.cycle));
        }
        // Each rejection asks, and the answer lies far from the oldest slice of a full window: no division on the way.
        let (newer, older) = self.ring.split_at((self.oldest % self.len) as usize);
        let mut slice = self.oldest;
        for held in older.iter().chain(newer) {
            left -= held;
            slice += 1;
            if left < limit {
                break;
            }
        }
        Time::from_nanos(slice * self.width + self.cycle)
    }

    /// Adds admissions of a former owner: `n` in the slice that ends at `end`, less those that the slice holds
    /// already. A slice from the future counts as now. Returns the time from which on the added records count, and
    /// their number.
    pub fn inherit(&mut self, now: Time, end: Time, n: u64) -> Option<(Time, u64)> {
        self.expire(now);
        let slice = self.slice_of(Time::from_nanos(end.as_nanos().saturating_sub(1))).min(self.slice_of(now));
        if slice < self.oldest {
            return None;
        }
        let held = *self.at(slice);
        // A forged count must not overflow what is added up.
        let missing = n.saturating_sub(held).min(MAX_HELD.saturating_sub(self.sum));
        *self.at(slice) += missing;
        self.sum += missing;
        (missing > 0).then(|| {
            self.forget_times_until(self.slice_of(now));
            (Time::from_nanos(slice * self.width), missing)
        })
    }

    /// Adds `n` at an earlier moment; nothing if it has left the window.
    pub fn add_at(&mut self, now: Time, when: Time, n: u64) {
        self.expire(now);
        let slice = self.slice_of(when);
        if slice >= self.oldest {
            let n = n.min(MAX_HELD.saturating_sub(self.sum));
            *self.at(slice) += n;
            self.sum += n;
            self.forget_times_until(self.slice_of(now));
        }
    }

    /// Records are added without their times, now or before: the slices alone count until this one has left the window.
    /// (More may be added to it without their times, if it holds too many now.)
    fn forget_times_until(&mut self, slice: u64) {
        let leaves = (slice + 1).saturating_mul(self.width).saturating_add(self.cycle);
        self.times.unknown_until = self.times.unknown_until.max(leaves);
    }

    /// The window holds too many records: the slices alone count until those of the latest slice have left.
    fn give_up_times(&mut self) {
        self.forget_times_until(self.latest.number);
        self.times.oldest = self.times.next;
    }

    /// The count over another cycle. Each slice counts from its end, so for longer, never shorter; a longer window
    /// starts with the records that the shorter one holds.
    pub fn over(&mut self, now: Time, cycle: Duration) -> SlidingCount {
        let mut other = SlidingCount::exact_up_to(self.times.limit as usize / 2, cycle);
        for (end, n) in self.slices(now) {
            other.add_at(now, Time::from_nanos(end.as_nanos() - 1).min(now), n);
        }
        if self.times.count(now.as_nanos(), self.cycle).is_some() {
            other.times = self.times.clone();
        }
        other
    }

    /// The slices that hold something, oldest first: their ends and counts.
    pub fn slices(&mut self, now: Time) -> impl Iterator<Item = (Time, u64)> + '_ {
        self.expire(now);
        let (len, width, oldest) = (self.len, self.width, self.oldest);
        let slices = if self.sum == 0 { 0 } else { len };
        (oldest..oldest + slices).filter_map(move |slice| {
            let n = self.ring[(slice % len) as usize];
            (n > 0).then(|| (Time::from_nanos((slice + 1) * width), n))
        })
    }

    fn slice_of(&self, at: Time) -> u64 {
        at.as_nanos() / self.width
    }

    fn at(&mut self, slice: u64) -> &mut u64 {
        if self.ring.is_empty() {
            let len = usize::try_from(self.len).expect("a few hundred slices");
            self.ring = vec![0; len].into_boxed_slice();
        }
        &mut self.ring[(slice % self.len) as usize]
    }

    /// Removes the slices that lie wholly before the window; an earlier `now` does nothing.
    #[inline]
    fn expire(&mut self, now: Time) {
        if now.as_nanos() >= self.leaves {
            self.remove_expired(now);
        }
    }

    #[cold]
    fn remove_expired(&mut self, now: Time) {
        let oldest = now.as_nanos().saturating_sub(self.cycle) / self.width;
        if self.sum == 0 {
            // No slice holds anything.
        } else if oldest - self.oldest >= self.len {
            self.ring.fill(0);
            self.sum = 0;
        } else {
            for slice in self.oldest..oldest {
                let gone = std::mem::take(self.at(slice));
                self.sum -= gone;
            }
        }
        self.oldest = oldest;
        self.leaves = (oldest + 1).saturating_mul(self.width).saturating_add(self.cycle);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CYCLE: Duration = Duration::from_secs(1);

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * NANOS_PER_MILLI)
    }

    #[test]
    fn records_count_for_a_cycle_and_at_most_a_slice_more() {
        let mut window = SlidingCount::exact_up_to(0, CYCLE);
        window.add(at(5_003), 7);
        assert_eq!(window.count(at(6_003)), 7);
        assert_eq!(window.next_release(at(5_500)), Some(at(6_005)));
        assert_eq!(window.count(at(6_005)), 0);
        assert_eq!(window.next_release(at(6_005)), None);
    }

    #[test]
    fn a_long_silence_empties_the_window() {
        let mut window = SlidingCount::new(CYCLE);
        window.add(at(1), 3);
        assert_eq!(window.count(at(3_600_000)), 0);
        window.add(at(3_600_000), 1);
        assert_eq!(window.count(at(3_600_001)), 1);
    }

    #[test]
    fn the_count_is_below_the_limit_from_the_predicted_time() {
        let mut window = SlidingCount::exact_up_to(0, CYCLE);
        // Records around the end of the ring, with empty slices between them.
        for (ms, n) in [(5_003, 2), (5_004, 1), (5_500, 4), (5_998, 3)] {
            window.add(at(ms), n);
        }
        for (limit, from) in [(11, 5_998), (10, 6_005), (8, 6_005), (7, 6_505), (4, 6_505), (3, 7_000), (1, 7_000)] {
            assert_eq!(window.below_at(at(5_998), limit), at(from), "below {limit}");
            let mut later = window.clone();
            assert!(later.count(at(from)) < limit, "below {limit}");
        }
        assert_eq!(window.below_at(at(5_998), 0), Time::NEVER);
    }

    #[test]
    fn inheriting_twice_charges_once_and_future_slices_count_now() {
        let mut window = SlidingCount::new(CYCLE);
        window.add(at(5_001), 2);
        assert_eq!(window.inherit(at(5_100), at(5_005), 5), Some((at(5_000), 3)));
        assert_eq!(window.inherit(at(5_100), at(5_005), 5), None);
        assert_eq!(window.inherit(at(5_100), at(9_000), 4), Some((at(5_100), 4)));
        assert_eq!(window.count(at(5_100)), 9);
        assert_eq!(window.inherit(at(7_000), at(5_005), 5), None);
    }

    #[test]
    fn time_that_runs_backwards_loses_no_record() {
        let mut window = SlidingCount::new(CYCLE);
        window.add(at(9_000), 1);
        window.add(at(100), 1);
        assert_eq!(window.count(at(9_000)), 2);
    }

    /// The bug: at two records a cycle, the last record of a client that sends exactly once a cycle still counted.
    #[test]
    fn few_records_leave_exactly_after_a_cycle() {
        let mut window = SlidingCount::new(CYCLE);
        window.add(at(5_003), 2);
        assert_eq!(window.next_release(at(5_500)), Some(at(6_003)));
        assert_eq!(window.count(Time::from_nanos(6_003 * NANOS_PER_MILLI - 1)), 2);
        assert_eq!(window.count(at(6_003)), 0);
    }

    /// Records added some milliseconds after the last ones, an inherited slice, or a new cycle length.
    #[derive(Debug, Clone)]
    enum Step {
        Add(u64, u64),
        Inherit(u64, u64),
        Over(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let wait = || prop_oneof![4 => 0..30_u64, 2 => 0..400_u64, 1 => 0..2_500_u64];
        let step = prop_oneof![
            20 => (wait(), prop_oneof![6 => Just(1_u64), 1 => 1..40_u64]).prop_map(|(wait, n)| Step::Add(wait, n)),
            1 => (0..1_500_u64, 1..10_u64).prop_map(|(age, n)| Step::Inherit(age, n)),
            1 => prop_oneof![Just(1_000_u64), Just(500), 1_000..3_000_u64].prop_map(Step::Over),
        ];
        proptest::collection::vec(step, 1..120)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        /// The count is never below the true number, the certain count never above it, and both are exact while the
        /// window holds few records of its own.
        #[test]
        fn counts_enclose_the_truth_and_few_records_are_counted_exactly(steps in steps(), limit in 0..3_usize) {
            let limit = [0, EXACT_RECORDS, 64][limit];
            let mut cycle = 1_000;
            let mut window = SlidingCount::exact_up_to(limit, Duration::from_millis(cycle));
            let (mut now, mut own, mut inexact_until, mut changed) = (10_000, Vec::new(), 0, false);
            let mut inherited: Vec<u64> = Vec::new();
            for step in steps {
                match step {
                    Step::Add(wait, n) => {
                        now += wait;
                        own.extend((0..n).map(|_| now));
                        window.add(at(now), n);
                    }
                    Step::Inherit(age, n) => {
                        let width = slice_width(Duration::from_millis(cycle)).as_millis() as u64;
                        let end = (now - age).div_ceil(width) * width;
                        if let Some((_, missing)) = window.inherit(at(now), at(end), n) {
                            inherited.extend((0..missing).map(|_| end.min(now)));
                            inexact_until = inexact_until.max(now + 2 * cycle);
                        }
                    }
                    Step::Over(length) => {
                        // A longer window keeps no more records than the shorter one held.
                        own.retain(|added| added + cycle > now);
                        inherited.retain(|added| added + cycle > now);
                        window = window.over(at(now), Duration::from_millis(length));
                        inexact_until = inexact_until.max(if inexact_until > now { now + 2 * length } else { 0 });
                        (cycle, changed) = (length, true);
                    }
                }
                let within = |times: &[u64]| times.iter().filter(|added| **added + cycle > now).count() as u64;
                let truth = within(&own);
                let count = window.count(at(now));
                prop_assert!(count >= truth);
                if inherited.is_empty() && !changed {
                    prop_assert!(window.count_at_least(at(now)) <= truth);
                }
                if truth > limit as u64 {
                    inexact_until = inexact_until.max(now + 2 * cycle);
                }
                if limit > 0 && now >= inexact_until {
                    prop_assert_eq!(count, truth);
                    if truth > 0 {
                        let mut times: Vec<u64> = own.iter().copied().filter(|added| added + cycle > now).collect();
                        times.sort_unstable();
                        let below = window.below_at(at(now), truth);
                        prop_assert_eq!(below, at(times[0] + cycle));
                    }
                }
            }
        }
    }
}
