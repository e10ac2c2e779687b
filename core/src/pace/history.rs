//! The rate that the service finishes.

use std::collections::VecDeque;
use std::time::Duration;

use super::{MILLI, SECOND, signals::LastCommit};
use crate::units::{Time, nanos};

/// The longest history.
const MAX_AGE: u64 = 60 * SECOND;
/// A history that is nearly as long is enough, with however few records.
const LONG_AGE: u64 = 58 * SECOND;
/// A shorter history needs this many records.
const MIN_RECORDS: i64 = 200;
/// The least length of a window with an earliest beginning.
const LEAST_WINDOW: u64 = 5 * SECOND;

/// The commits of the last minute.
#[derive(Debug, Default)]
struct CommitHistory {
    polls: VecDeque<Poll>,
}

#[derive(Debug)]
struct Poll {
    at: Time,
    /// The last commit of each partition.
    commits: Vec<LastCommit>,
    /// The offsets that are none of our records: the sum of all ends less the records that were admitted.
    others: i128,
}

/// The part of a history over which a rate is measured.
pub(super) struct RateWindow {
    /// The least length, in nanoseconds; two gaps if that is more.
    pub(super) length: u64,
    pub(super) gap: u64,
    /// The earliest beginning. A window that begins there may be as short as [`LEAST_WINDOW`].
    pub(super) since: Option<Time>,
}

/// The units of a rate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Units {
    cycle: Duration,
    /// The most markers of transactions that our instances write to the target, per second.
    pub(super) markers: u64,
}

/// The rates that the service finishes.
#[derive(Debug)]
pub(super) struct FinishedRates {
    recent: CommitHistory,
    /// Observation: the commits of the last minute, also of times in which most partitions had nothing open.
    steady: CommitHistory,
    pub(super) units: Units,
    /// The rate of the last check, in thousandths of a record per cycle.
    pub(super) last: Option<u64>,
}

impl FinishedRates {
    pub(super) fn new(cycle: Duration, markers: u64) -> FinishedRates {
        let (recent, steady) = Default::default();
        FinishedRates { recent, steady, units: Units { cycle, markers }, last: None }
    }

    pub(super) fn clear(&mut self) {
        self.recent.polls.clear();
        self.steady.polls.clear();
    }

    /// Takes the commits of a poll. The recent rate is that of a service that is busy without a break.
    pub(super) fn push(&mut self, now: Time, commits: Vec<LastCommit>, others: i128, is_busy: bool, observes: bool) {
        if observes {
            self.steady.push(now, commits.clone(), others);
        }
        match is_busy {
            true => self.recent.push(now, commits, others),
            false => self.recent.polls.clear(),
        }
    }

    /// Measures the rate of a busy service, or of one that is on time.
    pub(super) fn measure(&mut self, is_steady: bool, window: &RateWindow) -> Option<u64> {
        let history = if is_steady { &self.steady } else { &self.recent };
        self.last = history.rate(window, &self.units);
        self.last
    }

    /// The rate of a service that is on time, over a window that is covered wholly.
    pub(super) fn long_steady(&self, window: &RateWindow) -> Option<u64> {
        (self.steady.age() > window.length).then(|| self.steady.rate(window, &self.units)).flatten()
    }
}

impl CommitHistory {
    fn push(&mut self, at: Time, commits: Vec<LastCommit>, others: i128) {
        self.polls.push_back(Poll { at, commits, others });
        while self.polls.len() > 1 && self.polls.front().is_some_and(|poll| at.nanos_since(poll.at) > MAX_AGE) {
            self.polls.pop_front();
        }
    }

    /// The time that the history covers, in nanoseconds.
    fn age(&self) -> u64 {
        self.polls.back().zip(self.polls.front()).map_or(0, |(newest, oldest)| newest.at.nanos_since(oldest.at))
    }

    /// The rate over the shortest part that fits the window and holds enough records, in thousandths of a record per
    /// cycle. `None` if the history is too short.
    fn rate(&self, window: &RateWindow, units: &Units) -> Option<u64> {
        let newest = self.polls.back()?;
        let is_before = |poll: &Poll| window.since.is_some_and(|since| poll.at < since);
        for (index, old) in self.polls.iter().enumerate().rev() {
            let age = newest.at.nanos_since(old.at);
            let is_last = index == 0 || is_before(&self.polls[index - 1]);
            let least = if is_last && window.since.is_some() { LEAST_WINDOW } else { window.length };
            if age >= least.max(2 * window.gap) {
                let (rate, records) = rate_between(old, newest, units);
                if records >= MIN_RECORDS || index == 0 && age >= LONG_AGE {
                    return Some(rate);
                }
            }
            if is_last {
                break;
            }
        }
        None
    }
}

/// Returns the rate between two polls, and the committed offsets between them.
///
/// The rate is the committed offsets of each partition from commit to commit, less the offsets that are not our
/// records. Records of other writers take work from the service as they are written. A marker of a transaction takes
/// none; it only has to leave the rate if the commits passed it.
fn rate_between(old: &Poll, newest: &Poll, units: &Units) -> (u64, i64) {
    let per_cycle = i128::from(nanos(units.cycle)) * i128::from(MILLI);
    let (mut rate, mut records) = (0, 0);
    // The time from commit to commit, and the time in which the records between them were written.
    let (mut time, mut written_in) = (0, 0);
    for (from, to) in old.commits.iter().zip(&newest.commits).filter(|(from, to)| to.at > from.at) {
        let between = i128::from(to.at.nanos_since(from.at));
        rate += i128::from(to.offset - from.offset) * per_cycle / between;
        records += to.offset - from.offset;
        time += between;
        written_in += i128::from(to.passed_until.nanos_since(from.passed_until));
    }
    let age = newest.at.nanos_since(old.at);
    let others = (newest.others - old.others) * per_cycle / i128::from(age.max(1));
    let markers = others.clamp(0, i128::from(units.markers) * per_cycle / i128::from(SECOND));
    let passed = markers * written_in / time.max(1);
    (u64::try_from((rate - (others - markers) - passed).max(0)).unwrap_or(u64::MAX), records)
}
