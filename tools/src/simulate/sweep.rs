//! The points of a sweep, and their simulations on several threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::{collections::BTreeSet, iter, num::NonZeroUsize, thread};

use itertools::Itertools as _;
use watermaster_core::policy::{Lending, Mode, Policy};
use watermaster_core::units::MAX_CAPACITY;

/// The most capacities of a sweep.
const MAX_CAPACITIES: usize = 1_000;

/// Capacities in order: `2000`, `2000,2500` or `1600..5000/200`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacities(pub Vec<u64>);

/// Parses capacities.
pub fn capacities(text: &str) -> Result<Capacities, &'static str> {
    let number = |text: &str| text.trim().parse().ok().filter(|n| (1..=MAX_CAPACITY).contains(n));
    let list = || {
        let Some((from, rest)) = text.split_once("..") else {
            return text.split(',').map(number).collect::<Option<BTreeSet<u64>>>().map(Vec::from_iter);
        };
        let (to, step) = rest.split_once('/')?;
        let range = (number(from)?..=number(to)?).step_by(number(step)? as usize);
        Some(range.take(MAX_CAPACITIES + 1).collect())
    };
    let few = list().filter(|list| (1..=MAX_CAPACITIES).contains(&list.len()));
    let allowed = "allowed: N, N,N or FROM..TO/STEP; N from 1 to 1000000000000, at most 1000 of them";
    few.map(Capacities).ok_or(allowed)
}

/// The rules of a simulation, but for the capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    pub mode: Mode,
    pub lending: Lending,
}

impl Rules {
    /// Returns all combinations; an empty list stands for what is configured.
    pub fn all(modes: &[Mode], lendings: &[Lending], policy: &Policy) -> Vec<Rules> {
        let (mode, lending) = ([policy.mode], [policy.lending]);
        let modes = if modes.is_empty() { &mode } else { modes };
        let lendings = if lendings.is_empty() { &lending } else { lendings };
        let pairs = modes.iter().cartesian_product(lendings);
        pairs
            .map(|(mode, lending)| Rules { mode: *mode, lending: *lending })
            .unique_by(|rules| (<&str>::from(rules.mode), <&str>::from(rules.lending)))
            .collect()
    }

    /// Returns the policy with these rules and a capacity.
    pub fn policy(self, capacity: u64, policy: &Policy) -> Policy {
        let Rules { mode, lending } = self;
        Policy { capacity, mode, lending, ..policy.clone() }
    }
}

/// Does `count` independent pieces of work on this many threads. The results are in order, and do not depend on the
/// number of threads.
///
/// # Errors
/// The first error in the order of the pieces.
pub fn in_parallel<T: Send, E: Send>(
    jobs: NonZeroUsize, count: usize, work: impl Fn(usize) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let next = AtomicUsize::new(0);
    // Each thread takes the next piece, until none is left.
    let of_thread = || {
        let pieces = iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)).filter(|index| *index < count));
        pieces.map(|index| (index, work(index))).collect::<Vec<_>>()
    };
    let mut results: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs.get().min(count)).map(|_| scope.spawn(of_thread)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no piece panics")).collect()
    });
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn capacities_are_lists_and_ranges() {
        let parsed = |text: &str| capacities(text).map(|capacities| capacities.0);
        assert_eq!(parsed("2000"), Ok(vec![2_000]));
        assert_eq!(parsed("3, 1"), Ok(vec![1, 3]));
        assert_eq!(parsed("10..20/4"), Ok(vec![10, 14, 18]));
        for wrong in ["", "0", "1,", "5..4/1", "1..5", "1..5/0", "1..1000000/1", "a", "-1"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn results_are_in_order_with_any_number_of_threads() {
        for jobs in [1, 2, 7] {
            let jobs = NonZeroUsize::new(jobs).unwrap();
            assert_eq!(in_parallel(jobs, 20, Ok::<_, ()>).unwrap(), (0..20).collect::<Vec<_>>());
            let failed = in_parallel(jobs, 20, |index| if index > 4 { Err(index) } else { Ok(()) });
            assert_eq!(failed, Err(5));
        }
        // The first piece ends last.
        let (sender, receiver) = std::sync::mpsc::channel();
        let (sender, receiver) = (Mutex::new(sender), Mutex::new(receiver));
        let work = |index| {
            if index == 0 {
                receiver.lock().unwrap().recv().unwrap();
            } else if index == 9 {
                sender.lock().unwrap().send(()).unwrap();
            }
            Ok::<_, ()>(index)
        };
        assert_eq!(in_parallel(NonZeroUsize::new(2).unwrap(), 10, work).unwrap(), (0..10).collect::<Vec<_>>());
    }
}
