//! A count of events over the last cycle, such as admissions.
//!
//! The count is kept in slices of half a percent of a cycle (at least 1 ms), so that it takes the same memory for any
//! number of records. It is conservative: a slice counts until all of it has left the window, so the count is never too
//! low and at most one slice too high.
//!
//! A slice is too coarse for a few records: at two records a cycle, a client that sends exactly once a cycle would find
//! its last record still counted. So the times of the newest records are kept, too, and while they are all that the
//! window holds, the count is exact.

use std::collections::{BTreeMap, VecDeque};
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
    /// The exact times of the newest records, oldest first.
    times: VecDeque<u64>,
    /// Times are kept while the slices hold at most this many records: those of two full windows.
    max_times: u64,
    /// Before this moment the window may hold records without kept times.
    unknown_until: u64,
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
    /// An empty window that counts up to `records` records by their exact times. Times take up to 16 bytes for each of
    /// these records: the slices may hold as many records again that have just left the window.
    pub fn exact_up_to(records: usize, cycle: Duration) -> SlidingCount {
        let (cycle, width) = (nanos(cycle), nanos(slice_width(cycle)));
        SlidingCount {
            cycle,
            width,
            ring: Box::default(),
            // A window touches one slice more than it is long, at either end.
            len: cycle / width + 2,
            oldest: 0,
            sum: 0,
            leaves: width.saturating_add(cycle),
            latest: Latest::default(),
            times: VecDeque::new(),
            max_times: 2 * records as u64,
            unknown_until: if records == 0 { u64::MAX } else { 0 },
        }
    }

    /// Counts at least so many records by their exact times from now on. Records without known times have to leave the
    /// window first.
    pub fn keep_times(&mut self, records: usize) {
        self.max_times = self.max_times.max(2 * records as u64);
    }

    /// The number of records in the window that ends now: exact while all their times are known, else never too low.
    #[inline]
    pub fn count(&mut self, now: Time) -> u64 {
        self.expire(now);
        if now.as_nanos() < self.unknown_until { self.sum } else { self.count_by_times(now) }
    }

    #[cold]
    fn count_by_times(&mut self, now: Time) -> u64 {
        self.exact_count(now).unwrap_or(self.sum)
    }

    /// The number of records in the window that ends now, if the times of all of them are kept.
    #[inline]
    fn exact_count(&mut self, now: Time) -> Option<u64> {
        let (now, cycle) = (now.as_nanos(), self.cycle);
        while self.times.front().is_some_and(|time| time.saturating_add(cycle) <= now) {
            self.times.pop_front();
        }
        (now >= self.unknown_until).then_some(self.times.len() as u64)
    }

    /// The number of records that are in the window that ends now without any doubt: never more than there are, but for
    /// records of a former owner or from before the cycle had another length, which were moved to later slices.
    pub fn count_at_least(&mut self, now: Time) -> u64 {
        self.expire(now);
        match self.exact_count(now) {
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
        if self.sum <= self.max_times {
            return self.add_with_times(now, n);
        }
        self.add_expired(now, n);
        self.sum
    }

    #[inline]
    fn add_expired(&mut self, now: Time, n: u64) {
        let within = now.as_nanos().wrapping_sub(self.latest.start) < self.width && self.latest.number >= self.oldest;
        match self.ring.get_mut(self.latest.place) {
            Some(slice) if within => *slice += n,
            _ => *self.look_up(now) += n,
        }
        self.sum += n;
    }

    /// Adds to a window of few records. Once the slices hold more than times are kept of, they alone count until these
    /// records have left.
    #[cold]
    fn add_with_times(&mut self, now: Time, n: u64) -> u64 {
        self.add_expired(now, n);
        if self.sum > self.max_times {
            self.give_up_times();
            return self.sum;
        }
        self.times.extend(std::iter::repeat_n(now.as_nanos(), n as usize));
        self.count_by_times(now)
    }

    /// Makes the slice of this moment the latest one. Returns its count.
    #[cold]
    fn look_up(&mut self, now: Time) -> &mut u64 {
        let number = self.slice_of(now).max(self.oldest);
        // So that there is a ring.
        self.at(number);
        let place = usize::try_from(number % self.len).expect("a few hundred slices");
        self.latest = Latest { number, start: number * self.width, place };
        if self.sum >= self.max_times {
            self.give_up_times();
        }
        &mut self.ring[place]
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
        if now.as_nanos() >= self.unknown_until {
            let last = self.times[(left - limit) as usize];
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

    /// Adds the slices of a former owner, each with its end and its admissions, less what this window's slices
    /// hold. A slice from the future counts as now. Slices that are one slice here, those of a shorter cycle or by a
    /// clock that was ahead, count together. `added` is told the time from which on records count, and their number.
    pub fn inherit(
        &mut self, now: Time, slices: impl IntoIterator<Item = (Time, u64)>, mut added: impl FnMut(Time, u64),
    ) {
        self.expire(now);
        let mut sums = BTreeMap::<u64, u64>::new();
        for (end, n) in slices {
            let slice = self.slice_of(Time::from_nanos(end.as_nanos().saturating_sub(1))).min(self.slice_of(now));
            let sum = sums.entry(slice).or_default();
            *sum = sum.saturating_add(n);
        }
        for (slice, n) in sums.split_off(&self.oldest) {
            let missing = n.saturating_sub(*self.at(slice));
            let n = self.add_to_slice(now, slice, missing);
            if n > 0 {
                added(Time::from_nanos(slice * self.width), n);
            }
        }
    }

    /// Removes a record that was added at this moment, unless it has left the window.
    pub fn remove_at(&mut self, now: Time, when: Time) {
        self.expire(now);
        let slice = self.slice_of(when);
        if slice < self.oldest {
            return;
        }
        // Slices of another width moved to their ends.
        let Some(slice) = (slice..=self.slice_of(now)).find(|&slice| *self.at(slice) > 0) else { return };
        *self.at(slice) -= 1;
        self.sum -= 1;
        if let Ok(place) = self.times.binary_search(&when.as_nanos()) {
            self.times.remove(place);
        }
    }

    /// Adds `n` at an earlier moment; nothing if it has left the window.
    pub fn add_at(&mut self, now: Time, when: Time, n: u64) {
        self.expire(now);
        let slice = self.slice_of(when);
        if slice >= self.oldest {
            self.add_to_slice(now, slice, n);
        }
    }

    /// Adds `n` without their times to a slice in the window. Returns the number added: a forged count must not
    /// overflow what is added up.
    fn add_to_slice(&mut self, now: Time, slice: u64, n: u64) -> u64 {
        let n = n.min(MAX_HELD.saturating_sub(self.sum));
        *self.at(slice) += n;
        self.sum += n;
        if n > 0 {
            self.forget_times_until(self.slice_of(now));
        }
        n
    }

    /// Records are added without their times, now or before: the slices alone count until this one has left the window.
    /// (More may be added to it without their times, if it holds too many now.)
    fn forget_times_until(&mut self, slice: u64) {
        let leaves = (slice + 1).saturating_mul(self.width).saturating_add(self.cycle);
        self.unknown_until = self.unknown_until.max(leaves);
    }

    /// The window holds too many records: the slices alone count until those of the latest slice have left.
    fn give_up_times(&mut self) {
        self.forget_times_until(self.latest.number);
        self.times.clear();
    }

    /// The count over another cycle.
    pub fn over(&mut self, now: Time, cycle: Duration) -> SlidingCount {
        self.moved_to(now, SlidingCount::exact_up_to(self.max_times as usize / 2, cycle))
    }

    /// The count in an empty window of perhaps another cycle. Each slice counts from its end, so for longer, never
    /// shorter; a longer window starts with the records that the shorter one holds.
    pub fn moved_to(&mut self, now: Time, empty: SlidingCount) -> SlidingCount {
        let mut other = empty;
        for (end, n) in self.slices(now) {
            other.add_at(now, Time::from_nanos(end.as_nanos() - 1).min(now), n);
        }
        if self.exact_count(now).is_some_and(|count| count < other.max_times) {
            (other.times, other.unknown_until) = (self.times.clone(), self.unknown_until);
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

    /// The times at which records leave the window, ascending, with their numbers: one by one if there are few, else by
    /// slices. The numbers add up to the count.
    pub fn departures(&mut self, now: Time) -> impl Iterator<Item = (Time, u64)> + '_ {
        self.expire(now);
        let exact = self.exact_count(now);
        // Within a slice, records of the oldest one have left by their exact times.
        let mut left = self.sum - exact.unwrap_or(self.sum);
        let is_exact = exact.is_some_and(|count| count <= EXACT_RECORDS as u64);
        let (width, cycle, first) = (self.width, self.cycle, self.oldest);
        let after = move |at: u64| Time::from_nanos(at.saturating_add(cycle));
        let times = self.times.iter().take(if is_exact { usize::MAX } else { 0 });
        let middle = (self.oldest % self.len) as usize;
        let (newer, older) = if is_exact || self.sum == 0 { Default::default() } else { self.ring.split_at(middle) };
        let slices = older.iter().chain(newer).zip(first + 1..).filter_map(move |(n, end)| {
            let stay = n.saturating_sub(std::mem::take(&mut left));
            (stay > 0).then(|| (after(end * width), stay))
        });
        times.map(move |at| (after(*at), 1)).chain(slices)
    }

    /// The time until which the departures are the same: the next one, or one slice from now.
    pub fn next_change(&mut self, now: Time) -> Time {
        let (soon, next_slice) = (now + Duration::from_nanos(1), now + Duration::from_nanos(self.width));
        self.departures(now).next().map_or(next_slice, |(at, _)| at.clamp(soon, next_slice))
    }

    /// The length of the window in nanoseconds.
    pub fn length(&self) -> u64 {
        self.cycle
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
mod tests;
