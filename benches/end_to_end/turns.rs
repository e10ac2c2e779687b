//! The order in which the programs run.

use crate::runner::Runner;

/// Runs each program `pairs` times, in alternating order, so that a drift of the machine affects all programs alike.
/// Returns the results of each program in the order of the pairs.
pub fn in_turn<T>(pairs: usize, runners: &[Runner], mut run: impl FnMut(&Runner) -> T) -> Vec<Vec<T>> {
    let mut all: Vec<Vec<T>> = runners.iter().map(|_| Vec::new()).collect();
    for pair in 0..pairs {
        for step in 0..runners.len() {
            let n = if pair % 2 == 0 { step } else { runners.len() - 1 - step };
            eprint!("pair {} of {pairs}: {:<33} ", pair + 1, runners[n].name);
            all[n].push(run(&runners[n]));
        }
    }
    all
}
