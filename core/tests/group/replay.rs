//! A newcomer reads a log that was compacted anyhow, and never trusts too much: `lo <= hold <= hi` for every seat, where
//! the hold is the one of a reader that saw the whole log.

use std::collections::HashMap;

use watermaster_core::group::record::Key;
use watermaster_core::group::seats::Seats;
use watermaster_core::units::Time;

use crate::log::{Entry, Log};
use crate::support::random::Random;

/// Replays the log of a run from `starts` random moments, each beside a reader of the whole log.
pub fn check(log: &Log, random: &mut Random, starts: usize) -> usize {
    let mut exact = 0;
    for _ in 0..starts {
        let start = random.below(log.end() + 1);
        exact += usize::from(check_from(log, random, start));
    }
    exact
}

/// Returns whether the newcomer knew every hold exactly in the end.
fn check_from(log: &Log, random: &mut Random, start: u64) -> bool {
    let mut whole = Seats::new(0);
    let mut newcomer = Seats::new(start);
    let left = left_by_compaction(log, random, start);
    for (offset, record) in log.entries() {
        let now = Time::from_nanos(offset);
        whole.apply(now, offset, &record).expect("the whole log has no gap");
        assert!(whole.are_exact(), "a reader of the whole log knows every hold");
        if offset >= start || left.contains(&offset) {
            newcomer.apply(now, offset, &record).expect("no gap from the start on");
        }
        if offset + 1 == start {
            newcomer.finish_prefix(now);
        }
        if offset + 1 >= start {
            compare(&whole, &newcomer, start, offset);
        }
    }
    newcomer.are_exact()
}

fn compare(whole: &Seats, newcomer: &Seats, start: u64, offset: u64) {
    for (key, seat) in whole.iter() {
        let hi = newcomer.get(key).map_or(0, |seen| seen.hi);
        let lo = newcomer.get(key).map_or(0, |seen| seen.lo);
        let hold = seat.hi;
        assert!(lo <= hold && hold <= hi, "{key} at {offset}, start {start}: {lo} <= {hold} <= {hi}");
    }
    for (key, seen) in newcomer.iter() {
        let hold = whole.get(key).map_or(0, |seat| seat.hi);
        assert!(seen.lo <= hold, "{key} at {offset}, start {start}: the newcomer believes {} of {hold}", seen.lo);
    }
}

/// The offsets below `start` that are still there: the last post and the last bound of each key, and any others.
fn left_by_compaction(log: &Log, random: &mut Random, start: u64) -> Vec<u64> {
    let below: Vec<Entry> = log.entries().take_while(|&(offset, _)| offset < start).collect();
    let mut last: HashMap<(Key, bool), u64> = HashMap::new();
    for (offset, record) in &below {
        last.insert((record.subject().clone(), record.is_of_post()), *offset);
    }
    let kept = [0, 100, 5_000, 9_900][random.index(4)];
    let last: Vec<u64> = last.into_values().collect();
    below.iter().map(|&(offset, _)| offset).filter(|offset| last.contains(offset) || random.chance(kept)).collect()
}
