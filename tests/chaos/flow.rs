//! When outputs of each source partition were seen: how long a fault was felt.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use serde_json::Value;

/// A source topic's number, and a partition.
pub type Place = (u8, i32);

/// All that the oracle told, in ms since 1970, to a twentieth of a second.
#[derive(Debug, Default)]
pub struct Flow(Mutex<BTreeMap<Place, Vec<u64>>>);

impl Flow {
    fn seen(&self) -> MutexGuard<'_, BTreeMap<Place, Vec<u64>>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes up what the oracle saw since it spoke last.
    pub fn hear(&self, news: &Value) {
        let mut seen = self.seen();
        for (place, times) in news["flow"].as_object().into_iter().flatten() {
            let place = place.split_once('/').and_then(|(t, p)| Some((t.parse().ok()?, p.parse().ok()?)));
            let times = times.as_array().into_iter().flatten().filter_map(Value::as_u64);
            seen.entry(place.expect("the oracle writes topic/partition")).or_default().extend(times);
        }
    }

    /// Whether anything ever came out of a partition.
    pub fn knows(&self, place: Place) -> bool {
        self.seen().contains_key(&place)
    }

    /// When an output of each partition had been seen after this time, or those of which none was.
    ///
    /// `partitions`: so many there are at least.
    pub fn of_all_after(&self, time: u64, partitions: usize) -> Result<u64, Vec<Place>> {
        let seen = self.seen();
        let first = |times: &[u64]| times.get(times.partition_point(|at| *at <= time)).copied();
        let silent: Vec<Place> =
            seen.iter().filter(|(_, times)| first(times).is_none()).map(|(place, _)| *place).collect();
        if !silent.is_empty() || seen.len() < partitions {
            return Err(silent);
        }
        Ok(seen.values().filter_map(|times| first(times)).max().unwrap_or(time))
    }

    /// When the first of these partitions came out again after its longest silence since this time: before that, what was in
    /// flight may have come.
    pub fn first_again(&self, from: u64, places: &[Place]) -> Option<u64> {
        let seen = self.seen();
        places.iter().filter_map(|place| longest(seen.get(place)?, from)).map(|(_, end)| end).min()
    }

    /// For how long, in ms, no output of some partition was seen, at most; counted from this time on.
    pub fn longest_silence(&self, from: u64) -> u64 {
        self.seen().values().filter_map(|times| longest(times, from)).map(|(length, _)| length).max().unwrap_or(0)
    }
}

/// The longest time without an output since `from`, and when it ended.
fn longest(times: &[u64], from: u64) -> Option<(u64, u64)> {
    let after = times[times.partition_point(|at| *at <= from)..].iter();
    after.scan(from, |before, at| Some((at - std::mem::replace(before, *at), *at))).max()
}
