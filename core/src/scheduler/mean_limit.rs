//! The mean of the limits that were in force over a window.

use std::collections::VecDeque;
use std::time::Duration;

use crate::units::{Time, nanos};
use crate::window::slice_width;

/// The limits of one cycle.
#[derive(Debug)]
pub(super) struct MeanLimit {
    cycle: u64,
    /// Of two former limits in a row, one covers at least this time, in nanoseconds: there are a few hundred at most.
    width: u64,
    current: u64,
    since: Time,
    /// The limits before, oldest first, without gaps.
    former: VecDeque<Former>,
}

#[derive(Debug)]
struct Former {
    from: Time,
    until: Time,
    limit: u64,
}

impl MeanLimit {
    /// One limit for all the time so far.
    pub(super) fn new(cycle: Duration, limit: u64) -> MeanLimit {
        let width = nanos(slice_width(cycle));
        MeanLimit { cycle: nanos(cycle), width, current: limit, since: Time::ZERO, former: VecDeque::new() }
    }

    /// Changes the limit. Limits that were in force for a short time are merged to the lower one.
    pub(super) fn change(&mut self, now: Time, limit: u64) {
        let is_short = |from: Time, until: Time| until.nanos_since(from) < self.width;
        let merges = is_short(self.since, now);
        match self.former.back_mut().filter(|last| merges && is_short(last.from, last.until)) {
            Some(last) => {
                (last.until, last.limit) = (now, last.limit.min(self.current));
            }
            None => self.former.push_back(Former { from: self.since, until: now, limit: self.current }),
        }
        (self.current, self.since) = (limit, now);
    }

    /// The mean over the window that ends now, rounded down, and the time until which it holds: it is the least mean of
    /// any window that ends until then.
    pub(super) fn mean(&mut self, now: Time) -> (u64, Time) {
        let start = Time::from_nanos(now.as_nanos().saturating_sub(self.cycle));
        while self.former.front().is_some_and(|former| former.until <= start) {
            self.former.pop_front();
        }
        let Some(oldest) = self.former.front() else { return (self.current, Time::NEVER) };
        // Until the oldest limit has left the window, the mean changes at a constant rate.
        let leaves = Time::from_nanos(oldest.until.as_nanos().saturating_add(self.cycle));
        let until = leaves.min(Time::from_nanos(now.as_nanos().saturating_add(self.width)));
        (self.mean_at(now).min(self.mean_at(until)), until)
    }

    /// The means of the windows that end in these nanoseconds, later and later, if the limit stays: one walk along the
    /// former limits, as each leaves the window. `None` if the limit has not changed within the window.
    pub(super) fn forecast(&self, now: Time) -> impl FnMut(u64) -> Option<u64> {
        let MeanLimit { cycle, current, former, .. } = self;
        let mut sum = if former.is_empty() { 0 } else { self.sum_at(now) };
        // The nanoseconds until the end of the window of `sum`, and the former limit that leaves the window next.
        let (mut passed, mut next) = (0_u64, 0);
        move |nanos| {
            if former.is_empty() {
                return None;
            }
            while let Some(leaving) = former.get(next).filter(|_| passed < nanos) {
                let left_after = leaving.until.as_nanos().saturating_add(*cycle).saturating_sub(now.as_nanos());
                let step = u128::from(left_after.min(nanos).saturating_sub(passed));
                sum = (sum + u128::from(*current) * step).saturating_sub(u128::from(leaving.limit) * step);
                passed = passed.max(left_after.min(nanos));
                if left_after <= nanos {
                    next += 1;
                }
            }
            passed = passed.max(nanos);
            Some(u64::try_from(sum / u128::from((*cycle).max(1))).unwrap_or(u64::MAX))
        }
    }

    fn mean_at(&self, end: Time) -> u64 {
        (self.sum_at(end) / u128::from(self.cycle.max(1))) as u64
    }

    /// The sum of the limits of each nanosecond of the window that ends at this time.
    fn sum_at(&self, end: Time) -> u128 {
        let start = Time::from_nanos(end.as_nanos().saturating_sub(self.cycle));
        // The oldest limit stands for the time before the clock began, too.
        let mut covered = self.cycle - end.nanos_since(start);
        let mut sum = u128::from(self.former.front().map_or(self.current, |oldest| oldest.limit)) * u128::from(covered);
        for former in &self.former {
            let time = former.until.nanos_since(former.from.max(start));
            sum += u128::from(former.limit) * u128::from(time);
            covered += time;
        }
        sum + u128::from(self.current) * u128::from(self.cycle.saturating_sub(covered))
    }
}
