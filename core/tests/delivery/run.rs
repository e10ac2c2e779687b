//! Runs of seeds.

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::{coverage::Coverage, planted::Plant, trace, world::World};

/// A description of the broken invariant.
#[derive(Debug)]
pub struct Broken(pub String);

/// Runs one seed.
pub fn run(seed: u64, exactly_once: bool, plant: Option<Plant>) -> Result<Coverage, Broken> {
    let ended = panic::catch_unwind(AssertUnwindSafe(|| World::new(seed, exactly_once, plant).run()));
    match ended {
        Ok(ended) => ended.map_err(Broken),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            Err(Broken(format!("panicked: {}", text.unwrap_or("without a message"))))
        }
    }
}

/// Runs one seed. If an invariant breaks, runs it again with a trace and panics with its last events.
pub fn check(seed: u64, exactly_once: bool) -> Coverage {
    match run(seed, exactly_once, None) {
        Ok(coverage) => coverage,
        Err(_) => {
            trace::start();
            let again = run(seed, exactly_once, None);
            let lines = trace::stop().join("\n");
            let Err(Broken(why)) = again else {
                panic!("seed {seed} failed once and passed when run again: the simulation is not deterministic")
            };
            panic!(
                "{lines}\n\nseed {seed} (exactly once: {exactly_once}): {why}\n\nagain: \
                 WATERMASTER_SIM_SEED={seed} cargo test -p watermaster-core --test delivery\n"
            );
        }
    }
}

/// Runs these seeds on all processors.
pub fn check_all(seeds: std::ops::Range<u64>, exactly_once: bool) -> Coverage {
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let mut sum = Coverage::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return sum;
            }
            sum.add(&check(seed, exactly_once));
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut sum = Coverage::default();
        for worker in workers {
            match worker.join() {
                Ok(part) => sum.add(&part),
                Err(panic) => panic::resume_unwind(panic),
            }
        }
        sum
    })
}
