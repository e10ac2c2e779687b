//! What an independent reader of the target may find in any window of one cycle.
//!
//! The program promises at most `capacity` decisions in any window (t − cycle, t]. A reader sees append times instead.
//! Rounds alternate with decisions: what is decided in one phase is appended in the round after it, and nothing is
//! decided meanwhile. So of all rounds that touch a window by append time, only the first can hold records that were
//! decided before the window, and everything else was decided inside it: at most capacity + one round's records.
//! An uncommitted round is appended again after a kill: one round more.
//!
//! A round's records (shape mode) are what the leaky bucket lets through in one phase: its depth,
//! max(1, burst · capacity, two commit intervals' worth), plus what drains while the phase lasts, one commit interval.

use std::time::Duration;

use super::record::Record;

/// A phase of decisions lasts for a commit interval; on a busy machine its thread may get back this much later.
const JITTER: Duration = Duration::from_millis(25);

/// The configuration that the bound follows from.
#[derive(Debug, Clone, Copy)]
pub struct Promise {
    pub capacity: u64,
    pub cycle: Duration,
    pub commit_interval: Duration,
    /// Parts of the capacity, in percent.
    pub burst_percent: u64,
}

impl Promise {
    /// The most records of one round.
    pub fn round(&self) -> u64 {
        let depth = (self.capacity * self.burst_percent).div_ceil(100).max(self.worth(2 * self.commit_interval)).max(1);
        depth + self.worth(self.commit_interval + JITTER)
    }

    /// The most records in any window after so many kills.
    pub fn bound(&self, kills: u64) -> u64 {
        self.capacity + self.round() * (1 + kills.min(1))
    }

    /// Panics if the promise was broken, or if the load never came near it, so that the test proved nothing.
    pub fn assert_kept(&self, target: &[Record], kills: u64) {
        let most = self.most_in_any_window(target);
        let (capacity, bound) = (self.capacity, self.bound(kills));
        eprintln!("most in any window of {:?}: {most} (capacity {capacity}, bound {bound})", self.cycle);
        assert!(most <= bound, "{most} records within {:?}: over {bound}, with a capacity of {capacity}", self.cycle);
        assert!(most * 10 >= capacity * 9, "only {most} of {capacity} records in the fullest window: no flood");
    }

    /// The most records with append times in any window of one cycle.
    pub fn most_in_any_window(&self, target: &[Record]) -> u64 {
        let mut times: Vec<i64> = target.iter().map(|record| record.timestamp).collect();
        times.sort_unstable();
        // The broker cuts its times to milliseconds: those less than this apart were really within a cycle.
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
