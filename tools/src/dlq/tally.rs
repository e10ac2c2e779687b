//! The outcome of a job, and the wait for brokers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Serialize;

/// The time that brokers may be away before the redrive gives up.
const PATIENCE: Duration = Duration::from_secs(60);
/// The interval of lines while they are away.
const WAITING_INTERVAL: Duration = Duration::from_secs(10);

/// The outcome of a job.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub(super) struct RedriveCounts {
    /// Dead letters that were read, selected or not.
    pub(super) read: u64,
    pub(super) redriven: u64,
    pub(super) parked: BTreeMap<&'static str, u64>,
    /// Dead letters that `dlq close` closed.
    #[serde(skip)]
    pub(super) closed: u64,
    /// Selected dead letters that are not open: a job has done them, or they are closed.
    pub(super) skipped: u64,
}

impl RedriveCounts {
    pub(super) fn add(&mut self, other: RedriveCounts) {
        self.read += other.read;
        self.redriven += other.redriven;
        self.closed += other.closed;
        self.skipped += other.skipped;
        for (why, count) in other.parked {
            *self.parked.entry(why).or_default() += count;
        }
    }

    pub(super) fn decided(&self) -> u64 {
        self.redriven + self.closed + self.parked.values().sum::<u64>()
    }

    pub(super) fn parked_text(&self) -> String {
        let each: Vec<String> = self.parked.iter().map(|(why, count)| format!("{count} {why}")).collect();
        if each.is_empty() { "0".to_owned() } else { each.join(", ") }
    }
}

/// Waits for brokers, with a line at intervals.
pub(super) struct BrokerWait {
    begun: Instant,
    next: Instant,
}

impl BrokerWait {
    pub(super) fn new() -> BrokerWait {
        let begun = Instant::now();
        BrokerWait { begun, next: begun + WAITING_INTERVAL }
    }

    /// Returns whether to try again.
    pub(super) fn goes_on(&mut self, error: &dyn std::fmt::Display) -> bool {
        if Instant::now() >= self.next {
            self.next += WAITING_INTERVAL;
            eprintln!("waiting for the brokers: {error}");
        }
        self.begun.elapsed() < PATIENCE
    }
}
