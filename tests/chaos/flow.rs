//! The times at which outputs of each source partition were seen, to measure the effect of a fault.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use serde_json::Value;

/// The number of a source topic, and a partition.
pub type SourcePartition = (u8, i32);

/// The output times that the oracle reported, in ms since 1970, to a twentieth of a second.
#[derive(Debug, Default)]
pub struct Flow(Mutex<BTreeMap<SourcePartition, Vec<u64>>>);

impl Flow {
    fn seen(&self) -> MutexGuard<'_, BTreeMap<SourcePartition, Vec<u64>>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Adds the times of a report of the oracle.
    pub fn add(&self, news: &Value) {
        let mut seen = self.seen();
        for (partition, times) in news["flow"].as_object().into_iter().flatten() {
            let partition = partition.split_once('/').and_then(|(t, p)| Some((t.parse().ok()?, p.parse().ok()?)));
            let times = times.as_array().into_iter().flatten().filter_map(Value::as_u64);
            seen.entry(partition.expect("the oracle writes topic/partition")).or_default().extend(times);
        }
    }

    /// Tells whether any output of a partition was seen.
    pub fn knows(&self, partition: SourcePartition) -> bool {
        self.seen().contains_key(&partition)
    }

    /// Returns the time by which an output of each partition was seen after `time`, or the partitions without one.
    /// Fails also if fewer than `partitions` partitions are known.
    pub fn of_all_after(&self, time: u64, partitions: usize) -> Result<u64, Vec<SourcePartition>> {
        let seen = self.seen();
        let first = |times: &[u64]| times.get(times.partition_point(|at| *at <= time)).copied();
        let silent: Vec<SourcePartition> =
            seen.iter().filter(|(_, times)| first(times).is_none()).map(|(place, _)| *place).collect();
        if !silent.is_empty() || seen.len() < partitions {
            return Err(silent);
        }
        Ok(seen.values().filter_map(|times| first(times)).max().unwrap_or(time))
    }

    /// Returns the earliest time at which one of these partitions ended its longest silence since `from`. Earlier
    /// outputs may have been in flight.
    pub fn first_again(&self, from: u64, partitions: &[SourcePartition]) -> Option<u64> {
        let seen = self.seen();
        partitions.iter().filter_map(|partition| longest(seen.get(partition)?, from)).map(|(_, end)| end).min()
    }

    /// Returns the longest time without an output of some partition since `from`, in ms.
    pub fn longest_silence(&self, from: u64) -> u64 {
        self.seen().values().filter_map(|times| longest(times, from)).map(|(length, _)| length).max().unwrap_or(0)
    }
}

/// Returns the longest time without an output since `from`, and its end.
fn longest(times: &[u64], from: u64) -> Option<(u64, u64)> {
    let after = times[times.partition_point(|at| *at <= from)..].iter();
    after.scan(from, |before, at| Some((at - std::mem::replace(before, *at), *at))).max()
}
