//! Finds the smallest capacity that keeps a promise to a client.

use std::time::Duration;

use super::replay::Outcome;
use super::tally::ClientResult;

/// The precision of the answer: one part in 200.
const PRECISION: u64 = 200;

/// The bound that a capacity has to keep.
#[derive(Debug, Clone, PartialEq)]
pub struct Goal {
    /// The client that it is about; `None` for each client.
    pub client: Option<String>,
    pub bound: Bound,
}

/// A bound on the delays or the rejections of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// 99 of 100 records are admitted within this time. A rejected record counts as one that is not.
    P99(Duration),
    /// At most this many of a million records are rejected.
    Rejected(u32),
}

impl Goal {
    /// Returns whether the outcome of a simulation keeps the bound; `None` if no record of the client was counted.
    pub fn is_met(&self, outcome: &Outcome) -> Option<bool> {
        let named = |client: &&ClientResult| self.client.as_ref().is_none_or(|name| client.name == *name);
        let mut clients = outcome.clients.iter().filter(named).peekable();
        clients.peek()?;
        Some(clients.all(|client| self.bound.is_kept(client)))
    }
}

impl Bound {
    fn is_kept(self, client: &ClientResult) -> bool {
        match self {
            Bound::P99(bound) => client.p99_of_all.is_some_and(|p99| p99 <= bound.as_secs_f64()),
            Bound::Rejected(millionths) => {
                u128::from(client.rejected_total()) * 1_000_000 <= u128::from(millionths) * u128::from(client.records)
            }
        }
    }
}

/// The answer to a goal.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchResult {
    /// The smallest capacity, to half a percent, and its outcome; `None` if the largest one does not suffice.
    pub answer: Option<(u64, Outcome)>,
    /// The number of simulations.
    pub runs: u32,
    /// The steps beside the answer agree with it: a larger capacity suffices, too, and a smaller one does not.
    pub monotone: bool,
}

/// Bisects the capacities from 1 to `largest`. Returns `None` if no record of the client was counted.
///
/// # Errors
/// Those of `simulate`.
pub fn find<E>(
    goal: &Goal, largest: u64, mut simulate: impl FnMut(u64) -> Result<Outcome, E>,
) -> Result<Option<SearchResult>, E> {
    let mut runs = 0;
    let mut try_out = |capacity: u64| {
        runs += 1;
        simulate(capacity).map(|outcome| goal.is_met(&outcome).map(|met| (met, outcome)))
    };
    let (mut low, mut high) = (0, largest.max(1));
    let Some((met, mut outcome)) = try_out(high)? else { return Ok(None) };
    if !met {
        return Ok(Some(SearchResult { answer: None, runs, monotone: true }));
    }
    while high - low > (high / PRECISION).max(1) {
        let middle = low + (high - low) / 2;
        match try_out(middle)? {
            Some((true, better)) => (high, outcome) = (middle, better),
            _ => low = middle,
        }
    }
    let step = (high / PRECISION).max(1);
    let mut agrees = |capacity, expected| Ok(try_out(capacity)?.is_some_and(|(met, _)| met == expected));
    let monotone = (high == largest || agrees(high + step, true)?) && (low <= step || agrees(low - step, false)?);
    Ok(Some(SearchResult { answer: Some((high, outcome)), runs, monotone }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tally::{Tally, seconds};
    use super::*;

    /// The outcome of one record that waits for this long.
    fn waited(delay: Duration) -> Outcome {
        let client =
            ClientResult { p99_of_all: Some(seconds(delay.as_millis() as u64)), ..Tally::default().result("a") };
        Outcome { used: 1.0, largest_window: 0, service: None, total: client.clone(), clients: vec![client] }
    }

    proptest! {
        #[test]
        fn the_answer_is_within_half_a_percent(largest in 1..1_000_000_u64, part in 0.0..1.2_f64) {
            let needed = ((largest as f64 * part) as u64).max(1);
            let goal = Goal { client: None, bound: Bound::P99(Duration::from_secs(1)) };
            let delay = |capacity| Duration::from_secs(if capacity >= needed { 1 } else { 2 });
            let found = find(&goal, largest, |capacity| Ok::<_, ()>(waited(delay(capacity)))).unwrap().unwrap();
            match found.answer {
                None => prop_assert!(needed > largest),
                Some((answer, outcome)) => {
                    let precision = (answer / PRECISION).max(1);
                    prop_assert!((needed..needed + precision).contains(&answer), "{answer}, {needed}");
                    prop_assert_eq!(outcome, waited(delay(answer)));
                }
            }
            prop_assert!(found.monotone && found.runs <= 24);
        }
    }

    #[test]
    fn a_result_that_is_not_monotone_is_noticed() {
        let goal = Goal { client: None, bound: Bound::P99(Duration::from_secs(1)) };
        // 2 000 suffices, and 2 010 does not.
        let delay = |capacity: u64| {
            Duration::from_secs(if (2_000..2_005).contains(&capacity) || capacity > 2_050 { 1 } else { 2 })
        };
        let found = find(&goal, 4_002, |capacity| Ok::<_, ()>(waited(delay(capacity)))).unwrap().unwrap();
        assert!(!found.monotone, "{found:?}");
    }

    #[test]
    fn a_client_without_a_record_has_no_answer() {
        let goal = Goal { client: Some("b".to_owned()), bound: Bound::Rejected(0) };
        assert_eq!(find(&goal, 10, |_| Ok::<_, ()>(waited(Duration::ZERO))), Ok(None));
    }

    #[test]
    fn rejections_are_bounded_by_their_part() {
        let client = |rejected| ClientResult {
            records: 2_000,
            rejected: [("expired", rejected)].into(),
            ..Tally::default().result("a")
        };
        let bound = Bound::Rejected(1_000);
        assert_eq!([1, 2, 3].map(|rejected| bound.is_kept(&client(rejected))), [true, true, false]);
    }
}
