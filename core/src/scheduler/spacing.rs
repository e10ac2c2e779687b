//! The pace of admissions: the largest constant rate at which no record meets a full window.
//!
//! A bucket that leaks at the capacity per cycle is not enough. A burst fills the window before a cycle is over; then
//! nothing goes until slices leave the window, in lumps, and the lumps come back with each cycle. So the bucket leaks
//! more slowly while the window asks for it. Let the window hold `count` records, of which `gone(d)` leave it before
//! `d` has passed, and let `limit(d)` be its limit then. A client that takes all that the bucket gives sends
//! ⌊free + rate · d⌋ records in `d`. None of them meets a full window if for each departure, and for the end of the
//! window, record number `limit(d) + gone(d) − count + 1` comes no earlier than `d`:
//!
//! ```text
//! rate = min over d of (limit(d) + gone(d) − count + 1 − free) ÷ d
//! ```
//!
//! The rate is the slope of the lower hull of these points as seen from (0, free), and so it stays nearly constant
//! from one look to the next. A member of a group whose hold is below its pace expects the hold to grow to its pace
//! until the windows of those that give it back are empty.
//!
//! The dual question is the least limit under which records may go at a given rate: [`least_limit`]. A member gives
//! back no more than its limit exceeds that.

use std::time::Duration;

use super::bucket::LeakyBucket;
use crate::policy::Policy;
use crate::units::{NANOS_PER_MILLI, Ratio, Time, nanos};

/// The cost of a burst: the part of the full pace by which it may slow the next cycle down, in millionths. A larger
/// `burst` of the policy may cost as much as it is.
const BURST_COST: u32 = 100_000;
/// A delay of the owner below this is no lateness.
const MIN_LATENESS: u64 = 2 * NANOS_PER_MILLI;
/// The margin for lateness: a multiple of the largest one, since that comes back once in each cycle.
const LATENESS_FACTOR: u64 = 3;
/// The largest lateness that counts, as a part of the window.
const MAX_LATENESS_PART: u64 = 12;

/// A moment of the coming window: `most` units of the bucket may have gone by then.
#[derive(Debug, Clone, Copy)]
struct CurvePoint {
    most: u128,
    nanos: u64,
}

/// Finds the pace.
#[derive(Debug)]
pub(super) struct Spacing {
    length: u64,
    /// The part of the full pace that a burst must leave, in millionths.
    kept: u32,
    /// A buffer.
    points: Vec<CurvePoint>,
    /// The time at which the owner was told to come back for a waiting record.
    pub promised: Time,
    /// The largest lateness of the owner in the last window, and its time. While the owner is away, records that could
    /// go do not, and leave a gap in the departures one window later. Without a margin the rate would be as low as in
    /// the gap.
    lateness: (u64, Time),
}

impl Spacing {
    pub fn new(policy: &Policy) -> Spacing {
        let lateness = (0, Time::ZERO);
        let mut spacing = Spacing { length: 0, kept: 0, points: Vec::new(), promised: Time::NEVER, lateness };
        spacing.change(policy);
        spacing
    }

    pub fn change(&mut self, policy: &Policy) {
        self.length = nanos(policy.window_length());
        self.kept = Ratio::ONE.millionths() - policy.burst.millionths().max(BURST_COST);
    }

    /// Makes the bucket leak at the largest rate that does not meet the window. The window holds `count` records, which
    /// leave it at the times of `departures`, ascending, with their numbers. `limit_in` tells its limit in so many
    /// nanoseconds, and is asked for ascending times.
    pub fn pace(
        &mut self, now: Time, bucket: &mut LeakyBucket, count: u64, departures: impl Iterator<Item = (Time, u64)>,
        mut limit_in: impl FnMut(u64) -> u64,
    ) {
        let (record, late) = (bucket.record, self.margin(now));
        let point = |(nanos, gone): (u64, u64)| {
            // A window that is too full has to find the bucket ready when it opens.
            let room = (limit_in(nanos).saturating_add(gone)).saturating_sub(count);
            CurvePoint { most: u128::from(room + 1) * record, nanos: nanos - late }
        };
        let end = (now + Duration::from_nanos(self.length), 0);
        self.points.clear();
        self.points.extend(moments(now, departures.chain([end])).filter(|(nanos, _)| *nanos > late).map(point));

        let full = bucket.full_rate;
        let kept = full * u128::from(self.kept) / u128::from(Ratio::ONE.millionths());
        // The rate makes up for the time in which the owner is away.
        let full = full * u128::from(self.length) / u128::from((self.length - late).max(1));
        let mut free = bucket.room(now);
        let mut usable = u128::MAX;
        if free > record {
            let cost = |point: &CurvePoint| point.most.saturating_sub(kept * u128::from(point.nanos));
            usable = self.points.iter().map(cost).fold(usable, u128::min).max(record);
            free = free.min(usable);
        }
        let rate = |point: &CurvePoint| point.most.saturating_sub(free) / u128::from(point.nanos);
        bucket.slow_down(self.points.iter().map(rate).fold(full, u128::min), usable);
    }

    /// Notes that the owner looks at the waiting records.
    #[inline]
    pub fn note_look(&mut self, now: Time) {
        let late = now.nanos_since(self.promised);
        if late >= MIN_LATENESS && late > self.margin(now) {
            self.lateness = (late, now);
        }
        self.promised = Time::NEVER;
    }

    /// The margin for lateness: it fades over a window.
    fn margin(&self, now: Time) -> u64 {
        let (most, at) = self.lateness;
        let left = self.length - now.nanos_since(at).min(self.length);
        let most = most.min(self.length / MAX_LATENESS_PART);
        (u128::from(most) * u128::from(left) / u128::from(self.length.max(1))) as u64 * LATENESS_FACTOR
    }
}

/// The times of departures in nanoseconds from now, with the number of records that have left the window before each.
fn moments(now: Time, departures: impl Iterator<Item = (Time, u64)>) -> impl Iterator<Item = (u64, u64)> {
    departures.scan(0_u64, move |gone, (at, n)| {
        let before = *gone;
        *gone = gone.saturating_add(n);
        Some((at.nanos_since(now).max(1), before))
    })
}

/// The least limit under which records can go at `pace` records per cycle without meeting a full window, as long as the
/// limit is no lower than the pace. `departures` are the times at which records leave the window, ascending, with their
/// numbers.
pub(crate) fn least_limit(now: Time, departures: impl Iterator<Item = (Time, u64)>, cycle: Duration, pace: u64) -> u64 {
    let cycle = u128::from(nanos(cycle).max(1));
    let mut count = 0_u64;
    let departures = departures.inspect(|&(_, n)| count = count.saturating_add(n));
    let need = |(nanos, gone): (u64, u64)| {
        let sent = (u128::from(pace) * u128::from(nanos)).div_ceil(cycle);
        u64::try_from(sent).unwrap_or(u64::MAX).saturating_sub(gone)
    };
    let most = moments(now, departures).map(need).fold(0, u64::max);
    count.saturating_add(most)
}
