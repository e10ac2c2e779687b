//! Counts of a simulation: for each client the fate of its records, their delays, and its backlog.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;
use watermaster_core::reason::{Reason, ReasonCounts};
use watermaster_core::units::Time;

use crate::load::account::RecordTimes;

const NANOS_PER_MILLI: u64 = 1_000_000;

/// The counts of one client.
#[derive(Debug, Default)]
pub struct Tally {
    pub(super) records: u64,
    admitted: u64,
    /// Records that joined the backlog.
    pub(super) delayed: u64,
    rejected: ReasonCounts,
    /// Further attempts after a rejection.
    retries: u64,
    /// Admitted records: the times from their first attempts to their admissions.
    delays: Waits,
    /// Records that the modelled service finished: the times from their first attempts to then.
    pub(super) finished: Waits,
    pub(super) waiting: SimulatedBacklog,
    pub(super) largest: SimulatedBacklog,
    above: TimeAbove,
}

/// Times of records, in milliseconds.
pub type Waits = RecordTimes<NANOS_PER_MILLI>;

impl Waits {
    pub fn result(&self) -> SimulatedDelays {
        SimulatedDelays {
            p50: self.percentile(50, self.count()),
            p99: self.percentile(99, self.count()),
            max: self.percentile(100, self.count()),
        }
    }

    /// Returns the delay that this percentage of `records` does not exceed; `None` if it takes records that have none.
    fn percentile(&self, percent: u64, records: u64) -> Option<f64> {
        let rank = (records * percent).div_ceil(100).max(1);
        // The middle between two ranks, so that no rounding moves it to the next one.
        (rank <= self.count()).then(|| self.quantile((rank as f64 - 0.5) / self.count() as f64))
    }
}

/// One sending of a record. A client may send a rejected record again.
#[derive(Debug, Clone, Copy)]
pub struct SimulatedAttempt {
    pub client: u32,
    pub partition: u32,
    pub bytes: u32,
    /// From 1.
    pub number: u32,
    /// The time of the first attempt.
    pub sent: Time,
    /// The time of this attempt.
    pub arrived: Time,
}

/// Records that wait, and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct SimulatedBacklog {
    pub records: u64,
    pub bytes: u64,
}

impl SimulatedBacklog {
    /// Adds a record, and raises each number of `largest` to that of this backlog.
    pub fn add(&mut self, bytes: u32, largest: &mut SimulatedBacklog) {
        self.records += 1;
        self.bytes += u64::from(bytes);
        largest.records = largest.records.max(self.records);
        largest.bytes = largest.bytes.max(self.bytes);
    }

    pub fn remove(&mut self, bytes: u32) {
        self.records -= 1;
        self.bytes -= u64::from(bytes);
    }
}

/// The time in which at least one record had waited for longer than the threshold.
#[derive(Debug, Clone, Copy, Default)]
pub struct TimeAbove {
    total: Duration,
    /// Time until here is counted.
    until: Time,
}

impl TimeAbove {
    /// Counts a record that left at `now`, after it had exceeded the threshold at `since`. Records of a client leave in
    /// order, so the intervals do too.
    pub fn add(&mut self, since: Time, now: Time) {
        self.total += now.since(since.max(self.until));
        self.until = self.until.max(now);
    }

    pub fn seconds(&self) -> f64 {
        seconds(self.total.as_millis() as u64)
    }
}

impl Tally {
    /// Counts an admission.
    #[inline]
    pub fn admit(&mut self, attempt: &SimulatedAttempt, now: Time, threshold: Duration) {
        self.admitted += 1;
        self.delays.record(now.since(attempt.sent));
        self.leave(attempt.arrived, now, threshold);
    }

    /// Counts a rejection: with its reason, or as a retry if the client sends the record again.
    #[inline]
    pub fn reject(&mut self, reason: Option<Reason>, attempt: &SimulatedAttempt, now: Time, threshold: Duration) {
        match reason {
            Some(reason) => self.rejected.add(reason),
            None => self.retries += 1,
        }
        self.leave(attempt.arrived, now, threshold);
    }

    fn leave(&mut self, arrived: Time, now: Time, threshold: Duration) {
        if now.since(arrived) > threshold {
            self.above.add(arrived + threshold, now);
        }
    }

    /// Adds the counts of another client, but for its backlog and its time above the threshold.
    pub fn merge(&mut self, other: &Tally) {
        self.records += other.records;
        self.admitted += other.admitted;
        self.delayed += other.delayed;
        self.rejected.merge(&other.rejected);
        self.retries += other.retries;
        self.delays.add(&other.delays);
        self.finished.add(&other.finished);
    }

    /// Sums up.
    pub fn result(&self, name: &str) -> ClientResult {
        let rejected = self.rejected.iter().filter(|(_, count)| *count > 0);
        ClientResult {
            name: name.to_owned(),
            records: self.records,
            admitted: self.admitted,
            delayed: self.delayed,
            rejected: rejected.map(|(reason, count)| (<&str>::from(reason), count)).collect(),
            retries: self.retries,
            delay_seconds: self.delays.result(),
            p99_of_all: self.delays.percentile(99, self.admitted + self.rejected.total()),
            finish_seconds: (self.finished.count() > 0).then(|| self.finished.result()),
            backlog: self.largest,
            seconds_above: Some(self.above.seconds()),
        }
    }
}

/// Converts milliseconds to seconds.
pub(super) fn seconds(millis: u64) -> f64 {
    millis as f64 / 1e3
}

/// The result of one client, or of all together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClientResult {
    pub name: String,
    pub records: u64,
    pub admitted: u64,
    pub delayed: u64,
    /// Rejected records by reason, without those that were sent again.
    pub rejected: BTreeMap<&'static str, u64>,
    /// Further attempts after a rejection.
    pub retries: u64,
    pub delay_seconds: SimulatedDelays,
    /// The 99th percentile if a rejected record counts as one that waits for ever.
    #[serde(skip)]
    pub p99_of_all: Option<f64>,
    /// Times from the first attempt until the modelled service has finished the record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_seconds: Option<SimulatedDelays>,
    /// The largest backlog.
    pub backlog: SimulatedBacklog,
    /// The time in which a record had waited for longer than the threshold; `null` for all clients together.
    pub seconds_above: Option<f64>,
}

impl ClientResult {
    /// Returns the number of rejected records.
    pub fn rejected_total(&self) -> u64 {
        self.rejected.values().sum()
    }
}

/// Quantiles of times; `null` without a record.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SimulatedDelays {
    pub p50: Option<f64>,
    pub p99: Option<f64>,
    pub max: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_nanos(millis * NANOS_PER_MILLI)
    }

    fn attempt(at_ms: u64) -> SimulatedAttempt {
        SimulatedAttempt { client: 0, partition: 0, bytes: 0, number: 1, sent: at(at_ms), arrived: at(at_ms) }
    }

    #[test]
    fn quantiles_count_records_that_did_not_wait() {
        let mut tally = Tally::default();
        for wait in (0..97).map(|_| 0).chain([100, 200, 300]) {
            tally.records += 1;
            tally.admit(&attempt(1_000), at(1_000 + wait), Duration::from_secs(1));
        }
        let result = tally.result("a");
        let SimulatedDelays { p50, p99, max } = result.delay_seconds;
        assert_eq!((p50, p99, max), (Some(0.0), Some(0.2), Some(0.3)));
        assert_eq!(result.p99_of_all, Some(0.2));
        tally.reject(Some(Reason::Expired), &attempt(1_000), at(1_000), Duration::from_secs(1));
        assert_eq!(tally.result("a").p99_of_all, Some(0.3));
        tally.reject(Some(Reason::Expired), &attempt(1_000), at(1_000), Duration::from_secs(1));
        assert_eq!(tally.result("a").p99_of_all, None, "99 % of 102 records are more than were admitted");
        assert_eq!(tally.result("a").delay_seconds.p99, Some(0.2));
    }

    #[test]
    fn time_above_the_threshold_counts_once() {
        let mut tally = Tally::default();
        // Above one second from 1 s to 3 s, from 1.5 s to 3.5 s, and from 11 s to 12 s.
        for (arrived, left) in [(0, 3_000), (500, 3_500), (4_000, 4_900), (10_000, 12_000)] {
            tally.admit(&attempt(arrived), at(left), Duration::from_secs(1));
        }
        assert_eq!(tally.result("a").seconds_above, Some(3.5));
    }

    #[test]
    fn the_largest_backlog_is_kept() {
        let (mut backlog, mut largest) = (SimulatedBacklog::default(), SimulatedBacklog::default());
        backlog.add(10, &mut largest);
        backlog.add(5, &mut largest);
        backlog.remove(10);
        backlog.add(1, &mut largest);
        assert_eq!(largest, SimulatedBacklog { records: 2, bytes: 15 });
    }
}
