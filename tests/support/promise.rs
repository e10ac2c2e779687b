//! The most records that an independent reader of the target may find in any window of one cycle.
//!
//! The program promises at most `capacity` decisions in any window (t − cycle, t]. A reader sees append times instead.
//! Rounds alternate with decisions: the records admitted in one phase are appended in the following round, and no
//! decision is made meanwhile. So of all rounds that touch a window by append time, only the first can hold records
//! admitted before the window, and all other records were admitted inside it: at most capacity + one round's records.
//! After a kill, an uncommitted round is appended again, which adds one round.
//!
//! In mode `shape`, a round holds at most the records that the leaky bucket passes in one phase: its depth,
//! max(1, burst · capacity, two commit intervals' worth), plus one commit interval's worth, which drains meanwhile.

use std::time::Duration;

use super::record::Record;

/// The delay with which a thread may resume on a busy machine; it prolongs a phase, which lasts for a commit interval.
const JITTER: Duration = Duration::from_millis(25);

/// The configuration from which the bound follows.
#[derive(Debug, Clone, Copy)]
pub struct Promise {
    pub capacity: u64,
    pub cycle: Duration,
    pub commit_interval: Duration,
    /// The burst, in percent of the capacity.
    pub burst_percent: u64,
}

impl Promise {
    /// Returns the most records of one round.
    pub fn round(&self) -> u64 {
        let depth = (self.capacity * self.burst_percent).div_ceil(100).max(self.worth(2 * self.commit_interval)).max(1);
        depth + self.worth(self.commit_interval + JITTER)
    }

    /// Returns the most records in any window, after this many kills.
    pub fn bound(&self, kills: u64) -> u64 {
        self.capacity + self.round() * (1 + kills.min(1))
    }

    /// Panics if the promise was broken, or if the load stayed far below the bound, so that the test is inconclusive.
    pub fn assert_kept(&self, target: &[Record], kills: u64) {
        let most = self.most_in_any_window(target);
        let (capacity, bound) = (self.capacity, self.bound(kills));
        eprintln!("most in any window of {:?}: {most} (capacity {capacity}, bound {bound})", self.cycle);
        assert!(most <= bound, "{most} records within {:?}: over {bound}, with a capacity of {capacity}", self.cycle);
        assert!(
            most * 10 >= capacity * 9,
            "only {most} of {capacity} records in the fullest window: the load is too small"
        );
    }

    /// Returns the most records with append times in any window of one cycle.
    pub fn most_in_any_window(&self, target: &[Record]) -> u64 {
        let mut times: Vec<i64> = target.iter().map(|record| record.timestamp).collect();
        times.sort_unstable();
        // The broker truncates its times to milliseconds: records less than this apart were certainly within a cycle.
        let window = self.cycle.as_millis() as i64 - 1;
        let mut oldest = 0;
        let mut most = 0;
        for (newest, time) in times.iter().enumerate() {
            while times[oldest] <= time - window {
                oldest += 1;
            }
            most = most.max(newest + 1 - oldest);
        }
        most as u64
    }

    fn worth(&self, time: Duration) -> u64 {
        let records = u128::from(self.capacity) * time.as_nanos();
        records.div_ceil(self.cycle.as_nanos()) as u64
    }
}
