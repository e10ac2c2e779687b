//! Time, weights and ratios, all exact.

use std::{num::NonZeroU32, time::Duration};

/// A moment on the owner's monotonic clock: nanoseconds since an arbitrary start.
///
/// The core never reads a clock; a `Time` that lies before the last one it saw does nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The start of the clock.
    pub const ZERO: Time = Time(0);
    /// Later than anything that happens.
    pub const NEVER: Time = Time(u64::MAX);

    /// The moment `nanos` nanoseconds after the start.
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// Nanoseconds since the start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to this moment, zero if `earlier` is later.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    /// [`since`](Time::since) in nanoseconds: a `Duration` is not free to make.
    pub const fn nanos_since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl std::ops::Add<Duration> for Time {
    type Output = Time;
    /// Saturates at [`Time::NEVER`].
    fn add(self, duration: Duration) -> Time {
        Time(self.0.saturating_add(nanos(duration)))
    }
}

impl std::ops::Sub<Duration> for Time {
    type Output = Time;
    /// Saturates at [`Time::ZERO`].
    fn sub(self, duration: Duration) -> Time {
        Time(self.0.saturating_sub(nanos(duration)))
    }
}

/// Nanoseconds in a millisecond.
pub(crate) const NANOS_PER_MILLI: u64 = 1_000_000;

/// A duration in whole nanoseconds, saturating at 584 years.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A client's weight in thousandths, from 0.001 to 1 000 000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Weight(u64);

impl Default for Weight {
    fn default() -> Weight {
        Weight::ONE
    }
}

impl Weight {
    /// The weight of a client that has none configured.
    pub const ONE: Weight = Weight(1_000);

    /// A weight of so many thousandths; `None` outside 1 to 10⁹.
    pub const fn from_thousandths(thousandths: u64) -> Option<Weight> {
        if thousandths >= 1 && thousandths <= 1_000_000_000 { Some(Weight(thousandths)) } else { None }
    }

    pub const fn thousandths(self) -> u64 {
        self.0
    }
}

/// A ratio from 0 to 1 in millionths, such as a reservation or a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Ratio(u32);

impl Ratio {
    pub const ZERO: Ratio = Ratio(0);
    /// All of it.
    pub const ONE: Ratio = Ratio(1_000_000);

    /// A ratio of so many millionths; `None` above 1 000 000.
    pub const fn from_millionths(millionths: u32) -> Option<Ratio> {
        if millionths <= Self::ONE.0 { Some(Ratio(millionths)) } else { None }
    }

    pub const fn millionths(self) -> u32 {
        self.0
    }
}

/// The largest capacity of a service, in records per cycle.
pub const MAX_CAPACITY: u64 = 1_000_000_000_000;

/// The last millisecond of the year 9999 in UTC, since the Unix epoch: no later time can be written.
pub const LAST_MS: i64 = 253_402_300_799_999;

/// The most by which the clocks of a group's machines differ in rate: a thousandth.
const MARGIN: Ratio = Ratio::from_millionths(1_000).expect("a thousandth is a ratio");

/// A time that is no shorter than `duration` on the clock of any machine of the group.
pub fn lengthened(duration: Duration) -> Duration {
    let nanos = u128::from(nanos(duration));
    let more = (nanos * u128::from(MARGIN.millionths())).div_ceil(u128::from(Ratio::ONE.millionths()));
    Duration::from_nanos(u64::try_from(nanos + more).unwrap_or(u64::MAX))
}

/// A client's own limit: a token bucket that refills `rate` tokens per `per` and holds `burst`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Limit {
    /// Records per `per`.
    pub rate: NonZeroU32,
    /// The time in which `rate` records may go.
    pub per: Duration,
    /// Records that may go at once.
    pub burst: NonZeroU32,
}

impl Limit {
    /// The number of records that it allows in this time in the long run.
    pub fn pace_in(&self, time: Duration) -> f64 {
        f64::from(self.rate.get()) * time.as_secs_f64() / self.per.as_secs_f64()
    }

    /// The most records that go in this time where each needs room under all of these limits.
    pub(crate) fn most_in(limits: &[Limit], time: Duration) -> u64 {
        let most = limits.iter().map(|limit| limit.pace_in(time).ceil() as u64 + u64::from(limit.burst.get()));
        most.min().unwrap_or(u64::MAX)
    }

    /// A part of this limit, for one of several instances.
    pub(crate) fn part(&self, ratio: Ratio) -> Limit {
        self.times(ratio.millionths().max(1).into(), Ratio::ONE.millionths().into())
    }

    /// This limit times `factor` ÷ `of`: another time for as many records, exact to a nanosecond, and another burst of
    /// at least one record.
    pub(crate) fn times(&self, factor: u64, of: u64) -> Limit {
        let (rate, factor, of) = (self.rate, u128::from(factor), u128::from(of));
        let per = (self.per.as_nanos() * of / factor).max(u128::from(rate.get()));
        let burst = (u128::from(self.burst.get()) * factor / of).min(u128::from(u32::MAX)) as u32;
        Limit {
            rate,
            per: Duration::from_nanos(u64::try_from(per).unwrap_or(u64::MAX)),
            burst: NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN),
        }
    }
}
