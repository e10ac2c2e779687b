//! How many were admitted in the last cycle, counted in slices.
//!
//! The count is conservative: a slice counts until all of it has left the window, so what is reported is never
//! less than the truth and at most one slice (half a percent of a cycle, at least 1 ms) more.

use std::time::Duration;

use crate::units::{Time, nanos};

const MILLI: u64 = 1_000_000;

/// The slices of one cycle.
const SLICES: u64 = 200;

/// Whole milliseconds, so that a slice keeps its place when its end travels in a commit as milliseconds.
pub fn slice_width(cycle: Duration) -> Duration {
    Duration::from_millis(nanos(cycle).div_ceil(SLICES).div_ceil(MILLI).max(1))
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
    /// When the oldest slice leaves the window. With [`Latest`] it spares nearly every call the divisions.
    leaves: u64,
    latest: Latest,
}

/// The slice that was added to last.
#[derive(Debug, Clone, Copy, Default)]
struct Latest {
    number: u64,
    /// Its first nanosecond.
    start: u64,
    /// Where it stands in the ring.
    place: usize,
}

impl SlidingCount {
    /// An empty window as long as a cycle.
    pub fn new(cycle: Duration) -> SlidingCount {
        let (cycle, width) = (nanos(cycle), nanos(slice_width(cycle)));
        // A window touches one slice more than it is long, at either end.
        let (len, leaves, latest) = (cycle / width + 2, width.saturating_add(cycle), Latest::default());
        SlidingCount { cycle, width, ring: Box::default(), len, oldest: 0, sum: 0, leaves, latest }
    }

    /// How many the window that ends now holds.
    #[inline]
    pub fn count(&mut self, now: Time) -> u64 {
        self.expire(now);
        self.sum
    }

    /// Adds what happens now. Returns how many the window that ends now holds.
    #[inline]
    pub fn add(&mut self, now: Time, n: u64) -> u64 {
        self.expire(now);
        let within = now.as_nanos().wrapping_sub(self.latest.start) < self.width && self.latest.number >= self.oldest;
        if !within || self.ring.is_empty() {
            self.look_up(now);
        }
        self.ring[self.latest.place] += n;
        self.sum += n;
        self.sum
    }

    /// Makes the slice of this moment the latest one.
    #[cold]
    fn look_up(&mut self, now: Time) {
        let number = self.slice_of(now).max(self.oldest);
        // So that there is a ring.
        self.at(number);
        let place = usize::try_from(number % self.len).expect("a few hundred slices");
        self.latest = Latest { number, start: number * self.width, place };
    }

    /// When the window will next hold less, if nothing is added; `None` if it is empty.
    pub fn next_release(&mut self, now: Time) -> Option<Time> {
        let held = self.count(now);
        (held > 0).then(|| self.below_at(now, held))
    }

    /// When the window will hold less than `limit`, if nothing is added; never, if that is 0.
    pub fn below_at(&mut self, now: Time, limit: u64) -> Time {
        let mut left = self.count(now);
        if left < limit {
            return now;
        }
        if limit == 0 || self.ring.is_empty() {
            return Time::NEVER;
        }
        // Each rejection asks, and while a window is full the answer lies far from its oldest slice: no division on the way.
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

    /// Charges what was admitted earlier by another owner: `n` in the slice that ends at `end`. What this window
    /// holds for that slice already is not charged again. A slice from the future counts as now.
    /// Returns what was added and when it counts from.
    pub fn inherit(&mut self, now: Time, end: Time, n: u64) -> Option<(Time, u64)> {
        self.expire(now);
        let slice = self.slice_of(Time::from_nanos(end.as_nanos().saturating_sub(1))).min(self.slice_of(now));
        if slice < self.oldest {
            return None;
        }
        let held = *self.at(slice);
        let missing = n.saturating_sub(held);
        *self.at(slice) += missing;
        self.sum += missing;
        (missing > 0).then(|| (Time::from_nanos(slice * self.width), missing))
    }

    /// Adds `n` at an earlier moment; nothing if it has left the window.
    pub fn add_at(&mut self, now: Time, when: Time, n: u64) {
        self.expire(now);
        let slice = self.slice_of(when);
        if slice >= self.oldest {
            *self.at(slice) += n;
            self.sum += n;
        }
    }

    /// The same over another cycle. Each slice counts from its end, so for longer, never shorter; a longer window begins with
    /// what the shorter one remembers.
    pub fn over(&mut self, now: Time, cycle: Duration) -> SlidingCount {
        let mut other = SlidingCount::new(cycle);
        for (end, n) in self.slices(now) {
            other.add_at(now, Time::from_nanos(end.as_nanos() - 1).min(now), n);
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

    /// Lets go of the slices that lie wholly before the window; an earlier `now` does nothing.
    #[inline]
    fn expire(&mut self, now: Time) {
        if now.as_nanos() >= self.leaves {
            self.let_go(now);
        }
    }

    #[cold]
    fn let_go(&mut self, now: Time) {
        let oldest = now.as_nanos().saturating_sub(self.cycle) / self.width;
        if self.sum == 0 {
            // Nothing to let go of.
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
    use super::*;

    const CYCLE: Duration = Duration::from_secs(1);

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * MILLI)
    }

    #[test]
    fn what_was_added_counts_for_a_cycle_and_at_most_a_slice_more() {
        let mut window = SlidingCount::new(CYCLE);
        window.add(at(5_003), 7);
        assert_eq!(window.count(at(6_003)), 7);
        assert_eq!(window.next_release(at(5_500)), Some(at(6_005)));
        assert_eq!(window.count(at(6_005)), 0);
        assert_eq!(window.next_release(at(6_005)), None);
    }

    #[test]
    fn a_long_silence_empties_it() {
        let mut window = SlidingCount::new(CYCLE);
        window.add(at(1), 3);
        assert_eq!(window.count(at(3_600_000)), 0);
        window.add(at(3_600_000), 1);
        assert_eq!(window.count(at(3_600_001)), 1);
    }

    #[test]
    fn it_holds_less_from_when_it_says_on() {
        let mut window = SlidingCount::new(CYCLE);
        // Around the ring's end, with empty slices between.
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
    fn inheriting_twice_charges_once_and_the_future_is_now() {
        let mut window = SlidingCount::new(CYCLE);
        window.add(at(5_001), 2);
        assert_eq!(window.inherit(at(5_100), at(5_005), 5), Some((at(5_000), 3)));
        assert_eq!(window.inherit(at(5_100), at(5_005), 5), None);
        assert_eq!(window.inherit(at(5_100), at(9_000), 4), Some((at(5_100), 4)));
        assert_eq!(window.count(at(5_100)), 9);
        assert_eq!(window.inherit(at(7_000), at(5_005), 5), None);
    }

    #[test]
    fn time_that_runs_backwards_loses_nothing() {
        let mut window = SlidingCount::new(CYCLE);
        window.add(at(9_000), 1);
        window.add(at(100), 1);
        assert_eq!(window.count(at(9_000)), 2);
    }
}
