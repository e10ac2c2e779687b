//! The rate that the service finishes.

use std::collections::VecDeque;
use std::time::Duration;

use super::{MILLI, SECOND};
use crate::units::{Time, nanos};

/// The longest history.
const MAX_AGE: u64 = 60 * SECOND;
/// A history that is nearly as long is enough, with however few records.
const LONG_AGE: u64 = 58 * SECOND;
/// A shorter history needs this many records.
const MIN_RECORDS: i64 = 200;

/// The commits of the last minute.
#[derive(Debug, Default)]
pub(super) struct History {
    polls: VecDeque<Poll>,
}

#[derive(Debug)]
struct Poll {
    at: Time,
    /// The last commit of each partition.
    commits: Vec<(Time, i64)>,
    /// The offsets that are none of our records: the sum of all ends less the records that were admitted.
    others: i128,
}

impl History {
    pub(super) fn clear(&mut self) {
        self.polls.clear();
    }

    pub(super) fn push(&mut self, at: Time, commits: Vec<(Time, i64)>, others: i128) {
        self.polls.push_back(Poll { at, commits, others });
        while self.polls.len() > 1 && self.polls.front().is_some_and(|poll| at.nanos_since(poll.at) > MAX_AGE) {
            self.polls.pop_front();
        }
    }

    /// The time that the history covers, in nanoseconds.
    pub(super) fn age(&self) -> u64 {
        self.polls.back().zip(self.polls.front()).map_or(0, |(newest, oldest)| newest.at.nanos_since(oldest.at))
    }

    /// The rate over the shortest history of at least `window` and two gaps that holds enough records, in thousandths
    /// of a record per cycle: the committed offsets of each partition from commit to commit, less the offsets that
    /// are not our records. `None` if the history is too short.
    pub(super) fn rate(&self, window: u64, gap: u64, cycle: Duration) -> Option<u64> {
        let newest = self.polls.back()?;
        let per_cycle = i128::from(nanos(cycle)) * i128::from(MILLI);
        for (index, old) in self.polls.iter().enumerate().rev() {
            let age = newest.at.nanos_since(old.at);
            if age < window.max(2 * gap) {
                continue;
            }
            let (mut rate, mut records) = (0, 0);
            for ((since, from), (until, to)) in old.commits.iter().zip(&newest.commits) {
                if until > since {
                    rate += i128::from(to - from) * per_cycle / i128::from(until.nanos_since(*since));
                    records += to - from;
                }
            }
            if records >= MIN_RECORDS || index == 0 && age >= LONG_AGE {
                let others = (newest.others - old.others) * per_cycle / i128::from(age.max(1));
                return Some(u64::try_from((rate - others).max(0)).unwrap_or(u64::MAX));
            }
        }
        None
    }
}
