//! The room that borrowers leave in the window for the usual demand of lenders (reject mode).
//!
//! A lender's record waits if borrowers have filled the window. So a borrower takes only room that lenders do not need
//! before as much room returns: if they send `x` records, with the deviation √x of a random demand, until the record
//! number `gone` leaves the window, they need `x + √x − gone` beyond what leaves. The largest need over all departures
//! is kept free, and never less than the deviation of a hundredth of a cycle. A record that is admitted now leaves a
//! whole window later, so the need of a whole window bounds the loans until the next look.

use crate::units::Time;
use crate::window::SlidingCount;

/// Binary places of a number of records.
const PLACES: u32 = 16;
/// More records than any capacity, with room for the binary places.
const MAX_RECORDS: u64 = 1 << 46;

/// The answer of the last look.
#[derive(Debug, Default)]
pub(super) struct LentRoom {
    lenders: u64,
    until: Time,
    /// Records, with [`PLACES`] binary places.
    kept: u64,
}

impl LentRoom {
    /// Returns whether a window of up to `limit` records has room for a borrower, if lenders usually send `lenders`
    /// records in a cycle. The window is walked through once in a slice.
    pub fn leaves_some(&mut self, now: Time, limit: u64, lenders: u64, window: &mut SlidingCount) -> bool {
        if now >= self.until || lenders != self.lenders {
            *self = LentRoom { lenders, until: window.next_change(now), kept: find(now, limit, lenders, window) };
        }
        u128::from(limit.saturating_sub(window.count(now))) << PLACES > u128::from(self.kept)
    }
}

/// The records that come in a time, and their deviation.
fn with_deviation(records: u64) -> u64 {
    records + (records.isqrt() << (PLACES / 2))
}

/// The deviation of a hundredth of a cycle.
fn least(lenders: u64) -> u64 {
    let records = (lenders.min(MAX_RECORDS) << PLACES) / 100;
    with_deviation(records) - records
}

fn find(now: Time, limit: u64, lenders: u64, window: &mut SlidingCount) -> u64 {
    let length = u128::from(window.length());
    let in_cycle = u128::from(lenders.min(MAX_RECORDS) << PLACES);
    let (mut most, mut gone) = (least(lenders), 0_u64);
    for (at, n) in window.departures(now) {
        let sent = (in_cycle * u128::from(at.nanos_since(now)) / length) as u64;
        most = most.max(with_deviation(sent).saturating_sub(gone << PLACES));
        gone = gone.saturating_add(n).min(MAX_RECORDS);
    }
    // If the lenders need everything, one record is lent until the next look.
    let in_window = with_deviation(in_cycle as u64).min(limit.saturating_sub(1).min(MAX_RECORDS) << PLACES);
    most.max(in_window.saturating_sub(gone << PLACES))
}

/// The time at which a window with this limit has room for a borrower if nothing is admitted until then, or a little
/// later: each rejection asks, so the deviations of all times count as much as the largest one.
pub(super) fn opens_at(now: Time, limit: u64, lenders: u64, window: &mut SlidingCount) -> Time {
    let least = (least(lenders) >> PLACES) + 1;
    let open = window.below_at(now, limit.saturating_sub(least).max(1));
    let Some(nanos_of_record) = window.length().checked_div(lenders) else { return open };
    let (count, deviation) = (window.count(now), limit.isqrt() + 1);
    let mut gone = limit;
    window.departures(now).fold(open, |open, (at, n)| {
        let covered = gone.saturating_sub(count).saturating_sub(deviation).saturating_mul(nanos_of_record);
        gone = gone.saturating_add(n);
        open.max(Time::from_nanos(at.as_nanos().saturating_sub(covered)))
    })
}
